"""A store that measures how long its units of work take."""

from collections.abc import Callable, Sequence
from time import perf_counter

from proxyd.counters import Latency
from storage.engines.health import Health
from storage.engines.store import Arguments, Link, Result, Store, Unit


class TimedStore:
    """A `Store` that passes everything on to another one, and times writes and reads.

    Args:
        store: the other one.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.writes = Latency()
        self.reads = Latency()

    async def write(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """See `Store.write`."""
        began = perf_counter()
        try:
            return await self._store.write(unit, *args, **kwargs)
        finally:
            self.writes.observe(perf_counter() - began)

    async def read(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """See `Store.read`."""
        began = perf_counter()
        try:
            return await self._store.read(unit, *args, **kwargs)
        finally:
            self.reads.observe(perf_counter() - began)

    async def scrub(self, tables: Sequence[str]) -> bool:
        """See `Store.scrub`."""
        return await self._store.scrub(tables)

    def version(self) -> bytes | None:
        """See `Store.version`."""
        return self._store.version()

    def health(self) -> Health:
        """See `Store.health`."""
        return self._store.health()

    def set_aside(self) -> "TimedStore":
        """See `Store.set_aside`; its units are counted with this store's."""
        lane = self._store.set_aside()
        if lane is self._store:
            return self
        timed = TimedStore(lane)
        timed.writes, timed.reads = self.writes, self.reads
        return timed

    async def claim(self, on_lost: Callable[[], None]) -> None:
        """See `Store.claim`."""
        await self._store.claim(on_lost)

    def link(self, timeout_seconds: float) -> Link | None:
        """See `Store.link`."""
        return self._store.link(timeout_seconds)

    async def close(self) -> None:
        """See `Store.close`."""
        await self._store.close()
