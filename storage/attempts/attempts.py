"""Queries on the attempts of devices at jobs: their leases, their progress and their end."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction


class LoadRow(NamedTuple):
    """The number of running jobs of a device, and of completed ones, counted up to a bound."""

    running: int
    completed: int


class AttemptRow(NamedTuple):  # as wide as the view of its buyer
    """Attempt at a job; times in UTC seconds.

    A running attempt has no `outcome`; `left_out` is JSON.
    """

    attempt: int
    started_at: int
    work_started_at: int | None
    ready_at: int | None
    ended_at: int | None
    outcome: str | None
    phase: str | None
    progress: float | None
    image_digest: str | None
    failure_kind: str | None
    reason: str | None
    exit_code: int | None
    cpu_seconds: float | None
    max_memory_bytes: int | None
    left_out: str | None
    device_id: str


class BegunRow(NamedTuple):
    """Times of an attempt's work: its beginning, when it was ready, and the last sign of life.

    All in UTC seconds, None if not yet.
    """

    work_started_at: int | None
    ready_at: int | None
    renewed_at: int | None


class EndRow(NamedTuple):
    """End of an attempt: `outcome`, and the details that the device reported.

    From `again_at` on, in UTC seconds, devices of the same owner may have the job again.
    """

    outcome: str
    failure_kind: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    cpu_seconds: float | None = None
    max_memory_bytes: int | None = None
    left_out: str | None = None
    again_at: int | None = None


class HeldRow(NamedTuple):
    """An attempt that a device holds; when its work began and the device first named it, or None.

    `has_payload` is 1 if the job itself describes its program.
    """

    job_id: str
    attempt: int
    work_started_at: int | None
    named_at: int | None
    has_payload: int


class JobStateRow(NamedTuple):
    """State of a job: its status, its device, and the number of its last attempt."""

    id: str
    status: str
    device_id: str | None
    attempts: int


class RenewalRow(NamedTuple):
    """Sign of life of an attempt; `is_named` is 1 if the device itself listed it."""

    job_id: str
    attempt: int
    renewed_at: int
    is_named: bool = False
    phase: str | None = None
    progress: float | None = None


class QuietRow(NamedTuple):
    """An attempt, and the last sign of life of it in UTC seconds (0 for none).

    That is a heartbeat of its device; if the job has a payload, `has_lease` is 1, and it is the
    last renewal of the attempt.
    """

    job_id: str
    attempt: int
    heard_at: int
    has_lease: int


class UnstartedRow(NamedTuple):
    """Attempt whose work has not begun, with the last phase that the device reported."""

    job_id: str
    attempt: int
    phase: str | None


class OverdueRow(NamedTuple):
    """Attempt whose time is over; `has_payload` is 1 if the job has a payload.

    `is_unready` is 1 for a replica that has not become ready in time.
    """

    job_id: str
    attempt: int
    has_payload: int
    is_unready: int


class SpecRow(NamedTuple):
    """Payload of a job as JSON, and the hours that its result is in review.

    It may work for `timeout_seconds`, or for the estimated duration if that is null.
    """

    payload: str
    review_hours: int | None
    timeout_seconds: int | None = None


# Phases of a device that only has to deliver its result: work is over then.
_AFTER_WORK = "('ended', 'uploading', 'reporting')"
_COLUMNS = ", ".join(AttemptRow._fields)


async def device_load(tx: Transaction, device_id: str, *, completed_max: int) -> LoadRow:
    """Count the jobs that a device runs, and its completed jobs up to a bound."""
    row = await tx.one(
        LoadRow,
        """
        SELECT
            (SELECT COUNT(*) FROM jobs WHERE status = 'running' AND device_id = :device_id),
            (SELECT COUNT(*) FROM (
                SELECT 1 FROM job_attempts
                WHERE outcome = 'completed' AND device_id = :device_id
                LIMIT :completed_max
            ) AS completed)
        """,
        device_id=device_id,
        completed_max=completed_max,
    )
    return row or LoadRow(0, 0)


async def spec(tx: Transaction, job_id: str) -> SpecRow | None:
    """Return the payload and the limits of a job; None for a job without a payload."""
    return await tx.one(
        SpecRow,
        """
        SELECT payload, review_hours, timeout_seconds FROM job_specs
        WHERE job_id = :id AND payload IS NOT NULL
        """,
        id=job_id,
    )


async def of_job(tx: Transaction, job_id: str, *, limit: int) -> list[AttemptRow]:
    """Return the attempts at a job, the first one first."""
    return await tx.all(
        AttemptRow,
        f"""
        SELECT {_COLUMNS} FROM job_attempts WHERE job_id = :job_id ORDER BY attempt LIMIT :limit
        """,
        job_id=job_id,
        limit=limit,
    )


async def devices_of(tx: Transaction, job_id: str, attempts: Sequence[int]) -> list[str]:
    """Return the devices of some attempts at a job, each once, in the order of their ids."""
    return await tx.all(
        str,
        f"""
        SELECT DISTINCT device_id FROM job_attempts
        WHERE job_id = :job_id AND attempt IN (SELECT n FROM {tx.table("wanted", n="BIGINT")})
        ORDER BY device_id
        """,
        job_id=job_id,
        wanted=json.dumps([{"n": attempt} for attempt in attempts]),
    )


async def begun(tx: Transaction, job_id: str, attempt: int) -> BegunRow:
    """Return when the work of an attempt began, was ready, and last showed life."""
    row = await tx.one(
        BegunRow,
        """
        SELECT work_started_at, ready_at, renewed_at FROM job_attempts
        WHERE job_id = :job_id AND attempt = :attempt
        """,
        job_id=job_id,
        attempt=attempt,
    )
    return row or BegunRow(None, None, None)


async def begin_work(
    tx: Transaction,
    job_id: str,
    attempt: int,
    *,
    is_ready: bool,
    image_digest: str | None,
    now: int,
) -> None:
    """Record that the work of an attempt has begun, and perhaps that it is ready to be used.

    A time that was recorded before stays. The time of a replica begins anew when it is ready. None
    of it counts as naming the attempt: an older list of the attempts on the device may still be on
    its way.
    """
    await tx.run(
        """
        UPDATE job_attempts SET
            work_started_at = COALESCE(work_started_at, :now),
            ready_at = CASE WHEN :is_ready = 1 THEN COALESCE(ready_at, :now) ELSE ready_at END,
            deadline = CASE WHEN :is_ready = 1 AND ready_at IS NULL AND EXISTS (
                SELECT 1 FROM deploy_replicas AS r
                WHERE r.job_id = job_attempts.job_id AND r.ready_within IS NOT NULL
            ) THEN NULL ELSE deadline END,
            renewed_at = :now,
            image_digest = COALESCE(image_digest, :image_digest)
        WHERE job_id = :job_id AND attempt = :attempt AND ended_at IS NULL
        """,
        job_id=job_id,
        attempt=attempt,
        is_ready=int(is_ready),
        image_digest=image_digest,
        now=now,
    )


async def end(tx: Transaction, job_id: str, attempt: int, how: EndRow, *, now: int) -> None:
    """Record how an attempt ended, unless it has."""
    await tx.run(
        """
        UPDATE job_attempts SET ended_at = :now, outcome = :outcome, failure_kind = :failure_kind,
            reason = :reason, exit_code = :exit_code, cpu_seconds = :cpu_seconds,
            max_memory_bytes = :max_memory_bytes, left_out = :left_out, again_at = :again_at
        WHERE job_id = :job_id AND attempt = :attempt AND ended_at IS NULL
        """,
        job_id=job_id,
        attempt=attempt,
        now=now,
        **how._asdict(),
    )


async def held(tx: Transaction, device_id: str, *, limit: int) -> list[HeldRow]:
    """Return the attempts that a device holds."""
    return await tx.all(
        HeldRow,
        """
        SELECT j.id, j.attempts, a.work_started_at, a.named_at,
            CASE WHEN s.job_id IS NULL THEN 0 ELSE 1 END
        FROM jobs AS j JOIN job_attempts AS a ON a.job_id = j.id AND a.attempt = j.attempts
        LEFT JOIN job_specs AS s ON s.job_id = j.id AND s.payload IS NOT NULL
        WHERE j.status = 'running' AND j.device_id = :device_id
        LIMIT :limit
        """,
        device_id=device_id,
        limit=limit,
    )


async def states(tx: Transaction, job_ids: Sequence[str]) -> list[JobStateRow]:
    """Return the states of these jobs; unknown ones are left out."""
    return await tx.all(
        JobStateRow,
        f"""
        SELECT j.id, j.status, j.device_id, j.attempts
        FROM {tx.table("wanted", id="TEXT")} JOIN jobs AS j ON j.id = wanted.id
        """,
        wanted=json.dumps([{"id": job_id} for job_id in job_ids]),
    )


async def renew(tx: Transaction, renewals: Sequence[RenewalRow]) -> None:
    """Write signs of life down, in one statement; attempts that have ended stay as they are."""
    # Sweeps and reports lock the job before its attempt, so this function does the same.
    await tx.lock("jobs", sorted({each.job_id for each in renewals}))
    table = tx.table(
        "renewals",
        job_id="TEXT",
        attempt="BIGINT",
        renewed_at="BIGINT",
        is_named="BIGINT",
        phase="TEXT",
        progress="DOUBLE PRECISION",
    )
    await tx.run(
        f"""
        UPDATE job_attempts AS a SET
            renewed_at = renewals.renewed_at,
            named_at = CASE WHEN renewals.is_named = 1
                THEN COALESCE(a.named_at, renewals.renewed_at) ELSE a.named_at END,
            phase = COALESCE(renewals.phase, a.phase),
            progress = COALESCE(renewals.progress, a.progress)
        FROM {table}
        WHERE a.job_id = renewals.job_id AND a.attempt = renewals.attempt AND a.ended_at IS NULL
        """,
        renewals=json.dumps(
            [{**each._asdict(), "is_named": int(each.is_named)} for each in renewals]
        ),
    )


async def quiet(tx: Transaction, *, since: int, ahead: int, limit: int) -> list[QuietRow]:
    """Return attempts without a sign of life since a moment, and attempts of revoked devices.

    A sign of life later than `ahead` was written by a wrong clock and is ignored. Buyers take
    turns, so that one buyer with many such jobs does not delay the others.
    """
    return await tx.all(
        QuietRow,
        """
        SELECT job_id, attempt, heard_at, has_lease FROM (
            SELECT job_id, attempt, heard_at, has_lease, accepted_at, revoked_at,
                ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY accepted_at) AS turn
            FROM (
                SELECT j.id AS job_id, j.attempts AS attempt, j.user_id, j.accepted_at,
                    d.revoked_at, CASE WHEN s.job_id IS NULL THEN 0 ELSE 1 END AS has_lease,
                    COALESCE(
                        CASE WHEN s.job_id IS NULL THEN d.last_heartbeat_at ELSE a.renewed_at END, 0
                    ) AS heard_at
                FROM jobs AS j
                JOIN devices AS d ON d.id = j.device_id
                JOIN job_attempts AS a ON a.job_id = j.id AND a.attempt = j.attempts
                LEFT JOIN job_specs AS s ON s.job_id = j.id AND s.payload IS NOT NULL
                WHERE j.status = 'running'
            ) AS running
            WHERE (accepted_at < :since OR accepted_at > :ahead)
                AND (revoked_at IS NOT NULL OR heard_at < :since OR heard_at > :ahead)
        ) AS quiet
        ORDER BY turn, accepted_at
        LIMIT :limit
        """,
        since=since,
        ahead=ahead,
        limit=limit,
    )


async def unstarted(tx: Transaction, *, limit: int) -> list[UnstartedRow]:
    """Return attempts at jobs with payloads whose work has not begun, the oldest first."""
    return await tx.all(
        UnstartedRow,
        """
        SELECT a.job_id, a.attempt, a.phase
        FROM job_attempts AS a JOIN job_specs AS s ON s.job_id = a.job_id
        WHERE a.ended_at IS NULL AND a.deadline IS NULL AND a.work_started_at IS NULL
            AND s.payload IS NOT NULL
        ORDER BY a.job_id
        LIMIT :limit
        """,
        limit=limit,
    )


async def runs_any(tx: Transaction) -> bool:
    """Return whether any job runs."""
    return await tx.one(int, "SELECT 1 FROM jobs WHERE status = 'running' LIMIT 1") is not None


async def advance_clock(tx: Transaction, seconds: int) -> int:
    """Advance the clock of jobs, and return its new time, in seconds."""
    shown = await tx.one(
        int,
        "UPDATE job_clock SET seconds = seconds + :seconds WHERE id = 1 RETURNING seconds",
        seconds=seconds,
    )
    assert shown is not None  # noqa: S101 - the row is there from the start, and stays
    return shown


async def untimed(tx: Transaction, *, limit: int) -> list[str]:
    """Return jobs with an attempt that runs and has no deadline yet.

    The time of a job with a payload begins with its work, that of another one when it is accepted.
    """
    return await tx.all(
        str,
        """
        SELECT a.job_id FROM job_attempts AS a
        LEFT JOIN job_specs AS s ON s.job_id = a.job_id AND s.payload IS NOT NULL
        WHERE a.ended_at IS NULL AND a.deadline IS NULL
            AND (a.work_started_at IS NOT NULL OR s.job_id IS NULL)
        ORDER BY a.job_id
        LIMIT :limit
        """,
        limit=limit,
    )


async def set_deadlines(
    tx: Transaction, job_ids: Sequence[str], *, shown: int, plain_times: int
) -> None:
    """Set new deadlines for the running attempts at these jobs.

    Args:
        tx: the transaction.
        job_ids: as `untimed` returns them.
        shown: the time on the clock of jobs.
        plain_times: a job without a payload may take its buyer's estimate times this number.
    """
    await tx.lock("jobs", sorted(job_ids))
    await tx.run(
        f"""
        UPDATE job_attempts SET deadline = :shown + (
            SELECT CASE WHEN s.job_id IS NULL THEN :plain_times * 3600 * j.duration_hrs
                WHEN job_attempts.ready_at IS NULL AND r.ready_within < s.timeout_seconds
                    THEN r.ready_within
                WHEN COALESCE(s.timeout_seconds, 0) > 0 THEN s.timeout_seconds
                ELSE 3600 * j.duration_hrs END
            FROM jobs AS j
            LEFT JOIN job_specs AS s ON s.job_id = j.id AND s.payload IS NOT NULL
            LEFT JOIN deploy_replicas AS r ON r.job_id = j.id
            WHERE j.id = job_attempts.job_id
        )
        WHERE ended_at IS NULL AND deadline IS NULL
            AND job_id IN (SELECT id FROM {tx.table("wanted", id="TEXT")})
        """,
        shown=shown,
        plain_times=plain_times,
        wanted=json.dumps([{"id": job_id} for job_id in job_ids]),
    )


async def overdue(
    tx: Transaction, *, shown: int, grace: int, stop: int, delivery: int, limit: int
) -> list[OverdueRow]:
    """Return attempts whose time is over, the longest overdue first.

    Args:
        tx: the transaction.
        shown: the time on the clock of jobs.
        grace: seconds that the device has to say itself that the time is over.
        stop: seconds that it has instead to stop work with a payload that it has begun.
        delivery: seconds that it has instead to hand over the outputs of work that has ended.
        limit: how many at most.
    """
    return await tx.all(
        OverdueRow,
        f"""
        SELECT a.job_id, a.attempt, CASE WHEN s.job_id IS NULL THEN 0 ELSE 1 END,
            CASE WHEN r.ready_within IS NOT NULL AND a.ready_at IS NULL THEN 1 ELSE 0 END
        FROM job_attempts AS a
        LEFT JOIN job_specs AS s ON s.job_id = a.job_id AND s.payload IS NOT NULL
        LEFT JOIN deploy_replicas AS r ON r.job_id = a.job_id
        WHERE a.ended_at IS NULL AND a.deadline <= :shown - CAST(:grace AS BIGINT)
            AND (s.job_id IS NULL OR (r.ready_within IS NOT NULL AND a.ready_at IS NULL)
                OR a.deadline <= :shown - CAST(:stop AS BIGINT))
            AND (a.phase IS NULL OR a.phase NOT IN {_AFTER_WORK}
                OR a.deadline <= :shown - CAST(:delivery AS BIGINT))
        ORDER BY a.deadline
        LIMIT :limit
        """,
        shown=shown,
        grace=grace,
        stop=stop,
        delivery=delivery,
        limit=limit,
    )
