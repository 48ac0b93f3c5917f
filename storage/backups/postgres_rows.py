"""The rows of a PostgreSQL database: out by COPY over one snapshot, and in by COPY."""

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from storage.backups.errors import BackupError
from storage.backups.tables import Table, in_order, quoted
from storage.engines import migrate
from storage.engines.errors import CannotOpenError, StoreError
from storage.engines.place import UrlError, place
from storage.engines.postgres_schema import bring_up_to_date
from storage.engines.postgres_servers import CONNECT_ERRORS, Servers, message_of

Sink = Callable[[bytes], Coroutine[Any, Any, None]]

# No other program uses an empty database, so a step of the schema hardly waits.
LOCK_SECONDS = 5.0
BATCH_ROWS = 10_000
# The copy of a large table takes minutes, and a server that is gone closes its connection.
COPY_SECONDS = 4 * 3600.0
_NAMES = """
SELECT c.relname FROM pg_class c
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind = 'r'
"""
# Generated columns are left out: the server computes them, and refuses values for them.
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, NULL) FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = $1
    AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum
"""
_KEY = """
SELECT a.attname FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = $1 AND i.indisprimary
ORDER BY array_position(i.indkey::int2[], a.attnum)
"""
_REFERENCES = """
SELECT s.relname, t.relname FROM pg_constraint o
JOIN pg_class s ON s.oid = o.conrelid JOIN pg_class t ON t.oid = o.confrelid
WHERE o.contype = 'f' AND s.relnamespace = current_schema()::regnamespace
"""


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection to the database at `url`.

    Raises:
        CannotOpenError: it is out of reach, or refuses the login.
        BackupError: the server refuses a statement, or the connection is lost.
    """
    try:
        connection = await Servers(url).connect(command_timeout=COPY_SECONDS)
    except UrlError as error:
        raise CannotOpenError(f"{place(url)}: the URL {error}") from error
    except (*CONNECT_ERRORS, ValueError, StoreError) as error:
        reason = message_of(error) if not isinstance(error, ValueError) else "not a URL"
        raise CannotOpenError(f"{place(url)}: {reason}") from error
    try:
        yield connection
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise BackupError(f"{place(url)}: {message_of(error)}") from error
    finally:
        connection.terminate()


@asynccontextmanager
async def snapshot(connection: asyncpg.Connection) -> AsyncIterator[None]:
    """Read one moment of a database, until the end of the block."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        yield


async def version(connection: asyncpg.Connection) -> int:
    """Return the version of a database's schema.

    Raises:
        BackupError: it is not a database of this program.
    """
    try:
        return int(await connection.fetchval(migrate.SELECT_VERSION))
    except asyncpg.UndefinedTableError:
        raise BackupError("this is not a database of proxyd") from None


async def size(connection: asyncpg.Connection) -> int:
    """Return the bytes of a database on its server's disk, indexes included."""
    return int(await connection.fetchval("SELECT pg_database_size(current_database())"))


async def tables(connection: asyncpg.Connection) -> tuple[Table, ...]:
    """Return the tables of a database, each after the tables that it refers to."""
    found = []
    for (name,) in await connection.fetch(_NAMES):
        columns = {each[0]: each[1] for each in await connection.fetch(_COLUMNS, name)}
        key = tuple(each[0] for each in await connection.fetch(_KEY, name))
        found.append(Table(name, columns, key))
    references: dict[str, set[str]] = {}
    for referring, referred in await connection.fetch(_REFERENCES):
        references.setdefault(referring, set()).add(referred)
    return in_order(found, references)


async def copy_out(connection: asyncpg.Connection, table: Table, sink: Sink) -> None:
    """Send the rows of a table, as COPY writes them, to `sink`."""
    await connection.copy_from_table(table.name, columns=list(table.columns), output=sink)


async def copy_in(
    connection: asyncpg.Connection, table: Table, chunks: AsyncIterator[bytes]
) -> None:
    """Insert the rows that `copy_out` has sent."""
    await connection.copy_to_table(table.name, columns=list(table.columns), source=chunks)


async def insert(
    connection: asyncpg.Connection, table: Table, rows: Sequence[Sequence[object]]
) -> None:
    """Insert rows of a table, by one COPY."""
    await connection.copy_records_to_table(
        table.name, columns=list(table.columns), records=rows, timeout=COPY_SECONDS
    )


async def batches(
    connection: asyncpg.Connection, table: Table
) -> AsyncIterator[list[asyncpg.Record]]:
    """Yield the rows of a table in the order of its key, bytewise, as SQLite sorts them."""
    order = ", ".join(
        f'{quoted(column)} COLLATE "C"' if table.columns[column] == "text" else quoted(column)
        for column in table.key
    )
    sql = f"SELECT {table.names} FROM {quoted(table.name)} ORDER BY {order}"
    cursor = await connection.cursor(sql)
    while rows := await cursor.fetch(BATCH_ROWS, timeout=COPY_SECONDS):
        yield rows


async def refuse_filled(connection: asyncpg.Connection) -> None:
    """Raise if a database has a table.

    Raises:
        BackupError: it has one.
    """
    names = await connection.fetch(f"{_NAMES} ORDER BY 1 LIMIT 3")
    if names:
        found = ", ".join(each[0] for each in names)
        raise BackupError(f"the database is not empty, it has tables ({found}); name an empty one")


@asynccontextmanager
async def filling(connection: asyncpg.Connection, schema: int) -> AsyncIterator[tuple[Table, ...]]:
    """Make the schema of a version in an empty database, and yield its tables, without rows.

    Until the end of the block no trigger runs, because the rows have been through them once.
    Everything is one transaction: a failure leaves the database empty.

    Args:
        connection: leads to an empty database.
        schema: the version.

    Raises:
        BackupError: the database is not empty.
        CannotOpenError: no release has the version.
    """
    async with connection.transaction():
        await refuse_filled(connection)
        await bring_up_to_date(connection, LOCK_SECONDS, through=schema)
        made = await tables(connection)
        for table in made:
            await connection.execute(f"ALTER TABLE {quoted(table.name)} DISABLE TRIGGER USER")
        # The steps have inserted their versions, and the accounts of the house.
        await connection.execute(f"TRUNCATE {', '.join(quoted(table.name) for table in made)}")
        yield made
        for table in made:
            await connection.execute(f"ALTER TABLE {quoted(table.name)} ENABLE TRIGGER USER")


async def hold(
    connection: asyncpg.Connection, restoration_id: str, copied_at: int, now: int
) -> None:
    """Run the newer steps of the schema, and record a restoration, in the open transaction."""
    await bring_up_to_date(connection, LOCK_SECONDS)
    await connection.execute(
        "INSERT INTO restorations (id, copied_at, restored_at) VALUES ($1, $2, $3)",
        restoration_id,
        copied_at,
        now,
    )


async def analyze(connection: asyncpg.Connection) -> None:
    """Collect the statistics of every table, which the server's plans depend on."""
    await connection.execute("ANALYZE")
