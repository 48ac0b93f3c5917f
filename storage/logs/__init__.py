"""Queries on logs, and the files of logs."""
