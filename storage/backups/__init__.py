"""Backups of a whole database, and its move to another engine: tables, rows and their hashes."""
