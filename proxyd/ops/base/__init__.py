"""Basics of operation: logs, errors of a start, keys, the database of a command, the logo."""
