"""Connections: bounds on them, the bodies of requests, and replies that wait."""
