"""Stand-ins for payment providers."""
