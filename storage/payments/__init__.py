"""Queries on payments by providers, and on the money of them that goes back."""
