"""Several processes on the ports of one daemon: who starts them, watches them and ends them."""
