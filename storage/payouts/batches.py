"""Queries on batches: payouts that were sent together."""

from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row


class BatchRow(NamedTuple):
    """A batch: its number of payouts and their sum in micro-USD; times are UTC seconds.

    `sealed_content` is the file of it, None of a provider, which names it `outside_id`. At
    `settled_at` the provider had reported the end of all its payouts.
    """

    id: str
    format: str
    payouts: int
    net_usd: int
    sealed_content: str | None
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


async def unsettled(tx: Transaction, form: str, *, limit: int) -> list[BatchRow]:
    """Return batches of a provider whose payouts have not all ended, the oldest first."""
    return await tx.all(
        BatchRow,
        f"""
        SELECT {_COLUMNS} FROM payout_batches WHERE format = :form AND settled_at IS NULL
        ORDER BY id LIMIT :limit
        """,
        form=form,
        limit=limit,
    )


async def name_outside(tx: Transaction, batch_id: str, outside_id: str) -> None:
    """Record the name that a provider gave to a batch."""
    await tx.run(
        "UPDATE payout_batches SET outside_id = :outside_id WHERE id = :id",
        id=batch_id,
        outside_id=outside_id,
    )


async def settle(tx: Transaction, batch_id: str, *, now: int) -> None:
    """Record that all payouts of a batch have ended."""
    await tx.run(
        "UPDATE payout_batches SET settled_at = :now WHERE id = :id AND settled_at IS NULL",
        id=batch_id,
        now=now,
    )
