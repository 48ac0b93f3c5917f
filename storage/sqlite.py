"""The store on SQLite: one writer that commits in groups, and a few readers.

A unit of work runs whole in its connection's thread, so a transaction costs one hop however many
statements it has. Units that wait while a commit is under way share the next one: each stands in a
savepoint of its own, and all become durable with a single write to the disk.
"""

import asyncio
import fcntl
import mmap
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Self, cast

from storage import migrate
from storage.aiosqlite_compat import Connection
from storage.errors import (
    AlreadyClaimedError,
    CannotOpenError,
    ConstraintError,
    StoreError,
    UnavailableError,
)
from storage.store import Arguments, Result, Row, Transaction, Unit, Value

BUSY_TIMEOUT_SECONDS = 5.0
READERS = 2
GROUP_MAX_UNITS = 256
INDEX_HEADER_BYTES = 48
PENDING_MAX_UNITS = 10_000

_Started = Callable[[Transaction], Coroutine[Any, Any, Any]]


class SqliteStore:
    """A `Store` in one SQLite file, with write-ahead logging and durable commits."""

    def __init__(self, path: Path, writer: Connection, readers: Sequence[Connection]) -> None:
        self._path = path
        self._index: _SharedIndex | None = None
        self._writer = writer
        self._readers = readers
        self._next_reader = cycle(readers)
        self._pending: deque[_Pending] = deque()
        self._committing: asyncio.Task[None] | None = None
        self._claim: int | None = None
        self._is_closed = False

    @classmethod
    async def open(cls, name: str, *, create: bool) -> Self:
        """Open, or `create`, the file `name` and bring its schema up to date.

        Raises:
            CannotOpenError: it does not exist, cannot be read or written, is locked, or is
                something else.
        """
        path = Path(name)
        opened: list[Connection] = []
        try:
            _touch_private(path, create=create)
            for _ in range(1 + READERS):
                connection = Connection(partial(_connect, path), iter_chunk_size=64)
                await connection
                opened.append(connection)
                await connection.call(_configure)
            await opened[0].call(_prepare)
            for reader in opened[1:]:
                await reader.call(_make_reader)
        except (OSError, sqlite3.Error, CannotOpenError) as error:
            for connection in opened:
                await connection.close()
            raise CannotOpenError(f"{path}: {_reason(error)}") from error
        return cls(path, opened[0], opened[1:])

    async def write(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """See `Store.write`."""
        if len(self._pending) >= PENDING_MAX_UNITS:
            raise UnavailableError("too many writes are waiting")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        self._pending.append(_Pending(lambda tx: unit(tx, *args, **kwargs), outcome))
        if self._committing is None:
            self._committing = loop.create_task(self._commit_pending())
        return cast(Result, await outcome)

    async def read(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """See `Store.read`."""
        reader = next(self._next_reader)
        return await reader.call(partial(_read, lambda tx: unit(tx, *args, **kwargs)))

    def version(self) -> bytes | None:
        """See `Store.version`: the header of the index that all connections share.

        SQLite counts every commit of any process there (its WAL-index format, section 2).
        """
        if self._is_closed:
            return None
        if self._index is None:
            try:
                self._index = _SharedIndex(self._path)
            except OSError:  # a file system without shared memory has no such index
                return None
        return self._index.header()

    def set_aside(self) -> Self:
        """See `Store.set_aside`: units take turns in threads, and none holds up the others."""
        return self

    async def claim(self, on_lost: Callable[[], None]) -> None:  # noqa: ARG002 - a lock is not lost
        """See `Store.claim`."""
        path = f"{self._path}.lock"
        try:
            lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CannotOpenError(f"{path}: {_reason(error)}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise AlreadyClaimedError(
                f"{self._path}: another proxyd serves from this database"
            ) from None
        self._claim = lock

    def link(self, timeout_seconds: float) -> None:
        """See `Store.link`: there is no other daemon."""

    async def close(self) -> None:
        """See `Store.close`."""
        while self._committing is not None:
            await asyncio.shield(self._committing)
        self._is_closed = True
        for connection in (*self._readers, self._writer):
            await connection.close()
        if self._index is not None:
            self._index.close()
            self._index = None
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    async def _commit_pending(self) -> None:
        try:
            while self._pending:
                group = [
                    self._pending.popleft() for _ in range(min(len(self._pending), GROUP_MAX_UNITS))
                ]
                outcomes = await self._commit(group)
                for pending, outcome in zip(group, outcomes, strict=True):
                    pending.resolve(outcome)
        finally:
            self._committing = None

    async def _commit(self, group: list["_Pending"]) -> Sequence["_Outcome"]:
        try:
            return await self._writer.call(partial(_write_group, [each.start for each in group]))
        except Exception as error:  # noqa: BLE001 - handed to every caller of the group
            return [_Outcome(error=error)] * len(group)


@dataclass(frozen=True, slots=True)
class _Outcome:
    result: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class _Pending:
    start: _Started
    outcome: "asyncio.Future[Any]"

    def resolve(self, outcome: _Outcome) -> None:
        if self.outcome.done():
            return
        if outcome.error is not None:
            self.outcome.set_exception(outcome.error)
        else:
            self.outcome.set_result(outcome.result)


class _SharedIndex:
    """The index of the write-ahead log, which every connection of every process maps.

    Closing a descriptor of a file drops every lock that the process has on it, and SQLite has locks
    on this one: so it is opened behind the connections and closed behind them.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(f"{path}-shm", os.O_RDONLY | os.O_CLOEXEC)
        self._map = mmap.mmap(self._descriptor, INDEX_HEADER_BYTES, access=mmap.ACCESS_READ)

    def header(self) -> bytes:
        """Return the header, with its count of commits."""
        return self._map[:INDEX_HEADER_BYTES]

    def close(self) -> None:
        """Let go of it."""
        self._map.close()
        os.close(self._descriptor)


class _Transaction:
    """The statements of `Transaction`; they run in the caller's thread and never suspend."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def _execute(self, sql: str, values: dict[str, Value]) -> sqlite3.Cursor:
        try:
            return self._connection.execute(sql, values)
        except sqlite3.Error as error:
            raise _translated(error) from error

    async def run(self, sql: str, **values: Value) -> int:
        return self._execute(sql, values).rowcount

    async def one(self, row: Callable[..., Row], sql: str, **values: Value) -> Row | None:
        rows = self._execute(sql, values).fetchall()
        return row(*rows[0]) if rows else None

    async def all(self, row: Callable[..., Row], sql: str, **values: Value) -> list[Row]:
        return [row(*columns) for columns in self._execute(sql, values).fetchall()]

    async def lock(self, table: str, ids: Sequence[str]) -> None:
        """Nothing to do: there is one writer, and it has the whole database."""

    def table(self, name: str, **columns: str) -> str:
        values = ", ".join(f"json_extract(value, '$.{column}') AS {column}" for column in columns)
        return f"(SELECT {values} FROM json_each(:{name})) AS {name}"

    async def notify(self, *texts: str) -> None:
        """Nobody to tell: there is one daemon."""


def _finish(coroutine: Coroutine[Any, Any, Result]) -> Result:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast(Result, stop.value)
    coroutine.close()
    raise RuntimeError("a unit of work awaited something other than its transaction")


def _write_group(starts: list[_Started], connection: sqlite3.Connection) -> list[_Outcome]:
    try:
        connection.execute("BEGIN IMMEDIATE")
        try:
            outcomes = [_write_unit(connection, start) for start in starts]
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
    except sqlite3.Error as error:
        raise _translated(error) from error
    return outcomes


def _write_unit(connection: sqlite3.Connection, start: _Started) -> _Outcome:
    connection.execute("SAVEPOINT unit")
    try:
        outcome = _Outcome(result=_finish(start(_Transaction(connection))))
    except Exception as error:
        if not connection.in_transaction:
            raise UnavailableError(f"the database gave up the transaction: {error}") from error
        connection.execute("ROLLBACK TO unit")
        outcome = _Outcome(error=error)
    connection.execute("RELEASE unit")
    return outcome


def _read(start: _Started, connection: sqlite3.Connection) -> Any:  # noqa: ANN401 - the unit's own
    try:
        connection.execute("BEGIN")
        try:
            return _finish(start(_Transaction(connection)))
        finally:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise _translated(error) from error


def _touch_private(path: Path, *, create: bool) -> None:
    if not create and not path.exists():
        raise CannotOpenError(
            f"there is no database in {path.parent.resolve()}; "
            "name the settings of the daemon with --config, or start it once"
        )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=BUSY_TIMEOUT_SECONDS)


def _configure(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA temp_store = MEMORY")  # a savepoint must not need a descriptor


def _make_reader(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA query_only = ON")


def _prepare(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date: all missing steps in one transaction."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(migrate.VERSION_TABLE)
        (version,) = connection.execute(migrate.SELECT_VERSION).fetchone()
        for step in migrate.pending("sqlite", version):
            for script in step.scripts:
                for statement in _statements(script):
                    connection.execute(statement)
            connection.execute(migrate.INSERT_VERSION, {"version": step.version, "name": step.name})
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> list[str]:
    statements, lines = [], ""
    for line in script.splitlines(keepends=True):
        lines += line
        if sqlite3.complete_statement(lines):
            statements.append(lines)
            lines = ""
    return statements


def _translated(error: sqlite3.Error) -> StoreError:
    text = str(error)
    if isinstance(error, sqlite3.IntegrityError):
        return ConstraintError(text.rpartition("constraint failed: ")[2], text)
    return UnavailableError(text)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    text = str(error)
    return {
        "database is locked": "the database is locked by another program",
        "attempt to write a readonly database": "the database is read-only",
        "file is not a database": "the file is not an SQLite database",
    }.get(text, text)
