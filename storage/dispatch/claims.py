"""Queries on jobs that the daemon gives to devices, many in one transaction.

These are the jobs with a payload whose needs were understood; others wait to be accepted.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from storage.accounts.suspensions import is_suspended
from storage.engines.store import Transaction
from storage.jobs.jobs import CHANCES, CHANCES_OF_ATTEMPT


class WaitingKeyRow(NamedTuple):
    """A job that waits, and how many attempts it had until now."""

    job_id: str
    attempts: int


class WaitingRow(NamedTuple):
    """A job of a buyer that waits: price in micro-credits, `created_at` in UTC seconds.

    `min_reputation` is the least reputation that its device must have, in millionths. `payload` and
    `resources` are JSON, `secrets` are sealed.
    """

    job_id: str
    user_id: str
    job_type: str
    price_credit: int
    duration_hrs: int
    created_at: int
    attempts: int
    payload: str
    secrets: str | None
    resources: str
    min_reputation: int = 0


class ExcludedRow(NamedTuple):
    """The owner of devices without a further chance at a job, or without one before `again_at`."""

    job_id: str
    user_id: str
    again_at: int | None


class PairRow(NamedTuple):
    """A job, the device that it is for, and how many attempts it had when that was decided.

    `min_reputation` is the least reputation that the device must have, in millionths. For a copy
    there is also its group, and the network that the device is in, where it is known.
    """

    job_id: str
    device_id: str
    attempts: int
    min_reputation: int = 0
    group_id: str = ""
    network: str = ""


class LoadRow(NamedTuple):
    """How many jobs a device runs, and whether it has completed enough to be proven.

    `is_suspended` is whether the devices of its owner are suspended.
    """

    device_id: str
    running: int
    is_proven: bool
    is_suspended: bool


class OwnerRow(NamedTuple):
    """A device, its owner, and the owner's oldest device."""

    device_id: str
    user_id: str
    first_id: str


class OwnerLoadRow(NamedTuple):
    """The number of jobs that the devices of an owner run."""

    user_id: str
    running: int


class HeldRow(NamedTuple):
    """Job with a payload that a device runs, and whether the device has listed the attempt."""

    device_id: str
    job_id: str
    attempt: int
    is_known: bool


class GivenRow(NamedTuple):
    """Job as its device receives it; `secrets` are sealed.

    The device does not receive the job's buyer (`user_id`), nor the fact that it is a replica of a
    deploy.
    """

    job_id: str
    attempt: int
    device_id: str
    title: str
    job_type: str
    duration_hrs: int
    price_credit: int
    payload: str
    secrets: str | None
    resources: str
    timeout_seconds: int
    user_id: str
    deploy_id: str | None


class OfferedRow(NamedTuple):
    """A waiting job as it is offered; price in micro-credits, `resources` in JSON."""

    job_id: str
    title: str
    job_type: str
    price_credit: int
    duration_hrs: int
    resources: str


# Older ones first, which is how the index of open jobs can be read backwards on both engines.
_WAITING = """
    FROM jobs AS j JOIN job_specs AS s ON s.job_id = j.id
    WHERE j.status = 'waiting' AND s.payload IS NOT NULL AND s.is_manual = 0
"""

_GIVEN = """
    j.id, j.attempts, j.device_id, j.title, j.job_type, j.duration_hrs, j.price_credit,
    s.payload, s.secrets, s.resources, s.timeout_seconds, j.user_id, j.deploy_id
    FROM jobs AS j JOIN job_specs AS s ON s.job_id = j.id
"""


async def waiting_page(tx: Transaction, *, after: str, limit: int) -> list[WaitingKeyRow]:
    """Return jobs that wait for any device that suits, the oldest first."""
    return await tx.all(
        WaitingKeyRow,
        f"""
        SELECT j.id, j.attempts {_WAITING} AND j.status IN ('waiting', 'running') AND j.id > :after
        ORDER BY j.id NULLS FIRST
        LIMIT :limit
        """,
        after=after,
        limit=limit,
    )


async def waiting(tx: Transaction, job_ids: Sequence[str]) -> list[WaitingRow]:
    """Return those of these jobs that wait for any device that suits."""
    return await tx.all(
        WaitingRow,
        f"""
        SELECT j.id, j.user_id, j.job_type, j.price_credit, j.duration_hrs, j.created_at,
            j.attempts, s.payload, s.secrets, s.resources, s.min_reputation
        {_WAITING} AND j.id {tx.among("asked")}
        """,
        asked=json.dumps(job_ids),
    )


async def excluded(tx: Transaction, job_ids: Sequence[str], *, now: int) -> list[ExcludedRow]:
    """Return the owners whose devices have no chance at these jobs now."""
    return await tx.all(
        ExcludedRow,
        f"""
        SELECT a.job_id, d.user_id, MIN(CASE WHEN a.again_at > :now THEN a.again_at END)
        FROM job_attempts AS a JOIN devices AS d ON d.id = a.device_id
        WHERE a.job_id {tx.among("asked")}
        GROUP BY a.job_id, d.user_id
        HAVING SUM({CHANCES_OF_ATTEMPT}) >= {CHANCES}
        """,
        now=now,
        asked=json.dumps(job_ids),
    )


async def loads(tx: Transaction, device_ids: Sequence[str], *, proven_jobs: int) -> list[LoadRow]:
    """Return the loads of devices, and whether they are proven; revoked ones are left out."""
    # The devices are counted together: for a separate count of each, PostgreSQL may read every
    # running job. To statistics from before the jobs began, that costs no more than an index.
    asked = tx.among("asked")
    return await tx.all(
        LoadRow,
        f"""
        SELECT d.id,
            COALESCE(r.jobs, 0),
            EXISTS (
                SELECT 1 FROM job_attempts
                WHERE outcome = 'completed' AND device_id = d.id
                LIMIT 1 OFFSET :others
            ),
            {is_suspended("d.user_id", "devices")}
        FROM devices AS d LEFT JOIN (
            SELECT device_id, COUNT(*) AS jobs FROM jobs
            WHERE status = 'running' AND device_id {asked}
            GROUP BY device_id
        ) AS r ON r.device_id = d.id
        WHERE d.id {asked} AND d.revoked_at IS NULL
        """,
        asked=json.dumps(device_ids),
        others=proven_jobs - 1,
    )


async def owners(tx: Transaction, device_ids: Collection[str]) -> list[OwnerRow]:
    """Return the owners of devices, each with their oldest device."""
    return await tx.all(
        OwnerRow,
        f"""
        SELECT d.id, d.user_id,
            (SELECT MIN(own.id) FROM devices AS own WHERE own.user_id = d.user_id)
        FROM {tx.table("asked", id="TEXT")} JOIN devices AS d ON d.id = asked.id
        """,
        asked=json.dumps([{"id": device_id} for device_id in sorted(device_ids)]),
    )


async def running_of_owners(tx: Transaction, owner_ids: Sequence[str]) -> dict[str, int]:
    """Count the jobs that the devices of each owner run; owners without one are left out."""
    # The owners are counted together, for the same reason as the devices above.
    rows = await tx.all(
        OwnerLoadRow,
        f"""
        SELECT d.user_id, COUNT(*)
        FROM devices AS d JOIN jobs AS j ON j.device_id = d.id AND j.status = 'running'
        WHERE d.user_id {tx.among("asked")} AND d.revoked_at IS NULL
        GROUP BY d.user_id
        """,
        asked=json.dumps(owner_ids),
    )
    return {row.user_id: row.running for row in rows}


async def start(tx: Transaction, pairs: Sequence[PairRow], *, now: int) -> list[GivenRow]:
    """Start jobs on devices, those that still wait in the attempt that they were read in.

    Returns those that were started. The jobs must be locked. A device is not checked here; nor is
    whether its owner has a chance left at a job, because a chance cannot be lost while the job
    waits.
    """
    started = await _still_waiting(tx, pairs)
    if not started:
        return []
    begun = tx.table("begun", job_id="TEXT", attempt="BIGINT", device_id="TEXT")
    rows = json.dumps(
        [
            {"job_id": each.job_id, "attempt": each.attempt, "device_id": each.device_id}
            for each in started
        ]
    )
    changed = await tx.run(
        f"""
        UPDATE jobs SET status = 'running', device_id = begun.device_id, accepted_at = :now,
            attempts = begun.attempt
        FROM {begun}
        WHERE jobs.id = begun.job_id AND jobs.attempts = begun.attempt - 1
        """,
        begun=rows,
        now=now,
    )
    assert changed == len(started)  # noqa: S101 - the jobs are locked
    await tx.run(
        f"""
        INSERT INTO job_attempts (job_id, attempt, device_id, started_at)
        SELECT job_id, attempt, device_id, CAST(:now AS BIGINT) FROM {begun}
        """,
        begun=rows,
        now=now,
    )
    return started


async def _still_waiting(tx: Transaction, pairs: Sequence[PairRow]) -> list[GivenRow]:
    """Return the jobs that still wait in the attempt that they were read in, as devices get them.

    The state is no condition of the query: with that condition a planner may read all waiting jobs,
    instead of looking up these few.
    """
    devices = {(pair.job_id, pair.attempts): pair.device_id for pair in pairs}

    def row(
        status: str,
        job_id: str,
        attempts: int,
        _: str | None,
        *rest: Any,  # noqa: ANN401 - the other columns of the row
    ) -> GivenRow | None:
        device_id = devices.get((job_id, attempts)) if status == "waiting" else None
        return None if device_id is None else GivenRow(job_id, attempts + 1, device_id, *rest)

    read = await tx.all(
        row,
        f"SELECT j.status, {_GIVEN} WHERE j.id {tx.among('asked')}",
        asked=json.dumps([pair.job_id for pair in pairs]),
    )
    return [each for each in read if each is not None]


async def given(tx: Transaction, job_ids: Sequence[str]) -> list[GivenRow]:
    """Return the description of jobs for the devices that run them, as the caller has checked."""
    return await tx.all(
        GivenRow,
        f"SELECT {_GIVEN} WHERE j.id {tx.among('asked')}",
        asked=json.dumps(job_ids),
    )


async def offered(tx: Transaction, job_ids: Sequence[str]) -> list[OfferedRow]:
    """Return those of these jobs that wait for any device that suits, in no order."""
    return await tx.all(
        OfferedRow,
        f"""
        SELECT j.id, j.title, j.job_type, j.price_credit, j.duration_hrs, s.resources
        {_WAITING} AND j.id {tx.among("asked")}
        """,
        asked=json.dumps(job_ids),
    )


async def held(tx: Transaction, device_ids: Sequence[str], *, limit: int) -> list[HeldRow]:
    """Return the jobs with a payload that devices run, in no order; `limit` of all together."""
    return await tx.all(
        HeldRow,
        f"""
        SELECT j.device_id, j.id, j.attempts,
            a.named_at IS NOT NULL OR a.work_started_at IS NOT NULL
        FROM {tx.table("asked", id="TEXT")}
        JOIN jobs AS j ON j.device_id = asked.id AND j.status = 'running'
        JOIN job_specs AS s ON s.job_id = j.id AND s.payload IS NOT NULL
        JOIN job_attempts AS a ON a.job_id = j.id AND a.attempt = j.attempts
        LIMIT :limit
        """,
        asked=json.dumps([{"id": device_id} for device_id in device_ids]),
        limit=limit,
    )
