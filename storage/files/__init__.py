"""Queries on files and logs, and the files of logs."""
