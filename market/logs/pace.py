"""Pace of a log: a burst at any speed, then a steady rate.

A fast log is not refused. The reply names the time to wait, and the bytes of a sender that does not
wait are read later.
"""

from asyncio import sleep
from collections.abc import Callable

BURST_SECONDS = 8.0  # of the steady rate: most jobs never write such a burst
# A sender's request and its connection wait with it.
HOLD_MAX_SECONDS = 10.0


class Pace:
    """The pace of one log.

    Args:
        bytes_per_second: the steady rate; 0 for any.
        seconds: a clock that cannot be set, in seconds.
    """

    def __init__(self, bytes_per_second: int, seconds: Callable[[], float]) -> None:
        self._rate = bytes_per_second
        self._seconds = seconds
        self._debt_bytes = 0.0
        self._since = seconds()

    def take(self, size: int) -> None:
        """Count bytes that came."""
        if self._rate:
            self._pay()
            self._debt_bytes += size

    def wait_seconds(self) -> float:
        """Return the seconds that the sender should wait before it sends more."""
        if not self._rate:
            return 0.0
        self._pay()
        return max(0.0, self._debt_bytes / self._rate - BURST_SECONDS)

    async def hold(self) -> None:
        """Wait for the rest of the time, within a bound, for a sender that did not wait."""
        seconds = self.wait_seconds()
        if seconds:
            await sleep(min(seconds, HOLD_MAX_SECONDS))

    def _pay(self) -> None:
        now = self._seconds()
        self._debt_bytes = max(0.0, self._debt_bytes - (now - self._since) * self._rate)
        self._since = now
