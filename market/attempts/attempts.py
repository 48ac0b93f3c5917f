"""Attempts: reports of a device about a job that it runs, and their validity.

The reports of a device about an attempt count while that attempt is the current one. An attempt
that was taken back, cancelled or followed by another one writes no log, no file and earns nothing.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from market.accounts.bounds import Bounds
from market.base.errors import Code, MarketError
from market.base.states import JobStatus
from storage.attempts import attempts as attempt_queries
from storage.attempts.attempts import JobStateRow
from storage.engines.store import Transaction
from storage.jobs import jobs as queries
from storage.jobs.jobs import JobRow

CANCELLED = "The buyer has cancelled the job; the work done so far is paid."
# Number of jobs that proves that a device finishes its work; a slow device needs a day for them.
PROVEN_JOBS = 10
NAMED_MAX = 256  # attempts that a device may name at once: many times its slots


class FailureKind(StrEnum):
    """Cause of a failure, as the device that failed reports it."""

    JOB = "job"
    HOST = "host"
    IMAGE = "image"
    INPUT = "input"
    TIMEOUT = "timeout"
    OOM = "oom"
    REFUSED = "refused"


# The device's own: the job may come back to the same owner once.
HOST_KINDS = frozenset((FailureKind.HOST, FailureKind.REFUSED))
# The work itself failed. Its buyer may have forbidden another attempt.
WORK_KINDS = frozenset((FailureKind.JOB, FailureKind.TIMEOUT, FailureKind.OOM))


class Action(Struct, frozen=True):
    """Action for a device on an attempt that it should not hold; `action` is "stop"."""

    job_id: str
    attempt: int
    action: str
    reason: str


class LeftOut(Struct, frozen=True):
    """Outputs of an attempt that were not sent: their number, their bytes, and their reasons."""

    files: int
    bytes: int
    reasons: list[str]


class Ending(Struct, frozen=True):
    """Details that a device reports about the end of an attempt, beside the result or the reason.

    `log_bytes` is the number of bytes written to each stream, so that a gap is noticed.
    """

    kind: FailureKind | None = None
    exit_code: int | None = None
    cpu_seconds: float | None = None
    max_memory_bytes: int | None = None
    log_bytes: dict[str, int] | None = None
    left_out: LeftOut | None = None


async def require_current(
    tx: Transaction, device_id: str, job_id: str, attempt: int | None
) -> JobRow:
    """Return the job that a device runs in this attempt.

    The answer holds for the transaction if that has locked the job.

    Args:
        tx: the transaction.
        device_id: the device that reports to run the job.
        job_id: the job.
        attempt: the number of the attempt, from 1; None for the one that runs.

    Raises:
        MarketError: `job_not_found`, when the device never had the job; `attempt_not_current`.
    """
    job = await queries.find(tx, job_id)
    is_running = job is not None and job.status == JobStatus.RUNNING
    if job is not None and is_running and job.device_id == device_id and is_of(job, attempt):
        return job
    if job is None or not await queries.has_attempted(tx, job_id=job_id, device_id=device_id):
        raise MarketError(Code.JOB_NOT_FOUND)
    cancelled = job.status == JobStatus.CANCELLED and job.device_id == device_id
    raise MarketError(Code.ATTEMPT_NOT_CURRENT, CANCELLED if cancelled else None)


def is_of(job: JobRow, attempt: int | None) -> bool:
    """Return whether a job is in this attempt; None means any."""
    return attempt is None or job.attempts == attempt


async def slots_left(tx: Transaction, device_id: str, bounds: Bounds) -> int | None:
    """Return the number of further jobs that a device may hold; None without a limit.

    The answer holds for the transaction if that has locked the device, as every claim does. It is
    negative after the limits were lowered, or after claims in the same transaction.
    """
    if not (bounds.device_slots or bounds.new_device_slots):
        return None
    load = await attempt_queries.device_load(tx, device_id, completed_max=PROVEN_JOBS)
    most = slots_of(load.completed, bounds)
    return most - load.running if most is not None else None


def slots_of(completed: int, bounds: Bounds) -> int | None:
    """Return the limit of jobs of a device with `completed` jobs; None without a limit."""
    most = [bounds.device_slots] if bounds.device_slots else []
    if bounds.new_device_slots and completed < PROVEN_JOBS:
        most.append(bounds.new_device_slots)
    return min(most, default=None)


async def actions_for(
    tx: Transaction, device_id: str, named: Sequence[tuple[str, int]]
) -> list[Action]:
    """Return the actions of a device for the attempts that it names: stop some of them.

    Args:
        tx: the transaction.
        device_id: the device.
        named: the job and the number of the attempt, of each.
    """
    [actions] = await actions_for_all(tx, [(device_id, named)])
    return actions


async def actions_for_all(
    tx: Transaction, devices: Sequence[tuple[str, Collection[tuple[str, int]]]]
) -> list[list[Action]]:
    """Return the actions for several devices, each with the attempts that it names."""
    # The handler of the request limits their number.
    assert all(len(named) <= NAMED_MAX for _, named in devices)  # noqa: S101
    job_ids = {job_id for _, named in devices for job_id, _ in named}
    rows = await attempt_queries.states(tx, list(job_ids)) if job_ids else []
    jobs = {row.id: row for row in rows}
    return [_actions(jobs, device_id, named) for device_id, named in devices]


def _actions(
    jobs: Mapping[str, JobStateRow], device_id: str, named: Iterable[tuple[str, int]]
) -> list[Action]:
    actions = []
    for job_id, attempt in named:
        job = jobs.get(job_id)
        is_current = job is not None and job.status == JobStatus.RUNNING
        if job is not None and is_current and (job.device_id, job.attempts) == (device_id, attempt):
            continue
        is_last = job is not None and (job.device_id, job.attempts) == (device_id, attempt)
        if job is not None and is_last and job.status == JobStatus.CANCELLED:
            reason = CANCELLED
        elif (
            job is not None and is_last
        ):  # it has reported that itself, and did not receive the reply
            reason = f"The job is over: {job.status}."
        else:
            reason = Code.ATTEMPT_NOT_CURRENT.meaning
        actions.append(Action(job_id, attempt, "stop", reason))
    return actions
