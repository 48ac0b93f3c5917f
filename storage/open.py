"""Opens the store that a URL names, with its schema up to date."""

from storage.place import SQLITE
from storage.store import Store


async def open_store(
    url: str,
    *,
    pool_size: int = 10,
    create: bool = True,
    statement_seconds: float | None = None,
) -> Store:
    """Open the database that `url` names, and bring its schema up to date.

    Only the driver of that engine is imported.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute.db` or `postgresql://…`.
        pool_size: the most connections to PostgreSQL.
        create: whether to create an SQLite database that does not exist.
        statement_seconds: the limit on one statement of PostgreSQL; None for its usual one.

    Raises:
        CannotOpenError: unreadable, locked, read-only, unreachable, or made by a newer program.
    """
    if url.startswith(SQLITE):
        from storage.sqlite import SqliteStore  # noqa: PLC0415 - see above

        return await SqliteStore.open(url.removeprefix(SQLITE), create=create)
    from storage.postgres import PostgresStore  # noqa: PLC0415 - see above

    return await PostgresStore.open(url, pool_size=pool_size, statement_seconds=statement_seconds)
