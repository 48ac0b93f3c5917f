"""The wall clock, in UTC; everything that needs the time is given one of these."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple


def seconds() -> int:
    """Return whole seconds since 1970-01-01T00:00:00Z."""
    return time.time_ns() // 1_000_000_000


def milliseconds() -> int:
    """Return whole milliseconds since 1970-01-01T00:00:00Z."""
    return time.time_ns() // 1_000_000


def boottime() -> float:
    """Return the seconds since the start of the machine, including its sleep; never set back."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Clocks(NamedTuple):
    """The clocks of a process.

    Attributes:
        seconds: the wall clock, in whole UTC seconds.
        milliseconds: the wall clock, in whole UTC milliseconds.
        boottime: a clock that goes on while the machine sleeps, in seconds.
        monotonic: a clock that is never set, in seconds.
    """

    seconds: Callable[[], int]
    milliseconds: Callable[[], int]
    boottime: Callable[[], float]
    monotonic: Callable[[], float]


MACHINE: Final = Clocks(seconds, milliseconds, boottime, time.monotonic)


class ObservedTime:
    """Monotonic time during which this process was running, counted at each `tick`.

    Suspends and stalls longer than `most` count as `most`: a process that stood still, or slept
    with its machine, has observed nothing meanwhile.

    Args:
        steady: a clock that is never set, in seconds.
        most: seconds.
    """

    def __init__(self, steady: Callable[[], float], most: float) -> None:
        self._steady = steady
        self._most = most
        self._ticked_at = steady()
        self._seconds = 0.0

    def seconds(self) -> float:
        """Return the running time in seconds, up to the last tick."""
        return self._seconds

    def tick(self) -> None:
        """Count the time since the last tick."""
        now = self._steady()
        self._seconds += min(now - self._ticked_at, self._most)
        self._ticked_at = now
