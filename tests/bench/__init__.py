"""Measurements side by side; they print ratios and assert nothing."""

# First: an import of a data-path module before this one would leave the whole data path
# interpreted.
import proxyd  # noqa: F401
