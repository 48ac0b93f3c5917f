"""What sockets and time cost: readiness, deadlines, turns, clocks, the loop itself."""
