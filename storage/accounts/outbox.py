"""Queries on the outbox: e-mails that wait to be sent."""

import json
from collections.abc import Collection
from typing import NamedTuple

from storage.engines.store import Transaction


class OutboxRow(NamedTuple):
    """One item that waits; times in UTC seconds.

    Args:
        id: the row's identifier, never used again.
        channel: the means of sending: "mail", for one.
        item_key: identifies the item; a new item replaces a waiting one with the same channel and
            key.
        share: the part of the queue that it counts for, such as a domain of e-mail.
        sealed_payload: the content, encrypted.
        created_at: when the transaction that caused it put it here.
        expires_at: from then on it is not sent any more.
        not_before: from then on it is due; a claim moves this ahead.
        attempts: how often it was claimed.
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
    """Numbers of a channel's items.

    Args:
        waiting: all of them.
        expired: items past their `expires_at`.
        astray: items that are due later than the longest delay allows: a clock was ahead.
    """

    waiting: int
    expired: int
    astray: int


_COLUMNS = (
    "id, channel, item_key, share, sealed_payload, created_at, expires_at, not_before, attempts"
)


async def put(tx: Transaction, row: OutboxRow) -> None:
    """Add an item, in the place of a waiting one with its key."""
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
    """Return the items that are due, earliest first.

    Args:
        tx: the transaction.
        channel: the channel.
        again: True for items that were tried before, False for the other items.
        but: shares to leave out.
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
    """Claim an item until a moment; False when another sender has, or it is gone."""
    row_count = await tx.run(
        """
        UPDATE outbox SET attempts = attempts + 1, not_before = :until, claimed_at = :now
        WHERE id = :id AND attempts = :attempts AND not_before <= :now
        """,
        id=row.id,
        attempts=row.attempts,
        now=now,
        until=until,
    )
    return row_count == 1


async def put_off(tx: Transaction, row: OutboxRow, *, attempts: int, not_before: int) -> None:
    """Return a claimed item until it is due again, unless another sender has claimed it since."""
    await tx.run(
        """
        UPDATE outbox SET attempts = :attempts, not_before = :not_before, claimed_at = NULL
        WHERE id = :id AND attempts = :attempts_of_claim
        """,
        id=row.id,
        attempts_of_claim=row.attempts,
        attempts=attempts,
        not_before=not_before,
    )


async def free_all(tx: Transaction, channel: str, now: int) -> int:
    """Drop all claims of a channel. Return the number of claims dropped.

    The caller starts, and knows that no other sender works at the same time.
    """
    return await tx.run(
        """
        UPDATE outbox SET not_before = :now, claimed_at = NULL
        WHERE channel = :channel AND claimed_at IS NOT NULL
        """,
        channel=channel,
        now=now,
    )


async def delete(tx: Transaction, row_id: str) -> bool:
    """Delete an item that was sent or is given up; False when it was gone."""
    return await tx.run("DELETE FROM outbox WHERE id = :id", id=row_id) == 1


async def backlog(tx: Transaction, channel: str, *, now: int, latest: int) -> Backlog:
    """Count the items of a channel.

    Args:
        tx: the transaction.
        channel: the channel.
        now: UTC seconds.
        latest: the latest moment that an item is ever put off to, unless a clock was ahead.
    """
    row = await tx.one(
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
    return row or Backlog(0, 0, 0)


async def delete_expired(tx: Transaction, channel: str, now: int) -> int:
    """Delete the items that have expired. Return the number deleted."""
    return await tx.run(
        "DELETE FROM outbox WHERE channel = :channel AND expires_at <= :now",
        channel=channel,
        now=now,
    )


async def bring_back(tx: Transaction, channel: str, *, now: int, latest: int) -> int:
    """Make items due that a wrong clock put off too far. Return the number changed."""
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
    """Delete `number` items of the largest shares, most often tried first. Return the count."""
    return await tx.run(
        """
        DELETE FROM outbox WHERE id IN (
            SELECT id FROM (
                SELECT id, ROW_NUMBER() OVER (
                    PARTITION BY share ORDER BY attempts, created_at DESC, id DESC
                ) AS rank_in_share
                FROM outbox WHERE channel = :channel
            ) AS ranked
            ORDER BY rank_in_share DESC, id
            LIMIT :number
        )
        """,
        channel=channel,
        number=number,
    )
