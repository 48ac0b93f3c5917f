"""The schema of a PostgreSQL database: the missing migrations, in the transaction of the caller."""

from typing import TYPE_CHECKING, Any

from storage.engines import migrate

if TYPE_CHECKING:
    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    _Connection = PoolConnectionProxy[asyncpg.Record] | asyncpg.Connection

# One step over a large table, or the wait for another daemon that migrates at the same time.
MIGRATION_SECONDS = 600.0
MIGRATION_LOCK = 0x70726F78  # "prox", the key of our advisory lock
_INSERT = "INSERT INTO schema_versions (version, name) VALUES ($1, $2)"


async def bring_up_to_date(
    connection: "_Connection", lock_seconds: float, *, through: int | None = None
) -> None:
    """Run all missing steps in the open transaction, one program at a time.

    A step may take minutes, and so may the wait for another program's migration. The wait for the
    lock of a table is short, because every later statement on that table queues behind it.

    Args:
        connection: has an open transaction.
        lock_seconds: how long a step queues for the lock of a table.
        through: the last step to run; None for all.

    Raises:
        CannotOpenError: the database is newer than this program, and it cannot run on it.
        asyncpg.PostgresError: the server refuses a step.
    """
    timeout = MIGRATION_SECONDS
    milliseconds = int(lock_seconds * 1000)
    await connection.execute(  # in one message: a start waits for the answers to each
        f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK});"
        f"SET LOCAL lock_timeout = {milliseconds};"
        f"{migrate.VERSION_TABLE}",
        timeout=timeout,
    )
    version: Any = await connection.fetchval(migrate.SELECT_VERSION)
    if version > migrate.newest("postgres"):
        readable: Any = await connection.fetchval(migrate.select_readable("postgres"))
        backup: Any = await connection.fetchval(migrate.select_backup("postgres"))
        migrate.require_readable("postgres", version, readable, backup)
    for step in migrate.pending("postgres", version):
        if through is not None and step.version > through:
            return
        for script in step.scripts:
            await connection.execute(script, timeout=timeout)
        await connection.execute(_INSERT, step.version, step.name)
        if step.set_readable:
            await connection.execute(step.set_readable)
