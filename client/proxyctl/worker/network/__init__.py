"""Connections of a worker: outward, tunnels into jobs, and their ports."""
