"""Questions about clients that only the store can answer: one for all who ask the same at once."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, NamedTuple, TypeVar

from proxyd.wire.events import Refusal
from storage.errors import StoreError

LOOKUPS_MAX = 1000

_logger = logging.getLogger("meter")

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


class _Lookup(NamedTuple, Generic[Found]):
    task: "asyncio.Task[None]"
    told: list[Callable[[Found | Refusal], None]]


class Lookups(Generic[Key, Found]):
    """Asks the store, and tells everybody who waits; it is asked boundedly much at once.

    Args:
        find: answers one question; a failure of the store becomes `Refusal.UNAVAILABLE`.
    """

    def __init__(self, find: Callable[[Key], Coroutine[Any, Any, Found | Refusal]]) -> None:
        self._find = find
        self._under_way: dict[Key, _Lookup[Found]] = {}
        self._stopping = False

    def __contains__(self, key: Key) -> bool:
        return key in self._under_way

    def ask(self, key: Key, told: Callable[[Found | Refusal], None]) -> None:
        """Have `told` called with the answer, once; at once if there is none to be had now."""
        lookup = self._under_way.get(key)
        if lookup is not None:
            lookup.told.append(told)
        elif len(self._under_way) >= LOOKUPS_MAX or self._stopping:
            told(Refusal.UNAVAILABLE)
        else:
            task = asyncio.get_running_loop().create_task(self._answer(key))
            self._under_way[key] = _Lookup(task, [told])

    async def stop(self) -> None:
        """Ask nothing any more; whoever waits is told nothing."""
        self._stopping = True
        tasks = [lookup.task for lookup in self._under_way.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._under_way.clear()  # of one that never began, nothing was taken out

    async def _answer(self, key: Key) -> None:
        answer: Found | Refusal = Refusal.UNAVAILABLE
        try:
            answer = await self._find(key)
        except StoreError as error:
            _logger.warning("a session could not be looked up: %s", error)
        finally:
            lookup = self._under_way.pop(key)
        for told in lookup.told:
            told(answer)
