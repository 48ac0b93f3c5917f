"""Sandboxes by bubblewrap."""
