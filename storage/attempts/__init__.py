"""Queries on attempts."""
