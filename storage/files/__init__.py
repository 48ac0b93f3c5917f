"""Queries on files."""
