"""The end of an account: its export, its closing, and its erasure."""
