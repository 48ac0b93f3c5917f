"""Routes of sessions of traffic, their use, and a client's own address."""
