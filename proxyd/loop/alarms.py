"""One timer of the loop for calls that are mostly cancelled before their time.

A timer of the loop costs some microseconds to make and to cancel. Here a call costs one entry in a
dictionary. Only a call that is left when the timer rings comes into a heap; one that is cancelled
later, or set anew, is dropped when its time comes.
"""

import asyncio
from heapq import heappop, heappush
from math import inf
from typing import Final, Protocol, final

# The loop's timers have milliseconds, and may ring a part of one early.
EARLY_SECONDS: Final = 0.001


class Alarm(Protocol):
    """Object with at most one call ahead."""

    __slots__ = ()

    def ring(self) -> None:
        """Act: the time has come."""


@final
class Alarms:
    """Calls `ring()` of each alarm when it is due."""

    __slots__ = (
        "_count",
        "_dues",
        "_first_fresh",
        "_fresh",
        "_heap",
        "_loop",
        "_timer",
        "_timer_due",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._fresh: dict[Alarm, float] = {}  # loop time, seconds; set since the timer last rang
        self._first_fresh = inf  # none of those is due earlier
        self._dues: dict[Alarm, float] = {}  # of those in the heap
        self._heap: list[tuple[float, int, Alarm]] = []
        self._count = 0  # of all entries so far: alarms of one moment ring in their order
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    def set(self, alarm: Alarm, due: float) -> None:
        """Call an alarm at a time (loop time, seconds), in place of its call before."""
        self.cancel(alarm)
        self._fresh[alarm] = due
        self._first_fresh = min(self._first_fresh, due)
        if self._timer is None or due < self._timer_due:
            self._wait(due)

    def cancel(self, alarm: Alarm) -> None:
        """Cancel the call of an alarm; nothing happens without one."""
        if self._fresh.pop(alarm, None) is None:
            self._dues.pop(alarm, None)

    def close(self) -> None:
        """Forget all calls."""
        self._fresh.clear()
        self._first_fresh = inf
        self._dues.clear()
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self, due: float) -> None:
        """Set the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        """Call the alarms that are due, and set the timer for the next one.

        An alarm that is set meanwhile, and those behind it, wait for the next turn of the loop. It
        may be due early by this clock, and would otherwise ring again and again in this turn.
        """
        self._timer = None
        self._file_fresh()
        heap = self._heap
        now = self._loop.time() + EARLY_SECONDS
        try:
            while heap:
                due, _, alarm = heap[0]
                if self._dues.get(alarm) != due:
                    heappop(heap)
                elif due > now or self._first_fresh < due:
                    break
                else:
                    heappop(heap)
                    del self._dues[alarm]
                    alarm.ring()
        finally:  # one that fails is logged by the loop; the others still ring
            self._wait_for_next()

    def _file_fresh(self) -> None:
        """Put the alarms that were set since the last time into the heap."""
        fresh, self._fresh = self._fresh, {}
        self._first_fresh = inf
        for alarm, due in fresh.items():
            self._dues[alarm] = due
            self._count += 1
            heappush(self._heap, (due, self._count, alarm))

    def _wait_for_next(self) -> None:
        """Set the timer for the first alarm, unless an alarm that rang has set it."""
        due = self._first_fresh
        if self._heap:
            due = min(due, self._heap[0][0])
        if due < inf and (self._timer is None or due < self._timer_due):
            self._wait(due)
