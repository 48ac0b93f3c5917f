"""Sessions of traffic: their sale, the leases of nodes, and the bytes used."""
