"""The commands of an exit, and its owner's consent."""
