"""Machines, checkouts and installations."""
