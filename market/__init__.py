"""The rules of the marketplace: who may do what, and what it costs."""
