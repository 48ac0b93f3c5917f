"""The way out: checks of targets, look-ups of their names, and dials."""
