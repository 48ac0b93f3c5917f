"""A long mixed load on one daemon: its memory, descriptors and tasks must stop growing."""
