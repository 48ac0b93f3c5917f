"""Traffic while a database fails, and its records."""
