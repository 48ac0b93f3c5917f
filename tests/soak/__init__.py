"""A long mixed load on one daemon: what it holds must stop growing."""
