"""The public side of the service: its look, its texts, and its status."""
