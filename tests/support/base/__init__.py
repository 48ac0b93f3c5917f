"""Waiting, clocks, ports, folders and other small parts of tests."""
