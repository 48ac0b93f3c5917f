"""Queries on exits, and on the nodes that they are attached to."""
