"""Measurements side by side; they print ratios and assert nothing."""
