"""Routes of worker devices: tokens, work, benchmarks and reputations."""
