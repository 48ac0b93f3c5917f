"""Dials and relays: bytes between a daemon and a target."""
