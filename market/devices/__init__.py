"""Devices of workers and exits: their tokens, and the benchmarks that they ran."""
