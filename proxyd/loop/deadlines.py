"""Deadlines that are all the same time away: one timer of the loop for any number of them."""

import asyncio
from collections.abc import Iterator
from typing import Final, Generic, Protocol, TypeVar, final

CHECKS_PER_LIMIT: Final = 20  # a deadline is noticed at most a twentieth of the limit late
LONGEST_PAUSE_SECONDS: Final = 1.0  # or by a second, where a twentieth is more


class Expiring(Protocol):
    """Object with a bounded lifetime."""

    __slots__ = ()

    def timed_out(self) -> None:
        """Act on the end of that time."""


Member = TypeVar("Member", bound=Expiring)


@final
class Deadlines(Generic[Member]):
    """Calls `timed_out()` on each member `seconds` after it was added.

    The call comes at most `seconds / 20` (and 1 s) late. One timer serves all members. `seconds`
    may be changed, for the present members too: the oldest stay the first.

    Args:
        seconds: how long each may take.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop = loop
        self.seconds = seconds
        self._since: dict[Member, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def __iter__(self) -> Iterator[Member]:
        """Return the members, the oldest first; none may join or leave meanwhile."""
        return iter(self._since)

    def add(self, member: Member) -> None:
        """Add a member; nothing changes for a present one."""
        self._since.setdefault(member, self._loop.time())
        self._check_later()

    def discard(self, member: Member) -> None:
        """Remove a member; nothing happens when it is absent."""
        self._since.pop(member, None)

    def expire_oldest(self, seconds: float) -> bool:
        """Time the oldest member out now, if it was added at least `seconds` ago.

        Returns:
            Whether there was one.
        """
        oldest = next(iter(self._since), None)
        if oldest is None or self._since[oldest] + seconds > self._loop.time():
            return False
        del self._since[oldest]
        oldest.timed_out()
        return True

    def close(self) -> None:
        """Forget all members."""
        self._since.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        """Time out the members whose time is over, the oldest first."""
        now = self._loop.time()
        self._timer = None
        while self._since:
            oldest = next(iter(self._since))
            if self._since[oldest] + self.seconds > now:
                break
            del self._since[oldest]
            oldest.timed_out()
        # One that was timed out may have come back, and set the timer. The type checker does not
        # see that: compiled, a look at the timer here takes `None` for granted.
        self._check_later()

    def _check_later(self) -> None:
        """Schedule the next check, unless one is scheduled or nothing is watched."""
        if not self._since or self._timer is not None:
            return
        pause = min(self.seconds / CHECKS_PER_LIMIT, LONGEST_PAUSE_SECONDS)
        self._timer = self._loop.call_later(pause, self._check)
