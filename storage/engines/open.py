"""Opens the store that a URL names, with its schema up to date."""

import asyncio
from collections.abc import Coroutine
from importlib import import_module
from typing import Any

from storage.engines import migrate
from storage.engines.place import SQLITE, is_sqlite
from storage.engines.store import Store

# Python's interpreter lock lets one thread compute at a time, so more readers would not read
# faster. A second one keeps short reads from waiting behind a long one, such as the audit.
READERS = 2
ABANDON_SECONDS = 5.0  # an opening takes a hundredth of it, unless it migrates a large database


async def open_store(
    url: str,
    *,
    pool_size: int = 10,
    create: bool = True,
    statement_seconds: float | None = None,
    is_shared: bool = False,
    pooler: str = "none",
    direct_url: str = "",
    readers: int = READERS,
) -> Store:
    """Open the database that `url` names, and bring its schema up to date.

    Only the driver of that engine is imported.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`.
        pool_size: the most connections to PostgreSQL.
        create: whether to create an SQLite database that does not exist.
        statement_seconds: the limit on one statement of PostgreSQL; None for its usual one.
        is_shared: whether several processes serve from an SQLite database, which another has
            claimed for them (`storage.engines.claim`); PostgreSQL serves any number.
        pooler: the program between this one and PostgreSQL: "none" or "session".
        direct_url: the same database without the pooler; "" for `url`.
        readers: the number of connections that read from SQLite.

    Raises:
        CannotOpenError: unreadable, locked, read-only, unreachable, or made by a newer program.
    """
    if url.startswith(SQLITE):
        from storage.engines.sqlite import SqliteStore  # noqa: PLC0415 - see above

        path = url.removeprefix(SQLITE)
        return await _closed_if_cancelled(
            SqliteStore.open(path, create=create, readers=readers, is_shared=is_shared)
        )
    from storage.engines.postgres import PostgresStore  # noqa: PLC0415 - see above
    from storage.engines.postgres_pooler import Pooler  # noqa: PLC0415 - see above

    return await PostgresStore.open(
        url,
        pool_size=pool_size,
        statement_seconds=statement_seconds,
        pooler=Pooler(pooler),
        direct_url=direct_url,
    )


async def _closed_if_cancelled(opening: Coroutine[Any, Any, Store]) -> Store:
    """Return the opened store. A caller that is cancelled waits for it, and closes it.

    Otherwise Ctrl-C in that moment prints the traceback of a thread that finds the loop closed.
    After `ABANDON_SECONDS` the opening is left to itself.
    """
    task = asyncio.get_running_loop().create_task(opening, name="opening")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait([task], timeout=ABANDON_SECONDS)
        if done:
            await (await task).close()
        raise


def load(url: str) -> None:
    """Import and read all that opening the database at `url` needs, and touch nothing there.

    Processes that are forked afterwards open it by the same code and have it at the same version,
    even if the files change.
    """
    engine = "sqlite" if is_sqlite(url) else "postgres"
    import_module(f"storage.engines.{engine}")
    migrate.read(engine)
