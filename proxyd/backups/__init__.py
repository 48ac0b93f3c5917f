"""Backups of everything that the service needs, their restoration, and the move of its database."""
