"""Questions about clients that only the store can answer: one for all who ask the same at once.

Anybody can have questions asked by showing credentials that he has made up. So the store is asked a
few at a time, the networks that ask take turns, and what turned out to open nothing is remembered
for a moment: whoever floods waits for himself, and nobody else for him.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from proxyd.loop.fair_slots import FairSlots
from proxyd.wire.events import Refusal
from storage.errors import StoreError

LOOKUPS_MAX = 1000
# How many the store is asked at once: enough to keep it busy and to share its commits, and few
# enough that whoever's turn is next does not wait long behind them.
RUNNING_MAX = 8
NEGATIVE_SECONDS = 1.0
NEGATIVE_MAX = 4096

_logger = logging.getLogger("meter")

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


class NegativeCache(Generic[Key]):
    """Who was found to open nothing, remembered for a moment, so many of them at most."""

    def __init__(self) -> None:
        self._until: dict[Key, float] = {}

    def __contains__(self, key: Key) -> bool:
        until = self._until.get(key)
        if until is not None and until <= asyncio.get_running_loop().time():
            del self._until[key]
            until = None
        return until is not None

    def add(self, key: Key) -> None:
        """Remember one; of too many, the one remembered for longest is forgotten."""
        if len(self._until) >= NEGATIVE_MAX:
            del self._until[next(iter(self._until))]
        self._until[key] = asyncio.get_running_loop().time() + NEGATIVE_SECONDS

    def discard(self, key: Key) -> None:
        """Forget one."""
        self._until.pop(key, None)


class SingleFlight(Generic[Key, Found]):
    """Asks the store, and tells everybody who waits.

    Of `LOOKUPS_MAX` questions nobody may have more than are left for the others, and askers take
    turns: one with many questions waits behind one with few.

    Args:
        find: answers one question; a failure of the store becomes `Refusal.UNAVAILABLE`.
    """

    def __init__(self, find: Callable[[Key], Coroutine[Any, Any, Found | Refusal]]) -> None:
        self._find = find
        self._asked: dict[Key, list[Callable[[Found | Refusal], None]]] = {}
        self._places = FairSlots(LOOKUPS_MAX)
        # What waits, by who asked; whoever comes first here is next.
        self._waiting: dict[Hashable, deque[Key]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._stopping = False

    def __contains__(self, key: Key) -> bool:
        return key in self._asked

    def ask(
        self, key: Key, asker: Hashable, told: Callable[[Found | Refusal], None]
    ) -> Refusal | None:
        """Have `told` called with the answer, once, later; or return why there is none now.

        Args:
            key: the question.
            asker: for whom it counts, if it is the first of its kind.
            told: is called with the answer.
        """
        others = self._asked.get(key)
        if others is not None:
            others.append(told)
        elif self._stopping or not self._places.take(asker):
            return Refusal.UNAVAILABLE
        else:
            self._asked[key] = [told]
            self._waiting.setdefault(asker, deque()).append(key)
            self._run_more()
        return None

    async def stop(self) -> None:
        """Ask nothing any more; whoever waits is told nothing."""
        self._stopping = True
        self._waiting.clear()
        tasks = tuple(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._asked.clear()

    def _run_more(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._running) < RUNNING_MAX:
            asker = next(iter(self._waiting))
            keys = self._waiting.pop(asker)
            task = loop.create_task(self._answer(keys.popleft(), asker))
            self._running.add(task)
            task.add_done_callback(self._ran)
            if keys:
                self._waiting[asker] = keys  # behind the others

    def _ran(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("looking a session up failed", exc_info=error)
        self._run_more()

    async def _answer(self, key: Key, asker: Hashable) -> None:
        answer: Found | Refusal = Refusal.UNAVAILABLE
        try:
            answer = await self._find(key)
        except StoreError as error:
            _logger.warning("a session could not be looked up: %s", error)
        finally:
            waiting = self._asked.pop(key)
            self._places.give(asker)
        for told in waiting:
            told(answer)
