"""The wall clock, in UTC; everything that needs the time is given one of these."""

import time


def seconds() -> int:
    """Return whole seconds since 1970-01-01T00:00:00Z."""
    return time.time_ns() // 1_000_000_000


def milliseconds() -> int:
    """Return whole milliseconds since 1970-01-01T00:00:00Z."""
    return time.time_ns() // 1_000_000


def boottime() -> float:
    """Return seconds since the machine was started, those it slept among them; never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
