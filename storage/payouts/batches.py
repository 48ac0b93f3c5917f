"""Queries on batches: payouts that were sent together."""

from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row


class BatchRow(NamedTuple):
    """A batch: its number of payouts and their sum in micro-USD; times are UTC seconds.

    `content` is the sealed file of it, None of a provider, which names it `outside_id`. At
    `settled_at` the provider had reported the end of all its payouts.
    """

    id: str
    format: str
    payouts: int
    net_usd: int
    content: str | None
    created_at: int
    outside_id: str | None = None
    settled_at: int | None = None


_COLUMNS = ", ".join(BatchRow._fields)


async def insert(tx: Transaction, row: BatchRow) -> None:
    """Add a batch."""
    await insert_row(tx, "payout_batches", **row._asdict())


async def find(tx: Transaction, batch_id: str) -> BatchRow | None:
    """Return a batch."""
    return await tx.one(
        BatchRow, f"SELECT {_COLUMNS} FROM payout_batches WHERE id = :id", id=batch_id
    )


async def newest(tx: Transaction, *, before: str, limit: int) -> list[BatchRow]:
    """Return batches, newest first, before an identifier; "" for the newest."""
    return await tx.all(
        BatchRow,
        f"""
        SELECT {_COLUMNS} FROM payout_batches WHERE id < :before
        ORDER BY id {NEWEST_FIRST} LIMIT :limit
        """,
        before=behind(before),
        limit=limit,
    )
