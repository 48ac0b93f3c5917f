"""Queries on the work of a device: its attempts at jobs, and its earnings by day."""

from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST, behind
from storage.engines.store import Transaction

DAY_SECONDS = 86_400


class DoneRow(NamedTuple):  # as wide as the list that the API shows
    """The last attempt of a device at a job: `id` is the job's, `earned` in micro-credits.

    Times in UTC seconds. A running attempt has no `outcome`.
    """

    id: str
    title: str
    job_type: str
    price_credit: int
    duration_hrs: int
    attempt: int
    started_at: int
    ended_at: int | None
    outcome: str | None
    phase: str | None
    progress: float | None
    failure_kind: str | None
    reason: str | None
    earned: int


class DayEarnedRow(NamedTuple):
    """Earnings of a device by jobs on a day, counted from 1970, in micro-credits."""

    day: int
    earned: int


async def page(tx: Transaction, *, device_id: str, before: str, limit: int) -> list[DoneRow]:
    """Return the jobs that a device has had, newest first; of each its last attempt.

    Args:
        tx: the transaction.
        device_id: the device.
        before: only jobs older than this identifier; "" for the newest.
        limit: how many at most.
    """
    return await tx.all(
        DoneRow,
        f"""
        SELECT j.id, j.title, j.job_type, j.price_credit, j.duration_hrs, a.attempt, a.started_at,
            a.ended_at, a.outcome, a.phase, a.progress, a.failure_kind, a.reason,
            CAST(COALESCE(
                CASE WHEN j.device_id = :device_id AND j.earned > 0 THEN j.earned END,
                (SELECT SUM(d.earned) FROM job_draws AS d
                    WHERE d.job_id = j.id AND d.device_id = :device_id),
                0
            ) AS BIGINT)
        FROM job_attempts AS a JOIN jobs AS j ON j.id = a.job_id
        WHERE a.device_id = :device_id AND a.job_id < :before AND a.attempt = (
            SELECT MAX(last.attempt) FROM job_attempts AS last
            WHERE last.job_id = a.job_id AND last.device_id = :device_id
        )
        ORDER BY a.job_id {NEWEST_FIRST}
        LIMIT :limit
        """,
        device_id=device_id,
        before=behind(before),
        limit=limit,
    )


async def earned_by_day(tx: Transaction, *, device_id: str, since: int) -> list[DayEarnedRow]:
    """Return the earnings of a device by jobs for each day with earnings, the latest first.

    Pay for time is in `job_draws`, and such a job has no other earnings.

    Args:
        tx: the transaction.
        device_id: the device.
        since: the first day, counted from 1970.
    """
    return await tx.all(
        DayEarnedRow,
        f"""
        SELECT day, CAST(SUM(earned) AS BIGINT) FROM (
            SELECT j.finished_at / {DAY_SECONDS} AS day, j.earned FROM jobs AS j
            WHERE j.device_id = :device_id AND j.finished_at >= :since AND j.earned > 0
            UNION ALL
            SELECT d.created_at / {DAY_SECONDS}, d.earned
            FROM devices AS v
            JOIN job_draws AS d ON d.user_id = v.user_id AND d.device_id = v.id
            LEFT JOIN job_reviews AS r ON r.job_id = d.job_id AND r.attempt = d.attempt
            WHERE v.id = :device_id AND d.created_at >= :since
                AND COALESCE(r.state, '') <> 'reversed'
        ) AS earnings
        GROUP BY day
        ORDER BY day DESC
        """,
        device_id=device_id,
        since=since * DAY_SECONDS,
    )
