"""Exits among the processes of a node: questions to the process that has an exit."""
