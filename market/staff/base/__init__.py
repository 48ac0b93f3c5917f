"""Roles, callers, acts, and the log of the acts."""
