"""The speed limit of one session or one exit: a token bucket that its connections share fairly.

While they want more than there is, time goes in rounds: each connection that waits gets an equal
share of a round, and the unused rest goes to the next. Where a round has fewer bytes than
connections, the others come first in the next round.
"""

import asyncio
from collections.abc import Callable
from typing import Final, final

# Short enough that a stream does not stutter, long enough that waking its readers costs little.
ROUND_SECONDS: Final = 0.05
# Bytes that an idle session may take in one go, as a time: several rounds, so that a late timer
# loses nothing.
BURST_SECONDS: Final = 0.2
UNLIMITED: Final = 1 << 61  # more than any stream; small enough for the arithmetic of C


@final
class Pace:
    """A speed limit.

    Args:
        bytes_per_second: how much may be taken, in both directions together; 0 for any amount.
    """

    __slots__ = (
        "_bytes_per_second",
        "_filled_at",
        "_loop",
        "_share",
        "_taken",
        "_timer",
        "_tokens",
        "_waiting",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, bytes_per_second: int) -> None:
        self._loop = loop
        self._bytes_per_second = bytes_per_second
        self._tokens = self._burst
        self._filled_at = loop.time()
        self._share = self._tokens
        self._taken: dict[object, int] = {}
        self._waiting: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def change(self, bytes_per_second: int) -> None:
        """Allow another speed from the next round on; 0 for any.

        Bytes that were taken in advance delay the next ones as long as they did before.
        """
        if bytes_per_second == self._bytes_per_second:
            return
        if self._tokens < 0:
            self._tokens = self._tokens * bytes_per_second // self._bytes_per_second
        self._bytes_per_second = bytes_per_second
        self._tokens = min(self._tokens, self._burst)
        self._filled_at = self._loop.time()

    def allowance(self, taker: object) -> int:
        """Return the number of bytes that one connection may take now."""
        if not self._bytes_per_second:
            return UNLIMITED
        if self._timer is None:
            self._begin_round(1)
        return min(self._tokens, self._share - self._taken.get(taker, 0))

    def spend(self, taker: object, size: int) -> None:
        """Take bytes, usually at most the `allowance`; an excess delays the next bytes."""
        if not self._bytes_per_second:
            return
        self._tokens -= size
        self._taken[taker] = self._taken.get(taker, 0) + size

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` in the next round."""
        self._waiting[resume] = None
        if self._timer is None:
            self._timer = self._loop.call_later(ROUND_SECONDS, self._next_round)

    def stop_waiting(self, resume: Callable[[], None]) -> None:
        """Cancel the call of `resume`."""
        self._waiting.pop(resume, None)

    @property
    def _burst(self) -> int:
        return max(1, int(self._bytes_per_second * BURST_SECONDS))

    def _next_round(self) -> None:
        """Give connections that wait a share, at least a byte; rounds stop when none waits."""
        self._timer = None
        self._begin_round(len(self._waiting))
        if not self._waiting:
            return
        self._timer = self._loop.call_later(ROUND_SECONDS, self._next_round)
        resumed = list(self._waiting)
        if self._bytes_per_second:
            resumed = resumed[: max(0, self._tokens)]
        for resume in resumed:  # one that waits again is the last one
            del self._waiting[resume]
        for resume in resumed:
            resume()

    def _begin_round(self, takers: int) -> None:
        now = self._loop.time()
        earned = int((now - self._filled_at) * self._bytes_per_second)
        if earned > 0:
            self._filled_at += earned / self._bytes_per_second
            self._tokens += earned
            if self._tokens > self._burst:
                self._tokens = self._burst
                self._filled_at = now
        self._share = max(1, self._tokens // max(1, takers))
        self._taken.clear()
