"""The move of an SQLite database into an empty PostgreSQL database, with a proof that all arrived.

The source is only read. The target is filled in one transaction, whose last act is to compare the
number and the hash of the rows of each table on both sides, so a failure leaves the target empty.
"""

import sqlite3
from pathlib import Path
from typing import NamedTuple

import asyncpg

from storage.backups import postgres_rows, sqlite_rows
from storage.backups.digest import RowsDigest
from storage.backups.errors import BackupError
from storage.backups.tables import Table
from storage.engines import migrate


class Moved(NamedTuple):
    """A table that has moved: its rows, and their hash on both sides."""

    table: str
    rows: int
    sha256: str


async def move(source: Path, url: str) -> list[Moved]:
    """Move all rows of an SQLite database into an empty PostgreSQL database.

    The caller has the claim on the source, so no daemon writes to it.

    Args:
        source: the file of the SQLite database.
        url: the PostgreSQL database.

    Raises:
        BackupError: the source has another schema than this program, or values that PostgreSQL
            refuses; the target is not empty; or a table differs afterwards.
        CannotOpenError: one of the databases cannot be opened.
    """
    schema, newest = sqlite_rows.version(source), migrate.migrations("sqlite")[-1].version
    if schema != newest:
        raise BackupError(
            f"{source}: the database has schema version {schema}, this program {newest}; start the "
            "daemon of this version once"
        )
    with sqlite_rows.snapshot(source) as reader:
        commits = sqlite_rows.commits(reader)
        tables = sqlite_rows.tables(reader)
        _refuse_defects(reader, tables)
        async with postgres_rows.connected(url) as connection:
            async with connection.transaction():
                async with postgres_rows.filling(connection, schema) as made:
                    _compare_columns(tables, made)
                    moved = [await _move(reader, connection, table) for table in tables]
                for each, table in zip(moved, tables, strict=True):
                    await _verify(connection, table, each)
                reader.rollback()  # ends the snapshot
                if sqlite_rows.commits(reader) != commits:
                    raise BackupError(f"{source}: another program has written to it; repeat this")
            await postgres_rows.analyze(connection)
    return moved


def _refuse_defects(reader: sqlite3.Connection, tables: tuple[Table, ...]) -> None:
    """Raise if PostgreSQL refuses a value, and name its row and column.

    Raises:
        BackupError: it refuses one.
    """
    found = [defect for table in tables for defect in sqlite_rows.defects(reader, table)]
    if found:
        named = "\n".join(map(str, found[: sqlite_rows.DEFECTS_MAX]))
        raise BackupError(f"PostgreSQL refuses these values; correct them first:\n{named}")


def _compare_columns(tables: tuple[Table, ...], made: tuple[Table, ...]) -> None:
    """Raise if the tables of the two engines have different columns.

    Raises:
        BackupError: a table was added or changed by hand.
    """
    wanted = {table.name: set(table.columns) for table in made}
    for table in tables:
        if wanted.get(table.name) != set(table.columns):
            raise BackupError(f"{table.name}: this table is not one of proxyd; remove it first")


async def _move(reader: sqlite3.Connection, connection: asyncpg.Connection, table: Table) -> Moved:
    digest = RowsDigest()
    for rows in sqlite_rows.batches(reader, table):
        digest.add(rows)
        try:
            await postgres_rows.insert(connection, table, rows)
        except asyncpg.PostgresError as error:
            raise BackupError(f"{table.name}: PostgreSQL refuses rows: {error}") from error
    return Moved(table.name, digest.rows, digest.hexdigest())


async def _verify(connection: asyncpg.Connection, table: Table, moved: Moved) -> None:
    """Read a table back, and compare it.

    Raises:
        BackupError: a row is missing or differs.
    """
    digest = RowsDigest()
    async for rows in postgres_rows.batches(connection, table):
        digest.add(rows)
    if (digest.rows, digest.hexdigest()) != (moved.rows, moved.sha256):
        raise BackupError(
            f"{table.name}: {moved.rows} rows with hash {moved.sha256} were sent, {digest.rows} "
            f"with hash {digest.hexdigest()} have arrived; nothing was kept"
        )
