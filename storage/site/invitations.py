"""Queries on invitations, each a hash of a code that opens accounts."""

from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST
from storage.engines.store import Transaction


class InvitationRow(NamedTuple):
    """An invitation without its code; times in UTC seconds."""

    id: str
    uses: int
    uses_left: int
    created_at: int
    expires_at: int


async def is_usable(tx: Transaction, code_hash: str, now: int) -> bool:
    """Return whether a code exists, has uses left, and has not expired."""
    row = await tx.one(
        int,
        """
        SELECT 1 FROM invitations
        WHERE code_hash = :code_hash AND uses_left > 0 AND expires_at > :now
        """,
        code_hash=code_hash,
        now=now,
    )
    return row is not None


async def use(tx: Transaction, code_hash: str, now: int) -> bool:
    """Use a code once; return False if it cannot be used."""
    used = await tx.run(
        """
        UPDATE invitations SET uses_left = uses_left - 1
        WHERE code_hash = :code_hash AND uses_left > 0 AND expires_at > :now
        """,
        code_hash=code_hash,
        now=now,
    )
    return used == 1


async def newest(tx: Transaction, *, limit: int) -> list[InvitationRow]:
    """Return the newest invitations, also those that cannot be used any more."""
    return await tx.all(
        InvitationRow,
        f"""
        SELECT id, uses, uses_left, created_at, expires_at FROM invitations
        ORDER BY created_at {NEWEST_FIRST}, id {NEWEST_FIRST} LIMIT :limit
        """,
        limit=limit,
    )
