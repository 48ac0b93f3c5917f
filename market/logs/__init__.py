"""Logs of jobs: writing, bounds, readers."""
