"""A device as an exit: other people's connections leave through it, and its owner is paid."""
