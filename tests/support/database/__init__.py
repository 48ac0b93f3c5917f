"""Databases for tests, and what they hold."""
