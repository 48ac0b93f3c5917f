"""The way out: may a target be dialled, where is it, connect to it."""
