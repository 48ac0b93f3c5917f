"""Exits: devices that carry buyers' connections. Attaches, chooses and dials them."""
