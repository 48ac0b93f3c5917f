"""Payouts of earned money to users, their methods and their batches."""
