"""Queries on reputations, and on jobs with known answers."""
