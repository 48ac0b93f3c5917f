"""Connections through exits: dials, tunnels into jobs, and an exit's own address."""
