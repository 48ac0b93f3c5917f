"""Devices of workers and exits: their tokens and their reports."""
