"""Attempts of devices at jobs, and the renewals of their leases."""
