"""Deadlines that are all the same time away: one timer of the loop for any number of them."""

import asyncio
from typing import Protocol

CHECKS_PER_LIMIT = 20
LONGEST_PAUSE_SECONDS = 1.0


class Expiring(Protocol):
    """Whoever has only so much time."""

    def timed_out(self) -> None:
        """Act on the end of that time."""


class Deadlines:
    """Who has to be done within `seconds` of being added; told at most a twentieth of it late.

    `seconds` may be changed, for those too who are counted already: the oldest stay the first.

    Args:
        loop: the event loop.
        seconds: how long each may take.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self.seconds = seconds
        self._since: dict[Expiring, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def add(self, waiting: Expiring) -> None:
        """Begin to count for one; nothing changes for whoever is counted already."""
        self._since.setdefault(waiting, self._loop.time())
        if self._timer is None:
            self._check_later()

    def discard(self, waiting: Expiring) -> None:
        """Stop counting for one; nothing happens when it is not counted."""
        self._since.pop(waiting, None)

    def expire_oldest(self, seconds: float) -> bool:
        """End the time of the one that has taken most of it, if that is at least `seconds`.

        Returns:
            Whether there was one; it has been told.
        """
        waiting = next(iter(self._since), None)
        if waiting is None or self._since[waiting] + seconds > self._loop.time():
            return False
        del self._since[waiting]
        waiting.timed_out()
        return True

    def close(self) -> None:
        """Tell nobody any more."""
        self._since.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Tell those whose time is over; the oldest stand first."""
        now = self._loop.time()
        self._timer = None
        while self._since:
            waiting = next(iter(self._since))
            if self._since[waiting] + self.seconds > now:
                break
            del self._since[waiting]
            waiting.timed_out()
        if self._since and self._timer is None:
            self._check_later()

    def _check_later(self) -> None:
        pause = min(self.seconds / CHECKS_PER_LIMIT, LONGEST_PAUSE_SECONDS)
        self._timer = self._loop.call_later(pause, self._check)
