"""Queries on the public side of the service: invitations, texts, consents, and its status."""
