"""Sockets and time: readiness, deadlines, turns, clocks, the loop itself."""
