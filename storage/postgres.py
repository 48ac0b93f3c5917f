"""The store on PostgreSQL: a pool of connections, a transaction per unit of work."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Self

import asyncpg

from storage import migrate
from storage.errors import CannotOpenError, ConstraintError, StoreError, UnavailableError
from storage.place import place
from storage.postgres_link import CHANNEL, PostgresLink
from storage.store import Arguments, Result, Row, Unit, Value

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    _Connection = PoolConnectionProxy[asyncpg.Record]

# For a new connection, for a free one of the pool, and for closing the pool: a server that takes
# longer is unavailable, and the caller should hear it while a client still waits.
CONNECT_TIMEOUT_SECONDS = 10.0
# Every statement reads a bounded part of an index; one of ten seconds hangs, or waits for a lock.
STATEMENT_TIMEOUT_SECONDS = 10.0
# A daemon that hangs in the middle of a transaction must not keep its locks from the others. Units
# await nothing but their statements, so five seconds between two of them mean that it hangs.
IDLE_TRANSACTION_SECONDS = 5.0
# One step over a large table, or the wait for another daemon that migrates at the same time.
MIGRATION_SECONDS = 600.0
# How long a migration queues for a table lock: all later statements on that table queue behind it.
MIGRATION_LOCK_SECONDS = 5.0
# Runs of a unit that loses to other writers. Rows are locked in one order, so that is rare; a unit
# that loses five times in a row is refused, rather than repeated for ever.
ATTEMPTS = 5
# A third of the pool is for leases and counts, which must not wait behind the API's units: they are
# few and short. A pool of a single connection is shared.
SET_ASIDE_DIVISOR = 3
MIGRATION_LOCK = 0x70726F78  # "prox", the key of our advisory lock

_SERVER_SETTINGS = {
    "idle_in_transaction_session_timeout": str(int(IDLE_TRANSACTION_SECONDS * 1000)),
}
_TEXT_OR_PARAMETER = re.compile(r"'[^']*'|(?<!:):(?P<name>[a-z_]+)")
_RETRIED = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
_UNREACHABLE = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


class PostgresStore:
    """A `Store` in a PostgreSQL database.

    Args:
        url: the database.
        pool: connections to it.
        aside: connections for `set_aside`, which do not wait for those; None to share the pool.
    """

    def __init__(self, url: str, pool: asyncpg.Pool, aside: asyncpg.Pool | None = None) -> None:
        self._url = url
        self._pool = pool
        self._aside = PostgresStore(url, aside) if aside is not None else None

    @classmethod
    async def open(
        cls, url: str, *, pool_size: int, statement_seconds: float | None = None
    ) -> Self:
        """Connect to the database at `url` and bring its schema up to date.

        Args:
            url: the database.
            pool_size: the most connections, including those set aside.
            statement_seconds: the limit on one statement; None for `STATEMENT_TIMEOUT_SECONDS`.

        Raises:
            CannotOpenError: it is out of reach, refuses the login, or is newer than this program.
        """
        set_aside = max(1, pool_size // SET_ASIDE_DIVISOR) if pool_size > 1 else 0
        pool = _pool(url, pool_size - set_aside, statement_seconds)
        aside = _pool(url, set_aside, statement_seconds, ready=0) if set_aside else None
        try:
            await pool
            if aside is not None:
                await aside
            async with pool.acquire() as connection, connection.transaction():
                await _prepare(connection)
        except (*_UNREACHABLE, ValueError, CannotOpenError) as error:
            pool.terminate()
            raise CannotOpenError(f"{place(url)}: {_reason(error)}") from error
        return cls(url, pool, aside)

    async def write(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """See `Store.write`. A unit that loses to another (deadlock, conflict) is run again."""
        conflict: Exception | None = None
        for _ in range(ATTEMPTS):
            try:
                async with self._transaction("read_committed", readonly=False) as connection:
                    tx = _Transaction(connection)
                    result = await unit(tx, *args, **kwargs)
            except _RETRIED as error:
                conflict = error
            else:
                for call in tx.calls:
                    call()
                return result
        raise UnavailableError(f"lost {ATTEMPTS} times to other writers") from conflict

    async def read(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """See `Store.read`."""
        async with self._transaction("repeatable_read", readonly=True) as connection:
            return await unit(_Transaction(connection), *args, **kwargs)

    def version(self) -> bytes | None:
        """See `Store.version`: None, because only a query could tell."""
        return None

    def set_aside(self) -> "PostgresStore":
        """See `Store.set_aside`."""
        return self._aside or self

    async def claim(self, on_lost: Callable[[], None]) -> None:
        """See `Store.claim`; any number of daemons may serve."""

    def link(self, timeout_seconds: float) -> PostgresLink:
        """See `Store.link`."""
        return PostgresLink(self._url, timeout_seconds)

    async def close(self) -> None:
        """See `Store.close`."""
        aside = [self._aside.close()] if self._aside is not None else []
        await asyncio.gather(_close(self._pool), *aside)

    @asynccontextmanager
    async def _transaction(
        self, isolation: Literal["read_committed", "repeatable_read"], *, readonly: bool
    ) -> AsyncIterator["_Connection"]:
        with _translating():
            async with (
                self._pool.acquire(timeout=CONNECT_TIMEOUT_SECONDS) as connection,
                connection.transaction(isolation=isolation, readonly=readonly),
            ):
                yield connection


class _Transaction:
    """The statements of `Transaction`, over one connection with an open transaction."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self.calls: list[Callable[[], None]] = []

    async def run(self, sql: str, **values: Value) -> int:
        statement, arguments = _positional(sql, values)
        with _translating():
            status = await self._connection.execute(statement, *arguments)
        row_count = status.rpartition(" ")[2]  # of "UPDATE 3"; "SET" has none
        return int(row_count) if row_count.isdigit() else 0

    async def one(self, row: Callable[..., Row], sql: str, **values: Value) -> Row | None:
        statement, arguments = _positional(sql, values)
        with _translating():
            record = await self._connection.fetchrow(statement, *arguments)
        return row(*record) if record is not None else None

    async def all(self, row: Callable[..., Row], sql: str, **values: Value) -> list[Row]:
        statement, arguments = _positional(sql, values)
        with _translating():
            records = await self._connection.fetch(statement, *arguments)
        return [row(*record) for record in records]

    async def lock(self, table: str, ids: Sequence[str]) -> None:
        with _translating():
            await self._connection.execute(
                f"SELECT 1 FROM {table} WHERE id = ANY($1) ORDER BY id FOR UPDATE",
                list(ids),
            )

    def table(self, name: str, **columns: str) -> str:
        types = ", ".join(f"{column} {kind}" for column, kind in columns.items())
        return f"jsonb_to_recordset(CAST(:{name} AS jsonb)) AS {name} ({types})"

    async def notify(self, *texts: str) -> None:
        with _translating():
            await self._connection.execute(
                "SELECT pg_notify($1, each) FROM unnest($2::text[]) AS each", CHANNEL, list(texts)
            )

    def after_commit(self, call: Callable[[], None]) -> None:
        self.calls.append(call)


def _pool(url: str, size: int, statement_seconds: float | None, *, ready: int = 1) -> asyncpg.Pool:
    """Return a pool of connections; `ready` of them are made when it is opened."""
    return asyncpg.create_pool(
        url,
        min_size=ready,
        max_size=size,
        timeout=CONNECT_TIMEOUT_SECONDS,
        command_timeout=statement_seconds or STATEMENT_TIMEOUT_SECONDS,
        server_settings=_SERVER_SETTINGS,
    )


async def _close(pool: asyncpg.Pool) -> None:
    """Close a pool once its units are done, or without them when that takes too long."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_SECONDS):
            await pool.close()
    except TimeoutError:
        pool.terminate()


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
def _translating() -> Iterator[None]:
    """Turn the driver's errors into the store's, but for those that `write` retries."""
    try:
        yield
    except _RETRIED:
        raise
    except _UNREACHABLE as error:
        raise _translated(error) from error


def _translated(error: BaseException) -> StoreError:
    if isinstance(error, asyncpg.IntegrityConstraintViolationError):
        return ConstraintError(error.constraint_name or "", _message(error))
    return UnavailableError(_message(error))


async def _prepare(connection: "_Connection") -> None:
    """Bring the schema up to date: all missing steps in one transaction, one program at a time.

    A step may take minutes, and so may the wait for another program's migration. The wait for the
    lock of a table is short, because every later statement on that table queues behind it.
    """
    timeout = MIGRATION_SECONDS
    milliseconds = int(MIGRATION_LOCK_SECONDS * 1000)
    await connection.execute(  # in one message: a start waits for the answers to each
        f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK});"
        f"SET LOCAL lock_timeout = {milliseconds};"
        f"{migrate.VERSION_TABLE}",
        timeout=timeout,
    )
    version: Any = await connection.fetchval(migrate.SELECT_VERSION)
    for step in migrate.pending("postgres", version):
        for script in step.scripts:
            await connection.execute(script, timeout=timeout)
        await _Transaction(connection).run(
            migrate.INSERT_VERSION, version=step.version, name=step.name
        )


def _reason(error: BaseException) -> str:
    """Return why a database cannot be opened; a URL that cannot be read is not repeated."""
    if isinstance(error, ValueError):
        return "storage.url is not a URL of a PostgreSQL database"
    return _message(error)


def _message(error: BaseException) -> str:
    """Return the error's message without its DETAIL, which may repeat a whole row."""
    if isinstance(error, asyncpg.PostgresError) and error.args:
        return str(error.args[0])
    return str(error) or type(error).__name__
