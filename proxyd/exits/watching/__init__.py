"""Checks of exits by requests whose answers are known."""
