"""Budgets of sessions in memory, and the writers of their counts."""
