"""The public side of the service: the way to an account, its texts and consents, its status."""
