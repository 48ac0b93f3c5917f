"""API keys, and the money spent with them."""

import json
from collections.abc import Collection
from typing import NamedTuple

from storage.engines.store import Transaction, insert_row


class KeyRow(NamedTuple):
    """A key as it is stored; texts with spaces in between are lists."""

    id: str
    user_id: str
    name: str
    key_hash: str
    prefix: str
    scopes: str
    allow_ips: str
    limit_usd: int | None
    limit_credit: int | None
    limit_period: str
    purse_id: str
    created_by: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None
    last_used_network: str | None


class SpendRow(NamedTuple):
    """Money spent from a purse within the period that begins at a time, in micro-units."""

    purse_id: str
    currency: str
    period: str
    begins_at: int
    spent: int


_COLUMNS = ", ".join(KeyRow._fields)
_KEY = f"SELECT {_COLUMNS} FROM api_keys"
_LIVE = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :now)"


async def insert(tx: Transaction, row: KeyRow) -> None:
    """Add a key."""
    await insert_row(tx, "api_keys", **row._asdict())


async def find_by_hash(tx: Transaction, key_hash: str) -> KeyRow | None:
    """Return the key with this digest."""
    return await tx.one(KeyRow, f"{_KEY} WHERE key_hash = :key_hash", key_hash=key_hash)


async def find(tx: Transaction, user_id: str, key_id: str) -> KeyRow | None:
    """Return a key of a user."""
    return await tx.one(
        KeyRow, f"{_KEY} WHERE id = :key_id AND user_id = :user_id", key_id=key_id, user_id=user_id
    )


async def all_of(tx: Transaction, user_id: str, *, now: int, limit: int) -> list[KeyRow]:
    """Return the keys of a user, newest first; of too many the valid ones."""
    found = await tx.all(
        KeyRow,
        f"""
        {_KEY} WHERE user_id = :user_id
        ORDER BY CASE WHEN {_LIVE} THEN 0 ELSE 1 END, id DESC LIMIT :limit
        """,
        user_id=user_id,
        now=now,
        limit=limit,
    )
    return sorted(found, key=lambda row: row.id, reverse=True)


async def find_live(tx: Transaction, key_id: str, now: int) -> KeyRow | None:
    """Return a key, unless it has been revoked or has expired."""
    return await tx.one(
        KeyRow,
        f"{_KEY} WHERE id = :key_id AND {_LIVE}",
        key_id=key_id,
        now=now,
    )


async def count_live(tx: Transaction, user_id: str, now: int) -> int:
    """Return how many keys of a user are valid."""
    count = await tx.one(
        int,
        f"SELECT COUNT(*) FROM api_keys WHERE user_id = :user_id AND {_LIVE}",
        user_id=user_id,
        now=now,
    )
    return count or 0


async def forget_ended(tx: Transaction, user_id: str, *, before: int) -> None:
    """Delete keys of a user that ended before a time. Their records of spending stay."""
    await tx.run(
        """
        DELETE FROM api_keys
        WHERE user_id = :user_id AND (revoked_at < :before OR expires_at < :before)
        """,
        user_id=user_id,
        before=before,
    )


async def change(
    tx: Transaction,
    row: KeyRow,
    *,
    now: int,
) -> bool:
    """Write a key's name, networks and limits; False when it has ended meanwhile."""
    count = await tx.run(
        f"""
        UPDATE api_keys SET name = :name, allow_ips = :allow_ips, limit_usd = :limit_usd,
            limit_credit = :limit_credit, limit_period = :limit_period, limit_told_at = -1
        WHERE id = :id AND {_LIVE}
        """,
        id=row.id,
        name=row.name,
        allow_ips=row.allow_ips,
        limit_usd=row.limit_usd,
        limit_credit=row.limit_credit,
        limit_period=row.limit_period,
        now=now,
    )
    return count == 1


async def revoke(tx: Transaction, key_id: str, now: int) -> bool:
    """Revoke a key; False when it has ended already."""
    count = await tx.run(
        f"UPDATE api_keys SET revoked_at = :now WHERE id = :key_id AND {_LIVE}",
        key_id=key_id,
        now=now,
    )
    return count == 1


async def end_by(tx: Transaction, key_id: str, *, expires_at: int, now: int) -> bool:
    """Limit the expiry of a key to a time; return False when the key has ended already."""
    count = await tx.run(
        f"""
        UPDATE api_keys SET is_expiry_told = 1, expires_at =
            CASE WHEN expires_at < :expires_at THEN expires_at ELSE :expires_at END
        WHERE id = :key_id AND {_LIVE}
        """,
        key_id=key_id,
        expires_at=expires_at,
        now=now,
    )
    return count == 1


async def live_of(tx: Transaction, user_id: str, now: int) -> list[KeyRow]:
    """Return the valid keys of a user."""
    return await tx.all(
        KeyRow,
        f"{_KEY} WHERE user_id = :user_id AND {_LIVE} ORDER BY id",
        user_id=user_id,
        now=now,
    )


async def note_used(tx: Transaction, key_id: str, *, network: str, now: int, since: int) -> None:
    """Note that a key was used, unless that was noted after `since` or by another daemon."""
    await tx.run(
        """
        UPDATE api_keys SET last_used_at = :now, last_used_network = :network
        WHERE id = :key_id AND (last_used_at IS NULL OR last_used_at <= :since)
        """,
        key_id=key_id,
        network=network,
        now=now,
        since=since,
    )


async def expiring(tx: Transaction, *, now: int, before: int, limit: int) -> list[KeyRow]:
    """Return valid keys that expire before a time and whose owners have no notice of it."""
    return await tx.all(
        KeyRow,
        f"""
        {_KEY}
        WHERE revoked_at IS NULL AND is_expiry_told = 0 AND expires_at IS NOT NULL
            AND expires_at > :now AND expires_at <= :before
        ORDER BY expires_at LIMIT :limit
        """,
        now=now,
        before=before,
        limit=limit,
    )


async def note_expiry_told(tx: Transaction, key_id: str) -> bool:
    """Note that the owner of a key has notice of its end; False if that was noted before."""
    count = await tx.run(
        "UPDATE api_keys SET is_expiry_told = 1 WHERE id = :key_id AND is_expiry_told = 0",
        key_id=key_id,
    )
    return count == 1


async def note_limit_told(tx: Transaction, key_id: str, begins_at: int) -> bool:
    """Note that an owner has notice of a key's limit in a period; False if it was noted before."""
    count = await tx.run(
        """
        UPDATE api_keys SET limit_told_at = :begins_at
        WHERE id = :key_id AND limit_told_at <> :begins_at
        """,
        key_id=key_id,
        begins_at=begins_at,
    )
    return count == 1


async def spend(
    tx: Transaction, *, purse_id: str, currency: str, amount: int, day: int, month: int
) -> dict[str, int]:
    """Add to the spending of a day, of a month and in all; return the new sums by period.

    The rows are locked from then on, so that others who spend at the same time wait.
    """
    found = await tx.all(
        SpendRow,
        """
        INSERT INTO key_spends (purse_id, currency, period, begins_at, spent)
        VALUES
            (:purse_id, :currency, 'day', :day, CAST(:amount AS BIGINT)),
            (:purse_id, :currency, 'lifetime', 0, CAST(:amount AS BIGINT)),
            (:purse_id, :currency, 'month', :month, CAST(:amount AS BIGINT))
        ON CONFLICT (purse_id, currency, period, begins_at)
            DO UPDATE SET spent = key_spends.spent + excluded.spent
        RETURNING purse_id, currency, period, begins_at, spent
        """,
        purse_id=purse_id,
        currency=currency,
        amount=amount,
        day=day,
        month=month,
    )
    return {row.period: row.spent for row in found}


async def forget_spent(tx: Transaction, *, before: int, limit: int) -> int:
    """Delete the spending of periods that began before a time. Return the number of rows."""
    return await tx.run(
        """
        DELETE FROM key_spends WHERE (purse_id, currency, period, begins_at) IN (
            SELECT purse_id, currency, period, begins_at FROM key_spends
            WHERE begins_at < :before AND period <> 'lifetime'
            ORDER BY begins_at LIMIT :limit
        )
        """,
        before=before,
        limit=limit,
    )


async def spends(
    tx: Transaction, purse_ids: Collection[str], begins: Collection[int]
) -> list[SpendRow]:
    """Return the spending from purses in the periods that begin at some times."""
    return await tx.all(
        SpendRow,
        f"""
        SELECT spends.purse_id, currency, period, begins_at, spent
        FROM {tx.table("purses", purse_id="TEXT")}
        JOIN key_spends AS spends ON spends.purse_id = purses.purse_id
        WHERE begins_at IN (SELECT moment FROM {tx.table("times", moment="BIGINT")})
        """,
        purses=json.dumps([{"purse_id": each} for each in purse_ids]),
        times=json.dumps([{"moment": each} for each in begins]),
    )
