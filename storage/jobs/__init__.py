"""Queries on jobs, their specifications, copies, reviews, and the pay of replicas."""
