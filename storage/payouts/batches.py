"""Queries on batches: payouts that were sent together."""

from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction, insert_row


class BatchRow(NamedTuple):
    """A batch: its number of payouts and their sum in micro-USD; times are UTC seconds.

    `sealed_content` is the file of it, None of a provider, which names it `outside_id`. At
    `settled_at` the provider had reported the end of all its payouts. A part of a refused batch
    has that one as `parent_id`. Since `tried_at` an attempt to send it may have succeeded. The
    rounds worked on it at `looked_at`, and leave it to the staff since `doubtful_at`. At
    `watch_at` they look for payouts of it that came back; None when none can.
    """

    id: str
    format: str
    payouts: int
    net_usd: int
    sealed_content: str | None
    created_at: int
    outside_id: str | None = None
    settled_at: int | None = None
    parent_id: str | None = None
    tried_at: int | None = None
    looked_at: int = 0
    doubtful_at: int | None = None
    watch_at: int | None = None


class LineRow(NamedTuple):
    """The line of a payout in the file of its batch, sealed."""

    payout_id: str
    sealed: str


_COLUMNS = ", ".join(BatchRow._fields)


async def insert(tx: Transaction, row: BatchRow) -> None:
    """Add a batch."""
    await insert_row(tx, "payout_batches", **row._asdict())


async def find(tx: Transaction, batch_id: str) -> BatchRow | None:
    """Return a batch."""
    return await tx.one(
        BatchRow, f"SELECT {_COLUMNS} FROM payout_batches WHERE id = :id", id=batch_id
    )


async def add_line(tx: Transaction, payout_id: str, sealed: str) -> None:
    """Add the line of a payout."""
    await insert_row(tx, "payout_lines", payout_id=payout_id, sealed=sealed)


async def lines(tx: Transaction, batch_id: str) -> list[LineRow]:
    """Return the lines of a batch that were not erased, in the order of the file."""
    return await tx.all(
        LineRow,
        """
        SELECT l.payout_id, l.sealed FROM payouts AS p JOIN payout_lines AS l ON l.payout_id = p.id
        WHERE p.batch_id = :batch_id ORDER BY p.id
        """,
        batch_id=batch_id,
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


async def unsettled(
    tx: Transaction, form: str, *, looked_before: int, limit: int
) -> list[BatchRow]:
    """Return batches of a provider whose payouts have not all ended.

    The one with the oldest work comes first; doubtful ones are left out.

    Args:
        tx: the transaction.
        form: the name of the provider.
        looked_before: only batches that were not worked on since this time, in UTC seconds.
        limit: how many at most.
    """
    return await tx.all(
        BatchRow,
        f"""
        SELECT {_COLUMNS} FROM payout_batches
        WHERE format = :form AND settled_at IS NULL AND doubtful_at IS NULL
            AND looked_at <= :looked_before
        ORDER BY looked_at, id LIMIT :limit
        """,
        form=form,
        looked_before=looked_before,
        limit=limit,
    )


async def claim(tx: Transaction, batch_id: str, *, seen: int, now: int) -> bool:
    """Claim a batch for a round; False if another round did since `seen`."""
    changed = await tx.run(
        """
        UPDATE payout_batches SET looked_at = :now
        WHERE id = :id AND looked_at = :seen AND settled_at IS NULL AND doubtful_at IS NULL
        """,
        id=batch_id,
        seen=seen,
        now=now,
    )
    return changed == 1


async def begin_try(tx: Transaction, batch_id: str, *, now: int) -> bool:
    """Record an attempt to send a batch; False if an earlier one may have succeeded."""
    changed = await tx.run(
        "UPDATE payout_batches SET tried_at = :now WHERE id = :id AND tried_at IS NULL",
        id=batch_id,
        now=now,
    )
    return changed == 1


async def forget_try(tx: Transaction, batch_id: str, *, claimed_at: int) -> bool:
    """Record that the only attempt to send a batch had no effect.

    Returns:
        False, without a change, if another round has claimed the batch since `claimed_at`, and may
        have sent it, or if the batch has an end.
    """
    changed = await tx.run(
        """
        UPDATE payout_batches SET tried_at = NULL
        WHERE id = :id AND looked_at = :claimed_at
            AND outside_id IS NULL AND settled_at IS NULL AND doubtful_at IS NULL
        """,
        id=batch_id,
        claimed_at=claimed_at,
    )
    return changed == 1


async def name_outside(tx: Transaction, batch_id: str, outside_id: str) -> None:
    """Record the name that a provider gave to a batch."""
    await tx.run(
        """
        UPDATE payout_batches SET outside_id = :outside_id, doubtful_at = NULL WHERE id = :id
        """,
        id=batch_id,
        outside_id=outside_id,
    )


async def doubt(tx: Transaction, batch_id: str, *, now: int) -> None:
    """Leave a batch to the staff, unless a provider has taken it."""
    await tx.run(
        """
        UPDATE payout_batches SET doubtful_at = :now
        WHERE id = :id AND doubtful_at IS NULL AND outside_id IS NULL AND settled_at IS NULL
        """,
        id=batch_id,
        now=now,
    )


async def doubtful(tx: Transaction, *, limit: int) -> list[BatchRow]:
    """Return batches that wait for the staff, the oldest first."""
    return await tx.all(
        BatchRow,
        f"""
        SELECT {_COLUMNS} FROM payout_batches
        WHERE settled_at IS NULL AND doubtful_at > 0 ORDER BY doubtful_at, id LIMIT :limit
        """,
        limit=limit,
    )


async def settle_refused(
    tx: Transaction, batch_id: str, *, payouts: int, net_usd: int, now: int
) -> bool:
    """Settle a batch that its provider has refused; False if it has another end.

    Args:
        tx: the transaction.
        batch_id: the batch.
        payouts: the number of payouts that stay in it, which have failed.
        net_usd: their sum in micro-USD.
        now: UTC seconds.
    """
    changed = await tx.run(
        """
        UPDATE payout_batches SET settled_at = :now, payouts = :payouts, net_usd = :net_usd
        WHERE id = :id AND settled_at IS NULL AND outside_id IS NULL AND doubtful_at IS NULL
        """,
        id=batch_id,
        payouts=payouts,
        net_usd=net_usd,
        now=now,
    )
    return changed == 1


async def settle_decided(tx: Transaction, batch_id: str, *, now: int) -> None:
    """Settle a doubtful batch if the staff has decided about all its payouts."""
    await tx.run(
        """
        UPDATE payout_batches SET settled_at = :now
        WHERE id = :id AND doubtful_at IS NOT NULL AND settled_at IS NULL
            AND NOT EXISTS (
                SELECT 1 FROM payouts WHERE batch_id = :id AND state = 'sent'
            )
        """,
        id=batch_id,
        now=now,
    )


async def settle(tx: Transaction, batch_id: str, *, now: int, watch_at: int) -> None:
    """Record that all payouts of a batch have ended, and plan the next look at it."""
    await tx.run(
        """
        UPDATE payout_batches SET settled_at = :now, watch_at = :watch_at
        WHERE id = :id AND settled_at IS NULL
        """,
        id=batch_id,
        now=now,
        watch_at=watch_at,
    )


async def watched(tx: Transaction, form: str, *, now: int, limit: int) -> list[BatchRow]:
    """Return settled batches of a provider to look at again now, the longest due first."""
    return await tx.all(
        BatchRow,
        f"""
        SELECT {_COLUMNS} FROM payout_batches
        WHERE format = :form AND watch_at <= :now ORDER BY watch_at, id LIMIT :limit
        """,
        form=form,
        now=now,
        limit=limit,
    )


async def watch(tx: Transaction, batch_id: str, *, seen: int | None, watch_at: int | None) -> bool:
    """Plan the next look at a settled batch; False if another round did since `seen`.

    None plans no further look.
    """
    changed = await tx.run(
        """
        UPDATE payout_batches SET watch_at = CAST(:watch_at AS BIGINT)
        WHERE id = :id AND watch_at = CAST(:seen AS BIGINT)
        """,
        id=batch_id,
        seen=seen,
        watch_at=watch_at,
    )
    return changed == 1
