"""Payments by providers, their refunds and disputes, and receipts."""
