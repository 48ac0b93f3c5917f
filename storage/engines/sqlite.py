"""The store on SQLite: one writer that commits in groups, and a few readers.

Theory of operation
-------------------
SQLite allows one writer at a time, and a durable commit waits for the disk. So there is one
connection that writes (`_writer`), a few that read, and each has a thread of its own (aiosqlite's).

A unit of work is a coroutine, because on PostgreSQL it has to wait for a server. Here nothing in it
ever waits: `_Transaction`'s methods are coroutines that run their statement at once, in the thread
that they are called in. `_finish` therefore drives a unit from its first line to its `return` by a
single `send(None)`, inside the connection's thread and without an event loop. A transaction costs
one hop between threads, however many statements it has. A unit that awaits anything but its
transaction would suspend; it is closed, and fails with a RuntimeError.

Writing goes in groups:
1. `write` appends the unit to `_pending`, and starts the task `_commit_pending` unless it runs.
2. That task takes up to `GROUP_MAX_UNITS` units, in order, and sends them to the writer's thread.
   Units that arrive meanwhile form the next group: the slower the disk, the larger the groups.
3. `_write_group` runs in the thread: BEGIN IMMEDIATE; for each unit SAVEPOINT, the unit, RELEASE;
   then one COMMIT, which makes all of them durable with one write to the disk.
4. Back on the loop, each caller's future gets its unit's result or exception. No caller gets a
   result before the COMMIT.

Effects of failures:
- A unit raises (a refusal, a broken constraint, a mistake): ROLLBACK TO its savepoint. Its caller
  gets the exception; the other units of the group are committed.
- SQLite ends the whole transaction by itself (disk full, I/O error): there is no savepoint left to
  return to. Every unit of the group fails with `UnavailableError`, and nothing is written.
- BEGIN finds another program writing, for `BUSY_TIMEOUT_SECONDS`, or COMMIT fails: the same.
- A caller is cancelled while it waits: its unit runs all the same. Whether it was committed is then
  unknown to the caller, as it is when an answer is lost.
- The process dies: SQLite's log is replayed up to the last COMMIT at the next start.

Several processes of one service may have the file open (`is_shared`), each with all of the above.
Then a group is written when it is the process's turn (`write_gate`), and the notices of its units
are sent once it is committed (`node_folder`), by the writer's thread. A daemon that has the file
for itself does neither.

A read takes the next reader in turn, and runs in a transaction that is always rolled back: all its
statements see one snapshot, and in WAL mode it neither waits for the writer nor holds it up.
"""

import asyncio
import mmap
import os
import sqlite3
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self, cast

from storage.engines import migrate
from storage.engines.aiosqlite_compat import Connection
from storage.engines.claim import lock_beside
from storage.engines.errors import (
    CannotOpenError,
    Cause,
    ConstraintError,
    StoreError,
    UnavailableError,
)
from storage.engines.health import Health
from storage.engines.node_folder import NodeFolder, checked, lock_within
from storage.engines.sqlite_link import SqliteLink
from storage.engines.sqlite_room import WriteRoom
from storage.engines.store import Arguments, Result, Row, Transaction, Unit, Value
from storage.engines.write_gate import WriteGate

# How long another program (a backup, a shell) may hold the database before our units fail. Longer
# than it takes such a program to commit; shorter than a client's patience with an API request.
BUSY_TIMEOUT_SECONDS = 5.0
# Bounds how long a group occupies the writer: its first unit is answered after its last. At this
# size the commit's share of a unit's cost is small already.
GROUP_MAX_UNITS = 256
# How long a process waits for another that opens the same file and brings its schema up to date:
# one step over a large table may take minutes.
OPENING_SECONDS = 600.0
OPENING_STEP_SECONDS = 0.01  # a start takes thirty times that
SCRUB_MILLISECONDS = 200  # longer than a short read; other writes wait meanwhile
# The part of the WAL-index header that every commit changes (SQLite's WAL-index format, section 2).
INDEX_HEADER_BYTES = 48
# Seconds of work for the writer. Beyond it a refusal now is worth more than an answer then, and the
# units that wait must not fill the memory while the disk hangs.
PENDING_MAX_UNITS = 10_000

_CAUSES = {
    sqlite3.SQLITE_FULL: Cause.FULL,
    sqlite3.SQLITE_READONLY: Cause.READ_ONLY,
    sqlite3.SQLITE_BUSY: Cause.BUSY,
}

_Start = Callable[[Transaction], Coroutine[Any, Any, Any]]  # a unit with its arguments bound


class SqliteStore:
    """A `Store` in one SQLite file, with write-ahead logging and durable commits.

    Args:
        folder: where the processes meet that share the file; None for a daemon that has it for
            itself, and for a command of the operator's.
        gate: where writers take turns, None where there are no others.
    """

    def __init__(
        self,
        path: Path,
        writer: Connection,
        readers: Sequence[Connection],
        *,
        folder: NodeFolder | None = None,
        gate: WriteGate | None = None,
    ) -> None:
        self._path = path
        self._folder = folder
        self._gate = gate
        self._index: _SharedIndex | None = None
        self._writer = writer
        self._readers = readers
        self._next_reader = cycle(readers)
        self._pending: deque[_Pending] = deque()
        self._committing: asyncio.Task[None] | None = None
        self._claim: int | None = None
        self._is_closed = False
        self._room = WriteRoom(path.parent)

    @classmethod
    async def open(
        cls,
        name: str,
        *,
        create: bool,
        readers: int,
        is_shared: bool = False,
        busy_seconds: float = BUSY_TIMEOUT_SECONDS,
        opening_seconds: float = OPENING_SECONDS,
    ) -> Self:
        """Open, or `create`, the file `name` and bring its schema up to date.

        Args:
            name: the file.
            create: whether to create one that does not exist.
            readers: the number of connections that read.
            is_shared: whether several processes serve from it; one that is no daemon has claimed it
                for them (`storage.engines.claim`).
            busy_seconds: how long units wait for another program that has the database.
            opening_seconds: how long to wait for another process that opens it.

        Raises:
            CannotOpenError: it does not exist, cannot be read or written, is locked, or is not an
                SQLite database.
        """
        path = Path(name)
        folder = NodeFolder(path)
        connections: list[Connection] = []
        gate: WriteGate | None = None
        try:
            _touch_private(path, create=create)
            if is_shared:
                folder.make()
            gate = WriteGate.of_members(folder) if is_shared else WriteGate.of_a_guest(folder)
            for _ in range(1 + readers):
                connection = Connection(partial(_connect, path, busy_seconds), iter_chunk_size=64)
                await connection
                connections.append(connection)
                await connection.call(_configure)
            writer, *reading = connections
            turn = folder if is_shared else None
            await writer.call(partial(_prepare_in_turn, turn, gate, opening_seconds))
            for reader in reading:
                await reader.call(_make_reader)
        except (OSError, sqlite3.Error, CannotOpenError) as error:
            for connection in connections:
                await connection.close()
            if gate is not None:
                gate.close()
            raise CannotOpenError(f"{path}: {_reason(error)}") from error
        return cls(path, writer, reading, folder=folder if is_shared else None, gate=gate)

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
            self._committing = loop.create_task(self._commit_pending(), name="commit")
        return cast(Result, await outcome)

    async def read(
        self, unit: Unit[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """See `Store.read`."""
        reader = next(self._next_reader)
        return await reader.call(partial(_read, lambda tx: unit(tx, *args, **kwargs)))

    async def scrub(self, tables: Sequence[str]) -> bool:  # noqa: ARG002 - one log has all tables
        """See `Store.scrub`."""
        return await self._writer.call(_empty_log)

    def version(self) -> bytes | None:
        """See `Store.version`: the header of the index that all connections share.

        SQLite counts every commit of any process there.
        """
        if self._is_closed:
            return None
        if self._index is None:
            try:
                self._index = _SharedIndex(self._path)
            except OSError:  # a file system without shared memory has no such index
                return None
        return self._index.header()

    def health(self) -> Health:
        """See `Store.health`: the file is on this machine, cannot move, and can be out of room."""
        return self._room.health()

    def set_aside(self) -> Self:
        """See `Store.set_aside`: the writer takes units in order of arrival, so none is starved."""
        return self

    async def claim(self, on_lost: Callable[[], None]) -> None:  # noqa: ARG002 - a lock is not lost
        """See `Store.claim`; among several processes the one that starts them has claimed it."""
        if self._folder is None:
            self._claim = lock_beside(self._path)

    def link(self, timeout_seconds: float) -> SqliteLink | None:
        """See `Store.link`: None unless other processes share the file."""
        if self._folder is None:
            return None
        return SqliteLink(self, self._folder, timeout_seconds)

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
        if self._gate is not None:
            self._gate.close()
        if self._claim is not None:
            os.close(self._claim)
            self._claim = None

    async def _commit_pending(self) -> None:
        """Commit group after group until nothing is pending; `write` starts the next such task."""
        try:
            while self._pending:
                group = [
                    self._pending.popleft() for _ in range(min(len(self._pending), GROUP_MAX_UNITS))
                ]
                outcomes = await self._commit(group)
                self._room.note(each.error for each in outcomes)
                # strict: each unit of a group has exactly one outcome, or a caller would hang.
                for pending, outcome in zip(group, outcomes, strict=True):
                    pending.resolve(outcome)
        finally:
            self._committing = None

    async def _commit(self, group: list["_Pending"]) -> Sequence["_Outcome"]:
        try:
            starts = [each.start for each in group]
            # A process that has claimed the file for itself takes no turns.
            if self._gate is None or self._claim is not None:
                return await self._writer.call(partial(_write_group, starts))
            return await self._writer.call(
                partial(_write_group_in_turn, self._folder, self._gate, starts)
            )
        except Exception as error:  # noqa: BLE001 - handed to every caller of the group
            return [_Outcome(error=error)] * len(group)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """End of a unit; its result, notices and calls count only if there is no error."""

    result: Any = None
    error: Exception | None = None
    notices: tuple[str, ...] = ()
    calls: tuple[Callable[[], None], ...] = ()


@dataclass(frozen=True, slots=True)
class _Pending:
    """A unit that waits for its group, and the future that its caller waits for."""

    start: _Start
    outcome: "asyncio.Future[Any]"

    def resolve(self, outcome: _Outcome) -> None:
        for call in outcome.calls:
            call()
        if self.outcome.done():  # the caller was cancelled
            return
        if outcome.error is not None:
            self.outcome.set_exception(outcome.error)
        else:
            self.outcome.set_result(outcome.result)


class _SharedIndex:
    """The index of the write-ahead log, which every connection of every process maps.

    Closing any descriptor of a file drops all locks that the process has on it (fcntl(2)), and
    SQLite holds locks on this one. So it is opened after the connections, and closed after them.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(f"{path}-shm", os.O_RDONLY | os.O_CLOEXEC)
        self._map = mmap.mmap(self._descriptor, INDEX_HEADER_BYTES, access=mmap.ACCESS_READ)

    def header(self) -> bytes:
        """Return the header, with its count of commits."""
        return self._map[:INDEX_HEADER_BYTES]

    def close(self) -> None:
        """Unmap and close it; only once every connection is closed."""
        self._map.close()
        os.close(self._descriptor)


class _Transaction:
    """The statements of `Transaction`; coroutines that run in the caller's thread, never suspend.

    `_finish` depends on that. `notices` are sent after the commit, and `calls` are called then.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.notices: tuple[str, ...] = ()
        self.calls: tuple[Callable[[], None], ...] = ()

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
        """Do nothing: the one writer has locked the whole database."""

    def table(self, name: str, **columns: str) -> str:
        values = ", ".join(f"json_extract(value, '$.{column}') AS {column}" for column in columns)
        return f"(SELECT {values} FROM json_each(:{name})) AS {name}"

    def among(self, name: str) -> str:
        return f"IN (SELECT value FROM json_each(:{name}))"

    async def notify(self, *texts: str) -> None:
        """Keep the notices until the commit. Then they are sent to the other processes.

        A daemon of one process drops them, because no other process reads them.
        """
        self.notices += tuple(checked(text) for text in texts)

    def after_commit(self, call: Callable[[], None]) -> None:
        """Keep it until the commit; the loop calls it then, and not this thread."""
        self.calls += (call,)


def _finish(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Drive a unit from start to end without an event loop, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast(Result, stop.value)
    coroutine.close()
    raise RuntimeError("a unit of work awaited something other than its transaction")


def _write_group(starts: list[_Start], connection: sqlite3.Connection) -> list[_Outcome]:
    """Run units in one transaction and commit it; an exception means that none was written."""
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


def _write_group_in_turn(
    folder: NodeFolder | None,
    gate: WriteGate,
    starts: list[_Start],
    connection: sqlite3.Connection,
) -> list[_Outcome]:
    """Run units as `_write_group` when it is this process's turn, then send their notices."""
    with gate.entered():  # notices too, so that they arrive in the order of the commits
        outcomes = _write_group(starts, connection)
        notices = [notice for outcome in outcomes for notice in outcome.notices]
        if notices and folder is not None:
            folder.post(notices)
    return outcomes


def _write_unit(connection: sqlite3.Connection, start: _Start) -> _Outcome:
    """Run one unit in a savepoint, which is rolled back alone if the unit raises."""
    connection.execute("SAVEPOINT unit")
    try:
        tx = _Transaction(connection)
        result = _finish(start(tx))
        outcome = _Outcome(result=result, notices=tx.notices, calls=tx.calls)
    except Exception as error:
        if not connection.in_transaction:  # SQLite rolled back everything, the savepoint included
            cause = error.cause if isinstance(error, UnavailableError) else Cause.OTHER
            raise UnavailableError(
                f"the database gave up the transaction: {error}", cause
            ) from error
        connection.execute("ROLLBACK TO unit")
        outcome = _Outcome(error=error)
    connection.execute("RELEASE unit")
    # Within BEGIN a RELEASE commits nothing: no caller may get a result before the COMMIT.
    assert connection.in_transaction  # noqa: S101 - the invariant of a group
    return outcome


def _read(start: _Start, connection: sqlite3.Connection) -> Any:  # noqa: ANN401 - the unit's own
    """Run one unit over one snapshot, and discard anything that it writes."""
    try:
        connection.execute("BEGIN")
        try:
            return _finish(start(_Transaction(connection)))
        finally:
            connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise _translated(error) from error


def _touch_private(path: Path, *, create: bool) -> None:
    """Make the file with mode 0600 before SQLite would make it with the umask's mode."""
    if not create and not path.exists():
        raise CannotOpenError(
            f"there is no database in {path.parent.resolve()}; "
            "name the settings of the daemon with --config, or start it once"
        )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))


def _connect(path: Path, busy_seconds: float) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=busy_seconds)


def _configure(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    # In WAL mode FULL syncs the log at each commit; NORMAL could lose commits to a power cut.
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA temp_store = MEMORY")  # a savepoint must not need a descriptor
    # An erased text must not stay in free pages, which backups copy.
    connection.execute("PRAGMA secure_delete = ON")


def _empty_log(connection: sqlite3.Connection) -> bool:
    """Move the log into the file, and empty the log; False while readers use it."""
    (milliseconds,) = connection.execute("PRAGMA busy_timeout").fetchone()
    # The writer waits meanwhile.
    connection.execute(f"PRAGMA busy_timeout = {SCRUB_MILLISECONDS}")
    try:
        is_busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        raise _translated(error) from error
    finally:
        connection.execute(f"PRAGMA busy_timeout = {milliseconds}")
    return not is_busy


def _make_reader(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA query_only = ON")


def _prepare(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date: all missing steps in one transaction."""
    _turn_to_wal(connection)
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(migrate.VERSION_TABLE)
        (version,) = connection.execute(migrate.SELECT_VERSION).fetchone()
        if version > migrate.newest("sqlite"):
            (readable,) = connection.execute(migrate.select_readable("sqlite")).fetchone()
            backup = connection.execute(migrate.select_backup("sqlite")).fetchone()
            migrate.require_readable("sqlite", version, readable, backup and backup[0])
        for step in migrate.pending("sqlite", version):
            for script in step.scripts:
                for statement in _statements(script):
                    connection.execute(statement)
            connection.execute(migrate.INSERT_VERSION, {"version": step.version, "name": step.name})
            if step.set_readable:
                connection.execute(step.set_readable)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _turn_to_wal(connection: sqlite3.Connection) -> None:
    """Turn to write-ahead logging; SQLite itself does not wait here for another program."""
    (milliseconds,) = connection.execute("PRAGMA busy_timeout").fetchone()
    deadline = monotonic() + milliseconds / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or monotonic() >= deadline:
                raise
            sleep(OPENING_STEP_SECONDS)
        else:
            return


def _prepare_in_turn(
    folder: NodeFolder | None,
    gate: WriteGate | None,
    opening_seconds: float,
    connection: sqlite3.Connection,
) -> None:
    """Bring the schema up to date; of several processes, one after the other.

    Raises:
        CannotOpenError: another process takes too long.
    """
    with ExitStack() as stack:
        if folder is not None:
            lock = folder.open_lock("open")
            stack.callback(os.close, lock)
            if not lock_within(opening_seconds, lock, step_seconds=OPENING_STEP_SECONDS):
                raise CannotOpenError("another process has been opening it for too long")
        if gate is not None:
            stack.enter_context(gate.entered())
        _prepare(connection)


def _statements(script: str) -> list[str]:
    """Split a script; `executescript` would commit the open transaction first."""
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
    # The first byte is the code, and the others are details. An error of the module has no code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    return UnavailableError(text, _CAUSES.get(code, Cause.OTHER))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    text = str(error)
    return {
        "database is locked": "the database is locked by another program",
        "attempt to write a readonly database": "the database is read-only",
        "file is not a database": "the file is not an SQLite database",
    }.get(text, text)
