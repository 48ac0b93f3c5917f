"""A marketplace without a network: users, sessions, exits and jobs."""
