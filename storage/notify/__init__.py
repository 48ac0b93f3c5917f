"""Queries on webhooks."""
