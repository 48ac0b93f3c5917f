"""Queries on events, and on the replies of repeated requests."""
