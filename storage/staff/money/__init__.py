"""Queries: refunds, corrections, limits, judgements, and their approval by a second person."""
