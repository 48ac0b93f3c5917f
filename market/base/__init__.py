"""Errors, identifiers, states, slots and other parts that every domain of the marketplace uses."""
