"""Photos: read, decoded within bounds, compared with those that were seen before."""
