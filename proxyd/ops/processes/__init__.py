"""A process among others: inherited sockets, its role, the service manager."""
