"""Workers: agents, sandboxes and jobs that attack them."""
