"""Exits among nodes: links between nodes, and exits that are lent."""
