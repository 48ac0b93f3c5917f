"""Servers that a daemon or a device reaches."""
