"""One timer of the loop for calls that are mostly cancelled before their time.

A timer of the loop costs some microseconds to make and to cancel. Here a call costs one entry in a
heap; one that was cancelled, or set anew, is dropped when its time comes.
"""

import asyncio
from heapq import heappop, heappush
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

    __slots__ = ("_count", "_dues", "_heap", "_loop", "_timer", "_timer_due")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._dues: dict[Alarm, float] = {}  # loop time, seconds
        self._heap: list[tuple[float, int, Alarm]] = []
        self._count = 0  # of all entries so far: alarms of one moment ring in their order
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    def set(self, alarm: Alarm, due: float) -> None:
        """Call an alarm at a time (loop time, seconds), in place of its call before."""
        self._dues[alarm] = due
        self._count += 1
        heappush(self._heap, (due, self._count, alarm))
        if self._timer is None or due < self._timer_due:
            self._wait(due)

    def cancel(self, alarm: Alarm) -> None:
        """Cancel the call of an alarm; nothing happens without one."""
        self._dues.pop(alarm, None)

    def close(self) -> None:
        """Forget all calls."""
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

        An alarm that is set meanwhile waits for the next turn of the loop. It may be due early by
        this clock, and would otherwise ring again and again in this turn.
        """
        self._timer = None
        heap, last = self._heap, self._count
        now = self._loop.time() + EARLY_SECONDS
        try:
            while heap:
                due, number, alarm = heap[0]
                if self._dues.get(alarm) != due:
                    heappop(heap)
                elif due > now or number > last:
                    break
                else:
                    heappop(heap)
                    del self._dues[alarm]
                    alarm.ring()
        finally:  # one that fails is logged by the loop; the others still ring
            self._wait_for_next()

    def _wait_for_next(self) -> None:
        """Set the timer for the first alarm, unless an alarm that rang has set it."""
        if self._heap and (self._timer is None or self._heap[0][0] < self._timer_due):
            self._wait(self._heap[0][0])
