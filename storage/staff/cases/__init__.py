"""Queries: decisions about failed checks of devices, and about rewards."""
