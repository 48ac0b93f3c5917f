"""The agent: orders of the daemon, and the rules of the owner."""
