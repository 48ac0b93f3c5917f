"""Poolers between a daemon and PostgreSQL, such as pgbouncer: their usable mode.

A pooler in session mode gives each client connection a server connection for its whole life. In
transaction mode the server connection changes with each transaction. Then notices (LISTEN), locks
of a session and prepared statements belong to another client's session at times, so that mode is
refused.
"""

from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

import asyncpg

from storage.engines.errors import CannotOpenError

# A pooler hands out the server connection that was returned last, so the first look nearly always
# shows it; more looks, because other clients of the pooler take connections in between.
LOOKS = 5


class Pooler(StrEnum):
    """The kind of pooler between a daemon and the servers."""

    NONE = "none"
    SESSION = "session"


async def refuse_transaction_mode(
    connect: Callable[[], Coroutine[Any, Any, asyncpg.Connection]],
) -> None:
    """Make sure that a client connection keeps its server connection.

    Args:
        connect: connects through the pooler; two connections are open at the same time.

    Raises:
        CannotOpenError: two clients shared a server connection, or one client had several.
    """
    mode = 'the pooler works in transaction mode; it needs pool_mode = "session"'
    connections: list[asyncpg.Connection] = []
    try:
        first, second = connections = [await connect(), await connect()]
        for _ in range(LOOKS):
            of_first = await _backend(first)
            if of_first == await _backend(second) or of_first != await _backend(first):
                raise CannotOpenError(mode)
    except (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError) as error:
        raise CannotOpenError(mode) from error
    finally:
        for connection in connections:
            connection.terminate()


async def _backend(connection: asyncpg.Connection) -> int:
    """Return the number of the server process that answers."""
    return int(await connection.fetchval("SELECT pg_backend_pid()"))
