"""Queries on jobs and on the attempts of devices at them."""

from typing import NamedTuple

from storage.attempts import attempts
from storage.attempts.attempts import EndRow
from storage.engines.paging import NEWEST_FIRST, behind, in_turns, matches
from storage.engines.store import Transaction, insert_row


class JobRow(NamedTuple):  # as wide as its table
    """A job: amounts in micro-credits, but `price_held` in `currency`; times in UTC seconds.

    `text_bytes` is the size of the texts that its buyer wrote.
    """

    id: str
    user_id: str
    title: str
    job_type: str
    price_credit: int
    duration_hrs: int
    description: str
    requirements: str
    status: str
    attempts: int
    device_id: str | None
    created_at: int
    accepted_at: int | None
    finished_at: int | None
    earned: int
    result: str | None
    deploy_id: str | None
    currency: str
    price_held: int
    failure_reason: str | None
    text_bytes: int


class OpenWorkRow(NamedTuple):
    """How many jobs a user has open, how many of these are nearly free, and their bytes."""

    jobs: int
    free_jobs: int
    size_bytes: int


class OpenJobRow(NamedTuple):
    """An open job as the marketplace lists it, without its long texts.

    `price_held` is in `currency`.
    """

    id: str
    user_id: str
    title: str
    job_type: str
    price_credit: int
    duration_hrs: int
    status: str
    currency: str
    price_held: int


class OwnJobRow(NamedTuple):  # as wide as the list that the API shows
    """A job of its buyer's list; these amounts are in `currency`, as `price_held`.

    An open job without a paid attempt has no `paid`. `left` is the part of the price that is held,
    None once the job is over.
    """

    id: str
    user_id: str
    title: str
    job_type: str
    price_credit: int
    duration_hrs: int
    status: str
    attempts: int
    created_at: int
    accepted_at: int | None
    finished_at: int | None
    deploy_id: str | None
    currency: str
    price_held: int
    paid: int | None
    left: int | None


class StateRow(NamedTuple):
    """Number of jobs in a state, and the sum that waits for their workers, in micro-credits."""

    state: str
    jobs: int
    earned: int


class UnsuccessfulRow(NamedTuple):
    """Number of owners whose devices did not do a job, and number of proven owners among them."""

    owners: int
    proven: int


class EarnedRow(NamedTuple):
    """Earnings of a device, in micro-credits."""

    device_id: str
    earned: int


# The chances that the devices of one owner have at a job. A failed attempt uses both, a lost device
# one: a machine that was restarted may go on, and no owner can keep a job for ever.
CHANCES = 2
# An attempt at a replica that was paid for this many seconds uses none, and its owner does not
# count as unable to run it: a service for a month outlives many a machine.
SERVED_SECONDS = 600
# The chances that an attempt `a` used, at the moment `:now`.
CHANCES_OF_ATTEMPT = f"""
    CASE WHEN a.served_seconds >= {SERVED_SECONDS} OR a.again_at <= :now THEN 0
        WHEN a.outcome = 'failed' THEN 2 WHEN a.outcome = 'lost' THEN 1 ELSE 0 END
"""
_CHANCES_USED = f"""(
    SELECT COALESCE(SUM({CHANCES_OF_ATTEMPT}), 0)
    FROM job_attempts AS a
    JOIN devices AS theirs ON theirs.id = a.device_id
    JOIN devices AS own ON own.user_id = theirs.user_id
    WHERE a.job_id = :job_id AND own.id = :device_id
)"""

# Cost of a job `j` for its buyer, with its hold as `h`: None while it is open.
_REVERSED = """(
    SELECT CAST(COALESCE(SUM(r.price), 0) AS BIGINT) FROM job_reviews AS r
    WHERE r.job_id = j.id AND r.state = 'reversed'
)"""
PAID = f"h.captured - {_REVERSED}"
_PAID_SO_FAR = f"COALESCE(h.captured, NULLIF(h.drawn, 0)) - {_REVERSED}"
_LEFT = "CASE WHEN h.resolved_at IS NULL THEN h.amount - h.drawn END"

_COLUMNS = ", ".join(JobRow._fields)
_JOB = f"SELECT {_COLUMNS} FROM jobs"
_OPEN_COLUMNS = ", ".join(OpenJobRow._fields)
_OWN_COLUMNS = ", ".join(f"j.{name}" for name in OwnJobRow._fields[:-2])

# The open jobs of one type and status. Their conditions repeat those of the partial indexes word
# for word, because only then does a planner use such an index.
_OPEN_PARTS = {
    (job_type, status): f"""
    SELECT * FROM (
        SELECT {_OPEN_COLUMNS} FROM jobs
        WHERE status IN ('waiting', 'running')
            AND job_type = '{job_type}' AND status = '{status}' AND id < :before
        ORDER BY id {NEWEST_FIRST}
        LIMIT :limit
    ) AS {status}_{job_type}
    """
    for job_type in ("docker", "training", "inference", "script")
    for status in ("waiting", "running")
}


async def insert(tx: Transaction, job: JobRow) -> None:
    """Add a job."""
    await insert_row(tx, "jobs", **job._asdict())


async def find(tx: Transaction, job_id: str) -> JobRow | None:
    """Return a job."""
    return await tx.one(JobRow, f"{_JOB} WHERE id = :id", id=job_id)


async def page_open(
    tx: Transaction, *, status: str, job_type: str, before: str, limit: int
) -> list[OpenJobRow]:
    """Return the waiting and running jobs of all users, newest first; "" filters nothing.

    A filtered list is merged from a list for each type and status in it, so that jobs which the
    filter leaves out are not read.
    """
    if not status and not job_type:
        return await tx.all(
            OpenJobRow,
            f"""
            SELECT {_OPEN_COLUMNS} FROM jobs
            WHERE status IN ('waiting', 'running') AND id < :before
            ORDER BY id {NEWEST_FIRST}
            LIMIT :limit
            """,
            before=behind(before),
            limit=limit,
        )
    parts = [
        sql
        for (part_type, part_status), sql in _OPEN_PARTS.items()
        if job_type in ("", part_type) and status in ("", part_status)
    ]
    if not parts:  # the type or the status is not one of an open job
        return []
    return await tx.all(
        OpenJobRow,
        f"{' UNION ALL '.join(parts)} ORDER BY id {NEWEST_FIRST} LIMIT :limit",
        before=behind(before),
        limit=limit,
    )


async def page_of_user(
    tx: Transaction, *, user_id: str, status: str, before: str, limit: int
) -> list[OwnJobRow]:
    """Return a user's jobs, newest first; "" filters nothing."""
    status_filter = matches("j.status", "status") if status else "TRUE"
    return await tx.all(
        OwnJobRow,
        f"""
        SELECT {_OWN_COLUMNS}, {_PAID_SO_FAR}, {_LEFT} FROM jobs AS j
        LEFT JOIN holds AS h ON h.id = 'job:' || j.id
        WHERE j.user_id = :user_id AND j.id < :before AND {status_filter}
        ORDER BY j.id {NEWEST_FIRST}
        LIMIT :limit
        """,
        user_id=user_id,
        status=status,
        before=behind(before),
        limit=limit,
    )


async def page_of_device(
    tx: Transaction, *, device_id: str, before: str, limit: int
) -> list[OwnJobRow]:
    """Return the jobs that a device runs, newest first."""
    return await tx.all(
        OwnJobRow,
        f"""
        SELECT {_OWN_COLUMNS}, NULL, NULL FROM jobs AS j
        WHERE j.status = 'running' AND j.device_id = :device_id AND j.id < :before
        ORDER BY j.id {NEWEST_FIRST}
        LIMIT :limit
        """,
        device_id=device_id,
        before=behind(before),
        limit=limit,
    )


async def held_by(tx: Transaction, device_id: str, *, limit: int) -> list[JobRow]:
    """Return jobs that a device runs, in no order."""
    return await tx.all(
        JobRow,
        f"{_JOB} WHERE status = 'running' AND device_id = :device_id LIMIT :limit",
        device_id=device_id,
        limit=limit,
    )


async def start(tx: Transaction, *, job_id: str, device_id: str, now: int) -> JobRow | None:
    """Start a waiting job on a device, and return it.

    Returns None when the job is not waiting, or the device's owner has no chance left at it.
    """
    job = await tx.one(
        JobRow,
        f"""
        UPDATE jobs
        SET status = 'running', device_id = :device_id, accepted_at = :now, attempts = attempts + 1
        WHERE id = :job_id AND status = 'waiting' AND {_CHANCES_USED} < {CHANCES}
        RETURNING {_COLUMNS}
        """,
        job_id=job_id,
        device_id=device_id,
        now=now,
    )
    if job is not None:
        await insert_row(
            tx,
            "job_attempts",
            job_id=job_id,
            attempt=job.attempts,
            device_id=device_id,
            started_at=now,
        )
    return job


async def change_status(
    tx: Transaction,
    before: JobRow,
    *,
    after: str,
    attempt: EndRow,
    earned: int = 0,
    result: str | None = None,
    failure_reason: str | None = None,
    now: int,
) -> bool:
    """Change a job's status if its state is still as read; return False otherwise.

    Args:
        tx: the transaction.
        before: the job as it was read; its status and its number of attempts must be the same now.
        after: the new status; anything but "waiting" is final.
        attempt: how the attempt ended that ran until now, if one did.
        earned: the pay of the device's owner, in micro-credits.
        result: the result that the device delivered.
        failure_reason: why the last attempt failed.
        now: UTC seconds.
    """
    assert after != "running"  # noqa: S101 - `start` does that, with an attempt of its own
    is_final = after != "waiting"
    row_count = await tx.run(
        f"""
        UPDATE jobs
        SET status = :after, earned = :earned, result = :result,
            failure_reason = :failure_reason, finished_at = :finished_at,
            device_id = :device_id, accepted_at = :accepted_at
        WHERE id = :id AND {matches("status", "before")} AND attempts = :attempts
        """,
        id=before.id,
        before=before.status,
        attempts=before.attempts,
        after=after,
        earned=earned,
        result=result,
        failure_reason=failure_reason,
        finished_at=now if is_final else None,
        device_id=before.device_id if is_final else None,
        accepted_at=before.accepted_at if is_final else None,
    )
    if row_count == 0:
        return False
    await attempts.end(tx, before.id, before.attempts, attempt, now=now)
    return True


async def has_attempted(tx: Transaction, *, job_id: str, device_id: str) -> bool:
    """Return whether a device has started a job before."""
    row = await tx.one(
        int,
        "SELECT 1 FROM job_attempts WHERE job_id = :job_id AND device_id = :device_id",
        job_id=job_id,
        device_id=device_id,
    )
    return row is not None


async def has_no_chance(tx: Transaction, *, job_id: str, device_id: str, now: int) -> bool:
    """Return whether the devices of this device's owner have used up their chances at a job."""
    used = await tx.one(int, f"SELECT {_CHANCES_USED}", job_id=job_id, device_id=device_id, now=now)
    return (used or 0) >= CHANCES


async def count_unsuccessful(
    tx: Transaction,
    job_id: str,
    attempt: int | None,
    *,
    proven_attempts: int,
    proven_reliability: int,
) -> UnsuccessfulRow:
    """Count the owners whose devices failed at a job or were lost.

    Refusals do not count, nor does a replica that had served for a while, and will again.

    Args:
        tx: the transaction.
        job_id: the job.
        attempt: the ending attempt, which counts; None when it was refused.
        proven_attempts: an owner is proven if the devices made this number of counted attempts,
        proven_reliability: and have this reliability, in millionths.
    """
    row = await tx.one(
        UnsuccessfulRow,
        """
        SELECT COUNT(DISTINCT d.user_id),
            COUNT(DISTINCT CASE WHEN r.attempts >= :proven_attempts
                AND r.reliability >= :proven_reliability THEN d.user_id END)
        FROM job_attempts AS a
        JOIN devices AS d ON d.id = a.device_id
        LEFT JOIN reputations AS r ON r.id = d.user_id
        WHERE a.job_id = :job_id AND (
            a.outcome IN ('failed', 'lost') AND COALESCE(a.failure_kind, '') <> 'refused'
            OR a.attempt = :attempt
        ) AND a.served_seconds < :served
        """,
        job_id=job_id,
        attempt=attempt or 0,
        served=SERVED_SECONDS,
        proven_attempts=proven_attempts,
        proven_reliability=proven_reliability,
    )
    return row or UnsuccessfulRow(0, 0)


async def count_served(tx: Transaction, job_id: str) -> int:
    """Return the number of attempts at a replica that served too long to be failures."""
    count = await tx.one(
        int,
        "SELECT COUNT(*) FROM job_attempts WHERE job_id = :job_id AND served_seconds >= :served",
        job_id=job_id,
        served=SERVED_SECONDS,
    )
    return count or 0


async def count_restarts(tx: Transaction, job_id: str) -> int:
    """Return how many attempts at a service ended that had been ready, but not for long."""
    count = await tx.one(
        int,
        """
        SELECT COUNT(*) FROM job_attempts
        WHERE job_id = :job_id AND again_at IS NOT NULL AND served_seconds < :served
        """,
        job_id=job_id,
        served=SERVED_SECONDS,
    )
    return count or 0


async def due_to_expire(tx: Transaction, *, created_before: int, limit: int) -> list[str]:
    """Return jobs that are waiting since a moment or longer, their buyers taking turns."""
    return await tx.all(
        str,
        in_turns(
            "jobs",
            by="created_at",
            due="""status = 'waiting' AND created_at <= :created_before AND NOT EXISTS (
                SELECT 1 FROM job_attempts AS a
                WHERE a.job_id = jobs.id AND a.ended_at > :created_before
            )""",
        ),
        created_before=created_before,
        limit=limit,
    )


async def open_work(
    tx: Transaction, user_id: str, *, free_below: int, job_bytes: int, since: int
) -> OpenWorkRow:
    """Count a user's open jobs, and the bytes of these and of the jobs posted since a moment.

    A recent job that is over and earned something counts no bytes, unless it was nearly free; a
    replica, unless it was served for so short that it was. The query looks up the durations of
    replicas only: of others an index says everything.

    Args:
        tx: the transaction.
        user_id: the buyer.
        free_below: a job with a lower price is nearly free, in micro-credits.
        job_bytes: the size of a job's row without its texts.
        since: jobs posted after it count although they are over, in UTC seconds.
    """
    row = await tx.one(
        OpenWorkRow,
        """
        SELECT CAST(COALESCE(SUM(is_open), 0) AS BIGINT),
            CAST(COALESCE(SUM(is_free), 0) AS BIGINT),
            CAST(COALESCE(SUM(size_bytes), 0) AS BIGINT)
        FROM (
            SELECT 1 AS is_open, CASE WHEN price_credit < :free_below THEN 1 ELSE 0 END AS is_free,
                CASE WHEN created_at > :since THEN 0 ELSE text_bytes + :job_bytes END AS size_bytes
            FROM jobs WHERE user_id = :user_id AND status IN ('waiting', 'running')
            UNION ALL
            SELECT 0, 0, text_bytes + :job_bytes
            FROM jobs WHERE user_id = :user_id AND created_at > :since
                AND (price_credit < :free_below OR earned = 0 AND (
                    deploy_id IS NULL OR price_credit * (
                        SELECT COALESCE(SUM(a.served_seconds), 0) FROM job_attempts AS a
                        WHERE a.job_id = jobs.id
                    ) < :free_below * 3600 * duration_hrs
                ))
        ) AS work
        """,
        user_id=user_id,
        free_below=free_below,
        job_bytes=job_bytes,
        since=since,
    )
    return row or OpenWorkRow(0, 0, 0)


async def earned_since(tx: Transaction, *, user_id: str, since: int) -> list[EarnedRow]:
    """Return the earnings of each device of a user since a moment.

    Pay for time is in `job_draws`, and such a job has no other earnings.
    """
    return await tx.all(
        EarnedRow,
        """
        SELECT device_id, CAST(SUM(earned) AS BIGINT) FROM (
            SELECT j.device_id, j.earned FROM jobs AS j
            JOIN devices AS d ON d.id = j.device_id
            WHERE d.user_id = :user_id AND j.finished_at >= :since AND j.earned > 0
            UNION ALL
            SELECT d.device_id, d.earned FROM job_draws AS d
            LEFT JOIN job_reviews AS r ON r.job_id = d.job_id AND r.attempt = d.attempt
            WHERE d.user_id = :user_id AND d.created_at >= :since
                AND COALESCE(r.state, '') <> 'reversed'
        ) AS earnings
        GROUP BY device_id
        """,
        user_id=user_id,
        since=since,
    )


async def earn_nothing(tx: Transaction, job_id: str) -> None:
    """Record that the earnings of an ended job went back to its buyer."""
    await tx.run(
        "UPDATE jobs SET earned = 0 WHERE id = :id AND status IN ('completed', 'failed')",
        id=job_id,
    )


async def earn_less(tx: Transaction, job_id: str, withheld: int) -> None:
    """Record that a part of the earnings of an ended job was withheld."""
    await tx.run(
        """
        UPDATE jobs SET earned = earned - :withheld
        WHERE id = :id AND status IN ('completed', 'failed') AND earned >= :withheld
        """,
        id=job_id,
        withheld=withheld,
    )


async def by_state(tx: Transaction) -> list[StateRow]:
    """Count the open jobs by status, without samples, and those in review by its state."""
    return await tx.all(
        StateRow,
        """
        SELECT status, CAST(SUM(jobs) AS BIGINT), CAST(SUM(earned) AS BIGINT) FROM (
            SELECT status, COUNT(*) AS jobs, 0 AS earned FROM jobs
            WHERE status IN ('waiting', 'running') GROUP BY status
            UNION ALL
            SELECT 'running', -COUNT(*), 0 FROM job_samples AS s
            WHERE s.outcome IS NULL
                AND (SELECT status FROM jobs AS j WHERE j.id = s.job_id) = 'running'
            UNION ALL
            SELECT state, COUNT(*), SUM(earned) FROM job_reviews
            WHERE state IN ('held', 'disputed') GROUP BY state
        ) AS counted
        GROUP BY status HAVING SUM(jobs) > 0
        """,
    )
