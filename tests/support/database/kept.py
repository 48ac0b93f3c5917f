"""PostgreSQL databases that tests use one after the other, each without the data of the one before.

Theory of operation
-------------------
To copy and to drop a database takes 40 ms, and the audit after a test takes 80 ms on connections
that have read no catalog yet. So a database stays when its test is over, and so does a connection,
which audits it and deletes its rows. The rows that the migrations made return. A database is
dropped when its schema, triggers or statistics differ from those of the template, or when its
tables are large; the next test gets a copy.
"""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple, Self, TypeVar

import asyncpg

from market.money.audit import Report, audit_ledger
from storage.engines.errors import StoreError
from storage.engines.open import open_store
from storage.engines.store import Store
from support.database import postgres

Result = TypeVar("Result")

# A sequential scan of more pages could change the plans of later tests.
TABLE_MAX_BYTES: Final = 128 * 1024

# A statement that changes the schema makes new rows of these catalogs; statistics change in place.
SCHEMA: Final = """
SELECT concat_ws(' ',
    (SELECT concat_ws(' ', count(*), max(xmin::text::bigint), sum(reltuples), sum(relpages))
     FROM pg_class WHERE relnamespace = 'public'::regnamespace),
    (SELECT concat_ws(' ', count(*), max(xmin::text::bigint)) FROM pg_trigger),
    (SELECT concat_ws(' ', count(*), max(xmin::text::bigint)) FROM pg_constraint),
    (SELECT concat_ws(' ', count(*), max(xmin::text::bigint)) FROM pg_proc
     WHERE pronamespace = 'public'::regnamespace))
"""
TABLES: Final = """
SELECT relname, pg_relation_size(oid) FROM pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0
"""
OTHERS: Final = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> ALL($1::int[])
"""


class Template(NamedTuple):
    """The database that others are copies of."""

    name: str
    schema: str  # the result of `SCHEMA`
    rows: dict[str, str]  # JSON of each table's rows, by its name


async def _template(server_url: str, name: str) -> Template:
    connection = await asyncpg.connect(postgres.url_of(server_url, name))
    try:
        rows = {}
        for row in await connection.fetch(TABLES):
            table = row["relname"]
            found = await connection.fetchval(f"SELECT json_agg(r) FROM {table} AS r")
            if found is not None:
                rows[table] = found
        return Template(name, await connection.fetchval(SCHEMA), rows)
    finally:
        await connection.close()


class KeptDatabase:
    """A database, and the connections to it that stay.

    Args:
        url: the database.
        connection: deletes its rows.
        store: audits it.
        pids: of the server's processes for both.
    """

    def __init__(
        self, url: str, connection: asyncpg.Connection, store: Store, pids: list[int]
    ) -> None:
        self.url = url
        self._connection = connection
        self._store = store
        self._pids = pids

    @classmethod
    async def open(cls, url: str) -> Self:
        """Connect to a database that has no other connection."""
        store = await open_store(url, pool_size=1)
        connection = await asyncpg.connect(url)
        pids = await connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        )
        return cls(url, connection, store, [row["pid"] for row in pids])

    async def audit(self) -> Report:
        """Audit its ledger."""
        return await audit_ledger(self._store)

    async def clean(self, template: Template) -> bool:
        """Delete the rows of a test, and return whether the database equals the template now."""
        connection = self._connection
        await connection.execute(OTHERS, self._pids)
        sizes = {row[0]: row[1] for row in await connection.fetch(TABLES)}
        if max(sizes.values(), default=0) > TABLE_MAX_BYTES:
            return False
        async with connection.transaction():
            # Foreign keys, and triggers that keep rows for ever, are not for this role.
            await connection.execute("SET LOCAL session_replication_role = replica")
            await connection.execute("".join(f"DELETE FROM {table};" for table in sizes))
            for table, rows in template.rows.items():
                await connection.execute(
                    f"INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::{table}, $1)",
                    rows,
                )
        return bool(await connection.fetchval(SCHEMA) == template.schema)

    async def close(self) -> None:
        """Close the connections."""
        await self._store.close()
        await self._connection.close()


class KeptDatabases:
    """The kept databases of a process of tests, and the loop of their connections.

    Args:
        server_url: a superuser's first database on the server.
        template: the name of the database that others are copies of.
    """

    def __init__(self, server_url: str, template: str) -> None:
        self._server_url = server_url
        self._free: list[KeptDatabase] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kept databases")
        self._thread.start()
        self._template = self._start(_template(server_url, template)).result()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[KeptDatabase]:
        """Yield a database without data, which the body has for itself."""
        database = self._free.pop() if self._free else await self._new()
        try:
            yield database
        finally:
            try:
                is_clean = await self.run(database.clean(self._template))
            except (asyncpg.InterfaceError, asyncpg.PostgresConnectionError):
                is_clean = False  # the test has ended all connections
            if is_clean:
                self._free.append(database)
            else:
                await self._drop(database)

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the loop of the kept connections."""
        return await asyncio.wrap_future(self._start(work))

    def close(self) -> None:
        """Close all connections, and end the loop; the server's end removes the databases."""
        for each in self._free:
            self._start(each.close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _new(self) -> KeptDatabase:
        name = f"kept_{uuid.uuid4().hex}"
        copy = f'CREATE DATABASE "{name}" TEMPLATE "{self._template.name}" STRATEGY FILE_COPY'
        await postgres.execute(self._server_url, copy)
        return await self.run(KeptDatabase.open(postgres.url_of(self._server_url, name)))

    async def _drop(self, database: KeptDatabase) -> None:
        with suppress(StoreError, asyncpg.PostgresError, OSError):  # the test may have ended them
            await self.run(database.close())
        name = database.url.partition("?")[0].rpartition("/")[2]
        await postgres.execute(self._server_url, f'DROP DATABASE "{name}" WITH (FORCE)')

    def _start(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)
