"""A daemon's presence among others on one PostgreSQL: LISTEN, and a lock of the server's session.

All of it goes over one connection: when the server loses the daemon, the lock is free.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import asyncpg

from storage.errors import UnavailableError

CHANNEL = "proxyd"
# Any number will do that no other program on the database uses: "proy".
SWEEPER_LOCK = 0x7072_6F79
# A query that is not answered within this part of the timeout leaves time to connect anew.
ANSWERS_PER_TIMEOUT = 3

# The server's clock, in whole seconds: daemons need not agree on the time.
_NOW = "CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp())) AS BIGINT)"
_REGISTER = f"INSERT INTO nodes (id, started_at, seen_at) VALUES ($1, {_NOW}, {_NOW})"
# CASE, because the operands of AND may be computed in any order.
_IS_UNSWEPT = """
    SELECT CASE WHEN pg_try_advisory_lock($1) THEN pg_advisory_unlock($1) ELSE false END
"""
_RENEW = f"""
    UPDATE nodes SET seen_at = {_NOW}, renewals = renewals + 1 WHERE id = $1 RETURNING seen_at
"""


class PostgresLink:
    """A `Link` to a PostgreSQL server.

    Args:
        url: the database.
        timeout_seconds: how long the connection may be silent before the server ends it. The
            server must do so itself: nothing tells it that a daemon hangs, or is cut off.
    """

    def __init__(self, url: str, timeout_seconds: float) -> None:
        self._url = url
        self._timeout = timeout_seconds
        self._connection: asyncpg.Connection | None = None
        self._sweeps = False

    async def connect(self, on_notice: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        """See `Link.connect`."""
        self._drop()
        async with self._answering():
            connection = await asyncpg.connect(
                self._url,
                timeout=self._timeout / ANSWERS_PER_TIMEOUT,
                command_timeout=self._timeout / ANSWERS_PER_TIMEOUT,
                server_settings={"idle_session_timeout": str(int(self._timeout * 1000))},
            )
        self._connection = connection

        def notified(_: object, __: int, ___: str, payload: object) -> None:
            on_notice(str(payload))

        def lost(_: object) -> None:
            if self._connection is connection:
                self._connection = None
                self._sweeps = False
                on_lost()

        connection.add_termination_listener(lost)
        async with self._answering():
            await connection.add_listener(CHANNEL, notified)

    async def register(self, node_id: str) -> None:
        """See `Link.register`."""
        async with self._answering():
            await self._connected().execute(_REGISTER, node_id)

    async def renew(self, node_id: str) -> bool:
        """See `Link.renew`."""
        async with self._answering():
            return await self._connected().fetchval(_RENEW, node_id) is not None

    async def exited(self, node_ids: Collection[str]) -> list[str]:  # noqa: ARG002 - see there
        """See `Link.exited`: a connection that is lost may be made again."""
        return []

    async def try_to_sweep(self) -> bool:
        """See `Link.try_to_sweep`."""
        if not self._sweeps:
            async with self._answering():
                self._sweeps = bool(
                    await self._connected().fetchval(
                        "SELECT pg_try_advisory_lock($1)", SWEEPER_LOCK
                    )
                )
        return self._sweeps

    async def is_unswept(self) -> bool:
        """See `Link.is_unswept`."""
        async with self._answering():
            return bool(await self._connected().fetchval(_IS_UNSWEPT, SWEEPER_LOCK))

    async def close(self) -> None:
        """See `Link.close`."""
        connection, self._connection = self._connection, None
        self._sweeps = False
        if connection is not None:
            try:
                await connection.close(timeout=self._timeout / ANSWERS_PER_TIMEOUT)
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                connection.terminate()

    def _connected(self) -> asyncpg.Connection:
        if self._connection is None:
            raise UnavailableError("not connected")
        return self._connection

    @asynccontextmanager
    async def _answering(self) -> AsyncIterator[None]:
        """Turn every failure, and an answer that is late, into a lost connection."""
        try:
            async with asyncio.timeout(self._timeout / ANSWERS_PER_TIMEOUT):
                yield
        except (
            asyncpg.PostgresError,
            asyncpg.InterfaceError,
            asyncpg.InternalClientError,
            OSError,
            TimeoutError,
        ) as error:
            self._drop()
            raise UnavailableError(str(error) or type(error).__name__) from error

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._sweeps = False
        if connection is not None:
            connection.terminate()
