"""Checks of settings and machine, with one warning for each risk."""
