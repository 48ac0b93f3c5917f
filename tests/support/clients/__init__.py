"""Clients of the proxy and of the API, and buyers."""
