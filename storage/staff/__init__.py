"""Queries on staff, the log of their acts, and their search."""
