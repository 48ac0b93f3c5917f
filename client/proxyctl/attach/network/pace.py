"""How fast things may go: a bucket that fills steadily and may be overdrawn once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Pace:
    """Computes the wait after each taken amount.

    Args:
        per_second: how much flows in; 0 is no limit.
        burst_seconds: unused flow collects for this many seconds at most.
        now: a clock that never goes back, in seconds.
    """

    def __init__(self, per_second: float, burst_seconds: float, now: Callable[[], float]) -> None:
        self.per_second = per_second
        self._burst_seconds = burst_seconds
        self._now = now
        self._level = per_second * burst_seconds
        self._since = now()

    def change(self, per_second: float) -> None:
        """Change the rate."""
        if per_second != self.per_second:
            self.per_second = per_second
            self._level = min(self._level, per_second * self._burst_seconds)

    def take(self, amount: float) -> float:
        """Take an amount; return the seconds to wait until more may be taken, or 0."""
        if not self.per_second:
            return 0.0
        now = self._now()
        level = self._level + (now - self._since) * self.per_second
        self._level = min(level, self.per_second * self._burst_seconds) - amount
        self._since = now
        return -self._level / self.per_second if self._level < 0 else 0.0
