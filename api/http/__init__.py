"""HTTP: limits, errors, and the values of requests."""
