"""The agent: its rounds, its daemons and its restraints."""
