"""Queries on the level of an account: its age, its own level, and its first paid session."""

from typing import NamedTuple

from storage.engines.store import Transaction


class LevelRow(NamedTuple):
    """The facts that decide about the level of a user; times in UTC seconds.

    `level` is the one that the staff has set, until `level_until`, None for none.
    """

    created_at: int
    email_verified_at: int | None
    level: str | None
    level_until: int | None


async def find(tx: Transaction, user_id: str) -> LevelRow | None:
    """Return the facts about the level of a user."""
    return await tx.one(
        LevelRow,
        """
        SELECT u.created_at, u.email_verified_at, l.level, l.until
        FROM users AS u LEFT JOIN user_limits AS l ON l.user_id = u.id
        WHERE u.id = :user_id
        """,
        user_id=user_id,
    )


async def paid_at(tx: Transaction, user_id: str) -> int | None:
    """Return the end of the first session of a user that is over and was paid for.

    All sessions of the user are read, so this is for young accounts.
    """
    return await tx.one(
        int,
        """
        SELECT s.ended_at FROM bandwidth_sessions AS s
        JOIN holds AS h ON h.id = 'bandwidth:' || s.id
        WHERE s.user_id = :user_id AND s.ended_at IS NOT NULL AND h.captured > 0
        ORDER BY s.ended_at LIMIT 1
        """,
        user_id=user_id,
    )


async def used_since(tx: Transaction, user_id: str, since: int) -> int:
    """Return the bytes that all sessions of a user have used since the begin of an hour."""
    used = await tx.one(
        int,
        """
        SELECT COALESCE(SUM(used_bytes), 0) FROM session_usage
        WHERE user_id = :user_id AND begins_at >= :since AND span_seconds = 3600
        """,
        user_id=user_id,
        since=since,
    )
    return used or 0


async def leased_of_new(tx: Transaction, *, since: int, limit: int) -> list[tuple[str, str]]:
    """Return the leased sessions, with their users, of accounts that may be new.

    Args:
        tx: the transaction.
        since: accounts that were opened before are not new by their age.
        limit: the most sessions.
    """
    return await tx.all(
        _pair,
        """
        SELECT DISTINCT s.id, s.user_id FROM bandwidth_leases AS l
        JOIN bandwidth_sessions AS s ON s.id = l.session_id
        JOIN users AS u ON u.id = s.user_id
        LEFT JOIN user_limits AS own ON own.user_id = u.id
        WHERE l.closed_at IS NULL AND s.status = 'active' AND s.halted_at IS NULL
            AND (u.created_at > :since OR own.level = 'new')
        LIMIT :limit
        """,
        since=since,
        limit=limit,
    )


def _pair(first: str, second: str) -> tuple[str, str]:
    return first, second
