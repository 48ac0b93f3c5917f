"""Queries on draws: payments to attempts for their time, each from the hold of its job."""

from typing import NamedTuple

from storage.engines.store import Transaction, insert_row
from storage.money.ledger import DifferenceRow


class DrawRow(NamedTuple):
    """Payment of an attempt: `amount` in micro-units of the hold, `earned` in micro-credits."""

    job_id: str
    attempt: int
    device_id: str
    user_id: str
    seconds: int
    amount: int
    earned: int
    created_at: int


class DrawnRow(NamedTuple):
    """For how many seconds all attempts at a job were paid, and whether the last one was."""

    seconds: int
    has_last: int


class UnreadyRow(NamedTuple):
    """The seconds of work at replicas that never became ready, of one device and of all."""

    of_device: int
    in_all: int


_COLUMNS = ", ".join(DrawRow._fields)


async def insert(tx: Transaction, draw: DrawRow) -> None:
    """Record a payment to an attempt."""
    await insert_row(tx, "job_draws", **draw._asdict())


async def set_served(tx: Transaction, job_id: str, attempt: int, seconds: int) -> None:
    """Record the part of an attempt's paid time in which it could be used."""
    await tx.run(
        """
        UPDATE job_attempts SET served_seconds = :seconds
        WHERE job_id = :job_id AND attempt = :attempt
        """,
        job_id=job_id,
        attempt=attempt,
        seconds=seconds,
    )


async def unready_seconds(
    tx: Transaction, *, buyer_id: str, device_id: str, since: int, late: int
) -> UnreadyRow:
    """Return the seconds of work at replicas of a buyer that never became ready.

    Failures of the devices themselves do not count. Only replicas are looked at that are open, or
    were put up since then: of older ones that are over each had one more attempt at most.

    Args:
        tx: the transaction.
        buyer_id: whose replicas.
        device_id: the device that is looked at by itself.
        since: attempts that have ended after this moment, in UTC seconds.
        late: how many seconds beyond its time an attempt may go on before it is ended.
    """
    found = await tx.one(
        UnreadyRow,
        """
        SELECT
            CAST(COALESCE(SUM(CASE WHEN device_id = :device_id THEN seconds END), 0) AS BIGINT),
            CAST(COALESCE(SUM(seconds), 0) AS BIGINT)
        FROM (
            SELECT a.device_id AS device_id,
                CASE WHEN a.ended_at - a.work_started_at < r.ready_within + CAST(:late AS BIGINT)
                    THEN a.ended_at - a.work_started_at
                    ELSE r.ready_within + CAST(:late AS BIGINT) END AS seconds
            FROM (
                SELECT id FROM jobs WHERE user_id = :buyer_id AND created_at > :since
                UNION
                SELECT id FROM jobs WHERE user_id = :buyer_id AND status IN ('waiting', 'running')
            ) AS j
            JOIN deploy_replicas AS r ON r.job_id = j.id AND r.ready_within IS NOT NULL
            JOIN job_attempts AS a ON a.job_id = j.id
            WHERE a.work_started_at IS NOT NULL AND a.ready_at IS NULL
                AND a.ended_at > :since AND (
                    a.outcome NOT IN ('failed', 'lost')
                    OR a.failure_kind IN ('job', 'timeout', 'oom')
                )
        ) AS attempts
        """,
        buyer_id=buyer_id,
        device_id=device_id,
        since=since,
        late=late,
    )
    return found or UnreadyRow(0, 0)


async def drawn(tx: Transaction, job_id: str, attempt: int) -> DrawnRow:
    """Return the paid seconds of all attempts at a job, and whether this one was paid."""
    row = await tx.one(
        DrawnRow,
        """
        SELECT CAST(COALESCE(SUM(seconds), 0) AS BIGINT),
            CAST(COALESCE(SUM(CASE WHEN attempt = :attempt THEN 1 ELSE 0 END), 0) AS BIGINT)
        FROM job_draws WHERE job_id = :job_id
        """,
        job_id=job_id,
        attempt=attempt,
    )
    return row or DrawnRow(0, 0)


async def against_holds(tx: Transaction) -> list[DifferenceRow]:
    """Return each hold that was not drawn as its attempts were paid."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT reference, CAST(SUM(expected) AS BIGINT), CAST(SUM(actual) AS BIGINT) FROM (
            SELECT 'job:' || job_id AS reference, amount AS expected, 0 AS actual FROM job_draws
            UNION ALL
            SELECT id, 0, drawn FROM holds WHERE drawn > 0
        ) AS both_lists
        GROUP BY reference HAVING SUM(expected) <> SUM(actual)
        ORDER BY reference
        """,
    )


async def against_postings(tx: Transaction) -> list[DifferenceRow]:
    """Return each draw whose transfer did not take its amount from the hold."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT 'job:' || d.job_id || ':attempt:' || d.attempt, d.amount,
            CAST(COALESCE(SUM(e.amount), 0) AS BIGINT)
        FROM job_draws AS d
        LEFT JOIN transfers AS t
            ON t.business_key = 'job:' || d.job_id || ':attempt:' || d.attempt
        LEFT JOIN entries AS e ON e.transfer_id = t.id
        GROUP BY d.job_id, d.attempt, d.amount
        HAVING d.amount <> COALESCE(SUM(e.amount), 0)
        """,
    )


async def overused(tx: Transaction) -> list[DifferenceRow]:
    """Return each replica, and each other job, that was paid for more seconds than it has."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT 'job:' || d.job_id, CAST(MAX(COALESCE(r.seconds, 3600 * j.duration_hrs)) AS BIGINT),
            CAST(SUM(d.seconds) AS BIGINT)
        FROM job_draws AS d JOIN jobs AS j ON j.id = d.job_id
        LEFT JOIN deploy_replicas AS r ON r.job_id = d.job_id
        GROUP BY d.job_id
        HAVING SUM(d.seconds) > MAX(COALESCE(r.seconds, 3600 * j.duration_hrs))
        """,
    )
