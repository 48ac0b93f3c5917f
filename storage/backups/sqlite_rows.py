"""The rows of an SQLite database, read over one snapshot, and a copy of the file."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from storage.backups.errors import BackupError
from storage.backups.tables import Table, in_order, quoted
from storage.engines import migrate
from storage.engines.backup import is_of_writing
from storage.engines.errors import CannotOpenError

# One COPY of a move: large enough that its round trip does not show, and a few megabytes of memory.
BATCH_ROWS = 10_000
DEFECTS_MAX = 20  # named in one run; a database with more has one cause for all of them
_NAMES = """
SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'
"""
_TEXT, _INTEGER, _REAL = "TEXT", "INTEGER", "REAL"
_TYPES = {str: _TEXT, int: _INTEGER, float: _REAL, bytes: "BLOB"}
_TYPE_OF_COLUMN = {"BIGINT": _INTEGER, "INTEGER": _INTEGER, "DOUBLE PRECISION": _REAL}


class Defect(NamedTuple):
    """A value that PostgreSQL refuses: its table, the key of its row, its column, the reason."""

    table: str
    key: tuple[Any, ...]
    column: str
    reason: str

    def __str__(self) -> str:
        return f"{self.table}, row {', '.join(map(ascii, self.key))}, {self.column}: {self.reason}"


class _NotUtf8(bytes):
    """A text whose bytes are not UTF-8."""


def copy(source: Path, target: Path) -> None:
    """Copy a database that may be written meanwhile into a new file of mode 0600.

    The copy is of one moment, and has no deleted content: SQLite keeps that in free pages.

    Raises:
        BackupError: the source cannot be read, or the target cannot be written.
    """
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    with _connected(source) as connection:
        try:
            connection.execute("VACUUM INTO ?", (str(target),))
        except sqlite3.Error as error:
            if not is_of_writing(error):
                raise
            raise BackupError(f"{target}: {error}") from error


def version(path: Path) -> int:
    """Return the version of a database's schema.

    Raises:
        BackupError: the file is not a database of this program.
    """
    with _connected(path) as connection:
        try:
            (found,) = connection.execute(migrate.SELECT_VERSION).fetchone()
        except sqlite3.OperationalError:
            raise BackupError(f"{path}: not a database of proxyd") from None
    return int(found)


@contextmanager
def snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that reads one moment of a database, and changes nothing.

    Raises:
        BackupError: it cannot be read.
    """
    with _connected(path) as connection:
        connection.execute("BEGIN")
        yield connection


def commits(connection: sqlite3.Connection) -> int:
    """Return a number that changes when another program commits; in a snapshot it stays."""
    (number,) = connection.execute("PRAGMA data_version").fetchone()
    return int(number)


def tables(connection: sqlite3.Connection) -> tuple[Table, ...]:
    """Return the tables of a database, each after the tables that it refers to."""
    names = connection.execute(_NAMES).fetchall()
    found, references = [], {}
    for (name,) in names:
        columns = connection.execute(f"PRAGMA table_info({quoted(name)})").fetchall()
        key = sorted((each[5], each[1]) for each in columns if each[5])
        types = {each[1]: each[2] for each in columns}
        found.append(Table(name, types, tuple(column for _, column in key)))
        foreign = connection.execute(f"PRAGMA foreign_key_list({quoted(name)})").fetchall()
        references[name] = {each[2] for each in foreign}
    return in_order(found, references)


def batches(connection: sqlite3.Connection, table: Table) -> Iterator[list[tuple[Any, ...]]]:
    """Yield the rows of a table in the order of its key."""
    order = ", ".join(map(quoted, table.key))
    sql = f"SELECT {table.names} FROM {quoted(table.name)} ORDER BY {order}"
    cursor = connection.execute(sql)
    while rows := cursor.fetchmany(BATCH_ROWS):
        yield rows


def defects(connection: sqlite3.Connection, table: Table) -> list[Defect]:
    """Return the values of a table that PostgreSQL refuses, at most `DEFECTS_MAX`.

    SQLite takes any value in any column: text in a number's, and text with NUL or without a valid
    encoding.
    """
    found: list[Defect] = []
    wanted = [_TYPE_OF_COLUMN.get(kind, _TEXT) for kind in table.columns.values()]
    positions = [list(table.columns).index(column) for column in table.key]
    connection.text_factory = _decoded
    try:
        for rows in batches(connection, table):
            for row in rows:
                for value, kind, column in zip(row, wanted, table.columns, strict=True):
                    reason = _reason(value, kind)
                    if reason:
                        key = tuple(row[position] for position in positions)
                        found.append(Defect(table.name, key, column, reason))
                if len(found) >= DEFECTS_MAX:
                    return found[:DEFECTS_MAX]
    finally:
        connection.text_factory = str
    return found


def _decoded(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _NotUtf8(raw)


def _reason(value: object, wanted: str) -> str:
    """Return why PostgreSQL refuses a value, or ""."""
    if value is None:
        return ""
    if isinstance(value, _NotUtf8):
        return "the text is not UTF-8, or has half of a surrogate pair"
    kind = _TYPES[type(value)]
    if kind != wanted:
        return f"the value is of type {kind}, the column of type {wanted}"
    if isinstance(value, str) and "\0" in value:
        return "the text has a NUL character"
    return ""


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that cannot write to the database."""
    if not path.is_file():
        raise CannotOpenError(f"{path}: there is no database")
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise BackupError(f"{path}: {error}") from error
