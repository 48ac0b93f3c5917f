"""Queries on what waits to leave."""

import json
from collections.abc import Collection
from typing import NamedTuple

from storage.store import Transaction


class OutboxRow(NamedTuple):
    """One thing that waits; times in UTC seconds.

    Args:
        id: this row's, never used again.
        channel: by which way it leaves.
        item_key: what it is; a later one of the same channel takes the place of an earlier.
        share: whose part of the queue it takes.
        sealed_payload: what leaves.
        created_at: when it was caused.
        expires_at: from when on nobody wants it any more.
        not_before: when it is due; whoever has it in hand has moved that ahead.
        attempts: how often it was taken in hand.
    """

    id: str
    channel: str
    item_key: str
    share: str
    sealed_payload: str
    created_at: int
    expires_at: int
    not_before: int
    attempts: int


class Backlog(NamedTuple):
    """What waits of a channel: in all, past its time, and due later than anything is put off to."""

    waiting: int
    expired: int
    astray: int


_COLUMNS = (
    "id, channel, item_key, share, sealed_payload, created_at, expires_at, not_before, attempts"
)


async def put(tx: Transaction, row: OutboxRow) -> None:
    """Have something leave, in the place of an earlier one of its key."""
    await tx.run(
        f"""
        INSERT INTO outbox ({_COLUMNS})
        VALUES (:id, :channel, :item_key, :share, :sealed_payload, :created_at, :expires_at,
            :not_before, :attempts)
        ON CONFLICT (channel, item_key) DO UPDATE SET
            id = excluded.id, share = excluded.share, sealed_payload = excluded.sealed_payload,
            created_at = excluded.created_at, expires_at = excluded.expires_at,
            not_before = excluded.not_before, attempts = excluded.attempts, claimed_at = NULL
        """,
        **row._asdict(),
    )


async def due(
    tx: Transaction, channel: str, *, again: bool, but: Collection[str], now: int, limit: int
) -> list[OutboxRow]:
    """Return what is due, earliest first.

    Args:
        tx: the transaction.
        channel: by which way it leaves.
        again: what was tried before, or what was not.
        but: shares whose turn it is not.
        now: UTC seconds.
        limit: how many at most.
    """
    return await tx.all(
        OutboxRow,
        f"""
        SELECT {_COLUMNS} FROM outbox
        WHERE channel = :channel AND not_before <= :now AND expires_at > :now
            AND CASE WHEN attempts > 0 THEN 1 ELSE 0 END = :again
            AND share NOT IN (SELECT share FROM {tx.table("but", share="TEXT")})
        ORDER BY not_before, id
        LIMIT :limit
        """,
        channel=channel,
        again=int(again),
        but=json.dumps([{"share": share} for share in but]),
        now=now,
        limit=limit,
    )


async def claim(tx: Transaction, row: OutboxRow, *, now: int, until: int) -> bool:
    """Take something in hand until a moment; False when somebody else has, or it is gone."""
    claimed = await tx.run(
        """
        UPDATE outbox SET attempts = attempts + 1, not_before = :until, claimed_at = :now
        WHERE id = :id AND attempts = :attempts AND not_before <= :now
        """,
        id=row.id,
        attempts=row.attempts,
        now=now,
        until=until,
    )
    return claimed == 1


async def put_off(tx: Transaction, row: OutboxRow, *, attempts: int, not_before: int) -> None:
    """Let something go that was in hand, until it is due again; if nobody else took it meanwhile.

    Args:
        tx: the transaction.
        row: as it was claimed.
        attempts: how many have counted so far.
        not_before: when it is due.
    """
    await tx.run(
        """
        UPDATE outbox SET attempts = :attempts, not_before = :not_before, claimed_at = NULL
        WHERE id = :id AND attempts = :seen
        """,
        id=row.id,
        seen=row.attempts,
        attempts=attempts,
        not_before=not_before,
    )


async def free_all(tx: Transaction, channel: str, now: int) -> int:
    """Let go of everything that is in hand, where nobody can have anything; return how many."""
    return await tx.run(
        """
        UPDATE outbox SET not_before = :now, claimed_at = NULL
        WHERE channel = :channel AND claimed_at IS NOT NULL
        """,
        channel=channel,
        now=now,
    )


async def delete(tx: Transaction, row_id: str) -> bool:
    """Delete something that has left or is given up; False when it was gone."""
    return await tx.run("DELETE FROM outbox WHERE id = :id", id=row_id) == 1


async def backlog(tx: Transaction, channel: str, *, now: int, latest: int) -> Backlog:
    """Count what waits.

    Args:
        tx: the transaction.
        channel: by which way it leaves.
        now: UTC seconds.
        latest: nothing is put off for longer than to here, unless a clock was ahead.
    """
    found = await tx.one(
        Backlog,
        """
        SELECT COUNT(*),
            COALESCE(SUM(CASE WHEN expires_at <= :now THEN 1 ELSE 0 END), 0),
            COALESCE(SUM(CASE WHEN not_before > :latest THEN 1 ELSE 0 END), 0)
        FROM outbox WHERE channel = :channel
        """,
        channel=channel,
        now=now,
        latest=latest,
    )
    return found or Backlog(0, 0, 0)


async def delete_expired(tx: Transaction, channel: str, now: int) -> int:
    """Delete what nobody wants any more; return how many."""
    return await tx.run(
        "DELETE FROM outbox WHERE channel = :channel AND expires_at <= :now",
        channel=channel,
        now=now,
    )


async def bring_back(tx: Transaction, channel: str, *, now: int, latest: int) -> int:
    """Make due what a clock that was ahead had put off; return how many."""
    return await tx.run(
        """
        UPDATE outbox SET not_before = :now, claimed_at = NULL
        WHERE channel = :channel AND not_before > :latest
        """,
        channel=channel,
        now=now,
        latest=latest,
    )


async def drop(tx: Transaction, channel: str, number: int) -> int:
    """Delete so many of those whose share is largest, most often tried first; return how many."""
    return await tx.run(
        """
        DELETE FROM outbox WHERE id IN (
            SELECT id FROM (
                SELECT id, ROW_NUMBER() OVER (
                    PARTITION BY share ORDER BY attempts, created_at DESC, id DESC
                ) AS place
                FROM outbox WHERE channel = :channel
            ) AS placed
            ORDER BY place DESC, id
            LIMIT :number
        )
        """,
        channel=channel,
        number=number,
    )
