"""The commands of a worker."""
