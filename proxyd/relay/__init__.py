"""Moves bytes between a client and its target, every one metered."""
