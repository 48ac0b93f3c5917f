"""Queries on the restorations of a database, and on the work that was open at its backup."""

from typing import NamedTuple

from storage.engines.store import Transaction, insert_row


class RestorationRow(NamedTuple):
    """A restoration that no operator has confirmed: the moments of the backup and of itself."""

    copied_at: int
    restored_at: int


class OpenRow(NamedTuple):
    """Work that was open at the moment of a backup, in numbers."""

    sessions: int
    jobs: int
    emails: int
    deliveries: int


async def held(tx: Transaction) -> RestorationRow | None:
    """Return the latest restoration that is not confirmed."""
    return await tx.one(
        RestorationRow,
        """
        SELECT copied_at, restored_at FROM restorations WHERE confirmed_at IS NULL
        ORDER BY restored_at DESC LIMIT 1
        """,
    )


async def add(tx: Transaction, restoration_id: str, *, copied_at: int, now: int) -> None:
    """Record a restoration, which holds the daemons on this database."""
    await insert_row(tx, "restorations", id=restoration_id, copied_at=copied_at, restored_at=now)


async def confirm(tx: Transaction, now: int) -> int:
    """Confirm every restoration that is not confirmed. Return their number."""
    return await tx.run(
        "UPDATE restorations SET confirmed_at = :now WHERE confirmed_at IS NULL", now=now
    )


async def open_work(tx: Transaction) -> OpenRow:
    """Return the work that is open."""
    row = await tx.one(
        OpenRow,
        """
        SELECT
            (SELECT COUNT(*) FROM bandwidth_sessions WHERE status = 'active'),
            (SELECT COUNT(*) FROM jobs WHERE status IN ('waiting', 'running')),
            (SELECT COUNT(*) FROM outbox),
            (SELECT COUNT(*) FROM webhook_deliveries WHERE status = 'pending')
        """,
    )
    assert row is not None  # noqa: S101 - a row of counts is always there
    return row
