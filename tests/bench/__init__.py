"""Measurements side by side; they print ratios and assert nothing."""

# First: what was imported of the data path before it would have all of it run interpreted.
import proxyd  # noqa: F401
