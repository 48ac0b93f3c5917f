"""Queries of the acts of the staff about a user, as that user may read them.

They read the part of each table that an export has (`erasing.exported_part`), and nothing else.
"""

from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST
from storage.engines.store import Transaction
from storage.erasure.erasing import exported_part


class ActRow(NamedTuple):
    """An act. `changes` is JSON, with the old and the new value of each changed field."""

    number: int
    at: int
    action: str
    subject_kind: str
    subject_id: str | None
    changes: str


class ShownTextRow(NamedTuple):
    """A text that the staff wrote for the user, and the number of its act."""

    number: int
    body: str


async def newest(tx: Transaction, user_id: str, *, before: int, limit: int) -> list[ActRow]:
    """Return the newest acts about a user before a number."""
    return await tx.all(
        ActRow,
        f"""
        SELECT l.number, l.at, l.action, l.subject_kind, l.subject_id, l.changes
        FROM ({exported_part("staff_log")}) AS l
        WHERE l.number < :before ORDER BY l.number {NEWEST_FIRST} LIMIT :limit
        """,
        user=user_id,
        before=before,
        limit=limit,
    )


async def shown(tx: Transaction, user_id: str, *, first: int, last: int) -> list[ShownTextRow]:
    """Return the texts for a user of the acts between two numbers, in the order of the acts."""
    return await tx.all(
        ShownTextRow,
        f"""
        SELECT t.log_number, t.body FROM ({exported_part("texts")}) AS t
        WHERE t.log_number BETWEEN :first AND :last ORDER BY t.log_number, t.id
        """,
        user=user_id,
        first=first,
        last=last,
    )
