"""Payouts of earned money: methods, rules, requests, batches, and their audit."""
