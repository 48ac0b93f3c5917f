"""Processing of samples: jobs of the operator with a known right result.

A device is not notified that a job is a sample; its `checks` show it afterwards. Its result is
compared in the transaction that stores it. A right result is paid like other work. For a wrong
result the price returns to the operator, and the device's payments in review wait for the
operator's decision.
"""

import math
import secrets

from market.trust import trust
from market.trust.reputation import NEW, Loss
from storage.engines.store import Transaction
from storage.jobs.jobs import JobRow
from storage.trust import samples as queries
from storage.trust.samples import LossRow, SampleRow, WrongRow

RIGHT, WRONG, NONE = "right", "wrong", "none"
# Up to this number of right results, a device gets a sample after every second job on average. A
# sample after each job would be no better: the device would know that the job after a sample is a
# real one.
TRUSTED_CHECKS = 10
NEW_SHARE = 0.5
LEAST_SHARE = 0.02
FREEZE_MAX_JOBS = 10_000  # more than a device does while its work is in review
NOT_RIGHT = "The result is not right."
FROZEN = (
    "The device that did this has handed in a wrong result for a sample, whose answer is known."
)


def jobs_until_next(streak: int) -> int:
    """Draw the number of jobs of a device before its next sample.

    Args:
        streak: the number of its right results since the last wrong one.
    """
    share = NEW_SHARE if streak < TRUSTED_CHECKS else max(LEAST_SHARE, 1 / streak)
    uniform = 1 - secrets.randbelow(1 << 53) / (1 << 53)  # above 0, at most 1
    return 1 + int(math.log(uniform) / math.log1p(-share))


async def begin_turn(tx: Transaction, device_id: str) -> None:
    """Draw the time of a device's next sample."""
    reputation = (await trust.of_devices(tx, [device_id])).get(device_id, NEW)
    await queries.set_jobs_left(tx, device_id, jobs_until_next(reputation.streak))


async def find(tx: Transaction, job_id: str) -> SampleRow | None:
    """Return a sample; None for any other job."""
    return await queries.find(tx, job_id)


async def count(tx: Transaction, job: JobRow, owner_id: str, *, least_price: int) -> None:
    """Count a real job that a device has completed: samples follow after some of these.

    Jobs with a price near zero do not count, and neither do an owner's own jobs: otherwise a device
    could earn from samples only. Reputations are locked before this, and accounts after.
    """
    if job.device_id is not None and job.price_credit >= least_price and job.user_id != owner_id:
        await queries.count_job(tx, job.device_id)


async def judge(tx: Transaction, sample: SampleRow, result: str, *, now: int) -> bool:
    """Compare the result of a sample. Return whether it is right.

    Its job is locked; other jobs of the device are locked here, and then reputations, but no
    account, and the caller settles the job.
    """
    is_right = result.strip() == sample.answer
    device_id = sample.device_id
    if is_right:
        await trust.checked(tx, device_id, is_right=True)
    else:
        frozen = await queries.held_reviews(tx, device_id, limit=FREEZE_MAX_JOBS)
        await tx.lock("jobs", frozen)
        losses = await trust.checked(tx, device_id, is_right=False)
        await queries.insert_losses(
            tx,
            [
                LossRow(sample.job_id, each, loss.correctness, loss.streak, loss.checks)
                for each, loss in losses.items()
            ],
        )
        await queries.freeze(tx, device_id, frozen, reason=FROZEN, now=now)
        await begin_turn(tx, device_id)
    await queries.end(tx, sample.job_id, RIGHT if is_right else WRONG)
    return is_right


async def void(tx: Transaction, sample: WrongRow, *, now: int) -> list[str]:
    """Give back what a wrong result took: the reputation, and the payments in review.

    Payments that were decided meanwhile stay so. Return the jobs whose reviews go on.

    Args:
        tx: the transaction; no account is locked before this.
        sample: the sample, whose outcome stays.
        now: UTC seconds.
    """
    losses = await queries.losses(tx, sample.job_id)
    frozen = await queries.frozen_reviews(
        tx, sample.device_id, reason=FROZEN, at=sample.failed_at, limit=FREEZE_MAX_JOBS
    )
    await tx.lock("jobs", frozen)
    await trust.give_back(
        tx, {row.reputation_id: Loss(row.correctness, row.streak, row.checks) for row in losses}
    )
    await queries.unfreeze(
        tx, sample.device_id, frozen, reason=FROZEN, at=sample.failed_at, now=now
    )
    return frozen


async def unproven(tx: Transaction, sample: SampleRow) -> None:
    """Record that a device has not done a sample; it soon gets another one.

    The distance is random: with a known distance, a device that fails at all samples would
    recognise them.
    """
    await queries.end(tx, sample.job_id, NONE)
    await queries.set_jobs_left(tx, sample.device_id, jobs_until_next(0))
