"""Queries on devices, their benchmarks, their work, and tokens made by keys."""
