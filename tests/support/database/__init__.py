"""Databases for tests, and their contents."""
