"""Agenda of the looks at exits: the time of each, and a bound on those under way."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Final, final

from proxyd.exits.attached.attached import Attached
from proxyd.loop.owned_tasks import OwnedTasks

# Of all exits together. A round is three handshakes here: this is a tenth of a core at most.
ROUNDS_AT_ONCE: Final = 16
ROUND_PAUSE_SECONDS: Final = 0.05
SWEEP_LEAST: Final = 1_000  # exits that wait for a round, before those that are gone are dropped

# Looks at an exit; the number counts the looks in vain before this one.
Look = Callable[[Attached, int], Coroutine[None, None, None]]


@final
class Agenda:
    """The looks at exits that are due, and the order in which they begin."""

    __slots__ = ("_due", "_loop", "_number", "_slots", "_sweep_at", "_tasks", "_wake")

    def __init__(self, loop: asyncio.AbstractEventLoop, tasks: OwnedTasks) -> None:
        self._loop = loop
        self._tasks = tasks
        # The time, a number, the exit, the number of looks in vain before, and the look.
        self._due: list[tuple[float, int, Attached, int, Look]] = []
        self._sweep_at = SWEEP_LEAST
        self._number = 0
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(ROUNDS_AT_ONCE)

    def schedule(self, attached: Attached, due: float, failures: int, look: Look) -> None:
        """Schedule a look at an exit.

        Args:
            attached: the exit.
            due: the time of its beginning (loop time, seconds).
            failures: the number of looks in vain before this one.
            look: called then.
        """
        self._number += 1
        heappush(self._due, (due, self._number, attached, failures, look))
        if len(self._due) >= self._sweep_at:  # devices come and go all day
            self._due = [each for each in self._due if not each[2].is_gone]
            heapify(self._due)
            self._sweep_at = max(SWEEP_LEAST, 2 * len(self._due))
        self._wake.set()

    async def run(self) -> None:
        """Begin each look when it is due, within the bound on looks under way."""
        while True:
            self._wake.clear()
            left = self._due[0][0] - self._loop.time() if self._due else None
            if left is None or left > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._wake.wait()
                continue
            _, _, attached, failures, look = heappop(self._due)
            if attached.is_gone:
                continue
            await self._slots.acquire()
            self._tasks.spawn(look(attached, failures)).add_done_callback(
                lambda _: self._slots.release()
            )
            await asyncio.sleep(ROUND_PAUSE_SECONDS)
