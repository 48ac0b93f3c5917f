"""Queries that read the suspended parts of users."""

from typing import NamedTuple

from storage.engines.store import Transaction


class SuspendedRow(NamedTuple):
    """A suspended part of a user, with the text for the user ("" if erased); times in UTC seconds.

    Without an `ends_at` the part waits for the staff.
    """

    part: str
    shown: str
    began_at: int
    ends_at: int | None


def is_suspended(user_column: str, part: str) -> str:
    """Return SQL for whether a part of a user is suspended.

    Args:
        user_column: the column with the identifier of the user.
        part: the part, a constant of the program.
    """
    return (
        "EXISTS (SELECT 1 FROM suspended_parts AS suspended"
        f" WHERE suspended.user_id = {user_column} AND suspended.part = '{part}')"
    )


async def shown(tx: Transaction, user_id: str, part: str) -> str | None:
    """Return the text for a user about a suspended part; None for a part that is not suspended."""
    return await tx.one(
        str,
        """
        SELECT COALESCE(t.body, '') FROM suspended_parts AS p
        LEFT JOIN texts AS t ON t.id = p.shown_id
        WHERE p.user_id = :user_id AND p.part = :part
        """,
        user_id=user_id,
        part=part,
    )


async def of_user(tx: Transaction, user_id: str) -> list[SuspendedRow]:
    """Return the suspended parts of a user, in the order of their names."""
    return await tx.all(
        SuspendedRow,
        """
        SELECT p.part, COALESCE(t.body, ''), p.began_at, p.ends_at FROM suspended_parts AS p
        LEFT JOIN texts AS t ON t.id = p.shown_id
        WHERE p.user_id = :user_id ORDER BY p.part
        """,
        user_id=user_id,
    )
