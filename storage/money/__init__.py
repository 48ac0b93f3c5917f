"""Queries on the ledger."""
