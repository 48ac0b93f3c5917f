"""Clients of clusters."""
