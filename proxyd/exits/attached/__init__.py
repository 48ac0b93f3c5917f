"""Attached exits: their port, their control connections, and TLS."""
