"""Attempts: what a device says of a job that it runs, and whether that counts.

Whatever a device says of an attempt counts as long as that attempt is the current one. An attempt
that was taken back, cancelled or followed by another one writes no log, no file and earns nothing.
"""

from market.bounds import Bounds
from market.errors import Code, MarketError
from market.states import JobStatus
from storage import attempts as attempt_queries
from storage import jobs as queries
from storage.jobs import JobRow
from storage.store import Transaction

CANCELLED = "The buyer has cancelled the job; what was done of it is paid."
# Enough to see that a device finishes what it takes, and a day's work of a slow one.
PROVEN_JOBS = 10


async def require_current(
    tx: Transaction, device_id: str, job_id: str, attempt: int | None
) -> JobRow:
    """Return the job that a device runs in this attempt.

    The answer holds for the transaction if that has locked the job.

    Args:
        tx: the transaction.
        device_id: which device says that it runs the job.
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
    """Say whether a job is in this attempt; None means any."""
    return attempt is None or job.attempts == attempt


async def slots_left(tx: Transaction, device_id: str, bounds: Bounds) -> int | None:
    """Return how many more jobs a device may hold; None where there is no bound.

    The answer holds for the transaction if that has locked the device, as every claim does. It is
    below zero when the bounds were lowered, or for what the transaction itself has claimed.
    """
    if not (bounds.device_slots or bounds.new_device_slots):
        return None
    load = await attempt_queries.device_load(tx, device_id, completed_max=PROVEN_JOBS)
    most = [bounds.device_slots] if bounds.device_slots else []
    if bounds.new_device_slots and load.completed < PROVEN_JOBS:
        most.append(bounds.new_device_slots)
    return min(most) - load.running if most else None
