"""Several processes on the ports of one daemon: their start, their watch and their end."""
