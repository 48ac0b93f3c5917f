"""Topics: the units that touch the same rows, as actions of a node."""
