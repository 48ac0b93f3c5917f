"""The private parts of aiosqlite that the store relies on.

aiosqlite runs one statement a hop; a unit of work runs whole in the connection's thread, and
aiosqlite has no public call for that. Nothing else in this room reads a name of aiosqlite that
begins with an underscore. `tests/storage/engines/test_aiosqlite_compat.py` checks each of them, and
fails on any other release than this one until a developer has compared `core.py`.
"""

import sqlite3
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import aiosqlite

from storage.engines.errors import UnavailableError

COMPARED_VERSION = "0.22.1"

_Execute = Callable[..., Coroutine[Any, Any, Any]]
_Returned = TypeVar("_Returned")


class Connection(aiosqlite.Connection):
    """An aiosqlite connection that runs a whole function in its thread."""

    async def call(self, function: Callable[[sqlite3.Connection], _Returned]) -> _Returned:
        """Return the result of a function of the connection, called in the connection's thread.

        Raises:
            UnavailableError: the connection is closed.
        """
        if self._connection is None or not self._running:
            raise UnavailableError("the database is closed")
        execute = cast(_Execute, self._execute)
        return cast(_Returned, await execute(function, self._connection))
