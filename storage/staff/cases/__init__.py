"""Queries: decisions about failed checks of devices, rewards and appeals."""
