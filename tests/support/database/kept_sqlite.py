"""SQLite databases that tests use one after the other, each without the data of the one before.

Theory of operation
-------------------
A new connection parses the whole schema, and prepares every statement again, triggers included:
most of the time of a short test. So a store stays open when its test is over, and its file gets its
first bytes back. Another connection first moves the log into the file and begins a new log, so
every connection reads its pages again. The schema's number is in these bytes, so prepared
statements stay valid. The file stays as long as it was, because the new log has its number of
pages; the pages after these bytes belong to no table.

A database is closed when it is not as its test got it: closed, claimed, with another schema, or
with a connection that is in use.
"""

import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from storage.engines.sqlite import SqliteStore
from support.base import memory
from support.base.aside import run_aside
from support.database import sqlite


class KeptStore:
    """A store whose file gets its first bytes back after a test.

    Args:
        store: the open store.
        path: its file.
        connection: of no test, for the log.
    """

    def __init__(self, store: SqliteStore, path: Path, connection: sqlite3.Connection) -> None:
        self.store = store
        self._connection = connection
        self._schema = self._number()
        # Open to the end: to close it would drop the locks of all connections (fcntl(2)).
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Make a database and open it."""
        sqlite.make(path)
        store = await SqliteStore.open(str(path), create=False, readers=1)
        return cls(store, path, _connection(path))

    async def clean(self) -> bool:
        """Remove all that a test wrote, and return whether the store is as new."""
        store = self.store
        if store._is_closed or store._claim is not None or not await self._is_idle():
            return False
        if self._number() != self._schema:
            return False
        is_in_use, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_in_use:
            return False
        os.pwrite(self._descriptor, sqlite.empty(), 0)
        return True

    async def close(self) -> None:
        """Close all connections."""
        await self.store.close()
        self._connection.close()
        os.close(self._descriptor)

    async def _is_idle(self) -> bool:
        """Wait for the units of a test. Return whether all transactions have ended."""
        while (committing := self.store._committing) is not None:
            await committing
        connections = (self.store._writer, *self.store._readers)
        left = [await each.call(_is_in_transaction) for each in connections]
        return not any(left)

    def _number(self) -> int:
        number: int
        [number] = self._connection.execute("PRAGMA schema_version").fetchone()
        return number


class KeptStores:
    """The kept stores of a process of tests."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="proxyd-kept-", dir=memory.room())
        self._made = 0
        self._free: list[KeptStore] = []

    @asynccontextmanager
    async def one(self) -> AsyncIterator[SqliteStore]:
        """Yield a store without data, which the body has for itself."""
        kept = self._free.pop() if self._free else await self._new()
        try:
            yield kept.store
        finally:
            if await kept.clean():
                self._free.append(kept)
            else:
                await kept.close()

    def close(self) -> None:
        """Close and remove all."""
        for each in self._free:
            run_aside(each.close())
        self._folder.cleanup()

    async def _new(self) -> KeptStore:
        self._made += 1
        return await KeptStore.open(Path(self._folder.name) / f"{self._made}.db")


def _connection(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)


def _is_in_transaction(connection: sqlite3.Connection) -> bool:
    return connection.in_transaction
