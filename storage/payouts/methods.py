"""Queries on the places that payouts go to."""

from typing import NamedTuple

from storage.engines.store import Transaction, insert_row


class MethodRow(NamedTuple):
    """A place for payouts: its sealed details, and a mask of them; times are UTC seconds."""

    id: str
    user_id: str
    kind: str
    sealed: str
    shown: str
    created_at: int
    usable_at: int
    removed_at: int | None = None


_COLUMNS = ", ".join(MethodRow._fields)


async def insert(tx: Transaction, row: MethodRow) -> None:
    """Add a place."""
    await insert_row(tx, "payout_methods", **row._asdict())


async def find(tx: Transaction, method_id: str) -> MethodRow | None:
    """Return a place, also one that was removed."""
    return await tx.one(
        MethodRow, f"SELECT {_COLUMNS} FROM payout_methods WHERE id = :id", id=method_id
    )


async def of_user(tx: Transaction, user_id: str) -> list[MethodRow]:
    """Return a user's places, oldest first."""
    return await tx.all(
        MethodRow,
        f"""
        SELECT {_COLUMNS} FROM payout_methods
        WHERE user_id = :user_id AND removed_at IS NULL ORDER BY id
        """,
        user_id=user_id,
    )


async def newest(tx: Transaction, user_id: str, kind: str) -> MethodRow | None:
    """Return a user's newest place of a kind, also one that was removed."""
    return await tx.one(
        MethodRow,
        f"""
        SELECT {_COLUMNS} FROM payout_methods
        WHERE user_id = :user_id AND kind = :kind ORDER BY id DESC LIMIT 1
        """,
        user_id=user_id,
        kind=kind,
    )


async def remove(tx: Transaction, method_id: str, *, user_id: str, now: int) -> bool:
    """Remove a user's place; False if it does not exist, or an open payout goes there."""
    changed = await tx.run(
        """
        UPDATE payout_methods SET removed_at = :now
        WHERE id = :id AND user_id = :user_id AND removed_at IS NULL AND NOT EXISTS (
            SELECT 1 FROM payouts
            WHERE method_id = :id AND state IN ('requested', 'approved', 'sent')
        )
        """,
        id=method_id,
        user_id=user_id,
        now=now,
    )
    return changed == 1
