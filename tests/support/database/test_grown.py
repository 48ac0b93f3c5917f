"""A grown market has all that was put aside while it was filled, and its books agree."""

import sqlite3
from contextlib import closing

import asyncpg
import pytest

from market.money.audit import audit_ledger
from storage.engines.open import open_store
from support.database import grown


async def schema(url: str) -> list[tuple[object, ...]]:
    """Return the indexes and triggers of a database, each with all that the engine knows of it."""
    if url.startswith("sqlite:///"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            made = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2")
            return [*made, *connection.execute("PRAGMA journal_mode")]
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("""
            SELECT pg_get_indexdef(indexrelid) AS made, indisvalid, indisready FROM pg_index
            WHERE indrelid IN (
                SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace
            )
            UNION ALL
            SELECT pg_get_triggerdef(oid), tgenabled = 'O', true FROM pg_trigger
            ORDER BY made
        """)
        return [tuple(row) for row in rows]
    finally:
        await connection.close()


@pytest.mark.both_engines
async def test_a_grown_market_has_its_indexes_and_triggers_and_passes_the_audit(
    store_url: str,
) -> None:
    await (await open_store(store_url)).close()
    before = await schema(store_url)
    await grown.grow(store_url, 1_000)
    assert await schema(store_url) == before
    store = await open_store(store_url)
    try:
        report = await audit_ledger(store)
    finally:
        await store.close()
    assert report.passed, report
    assert report.transfers >= 1_000
