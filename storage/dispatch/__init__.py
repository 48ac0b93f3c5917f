"""Queries that assign jobs to devices."""
