"""Turns at moving bulk: one stream after the other, two milliseconds at a time.

A stream that is served for a while costs half of one that is served a little and often, since its
ends stay awake. Between two slices the loop does all its other work: handshakes, small reads, the
API.
"""

import asyncio
import time
from collections import deque
from typing import Final, Protocol, final

# Bulk costs half or less at 16 and 64 streams when it is served for this time, and everything else
# waits no longer than this behind it.
SLICE_SECONDS: Final = 0.002


class Mover(Protocol):
    """Object with bulk data to move."""

    __slots__ = ()

    def turn(self) -> None:
        """Move some of the data; an error ends the mover's turn, unless it handles the error."""


@final
class Turns:
    """The movers that wait for their turn, first come, first served.

    Args:
        slice_seconds: how long turns are given before the loop does its other work.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, slice_seconds: float = SLICE_SECONDS
    ) -> None:
        self._slice_seconds = slice_seconds
        self._loop = loop
        self._waiting: deque[Mover] = deque()
        self._is_scheduled = False

    def add(self, mover: Mover) -> None:
        """Give a mover a turn soon; it must not be waiting for one already."""
        self._waiting.append(mover)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._slice)

    def _slice(self) -> None:
        """Give turns for a time slice; an error in one turn does not affect the others."""
        waiting = self._waiting
        until = time.monotonic() + self._slice_seconds
        try:
            for _ in range(len(waiting)):
                waiting.popleft().turn()
                if time.monotonic() > until:
                    break
        finally:
            self._is_scheduled = False
            if waiting:
                self._schedule()
