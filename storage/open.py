"""From a URL to a store that is ready to use, its schema up to date."""

from pathlib import Path

from storage import postgres
from storage.postgres import PostgresStore
from storage.sqlite import SqliteStore
from storage.store import Store


async def open_store(
    url: str,
    *,
    pool_size: int = 10,
    create: bool = True,
    statement_seconds: float = postgres.STATEMENT_TIMEOUT_SECONDS,
) -> Store:
    """Open the database that `url` names, and bring its schema up to date.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`.
        pool_size: connections to PostgreSQL.
        create: whether to make an SQLite database that does not exist.
        statement_seconds: how long PostgreSQL may take for one statement.

    Raises:
        CannotOpenError: unreadable, locked, read-only, unreachable, or made by a newer program.
    """
    if url.startswith("sqlite:///"):
        return await SqliteStore.open(url.removeprefix("sqlite:///"), create=create)
    return await PostgresStore.open(url, pool_size=pool_size, statement_seconds=statement_seconds)


def place(url: str) -> str:
    """Return where the database of a URL is, and nothing that could be a secret."""
    if url.startswith("sqlite:///"):
        return str(Path(url.removeprefix("sqlite:///")).resolve())
    return postgres.place(url)
