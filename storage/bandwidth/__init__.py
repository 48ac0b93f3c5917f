"""Queries on sessions of traffic, their addresses, use and nodes."""
