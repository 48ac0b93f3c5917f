"""Queries: complaints about traffic: tickets, rules, and the search of access records."""
