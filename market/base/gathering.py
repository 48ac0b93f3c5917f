"""Simultaneous requests to the store: the waiting ones go together, in one read.

A thousand devices that return in the same second cause the same query, each for itself. One by one,
each would take its turn at the store, and the last request would time out.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from itertools import islice
from typing import Generic, TypeVar

# Simultaneous reads: while one waits for the store, the rows of another one are processed.
READS_MAX = 2
GATHERED_KEYS = 16  # waiting keys that justify another read

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Gathering(Generic[Key, Value]):
    """Reads of many keys at a time; each read begins after the requests for its keys.

    Args:
        read: returns the values of the known keys, in one transaction.
        most: keys in one read.
    """

    def __init__(
        self, read: Callable[[Sequence[Key]], Awaitable[Mapping[Key, Value]]], most: int
    ) -> None:
        self._read = read
        self._most = most
        self._waiting: dict[Key, asyncio.Future[Value | None]] = {}
        self._reading: set[asyncio.Task[None]] = set()

    async def ask(self, key: Key) -> Value | None:
        """Return the present value of a key, or None.

        Raises:
            StoreError: the error of the read; other callers may share it.
        """
        future = self._waiting.get(key)
        if future is None:
            loop = asyncio.get_running_loop()
            future = self._waiting[key] = loop.create_future()
            if len(self._reading) < min(READS_MAX, 1 + len(self._waiting) // GATHERED_KEYS):
                self._reading.add(loop.create_task(self._run(), name="gathering"))
        # A caller that gives up does not affect other callers of the same key.
        return await asyncio.shield(future)

    async def _run(self) -> None:
        try:
            while self._waiting:
                keys = list(islice(self._waiting, self._most))
                futures = {key: self._waiting.pop(key) for key in keys}
                try:
                    values = await self._read(keys)
                except Exception as error:  # noqa: BLE001 - passed to every caller
                    for future in futures.values():
                        future.set_exception(error)
                        future.exception()  # possibly without a waiter
                else:
                    for key, future in futures.items():
                        future.set_result(values.get(key))
        finally:  # here, and not once the task is over: a key that arrives meanwhile gets a reader
            task = asyncio.current_task()
            assert task is not None  # noqa: S101 - this is one
            self._reading.discard(task)
