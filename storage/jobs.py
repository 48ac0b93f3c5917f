"""Queries on jobs and on the attempts of devices at them."""

from typing import NamedTuple

from storage.paging import NEWEST_FIRST, behind, matches
from storage.store import Transaction


class JobRow(NamedTuple):
    """A job: amounts in micro-credits, but `price_held` in `currency`; times in UTC seconds.

    `text_bytes` is what the texts have that its buyer gave.
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
    """How many jobs a user has open, how many of these are as good as free, and their bytes."""

    jobs: int
    free_jobs: int
    size_bytes: int


class OpenJobRow(NamedTuple):
    """An open job as the marketplace lists it: nothing in it is long."""

    id: str
    user_id: str
    title: str
    job_type: str
    price_credit: int
    duration_hrs: int
    status: str


class OwnJobRow(NamedTuple):
    """A job as its buyer's list shows it; `captured` of its hold once it is over, in `currency`."""

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
    captured: int | None


class QuietRow(NamedTuple):
    """An attempt at a job that runs, and when its device last reported, in UTC seconds."""

    job_id: str
    attempt: int
    heard_at: int


class EarnedRow(NamedTuple):
    """What a device earned, in micro-credits."""

    device_id: str
    earned: int


# Users take turns among so many of the oldest: whoever has more has been refused long before.
TURNS_MAX_ROWS = 10_000

# How often the devices of one owner may have a job: giving up uses all of it, vanishing a half, so
# that a machine which was restarted may go on, and none can hold a job for ever.
CHANCES = 2
_CHANCES_USED = """(
    SELECT COALESCE(SUM(CASE a.outcome WHEN 'failed' THEN 2 WHEN 'lost' THEN 1 ELSE 0 END), 0)
    FROM job_attempts AS a
    JOIN devices AS theirs ON theirs.id = a.device_id
    JOIN devices AS own ON own.user_id = theirs.user_id
    WHERE a.job_id = :job_id AND own.id = :device_id
)"""

_COLUMNS = ", ".join(JobRow._fields)
_VALUES = ", ".join(f":{name}" for name in JobRow._fields)
_JOB = f"SELECT {_COLUMNS} FROM jobs"
_OPEN_COLUMNS = ", ".join(OpenJobRow._fields)
_OWN_COLUMNS = ", ".join(f"j.{name}" for name in OwnJobRow._fields[:-1])

# The open jobs of one type and status. An index of open jobs is used by who asks in its very words.
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
    await tx.run(f"INSERT INTO jobs ({_COLUMNS}) VALUES ({_VALUES})", **job._asdict())


async def find(tx: Transaction, job_id: str) -> JobRow | None:
    """Return a job."""
    return await tx.one(JobRow, f"{_JOB} WHERE id = :id", id=job_id)


async def page_open(
    tx: Transaction, *, status: str, job_type: str, before: str, limit: int
) -> list[OpenJobRow]:
    """Return waiting and running jobs of everybody, newest first; "" filters nothing.

    A filtered list is merged from one of each type and status that it shows, so that jobs which are
    not shown are not read.
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
    if not parts:  # no open job is of such a kind
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
    shown = matches("j.status", "status") if status else "TRUE"
    return await tx.all(
        OwnJobRow,
        f"""
        SELECT {_OWN_COLUMNS}, h.captured FROM jobs AS j
        LEFT JOIN holds AS h ON h.id = 'job:' || j.id
        WHERE j.user_id = :user_id AND j.id < :before AND {shown}
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
        SELECT {_OWN_COLUMNS}, NULL FROM jobs AS j
        WHERE j.status = 'running' AND j.device_id = :device_id AND j.id < :before
        ORDER BY j.id {NEWEST_FIRST}
        LIMIT :limit
        """,
        device_id=device_id,
        before=behind(before),
        limit=limit,
    )


async def held_by(tx: Transaction, device_id: str, *, limit: int) -> list[JobRow]:
    """Return jobs that a device runs, whole, in no order."""
    return await tx.all(
        JobRow,
        f"{_JOB} WHERE status = 'running' AND device_id = :device_id LIMIT :limit",
        device_id=device_id,
        limit=limit,
    )


async def start(tx: Transaction, *, job_id: str, device_id: str, now: int) -> JobRow | None:
    """Let a device run a waiting job, and return it; None when it is not waiting, or not for it."""
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
        await tx.run(
            """
            INSERT INTO job_attempts (job_id, attempt, device_id, started_at)
            VALUES (:job_id, :attempt, :device_id, :now)
            """,
            job_id=job_id,
            attempt=job.attempts,
            device_id=device_id,
            now=now,
        )
    return job


async def change_status(
    tx: Transaction,
    before: JobRow,
    *,
    after: str,
    attempt: str,
    earned: int = 0,
    result: str | None = None,
    failure_reason: str | None = None,
    now: int,
) -> bool:
    """Move a job on from the very state it was read in; False when it has left that state.

    `attempt` is how the attempt ended that ran until now, if one did.
    """
    over = after != "waiting"
    changed = await tx.run(
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
        finished_at=now if over else None,
        device_id=before.device_id if over else None,
        accepted_at=before.accepted_at if over else None,
    )
    if changed == 0:
        return False
    await tx.run(
        """
        UPDATE job_attempts SET ended_at = :now, outcome = :outcome
        WHERE job_id = :job_id AND attempt = :attempt AND ended_at IS NULL
        """,
        job_id=before.id,
        attempt=before.attempts,
        outcome=attempt,
        now=now,
    )
    return True


async def owner_of(tx: Transaction, device_id: str) -> str | None:
    """Return whose device it is."""
    return await tx.one(
        str, "SELECT user_id FROM devices WHERE id = :device_id", device_id=device_id
    )


async def has_attempted(tx: Transaction, *, job_id: str, device_id: str) -> bool:
    """Say whether a device ever ran a job."""
    found = await tx.one(
        int,
        "SELECT 1 FROM job_attempts WHERE job_id = :job_id AND device_id = :device_id",
        job_id=job_id,
        device_id=device_id,
    )
    return found is not None


async def has_no_chance(tx: Transaction, *, job_id: str, device_id: str) -> bool:
    """Say whether a device gets a job no more, because of what its owner's did with it."""
    used = await tx.one(int, f"SELECT {_CHANCES_USED}", job_id=job_id, device_id=device_id)
    return (used or 0) >= CHANCES


async def count_unsuccessful(tx: Transaction, job_id: str, attempt: int) -> int:
    """Return how many owners of devices did not do a job, with the one of this attempt."""
    counted = await tx.one(
        int,
        """
        SELECT COUNT(DISTINCT d.user_id) FROM job_attempts AS a
        JOIN devices AS d ON d.id = a.device_id
        WHERE a.job_id = :job_id AND (a.outcome IN ('failed', 'lost') OR a.attempt = :attempt)
        """,
        job_id=job_id,
        attempt=attempt,
    )
    return counted or 0


async def quiet(tx: Transaction, *, quiet_since: int, limit: int) -> list[QuietRow]:
    """Return running jobs whose device was last heard of, and began, before a moment.

    Buyers take turns, so that one who has many such jobs does not hold up the others.
    """
    return await tx.all(
        QuietRow,
        """
        SELECT id, attempts, heard_at FROM (
            SELECT j.id, j.attempts, COALESCE(d.last_heartbeat_at, 0) AS heard_at, j.accepted_at,
                ROW_NUMBER() OVER (PARTITION BY j.user_id ORDER BY j.accepted_at) AS turn
            FROM jobs AS j JOIN devices AS d ON d.id = j.device_id
            WHERE j.status = 'running' AND j.accepted_at < :quiet_since
                AND (d.revoked_at IS NOT NULL OR COALESCE(d.last_heartbeat_at, 0) < :quiet_since)
        ) AS quiet
        ORDER BY turn, accepted_at
        LIMIT :limit
        """,
        quiet_since=quiet_since,
        limit=limit,
    )


async def due_to_expire(tx: Transaction, *, created_before: int, limit: int) -> list[str]:
    """Return jobs that have waited since before a moment, in turns of their buyers."""
    return await tx.all(
        str,
        """
        SELECT id FROM (
            SELECT id, created_at,
                ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY created_at) AS turn
            FROM (
                SELECT id, user_id, created_at FROM jobs
                WHERE status = 'waiting' AND created_at <= :created_before
                ORDER BY created_at
                LIMIT :horizon
            ) AS due
        ) AS in_turns
        ORDER BY turn, created_at
        LIMIT :limit
        """,
        created_before=created_before,
        horizon=TURNS_MAX_ROWS,
        limit=limit,
    )


async def open_work(
    tx: Transaction, user_id: str, *, free_below: int, job_bytes: int, since: int
) -> OpenWorkRow:
    """Return what a user has open; the bytes are also those of jobs that were put up lately.

    What was done and paid for does not count, if it was not as good as free.

    Args:
        tx: the transaction.
        user_id: whose.
        free_below: a job that is priced lower is as good as free, in micro-credits.
        job_bytes: what a job takes beside its texts.
        since: which jobs were put up lately, though they are over, in UTC seconds.
    """
    found = await tx.one(
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
                AND (earned = 0 OR price_credit < :free_below)
        ) AS work
        """,
        user_id=user_id,
        free_below=free_below,
        job_bytes=job_bytes,
        since=since,
    )
    return found or OpenWorkRow(0, 0, 0)


async def earned_since(tx: Transaction, *, user_id: str, since: int) -> list[EarnedRow]:
    """Return what each device of a user earned since a moment."""
    return await tx.all(
        EarnedRow,
        """
        SELECT j.device_id, CAST(SUM(j.earned) AS BIGINT) FROM jobs AS j
        JOIN devices AS d ON d.id = j.device_id
        WHERE d.user_id = :user_id AND j.finished_at >= :since AND j.earned > 0
        GROUP BY j.device_id
        """,
        user_id=user_id,
        since=since,
    )
