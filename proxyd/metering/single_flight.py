"""Queries to the store about unknown clients: one query per key for any number of callers.

Any client can cause queries, with invented credentials. So the store receives a few queries at a
time, the networks take turns, and keys that opened nothing are remembered for a moment: a network
that floods delays itself and no other.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from proxyd.loop.fair_slots import FairSlots
from proxyd.wire.events import Refusal
from storage.engines.errors import StoreError, level_of

# Each is a client that waits within its handshake's time limit; more would wait for nothing.
LOOKUPS_MAX = 1000
# Enough to keep the store busy and to share its commits, and few enough that the next asker does
# not wait long behind them.
RUNNING_MAX = 8

_logger = logging.getLogger("meter")

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class NegativeBounds:
    """Limits of the memory of keys that open nothing: time and number.

    Attributes:
        seconds: a client that keeps trying costs one question in this time, and one sold a session
            meanwhile elsewhere waits no longer for it.
        keys_max: as many as fit in about a megabyte.
    """

    seconds: float = 1.0
    keys_max: int = 4096


USUAL: Final = NegativeBounds()


class NegativeCache(Generic[Key]):
    """The last keys that opened nothing, each for a moment."""

    def __init__(self, bounds: NegativeBounds = USUAL) -> None:
        self._bounds = bounds
        self._until: dict[Key, float] = {}

    def __contains__(self, key: Key) -> bool:
        until = self._until.get(key)
        if until is not None and until <= asyncio.get_running_loop().time():
            del self._until[key]
            until = None
        return until is not None

    def add(self, key: Key) -> None:
        """Remember a key; of too many keys, the oldest one is forgotten."""
        if len(self._until) >= self._bounds.keys_max:
            del self._until[next(iter(self._until))]
        self._until[key] = asyncio.get_running_loop().time() + self._bounds.seconds

    def discard(self, key: Key) -> None:
        """Forget a key."""
        self._until.pop(key, None)


class SingleFlight(Generic[Key, Value]):
    """Runs one query per key for all its callers, and at most `RUNNING_MAX` queries together.

    Of `LOOKUPS_MAX` questions no asker may have more than are left for the others, and askers take
    turns: one with many questions waits behind one with few.

    Args:
        find: answers one question; a failure of the store becomes `Refusal.UNAVAILABLE`.
    """

    def __init__(self, find: Callable[[Key], Coroutine[Any, Any, Value | Refusal]]) -> None:
        self._find = find
        self._callbacks: dict[Key, list[Callable[[Value | Refusal], None]]] = {}
        self._places = FairSlots[Hashable](LOOKUPS_MAX)
        # The questions that wait, by asker; the first asker here is next.
        self._waiting: dict[Hashable, deque[Key]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._stopping = False

    def __contains__(self, key: Key) -> bool:
        return key in self._callbacks

    def ask(
        self, key: Key, asker: Hashable, callback: Callable[[Value | Refusal], None]
    ) -> Refusal | None:
        """Start a query, unless the same one is under way.

        Args:
            key: the question.
            asker: the network that the question counts for, if it is the first of its kind.
            callback: is called later, once, with the answer, if this returns None.

        Returns:
            `Refusal.UNAVAILABLE` when there is no room for it; the callback is not called then.
        """
        callbacks = self._callbacks.get(key)
        if callbacks is not None:
            callbacks.append(callback)
            return None
        if self._stopping or not self._places.take(asker):
            return Refusal.UNAVAILABLE
        self._callbacks[key] = [callback]
        self._waiting.setdefault(asker, deque()).append(key)
        self._run_more()
        return None

    async def stop(self) -> None:
        """Start no more queries; waiting callbacks are not called."""
        self._stopping = True
        self._waiting.clear()
        tasks = tuple(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._callbacks.clear()

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
        answer: Value | Refusal = Refusal.UNAVAILABLE
        try:
            answer = await self._find(key)
        except StoreError as error:
            _logger.log(
                level_of(error, logging.WARNING), "a session could not be looked up: %s", error
            )
        finally:
            callbacks = self._callbacks.pop(key)
            self._places.give(asker)
        for callback in callbacks:
            callback(answer)
