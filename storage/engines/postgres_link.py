"""A daemon's presence among others on one PostgreSQL: LISTEN, and a lock of the server's session.

All of it goes over one connection: when the server loses the daemon, the lock is free.

The connection listens for notices, renews the node's row, and holds the lock of the sweeper. The
server drops the connection when it is silent. Times are compared by the server's own clock.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from datetime import timedelta
from typing import Any, TypeVar

import asyncpg

from storage.engines.errors import Cause, UnavailableError
from storage.engines.postgres_servers import (
    APPLICATION,
    CONNECT_ERRORS,
    Servers,
    cause_of,
    close,
    message_of,
)

Answer = TypeVar("Answer")

CHANNEL = "proxyd"
# Any number will do that no other program on the database uses: "proy".
SWEEPER_LOCK = 0x7072_6F79
# A query that is not answered within this part of the timeout leaves time to connect anew.
ANSWERS_PER_TIMEOUT = 3
# A daemon that hangs in the middle of a transaction must not keep its locks from the others. Units
# await nothing but their statements, so five seconds between two of them mean that it hangs.
IDLE_TRANSACTION_SECONDS = 5.0

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
# The server's own limit does not cover every silence: it does not count between the preparation of
# a statement and its execution, and a pooler does not take it. A wait for a lock or a standby is
# no silence of the daemon, and has another `wait_event`. A pooler may add the client's address to
# the name; other programs, such as a console of an operator, have another name.
_IS_HANGING = """
    datname = current_database() AND usename = current_user
        AND (application_name = $1 OR application_name LIKE $1 || ' - %')
        AND xact_start IS NOT NULL AND wait_event = 'ClientRead'
        AND state_change < clock_timestamp() - CAST($2 AS INTERVAL)
"""
_HANGING = f"SELECT pid, state_change FROM pg_stat_activity WHERE {_IS_HANGING}"
# The server copies the states of all connections before it reads what each one waits for. So a long
# statement that ends in between looks like a silence. A second query finds that its state changed.
_END_HANGING = f"""
    SELECT COUNT(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity
    JOIN unnest($3::int[], $4::timestamptz[]) AS seen (pid, state_change)
        USING (pid, state_change)
    WHERE {_IS_HANGING}
"""
# A role that may not end connections, or another product that speaks PostgreSQL's protocol.
_NO_ENDING = (asyncpg.FeatureNotSupportedError, asyncpg.SyntaxOrAccessError)

_logger = logging.getLogger("storage")


class PostgresLink:
    """A `Link` to a PostgreSQL server.

    Args:
        timeout_seconds: how long the connection may be silent before the server ends it. The
            server must do so itself: nothing tells it that a daemon hangs, or is cut off.
        on_lost: called when the connection was lost, or the server did not answer.
        has_limits: whether the server takes that limit; a pooler does not.
    """

    def __init__(
        self,
        servers: Servers,
        timeout_seconds: float,
        *,
        on_lost: Callable[[], None],
        has_limits: bool = True,
    ) -> None:
        self._servers = servers
        self._timeout = timeout_seconds
        self._on_lost = on_lost
        self._on_link_lost: Callable[[], None] = on_lost
        milliseconds = str(int(timeout_seconds * 1000))
        self._limits = {"idle_session_timeout": milliseconds} if has_limits else {}
        self._connection: asyncpg.Connection | None = None
        self._sweeps = False
        # The driver refuses a second query of a connection while the first one has no answer.
        self._turn = asyncio.Lock()
        self._ends_hanging = True

    async def connect(self, on_notice: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        """See `Link.connect`."""
        async with self._turn:
            await self._connect(on_notice, on_lost)

    async def _connect(self, on_notice: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        self._drop()
        connection = await self._answer(self._servers.connect(server_settings=self._limits))
        self._connection, self._on_link_lost = connection, on_lost
        self._ends_hanging = True

        def notified(_: object, __: int, ___: str, payload: object) -> None:
            on_notice(str(payload))

        def lost(_: object) -> None:
            if self._connection is connection:
                self._connection = None
                self._sweeps = False
                on_lost()
                self._on_lost()

        connection.add_termination_listener(lost)
        await self._answer(connection.add_listener(CHANNEL, notified))

    async def register(self, node_id: str) -> None:
        """See `Link.register`."""
        await self._ask(lambda connection: connection.execute(_REGISTER, node_id))

    async def renew(self, node_id: str) -> bool:
        """See `Link.renew`."""
        return await self._ask(lambda connection: connection.fetchval(_RENEW, node_id)) is not None

    async def exited(self, node_ids: Collection[str]) -> list[str]:  # noqa: ARG002 - see there
        """See `Link.exited`: a connection that is lost may be made again."""
        return []

    async def end_hanging(self) -> int:
        """See `Link.end_hanging`."""
        if not self._ends_hanging:
            return 0
        async with self._turn:
            question = self._end_hanging(self._connected())
            try:
                return await self._answer(question)
            except UnavailableError:
                # Another task renews the row, and must connect again without delay.
                self._on_link_lost()
                raise

    async def _end_hanging(self, connection: asyncpg.Connection) -> int:
        """End hanging transactions; a refusal is no fault of the connection."""
        criteria = APPLICATION, timedelta(seconds=IDLE_TRANSACTION_SECONDS)
        try:
            rows = await connection.fetch(_HANGING, *criteria)
            if not rows:
                return 0
            pids, changes = [row["pid"] for row in rows], [row["state_change"] for row in rows]
            return int(await connection.fetchval(_END_HANGING, *criteria, pids, changes))
        except _NO_ENDING as error:
            self._ends_hanging = False
            _logger.warning("hanging transactions of daemons stay: %s", message_of(error))
            return 0

    async def try_to_sweep(self) -> bool:
        """See `Link.try_to_sweep`."""
        if not self._sweeps:
            sql = "SELECT pg_try_advisory_lock($1)"
            answer = await self._ask(lambda connection: connection.fetchval(sql, SWEEPER_LOCK))
            self._sweeps = bool(answer)
        return self._sweeps

    async def is_unswept(self) -> bool:
        """See `Link.is_unswept`."""
        return bool(
            await self._ask(lambda connection: connection.fetchval(_IS_UNSWEPT, SWEEPER_LOCK))
        )

    async def close(self) -> None:
        """See `Link.close`."""
        connection, self._connection = self._connection, None
        self._sweeps = False
        if connection is not None:
            await close(connection, self._timeout / ANSWERS_PER_TIMEOUT)

    def _connected(self) -> asyncpg.Connection:
        if self._connection is None:
            raise UnavailableError("not connected", Cause.UNREACHABLE)
        return self._connection

    async def _ask(
        self, question: Callable[[asyncpg.Connection], Coroutine[Any, Any, Answer]]
    ) -> Answer:
        """Return an answer of the server; one question at a time."""
        async with self._turn:
            return await self._answer(question(self._connected()))

    async def _answer(self, question: Coroutine[Any, Any, Answer]) -> Answer:
        """Return an answer; every failure, and one that is late, is a lost connection.

        A late question is not cancelled: a renewal that waits for a synchronous standby would be
        done by a cancellation, and on no standby. It ends with the connection.
        """
        asking = asyncio.create_task(question)
        try:
            await asyncio.wait({asking}, timeout=self._timeout / ANSWERS_PER_TIMEOUT)
            if asking.done():
                return asking.result()
        except UnavailableError:
            self._drop()
            raise
        except CONNECT_ERRORS as error:
            self._drop()
            raise UnavailableError(message_of(error), cause_of(error)) from error
        finally:
            if not asking.done():
                self._drop()
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        self._on_lost()
        raise UnavailableError("no answer in time", Cause.SILENT)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._sweeps = False
        if connection is not None:
            connection.terminate()
