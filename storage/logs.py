"""Logs: whose they are and what they take; their bytes are in `storage.log_files`."""

from collections.abc import Sequence
from typing import NamedTuple

from storage.store import Transaction


class LogRow(NamedTuple):
    """The log of an attempt."""

    job_id: str
    attempt: int
    user_id: str


class StateRow(NamedTuple):
    """What readers of a job's log need to know of it: `attempts` is the number of the latest."""

    user_id: str
    status: str
    attempts: int


async def insert(tx: Transaction, row: LogRow, now: int) -> None:
    """Note that a log begins; one that has begun before stays as it is."""
    await tx.run(
        """
        INSERT INTO job_logs (job_id, attempt, user_id, began_at)
        VALUES (:job_id, :attempt, :user_id, :now)
        ON CONFLICT (job_id, attempt) DO NOTHING
        """,
        **row._asdict(),
        now=now,
    )


async def state(tx: Transaction, job_id: str) -> StateRow | None:
    """Return whose a job is and how it stands."""
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


async def mark_ended(tx: Transaction, row: LogRow, *, kept_bytes: int, now: int) -> None:
    """Note that a log is over, and how many bytes its files have."""
    await tx.run(
        """
        UPDATE job_logs SET ended_at = :now, kept_bytes = :kept_bytes
        WHERE job_id = :job_id AND attempt = :attempt AND ended_at IS NULL
        """,
        job_id=row.job_id,
        attempt=row.attempt,
        kept_bytes=kept_bytes,
        now=now,
    )


async def ended_before(tx: Transaction, moment: int, *, limit: int) -> list[LogRow]:
    """Return logs that were over before a moment, the oldest first."""
    return await tx.all(
        LogRow,
        """
        SELECT job_id, attempt, user_id FROM job_logs
        WHERE ended_at IS NOT NULL AND ended_at < :moment
        ORDER BY ended_at
        LIMIT :limit
        """,
        moment=moment,
        limit=limit,
    )


async def over_bound(tx: Transaction, user_id: str, *, most: int, limit: int) -> list[LogRow]:
    """Return a user's logs that are over, beyond the latest that take `most` bytes together."""
    return await tx.all(
        LogRow,
        """
        SELECT job_id, attempt, user_id FROM (
            SELECT job_id, attempt, user_id, ended_at, SUM(kept_bytes) OVER (
                ORDER BY ended_at DESC, job_id DESC, attempt DESC
                ROWS UNBOUNDED PRECEDING
            ) AS bytes
            FROM job_logs WHERE user_id = :user_id AND ended_at IS NOT NULL
        ) AS summed
        WHERE bytes > :most
        ORDER BY ended_at
        LIMIT :limit
        """,
        user_id=user_id,
        most=most,
        limit=limit,
    )


async def delete(tx: Transaction, rows: Sequence[LogRow]) -> None:
    """Forget logs whose files are gone."""
    for row in rows:
        await tx.run(
            "DELETE FROM job_logs WHERE job_id = :job_id AND attempt = :attempt",
            job_id=row.job_id,
            attempt=row.attempt,
        )
