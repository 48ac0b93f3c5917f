"""The sensors of a device. An unreadable value is absent, and never 0."""
