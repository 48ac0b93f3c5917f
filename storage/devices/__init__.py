"""Queries on devices, their work, and tokens made by keys."""
