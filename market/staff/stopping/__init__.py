"""Stops of users, sessions, keys, exits and jobs."""
