"""Exits: devices that carry buyers' connections. Who is attached, and how a target is dialled."""
