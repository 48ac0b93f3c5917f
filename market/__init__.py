"""Rules of the marketplace: permissions, limits and prices."""
