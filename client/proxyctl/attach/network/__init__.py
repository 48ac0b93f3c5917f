"""The networks of a device: its own addresses and routes, and the guard of its home."""
