"""Plain jobs, described in words: their result is paid without a review.

The other kinds extend this one.
"""

from collections.abc import Sequence
from typing import Self

from msgspec.json import encode

from market.attempts.attempts import Ending
from market.base.errors import Code, MarketError
from market.base.states import JobStatus
from market.events.catalogue import (
    EventData,
    JobCancelled,
    JobCompleted,
    JobFailed,
    JobPaid,
    JobRequeued,
)
from market.events.recording import record
from market.jobs import pay as job_pay
from market.jobs.chances import has_failed
from market.jobs.kinds.base import Costs, Failure, Frame, JobOutcome, Report, Settled
from market.jobs.pay import Pay, hold_of
from market.money.money import MICRO
from market.trust import sample_checks, trust
from storage.attempts import attempts as attempt_queries
from storage.attempts.attempts import EndRow
from storage.devices import devices as device_queries
from storage.engines.store import Transaction
from storage.jobs import job_specs as spec_queries
from storage.jobs import jobs as queries
from storage.jobs.jobs import JobRow
from storage.money import ledger as ledger_queries


class Plain:
    """A job in words, in a transaction.

    Each method that ends an attempt or the job is one guarded update of the row that was read,
    with the money that it moves.

    Args:
        frame: the transaction, which has locked the job, with the values from outside.
    """

    def __init__(self, frame: Frame, job: JobRow) -> None:
        self.frame = frame
        self.tx = frame.tx
        self.job = job

    @classmethod
    async def lock(cls, tx: Transaction, job_id: str) -> None:
        """Lock a job of this kind, with every job that its end may change."""
        await tx.lock("jobs", [job_id])

    @classmethod
    async def read(cls, frame: Frame, job: JobRow) -> Self:
        """Return a job with the rows that belong to this kind."""
        return cls(frame, job)

    async def group(self) -> list[str]:
        """Return the jobs that are cancelled with this one, itself among them."""
        return [self.job.id]

    def is_current(self, report: Report) -> bool:
        """Return whether the device of a report runs the job, in its attempt."""
        return self.job.status == JobStatus.RUNNING and self._is_of(report)

    def is_taken(self, report: Report) -> bool:
        """Return whether the device has handed in a result in this attempt before."""
        return self._is_of(report) and self._has_result()

    def is_in(self, attempt: int) -> bool:
        """Return whether the job runs, in this attempt."""
        return self.job.status == JobStatus.RUNNING and self.job.attempts == attempt

    # --- ends of attempts and jobs ----------------------------------------------------------

    async def completed(self, report: Report) -> Settled:
        """Store the result of the device that runs the job.

        Raises:
            MarketError: `invalid_field`, when it is no result.
        """
        return await self._accept(report, self.job.price_credit)

    async def failed(self, report: Report) -> JobStatus:
        """End an attempt that its device reports as failed. Return the job's new status."""
        return await self.lost(Failure.of(report))

    async def lost(self, failure: Failure) -> JobStatus:
        """End an attempt without pay. Return the job's new status.

        The job waits for another device, unless it has failed for good.
        """
        await self._lock_reputation()
        if await self._is_over(failure.ending):
            await self.leave(failure.outcome(JobStatus.FAILED))
            return JobStatus.FAILED
        await self._move(failure.outcome(JobStatus.WAITING))
        return JobStatus.WAITING

    async def cancelled(self, reason: str | None = None) -> None:
        """Cancel the job while it is open; the time of the present attempt is paid.

        The buyer is given `reason`, if it is not the buyer who cancels.
        """
        outcome = JobOutcome(JobStatus.CANCELLED, failure_reason=reason)
        worker = await self._owner()
        pay = None if worker is None else self._pay(worker, await self._share())
        await self.leave(outcome, pay)

    async def quote(self) -> Costs:
        """Return the payment of `cancelled` at this time, without a change."""
        now = 0 if self.job.device_id is None else job_pay.held_part(self.job, await self._share())
        return Costs(now, await ledger_queries.left_in_hold(self.tx, hold_of(self.job.id)))

    # --- replaced by some kinds -------------------------------------------------------------

    @property
    def _is_reviewed(self) -> bool:
        """Whether the buyer has time to look at a result before it is paid."""
        return False

    def _has_result(self) -> bool:
        """Return whether a result of the last attempt was taken."""
        return self.job.status == JobStatus.COMPLETED

    async def _is_over(self, ending: Ending) -> bool:
        """Return whether the job has failed for good with an attempt that ends like this."""
        return await has_failed(self.tx, self.job, ending)

    async def _share(self) -> int:
        """Return the price of the present attempt's time until now, in micro-credits."""
        began, _, _ = await attempt_queries.begun(self.tx, self.job.id, self.job.attempts)
        return job_pay.share(self.job, began, self.frame.moment.now, None)

    async def _lock_for_result(self) -> None:
        """Lock the reputations that a result may change, before any account."""
        await self._lock_reputation()

    async def _count(self, owner_id: str) -> None:
        """Count a completed job: samples come after some of these."""
        if self.frame.terms.has_samples:
            least = self.frame.least_price
            await sample_checks.count(self.tx, self.job, owner_id, least_price=least)

    async def _end_deploy(self, outcome: JobOutcome) -> None:
        """Record that a deploy is over with its last job."""

    async def _settle(self, pay: Pay | None) -> Sequence[JobRow]:
        """Resolve the hold of the job, which has just ended: with `pay`, or all to the buyer.

        Return the rows of copies that it cancels, because they are not needed any more.
        """
        await job_pay.settle(self.tx, self.frame.moment, self.job, pay)
        if pay is not None and not pay.review_seconds:
            await self._notify_paid(pay.worker, pay.earned)
        return ()

    async def _notify_paid(self, worker: str, amount: int) -> None:
        """Record that the pay of the present attempt is available."""
        job = self.job
        if amount:
            event = JobPaid(job.id, job.attempts, amount / MICRO)
            await record(self.tx, self.frame.context, worker, event, subject_id=job.id)

    # --- shared by all kinds ----------------------------------------------------------------

    def _is_of(self, report: Report) -> bool:
        """Return whether a report is about the last attempt, by its device."""
        job = self.job
        return job.device_id == report.device.id and report.attempt in (None, job.attempts)

    async def _accept(self, report: Report, gross: int, review_seconds: int = 0) -> Settled:
        """Complete the job: its result is worth `gross` micro-credits."""
        owner_id = report.device.user_id
        await self._lock_for_result()
        await self._count(owner_id)
        outcome = JobOutcome(JobStatus.COMPLETED, report.text, ending=report.ending)
        unneeded = await self.leave(outcome, self._pay(owner_id, gross, review_seconds))
        return Settled(self.job, outcome.status, unneeded)

    async def leave(self, outcome: JobOutcome, pay: Pay | None = None) -> Sequence[JobRow]:
        """End the job and resolve its hold. Return the same as `_settle`."""
        await self._move(outcome, 0 if pay is None else pay.earned)
        await spec_queries.forget_secrets(self.tx, self.job.id)
        return await self._settle(pay)

    def _pay(self, worker: str, gross: int, review_seconds: int = 0) -> Pay:
        """Return the pay of work that is worth `gross` micro-credits."""
        return Pay.after_fee(worker, gross, self.frame.terms.fee, review_seconds)

    async def _owner(self) -> str | None:
        """Return the owner of the device that runs the job; None while none does."""
        if self.job.device_id is None:
            return None
        return await device_queries.owner_of(self.tx, self.job.device_id)

    async def _lock_reputation(self) -> None:
        """Lock the reputations that the end of an attempt may change, before any account."""
        assert self.job.device_id is not None  # noqa: S101 - the job runs
        await trust.lock(self.tx, self.job.device_id)

    async def _move(
        self, outcome: JobOutcome, earned: int = 0, again_at: int | None = None
    ) -> None:
        """Record the new status of the job, and its effect on the reputation of the device.

        From `again_at` on devices of the same owner may have it again, after any outcome.
        """
        job, ending, now = self.job, outcome.ending, self.frame.moment.now
        JobStatus(job.status).require_before(outcome.status)
        how = outcome.attempt or outcome.status
        moved = await queries.change_status(
            self.tx,
            job,
            after=outcome.status,
            attempt=EndRow(
                how,
                failure_kind=ending.kind,
                reason=outcome.failure_reason,
                exit_code=ending.exit_code,
                cpu_seconds=ending.cpu_seconds,
                max_memory_bytes=ending.max_memory_bytes,
                left_out=None if ending.left_out is None else encode(ending.left_out).decode(),
                again_at=again_at,
            ),
            earned=earned,
            result=outcome.result,
            failure_reason=outcome.failure_reason,
            now=now,
        )
        if not moved:
            raise MarketError(Code.ATTEMPT_NOT_CURRENT)
        event = _event(job, outcome)
        await record(self.tx, self.frame.context, job.user_id, event, subject_id=job.id)
        await self._end_deploy(outcome)
        if outcome.status is JobStatus.COMPLETED:  # also a replica that has served all its time
            how = outcome.status
        await trust.ended(
            self.tx,
            job,
            how,
            ending.kind,
            is_reviewed=self._is_reviewed,
            least_price=self.frame.least_price,
            now=now,
        )


def _event(job: JobRow, outcome: JobOutcome) -> EventData:
    """Return the event of a change for the buyer of a job."""
    reason, deploy = outcome.failure_reason or "", job.deploy_id
    match outcome.status:
        case JobStatus.COMPLETED:
            return JobCompleted(job.id, job.title, job.attempts, deploy)
        case JobStatus.FAILED:
            return JobFailed(job.id, job.title, job.attempts, reason, deploy)
        case JobStatus.CANCELLED:
            return JobCancelled(job.id, job.title, outcome.failure_reason, deploy)
        case _:
            return JobRequeued(job.id, job.title, job.attempts, reason, deploy)
