"""The database as one command of the operator uses it: opened, read or written, and closed."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from config.settings import Settings
from market.base.ids import Identifiers
from market.events.context import Context
from market.money.money import Currency, micro
from proxyd.loop import clock
from storage.engines.open import open_store
from storage.engines.store import Store

# A statement of the audit reads a whole table and blocks no writer: three seconds per million rows
# were measured, so an hour is enough for a thousand million.
AUDIT_STATEMENT_SECONDS: Final = 3_600.0


@asynccontextmanager
async def opened(
    settings: Settings, *, create: bool = False, statement_seconds: float | None = None
) -> AsyncIterator[Store]:
    """Yield the store of the settings, by one connection.

    Args:
        settings: the settings of the daemon.
        create: whether a missing database is made.
        statement_seconds: the most that a statement takes; None for that of the daemon.

    Raises:
        StoreError: the database cannot be used.
    """
    storage = settings.storage
    store = await open_store(
        storage.url,
        pool_size=1,
        create=create,
        statement_seconds=statement_seconds,
        pooler=storage.pooler,
        direct_url=storage.direct_url,
    )
    try:
        yield store
    finally:
        await store.close()


def context_of(store: Store) -> Context:
    """Return a store with the clock and the identifiers of this machine."""
    return Context(store, Identifiers(clock.milliseconds), clock.seconds)


def approval_limits(settings: Settings) -> dict[Currency, int]:
    """Return the amounts above which an act of the staff needs a second person."""
    staff = settings.staff
    return {Currency.USD: micro(staff.approval_usd), Currency.CREDIT: micro(staff.approval_credits)}
