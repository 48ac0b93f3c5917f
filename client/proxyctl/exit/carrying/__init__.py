"""Work connections: the pool, the carrier, and datagrams."""
