"""Queries: stops of users, sessions, keys, exits and jobs."""
