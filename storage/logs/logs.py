"""Logs: their owners and their sizes; their bytes are in `storage.logs.files`."""

from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction
from storage.files.evidence import is_evidence


class LogRow(NamedTuple):
    """The log of an attempt; `kept_bytes` is the size of its files, once it is marked as ended."""

    job_id: str
    attempt: int
    user_id: str
    kept_bytes: int = 0


class StateRow(NamedTuple):
    """Job as the readers of its log see it: `attempts` is the number of the latest."""

    user_id: str
    status: str
    attempts: int


async def insert(tx: Transaction, row: LogRow, now: int) -> bool:
    """Record that a log begins; return False, without a change, if it has begun before."""
    inserted = await tx.run(
        """
        INSERT INTO job_logs (job_id, attempt, user_id, began_at)
        VALUES (:job_id, :attempt, :user_id, :now)
        ON CONFLICT (job_id, attempt) DO NOTHING
        """,
        job_id=row.job_id,
        attempt=row.attempt,
        user_id=row.user_id,
        now=now,
    )
    return inserted > 0


async def state(tx: Transaction, job_id: str) -> StateRow | None:
    """Return the owner of a job and its state."""
    return await tx.one(
        StateRow, "SELECT user_id, status, attempts FROM jobs WHERE id = :job_id", job_id=job_id
    )


async def newly_ended(tx: Transaction, *, limit: int) -> list[LogRow]:
    """Return logs whose attempts have ended, and that are not marked as such."""
    return await tx.all(
        LogRow,
        """
        SELECT l.job_id, l.attempt, l.user_id FROM job_logs AS l
        JOIN job_attempts AS a ON a.job_id = l.job_id AND a.attempt = l.attempt
        WHERE l.ended_at IS NULL AND a.ended_at IS NOT NULL
        ORDER BY l.began_at
        LIMIT :limit
        """,
        limit=limit,
    )


async def mark_ended(tx: Transaction, row: LogRow, now: int) -> None:
    """Note that a log is over, and how many bytes its files have."""
    changed = await tx.run(
        """
        UPDATE job_logs SET ended_at = :now, kept_bytes = :kept_bytes
        WHERE job_id = :job_id AND attempt = :attempt AND ended_at IS NULL
        """,
        job_id=row.job_id,
        attempt=row.attempt,
        kept_bytes=row.kept_bytes,
        now=now,
    )
    if changed:
        await tx.run(
            """
            INSERT INTO user_logs (user_id, kept_bytes) VALUES (:user_id, :kept_bytes)
            ON CONFLICT (user_id) DO UPDATE
            SET kept_bytes = user_logs.kept_bytes + excluded.kept_bytes
            """,
            user_id=row.user_id,
            kept_bytes=row.kept_bytes,
        )


async def kept_bytes(tx: Transaction, user_id: str) -> int:
    """Return the size of a user's ended logs."""
    found = await tx.one(
        int, "SELECT kept_bytes FROM user_logs WHERE user_id = :user_id", user_id=user_id
    )
    return found or 0


async def ended_before(
    tx: Transaction, moment: int, *, decided_after: int, limit: int
) -> list[LogRow]:
    """Return logs that were over before a moment and are no evidence, the oldest first."""
    return await tx.all(
        LogRow,
        f"""
        SELECT job_id, attempt, user_id, kept_bytes FROM job_logs AS l
        WHERE ended_at IS NOT NULL AND ended_at < :moment AND NOT ({is_evidence("l.job_id")})
        ORDER BY ended_at
        LIMIT :limit
        """,
        moment=moment,
        decided_after=decided_after,
        limit=limit,
    )


async def oldest_of_user(
    tx: Transaction, user_id: str, *, decided_after: int | None, limit: int
) -> list[LogRow]:
    """Return a user's logs that are over, the oldest first.

    Args:
        tx: the transaction.
        user_id: the user.
        decided_after: leaves out evidence, by the time of a decision (UTC seconds); None for all.
        limit: the number of logs.
    """
    is_left_out = "" if decided_after is None else f"AND NOT ({is_evidence('l.job_id')})"
    decided = {} if decided_after is None else {"decided_after": decided_after}
    return await tx.all(
        LogRow,
        f"""
        SELECT job_id, attempt, user_id, kept_bytes FROM job_logs AS l
        WHERE user_id = :user_id AND ended_at IS NOT NULL {is_left_out}
        ORDER BY ended_at
        LIMIT :limit
        """,
        user_id=user_id,
        limit=limit,
        **decided,
    )


async def delete(tx: Transaction, rows: Sequence[LogRow]) -> None:
    """Forget logs whose files are gone."""
    for row in rows:
        deleted = await tx.run(
            "DELETE FROM job_logs WHERE job_id = :job_id AND attempt = :attempt",
            job_id=row.job_id,
            attempt=row.attempt,
        )
        if deleted:
            await tx.run(
                """
                UPDATE user_logs SET kept_bytes = kept_bytes - :kept_bytes
                WHERE user_id = :user_id
                """,
                user_id=row.user_id,
                kept_bytes=row.kept_bytes,
            )
