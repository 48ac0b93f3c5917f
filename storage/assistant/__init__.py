"""Queries on the assistant's photos and rewards."""
