"""The store on PostgreSQL: a pool of connections, a transaction per unit of work.

Theory of operation
-------------------
A unit ends in one of three ways:

- It is committed: the server said so.
- It is not committed: its statements failed, or its connection was lost before COMMIT was sent. A
  lost connection is not the unit's fault, so it is run again once the database accepts writes, as
  long as `postgres_availability` has patience.
- It is in doubt: COMMIT was sent, and no answer came. That is `UnknownOutcomeError`.

COMMIT is never cancelled: neither by a limit of time, nor with the task that runs the unit. A
commit that waits for a synchronous standby would be done by a cancellation, here and on no standby,
and a repetition would find it done. So COMMIT runs in a task of its own. If its answer is late, the
connection ends without a request to cancel; the server goes on waiting, with its locks, so that a
repetition waits as well.

A unit that lost against another unit is run again. A third of the connections serve leases and
counts alone (`Store.set_aside`), so these never wait for the API.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import asyncpg

from storage.engines.errors import (
    CannotOpenError,
    Cause,
    ConstraintError,
    StoreError,
    UnavailableError,
    UnknownOutcomeError,
)
from storage.engines.health import Health
from storage.engines.place import UrlError, place
from storage.engines.postgres_availability import Availability
from storage.engines.postgres_link import CHANNEL, IDLE_TRANSACTION_SECONDS, PostgresLink
from storage.engines.postgres_pooler import Pooler, refuse_transaction_mode
from storage.engines.postgres_schema import bring_up_to_date
from storage.engines.postgres_servers import (
    CONNECT_ERRORS,
    ServerConnection,
    Servers,
    accepts_writes,
    cause_of,
    message_of,
)
from storage.engines.store import Arguments, Result, Row, Unit, Value

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    _Connection = PoolConnectionProxy[asyncpg.Record]  # it passes on a `ServerConnection`'s methods


# All of a unit: the wait for a connection and for the database, its statements and its commit.
# Shorter than the 15 to 30 seconds that most clients wait for an answer.
UNIT_SECONDS = 12.0
# Every statement reads a bounded part of an index; one of ten seconds hangs, or waits for a lock.
STATEMENT_TIMEOUT_SECONDS = 10.0
# The least time for a commit, even after slow statements: an unknown outcome is worse than a late
# answer.
COMMIT_LEAST_SECONDS = 2.0
# COMMIT ends by the timer that ends its connection, so the driver's own limit must be far away.
NEVER_SECONDS = 3600.0
# For the end of a unit that failed: a server that takes longer is silent, and frees its locks when
# it finds the connection closed.
ROLLBACK_SECONDS = 1.0
# For closing the pool.
CLOSE_SECONDS = 10.0
# How long a migration queues for a table lock: all later statements on that table queue behind it.
MIGRATION_LOCK_SECONDS = 5.0
# Runs of a unit that loses to other writers. Rows are locked in one order, so that is rare; a unit
# that loses five times in a row is refused, rather than repeated for ever.
ATTEMPTS = 5
SCRUB_SECONDS = 3_600.0  # of one table; nothing waits for it
# Runs of a unit whose connection is lost. An outage takes one; a unit that makes the server crash
# must not do so again and again.
LOST_ATTEMPTS = 4
# A third of the pool is for leases and counts, which must not wait behind the API's units: they are
# few and short. A pool of a single connection is shared.
SET_ASIDE_DIVISOR = 3

_BEGIN_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_TEXT_OR_PARAMETER = re.compile(r"'[^']*'|(?<!:):(?P<name>[a-z_]+)")
_RETRIED = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
# The connection is worthless, or leads to the wrong server.
_GONE = (
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
)


_logger = logging.getLogger("storage")


class _GoneError(UnavailableError):
    """The connection was lost before COMMIT was sent, so nothing was written."""


class _LateError(UnavailableError):
    """No answer came in time, before COMMIT was sent: nothing was written."""


class _Database(NamedTuple):
    """Shared by all connections of a process."""

    direct: Servers
    availability: Availability
    has_limits: bool  # whether a link may set limits of its session


class PostgresStore:
    """A `Store` in a PostgreSQL database.

    Args:
        aside: connections for `set_aside`, which do not wait for those of the pool; None to share
            the pool.
        unit_seconds: the most time for one unit.
    """

    def __init__(
        self,
        database: _Database,
        pool: asyncpg.Pool,
        aside: asyncpg.Pool | None = None,
        *,
        unit_seconds: float,
    ) -> None:
        self._database = database
        self._unit_seconds = unit_seconds
        self._availability = database.availability
        self._pool = pool
        self._aside = None
        if aside is not None:
            self._aside = PostgresStore(database, aside, unit_seconds=unit_seconds)
        self._committing: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        pool_size: int,
        statement_seconds: float | None = None,
        pooler: Pooler = Pooler.NONE,
        direct_url: str = "",
        migration_lock_seconds: float = MIGRATION_LOCK_SECONDS,
    ) -> Self:
        """Connect to the database at `url` and bring its schema up to date.

        Args:
            url: the database; it may name several servers; only one accepts writes.
            pool_size: the most connections, including those set aside.
            statement_seconds: the limit on one statement, of a unit without a limit of its own;
                None for `STATEMENT_TIMEOUT_SECONDS` and `UNIT_SECONDS`.
            pooler: the program between this one and the servers.
            direct_url: the same database without a pooler, for links and migrations; "" for `url`.
            migration_lock_seconds: how long a migration queues for a table lock.

        Raises:
            CannotOpenError: it is out of reach, refuses the login, or is newer than this program.
        """
        set_aside = max(1, pool_size // SET_ASIDE_DIVISOR) if pool_size > 1 else 0
        options = _options(pooler, statement_seconds)
        pools = []
        try:
            servers = _servers("storage.url", url)
            direct = _servers("storage.direct_url", direct_url) if direct_url else servers
            pools = [
                _pool(servers, options, size) for size in (pool_size - set_aside, set_aside) if size
            ]
            for pool in pools:
                await pool
            await _open(pools[0], servers, direct, options, pooler, migration_lock_seconds)
        except (*CONNECT_ERRORS, ValueError, StoreError) as error:
            for pool in pools:
                pool.terminate()
            raise CannotOpenError(f"{place(url)}: {_reason(error)}") from error
        has_limits = bool(direct_url) or pooler is Pooler.NONE
        database = _Database(direct, Availability(servers, **options), has_limits)
        unit_seconds = UNIT_SECONDS if statement_seconds is None else NEVER_SECONDS
        return cls(database, *pools, unit_seconds=unit_seconds)

    async def write(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """See `Store.write`. A unit that loses to another (deadlock, conflict) is run again."""
        tx, result = await self._run(_BEGIN_WRITE, lambda tx: unit(tx, *args, **kwargs))
        for call in tx.calls:
            call()
        return result

    async def read(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """See `Store.read`."""
        _, result = await self._run(_BEGIN_READ, lambda tx: unit(tx, *args, **kwargs))
        return result

    async def scrub(self, tables: Sequence[str]) -> bool:
        """See `Store.scrub`; a table that another program locks is left out."""
        connection = await self._acquire(asyncio.get_running_loop().time() + self._unit_seconds)
        try:
            with _translating(connection):
                await connection.execute("SET statement_timeout = 0")  # a large table takes minutes
                try:
                    for table in tables:
                        await connection.execute(
                            f"VACUUM (SKIP_LOCKED) {table}", timeout=SCRUB_SECONDS
                        )
                finally:
                    await connection.execute("RESET statement_timeout")
        finally:
            await self._release(connection)
        return True

    def version(self) -> bytes | None:
        """See `Store.version`: None, because it would cost a query."""
        return None

    def health(self) -> Health:
        """See `Store.health`."""
        return self._availability.health()

    def set_aside(self) -> "PostgresStore":
        """See `Store.set_aside`."""
        return self._aside or self

    async def claim(self, on_lost: Callable[[], None]) -> None:
        """See `Store.claim`; any number of daemons may serve."""

    def link(self, timeout_seconds: float) -> PostgresLink:
        """See `Store.link`."""
        return PostgresLink(
            self._database.direct,
            timeout_seconds,
            on_lost=self._availability.doubted,
            has_limits=self._database.has_limits,
        )

    async def close(self) -> None:
        """See `Store.close`."""
        aside = [self._aside.close()] if self._aside is not None else []
        await asyncio.gather(*self._committing, return_exceptions=True)
        await asyncio.gather(_close(self._pool), *aside)
        await self._availability.close()

    # --- a unit of work --------------------------------------------------------------------------

    async def _run(
        self, begin: str, unit: Callable[["_Transaction"], Coroutine[Any, Any, Result]]
    ) -> tuple["_Transaction", Result]:
        """Run a unit until it is committed, or until it certainly cannot be committed."""
        deadline = asyncio.get_running_loop().time() + self._unit_seconds
        lost, conflicts = 0, 0
        try:
            while True:
                await self._availability.until_up(deadline)
                try:
                    return await self._attempt(begin, unit, deadline)
                except _RETRIED as error:
                    conflicts += 1
                    if conflicts == ATTEMPTS:
                        message = f"lost {ATTEMPTS} times to other writers"
                        raise UnavailableError(message, Cause.BUSY) from error
                except _LateError:
                    self._availability.doubted()
                    raise
                except _GoneError as error:
                    lost += 1
                    self._availability.lost(error)
                    if lost == LOST_ATTEMPTS:
                        raise
                    self._availability.repeated()
        except UnavailableError as error:
            self._availability.refused(error)
            raise

    async def _attempt(
        self,
        begin: str,
        unit: Callable[["_Transaction"], Coroutine[Any, Any, Result]],
        deadline: float,
    ) -> tuple["_Transaction", Result]:
        """Run a unit once, from BEGIN to COMMIT."""
        connection = await self._acquire(deadline)
        tx = _Transaction(connection)
        try:
            async with asyncio.timeout_at(deadline):
                with _translating(connection):
                    await connection.execute(begin)
                result = await unit(tx)
        except BaseException as error:
            await self._roll_back(connection, is_lost=isinstance(error, _GoneError))
            if isinstance(error, TimeoutError):
                raise _LateError("no answer in time", Cause.SILENT) from error
            raise
        if begin is _BEGIN_READ:
            await self._roll_back(connection)
            return tx, result
        committing = asyncio.create_task(self._commit(connection, deadline))
        self._committing.add(committing)
        committing.add_done_callback(self._committed)
        await asyncio.shield(committing)
        return tx, result

    def _committed(self, task: asyncio.Task[None]) -> None:
        """Forget a commit; its error is retrieved here if its caller was cancelled."""
        self._committing.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), UnavailableError):
            _logger.debug("a commit failed: %s", error)

    async def _acquire(self, deadline: float) -> "_Connection":
        """Return a free connection to a server that accepts writes.

        Raises:
            _GoneError: no server accepts writes.
            UnavailableError: no connection is free.
        """
        while True:
            try:
                with _translating():
                    connection = await self._pool.acquire(timeout=self._left(deadline))
            except _LateError as error:
                if self._pool.get_size() < self._pool.get_max_size():
                    raise
                raise UnavailableError("no connection of the pool is free", Cause.BUSY) from error
            if accepts_writes(connection):
                return connection
            _end(connection)  # it would stay in the pool, and be taken again and again
            await self._release(connection)

    async def _commit(self, connection: "_Connection", deadline: float) -> None:
        """Commit, and give the connection back; never cancelled, see the head of this file.

        Raises:
            ConstraintError: a rule of the schema, checked at the commit, forbids it.
            UnknownOutcomeError: no answer came.
            UnavailableError: the server rolled it back.
        """
        if _is_closed(connection):  # nothing is awaited between this look and the sending of COMMIT
            await self._release(connection)
            raise _GoneError("the connection was lost before the commit", Cause.UNREACHABLE)
        seconds = max(self._left(deadline), COMMIT_LEAST_SECONDS)
        connection.begin_commit()  # type: ignore[attr-defined]  # by its proxy
        timer = asyncio.get_running_loop().call_later(seconds, _end, connection)
        try:
            with _translating(connection):
                status = await connection.execute("COMMIT", timeout=NEVER_SECONDS)
        except _GoneError as error:
            self._availability.doubted()
            raise UnknownOutcomeError(f"the answer to a commit was lost: {error}") from error
        except BaseException:
            _end(connection)
            raise
        finally:
            timer.cancel()
            if not _is_closed(connection):
                connection.end_commit()  # type: ignore[attr-defined]  # by its proxy
            await self._release(connection)
        if status != "COMMIT":  # a statement of the unit failed, and the unit went on
            raise UnavailableError("the server rolled the transaction back")

    async def _roll_back(self, connection: "_Connection", *, is_lost: bool = False) -> None:
        """End a transaction that changed nothing, or failed, and give the connection back.

        Args:
            connection: the transaction's.
            is_lost: whether no answer is to be expected.
        """
        is_over = False
        try:
            if not is_lost and not _is_closed(connection):
                await connection.execute("ROLLBACK", timeout=ROLLBACK_SECONDS)
                is_over = True
        except CONNECT_ERRORS as error:
            _logger.debug("a transaction ends with its connection: %s", error)
        finally:
            if not is_over:  # its locks are freed with the connection
                _end(connection)
            await self._release(connection)

    async def _release(self, connection: "_Connection") -> None:
        """Return a connection to the pool; the outcome of its unit stands in any case."""
        try:
            await self._pool.release(connection, timeout=ROLLBACK_SECONDS)
        except CONNECT_ERRORS as error:
            _logger.debug("a connection did not close in time: %s", error)
            _end(connection)

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - asyncio.get_running_loop().time())


class _Transaction:
    """The statements of `Transaction`, over one connection with an open transaction."""

    def __init__(self, connection: "_Connection | asyncpg.Connection") -> None:
        self._connection = connection
        self.calls: list[Callable[[], None]] = []

    async def run(self, sql: str, **values: Value) -> int:
        statement, arguments = _positional(sql, values)
        with _translating(self._connection):
            status = await self._connection.execute(statement, *arguments)
        row_count = status.rpartition(" ")[2]  # of "UPDATE 3"; "SET" has none
        return int(row_count) if row_count.isdigit() else 0

    async def one(self, row: Callable[..., Row], sql: str, **values: Value) -> Row | None:
        statement, arguments = _positional(sql, values)
        with _translating(self._connection):
            record = await self._connection.fetchrow(statement, *arguments)
        return row(*record) if record is not None else None

    async def all(self, row: Callable[..., Row], sql: str, **values: Value) -> list[Row]:
        statement, arguments = _positional(sql, values)
        with _translating(self._connection):
            records = await self._connection.fetch(statement, *arguments)
        return [row(*record) for record in records]

    async def lock(self, table: str, ids: Sequence[str]) -> None:
        with _translating(self._connection):
            await self._connection.execute(
                f"SELECT 1 FROM {table} WHERE id = ANY($1) ORDER BY id FOR UPDATE",
                list(ids),
            )

    def table(self, name: str, **columns: str) -> str:
        types = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        return f"jsonb_to_recordset(CAST(:{name} AS jsonb)) AS {name} ({types})"

    def among(self, name: str) -> str:
        return f"= ANY (ARRAY(SELECT jsonb_array_elements_text(CAST(:{name} AS jsonb))))"

    async def notify(self, *texts: str) -> None:
        with _translating(self._connection):
            await self._connection.execute(
                "SELECT pg_notify($1, each) FROM unnest($2::text[]) AS each", CHANNEL, list(texts)
            )

    def after_commit(self, call: Callable[[], None]) -> None:
        self.calls.append(call)


def _options(pooler: Pooler, statement_seconds: float | None) -> dict[str, Any]:
    """Return the options of each connection."""
    options: dict[str, Any] = {"command_timeout": statement_seconds or STATEMENT_TIMEOUT_SECONDS}
    if pooler is Pooler.NONE:
        options["server_settings"] = {
            "idle_in_transaction_session_timeout": str(int(IDLE_TRANSACTION_SECONDS * 1000)),
        }
    return options


def _pool(servers: Servers, options: dict[str, Any], size: int) -> asyncpg.Pool:
    """Return a pool that makes a connection when it is needed.

    It keeps none ready: the driver replaces those in an outage, and logs each failure.
    """
    return asyncpg.create_pool(
        min_size=0,
        max_size=size,
        connect=servers.connect,
        connection_class=ServerConnection,
        reset=_nothing_to_reset,
        **options,
    )


async def _nothing_to_reset(_: object) -> None:
    """Spare a unit the driver's reset of a connection: no unit changes a session's state."""


async def _close(pool: asyncpg.Pool) -> None:
    """Close a pool once its units are done, or without them when that takes too long."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await pool.close()
    except TimeoutError:
        pool.terminate()


def _end(connection: "_Connection") -> None:
    """Close a connection without a word to the server; one that is closed stays so."""
    with suppress(asyncpg.InterfaceError):  # the pool has it back
        connection.terminate()


def _is_closed(connection: "_Connection | asyncpg.Connection") -> bool:
    """Return whether a connection is closed, or was taken back by the pool."""
    try:
        return connection.is_closed()
    except asyncpg.InterfaceError:  # the pool has it back
        return True


def _positional(sql: str, values: Mapping[str, Value]) -> tuple[str, list[Value]]:
    statement, names = _numbered(sql)
    return statement, [values[name] for name in names]


@lru_cache(maxsize=1024)
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """Replace each `:name` by `$1`, `$2`, …; return the statement and the names in that order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match[0]
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _TEXT_OR_PARAMETER.sub(number, sql), tuple(names)


@contextmanager
def _translating(connection: "_Connection | asyncpg.Connection | None" = None) -> Iterator[None]:
    """Turn the driver's errors into the store's, except the errors that `write` retries."""
    try:
        yield
    except _RETRIED:
        raise
    except UnavailableError as error:  # no server accepts writes, or none has a free place
        if error.cause is Cause.BUSY:
            raise
        raise _GoneError(str(error), error.cause) from error
    except CONNECT_ERRORS as error:
        is_closed = connection is not None and _is_closed(connection)
        raise _translated(error, is_closed=is_closed) from error


def _translated(error: Exception, *, is_closed: bool) -> StoreError:
    message = message_of(error)
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return ConstraintError(error.constraint_name or "", message)
    if isinstance(error, TimeoutError):
        return _LateError(message, Cause.SILENT)
    if is_closed or isinstance(error, _GONE):
        return _GoneError(message, cause_of(error))
    return UnavailableError(message, cause_of(error))


async def _open(
    pool: asyncpg.Pool,
    servers: Servers,
    direct: Servers,
    options: dict[str, Any],
    pooler: Pooler,
    lock_seconds: float,
) -> None:
    """Bring the schema up to date, on a connection of the pool or on one that passes the pooler."""
    if pooler is Pooler.SESSION:
        await refuse_transaction_mode(partial(servers.connect, **options))
    if direct is servers:
        async with pool.acquire() as connection, connection.transaction():
            await bring_up_to_date(connection, lock_seconds)
        return
    alone = await direct.connect(**options)
    try:
        async with alone.transaction():
            await bring_up_to_date(alone, lock_seconds)
    finally:
        await alone.close(timeout=CLOSE_SECONDS)


def _servers(setting: str, url: str) -> Servers:
    """Return the servers that a setting names.

    Raises:
        UrlError: its URL cannot be understood.
    """
    try:
        return Servers(url)
    except UrlError as error:
        raise UrlError(f"{setting} {error}") from None


def _reason(error: BaseException) -> str:
    """Return why a database cannot be opened; a URL that cannot be read is not repeated."""
    if isinstance(error, ValueError) and not isinstance(error, UrlError):
        return "storage.url is not a URL of a PostgreSQL database"
    message = message_of(error)
    if "unsupported startup parameter" in message:
        return f'{message}; a pooler such as pgbouncer needs storage.pooler = "session"'
    return message
