"""Exits among the processes of a node: requests to the process that has the exits."""
