"""Queries on closed and erased accounts, on exports, and on addresses that open no account."""

from typing import NamedTuple

from storage.engines.store import Transaction, insert_row

# SQL for whether the account of `:user_id` is closed or erased.
IS_SHUT = "EXISTS (SELECT 1 FROM closures WHERE user_id = :user_id AND state <> 'taken_back')"


class ClosureRow(NamedTuple):
    """The closing of an account; times in UTC seconds. `waives`: the user gives the money up."""

    user_id: str
    state: str
    waives: int
    closed_at: int
    due_at: int
    erased_at: int | None


class ErasedRow(NamedTuple):
    """An erased account and the time of its erasure."""

    user_id: str
    erased_at: int


async def find(tx: Transaction, user_id: str) -> ClosureRow | None:
    """Return the closing of an account; None if it was never closed."""
    return await tx.one(
        ClosureRow,
        """
        SELECT user_id, state, waives, closed_at, due_at, erased_at FROM closures
        WHERE user_id = :user_id
        """,
        user_id=user_id,
    )


async def is_shut(tx: Transaction, user_id: str) -> bool:
    """Return whether an account is closed or erased."""
    return await tx.one(int, f"SELECT 1 WHERE {IS_SHUT}", user_id=user_id) is not None


async def is_erased(tx: Transaction, user_id: str) -> bool:
    """Return whether an account is erased."""
    row = await tx.one(
        int,
        "SELECT 1 FROM closures WHERE user_id = :user_id AND state = 'erased'",
        user_id=user_id,
    )
    return row is not None


async def close(tx: Transaction, user_id: str, *, waives: bool, now: int, due_at: int) -> bool:
    """Close an open account; False if it is closed or erased."""
    changed = await tx.run(
        """
        INSERT INTO closures (user_id, state, waives, closed_at, due_at)
        VALUES (:user_id, 'closed', :waives, :now, :due_at)
        ON CONFLICT (user_id) DO UPDATE SET
            state = 'closed', waives = excluded.waives, closed_at = excluded.closed_at,
            due_at = excluded.due_at
        WHERE closures.state = 'taken_back'
        """,
        user_id=user_id,
        waives=int(waives),
        now=now,
        due_at=due_at,
    )
    return changed == 1


async def take_back(tx: Transaction, user_id: str) -> bool:
    """Open a closed account again; False if it is not closed."""
    changed = await tx.run(
        "UPDATE closures SET state = 'taken_back' WHERE user_id = :user_id AND state = 'closed'",
        user_id=user_id,
    )
    return changed == 1


async def erase(tx: Transaction, user_id: str, now: int) -> bool:
    """Note the erasure of an account; False if it was erased before."""
    changed = await tx.run(
        """
        INSERT INTO closures (user_id, state, waives, closed_at, due_at, erased_at)
        VALUES (:user_id, 'erased', 0, :now, :now, :now)
        ON CONFLICT (user_id) DO UPDATE SET state = 'erased', erased_at = excluded.erased_at
        WHERE closures.state <> 'erased'
        """,
        user_id=user_id,
        now=now,
    )
    return changed == 1


async def due(tx: Transaction, *, now: int, limit: int) -> list[str]:
    """Return accounts whose time to be taken back is over, the earliest first."""
    return await tx.all(
        str,
        """
        SELECT user_id FROM closures WHERE state = 'closed' AND due_at <= :now
        ORDER BY due_at LIMIT :limit
        """,
        now=now,
        limit=limit,
    )


async def erased(tx: Transaction, *, since: int = 0) -> list[ErasedRow]:
    """Return the accounts that were erased since a time, the earliest first."""
    return await tx.all(
        ErasedRow,
        """
        SELECT user_id, erased_at FROM closures WHERE state = 'erased' AND erased_at >= :since
        ORDER BY erased_at, user_id
        """,
        since=since,
    )


async def is_barred(tx: Transaction, email_hash: str, now: int) -> bool:
    """Return whether an address opens no account now."""
    row = await tx.one(
        int,
        "SELECT 1 FROM barred_emails WHERE email_hash = :email_hash AND until > :now",
        email_hash=email_hash,
        now=now,
    )
    return row is not None


async def latest_export(tx: Transaction, user_id: str) -> int | None:
    """Return the time of a user's latest request for an export."""
    return await tx.one(
        int,
        "SELECT asked_at FROM exports WHERE user_id = :user_id ORDER BY asked_at DESC LIMIT 1",
        user_id=user_id,
    )


async def add_export(
    tx: Transaction, export_id: str, user_id: str, *, now: int, expires_at: int
) -> None:
    """Add a request for an export; requests of the user that have expired are deleted."""
    await tx.run(
        "DELETE FROM exports WHERE user_id = :user_id AND expires_at <= :now",
        user_id=user_id,
        now=now,
    )
    await insert_row(
        tx, "exports", id=export_id, user_id=user_id, asked_at=now, expires_at=expires_at
    )


async def use_export(tx: Transaction, export_id: str, user_id: str, *, now: int, most: int) -> bool:
    """Count a download of an export; False if it is unknown, over, or was downloaded too often."""
    changed = await tx.run(
        """
        UPDATE exports SET downloads = downloads + 1
        WHERE id = :id AND user_id = :user_id AND expires_at > :now AND downloads < :most
        """,
        id=export_id,
        user_id=user_id,
        now=now,
        most=most,
    )
    return changed == 1
