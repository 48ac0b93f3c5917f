"""The wall clock, in UTC; everything that needs the time is given one of these."""

import time
from collections.abc import Callable


def seconds() -> int:
    """Return whole seconds since 1970-01-01T00:00:00Z."""
    return time.time_ns() // 1_000_000_000


def milliseconds() -> int:
    """Return whole milliseconds since 1970-01-01T00:00:00Z."""
    return time.time_ns() // 1_000_000


def boottime() -> float:
    """Return seconds since the machine was started, those it slept among them; never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Attention:
    """For how long this process was there to notice things, counted at each look.

    What passes between two looks counts, but no more than `most`: a process that stood still, or
    slept with its machine, has noticed nothing meanwhile.

    Args:
        steady: a clock that nobody sets, in seconds.
        most: seconds.
    """

    def __init__(self, steady: Callable[[], float], most: float) -> None:
        self._steady = steady
        self._most = most
        self._looked_at = steady()
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return how long, up to the last look."""
        return self._seconds

    def look(self) -> None:
        """Note that somebody looks."""
        now = self._steady()
        self._seconds += min(now - self._looked_at, self._most)
        self._looked_at = now
