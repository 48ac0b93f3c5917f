"""Daemons in a test's event loop, and as processes."""
