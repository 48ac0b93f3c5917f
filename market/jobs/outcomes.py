"""Outcomes of jobs: results, failures, lost attempts and cancellations, with their notices.

Each outcome is one transaction, which locks the job and calls its kind (`market.jobs.kinds`). The
kind makes one guarded update of the row that was read, together with the money that it moves, so
that no late report is paid.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec import Struct

from market.accounts.bounds import Bounds
from market.attempts.attempts import Ending, FailureKind, require_current
from market.base.bus import ATTEMPTS, DEVICES, GONE, REPLICAS, WAITING, Bus
from market.base.errors import Code, MarketError
from market.base.states import JobStatus
from market.events.context import Context
from market.jobs.chances import attempt_outcome
from market.jobs.kinds.base import Failure, Frame, Report, Settled
from market.jobs.kinds.copied import Copy
from market.jobs.kinds.plain import Plain
from market.jobs.kinds.plain_replica import PlainReplica
from market.jobs.kinds.replica import Replica
from market.jobs.kinds.sample import Sample
from market.jobs.kinds.scripted import Scripted
from market.jobs.overdue import Ended
from market.jobs.pay import Moment
from market.jobs.terms import JobTerms
from market.money.money import Currency
from storage.engines.errors import UnknownOutcomeError
from storage.engines.store import Transaction
from storage.jobs import jobs as queries
from storage.jobs import kinds as kind_queries
from storage.jobs.jobs import JobRow
from storage.jobs.kinds import JobKind

UNWANTED = "No worker took the job in time."
OPEN = (JobStatus.WAITING, JobStatus.RUNNING)
KINDS: Mapping[JobKind, type[Plain]] = {
    JobKind.PLAIN: Plain,
    JobKind.SCRIPTED: Scripted,
    JobKind.REPLICA: Replica,
    JobKind.PLAIN_REPLICA: PlainReplica,
    JobKind.COPY: Copy,
    JobKind.SAMPLE: Sample,
}


class Quote(Struct, frozen=True):
    """The effect of cancelling now: `stopped` jobs, their pay, and the rest for the buyer.

    Amounts are in micro-units of `currency`.
    """

    currency: Currency
    stopped: int
    pays: int
    returns: int


class Outcomes:
    """Ends attempts and jobs, in transactions of the caller, which notifies others once committed.

    Args:
        bounds: returns the present bounds.
    """

    def __init__(self, context: Context, terms: JobTerms, bounds: Callable[[], Bounds]) -> None:
        self._terms = terms
        self._bounds = bounds
        self._context = context

    def moment(self) -> Moment:
        """Return the time and new identifiers for a change that is made now."""
        return Moment.of(self._context)

    async def cancel(self, tx: Transaction, user_id: str, job_id: str) -> list[JobRow]:
        """Cancel a job, or all copies of it; return those that were open, as they were."""
        job = await self._locked(tx, self.moment(), job_id)
        _require_own(job.job, user_id)
        stopped = []
        for each in await job.group():
            row = await _row(tx, each)
            if row.status in OPEN:
                one = await type(job).read(self._frame(tx, self.moment()), row)
                await one.cancelled()
                stopped.append(row)
        if not stopped and job.job.status != JobStatus.CANCELLED:
            raise MarketError(Code.JOB_OVER)
        return stopped

    async def quote(self, tx: Transaction, user_id: str, job_id: str) -> Quote:
        """Return the present cost of cancelling a job, or all its copies, without a change.

        That includes the pay of earlier attempts whose own work has failed.
        """
        frame, kind = self._frame(tx, self.moment()), await _kind(tx, job_id)
        job = await kind.read(frame, await _row(tx, job_id))
        _require_own(job.job, user_id)
        costs = []
        for each in await job.group():
            row = await _row(tx, each)
            if row.status in OPEN:
                one = await kind.read(frame, row)
                costs.append(await one.quote())
        if not costs:
            raise MarketError(Code.JOB_OVER)
        pays, held = sum(each.pays for each in costs), sum(each.held for each in costs)
        return Quote(Currency(job.job.currency), len(costs), pays, held - pays)

    async def give_up(
        self, tx: Transaction, moment: Moment, job_id: str, reason: str
    ) -> JobRow | None:
        """Cancel a job that no device can run. Return its row before that; None if it is over."""
        job = await self._find(tx, moment, job_id)
        if job is None or job.job.status not in OPEN:
            return None
        await job.cancelled(reason)
        return job.job

    async def stop(self, tx: Transaction, row: JobRow, moment: Moment) -> None:
        """Cancel an open job, which is locked, and pay the work that was done."""
        kind = await _kind(tx, row.id)
        job = await kind.read(self._frame(tx, moment), row)
        await job.cancelled()

    async def complete(
        self, tx: Transaction, moment: Moment, report: Report, *, is_logged: bool
    ) -> Settled | None:
        """Store a result. Return the job after that; None if the result was stored before."""
        job = await self._locked(tx, moment, report.job_id)
        if job.is_taken(report):
            return None
        await _require_current(job, report)
        if not is_logged:
            raise MarketError(Code.LOG_INCOMPLETE, field="log_bytes")
        return await job.completed(report)

    async def fail(self, tx: Transaction, moment: Moment, report: Report) -> Settled:
        """Take a job back from a device. Return the job after that."""
        job = await self._locked(tx, moment, report.job_id)
        await _require_current(job, report)
        return Settled(job.job, await job.failed(report))

    async def take_back(self, tx: Transaction, moment: Moment, ended: Ended) -> JobRow | None:
        """Take a job back and return its earlier row; None when it is no longer in that attempt."""
        job = await self._find(tx, moment, ended.job_id)
        if job is None or not job.is_in(ended.attempt):
            return None
        ending = Ending(FailureKind.TIMEOUT) if ended.is_timeout else Ending()
        outcome = attempt_outcome(ending) if ended.is_timeout else "lost"
        await job.lost(Failure(ended.reason, ending, outcome, is_lost=not ended.is_timeout))
        return job.job

    async def expire(self, tx: Transaction, moment: Moment, job_id: str) -> None:
        """Cancel a job that has waited for too long, if it still waits."""
        job = await self._find(tx, moment, job_id)
        if job is not None and job.job.status == JobStatus.WAITING:
            await job.cancelled(UNWANTED)

    async def _locked(self, tx: Transaction, moment: Moment, job_id: str) -> Plain:
        """Lock a job, and return it as its kind.

        Raises:
            MarketError: `job_not_found`.
        """
        job = await self._find(tx, moment, job_id)
        if job is None:
            raise MarketError(Code.JOB_NOT_FOUND)
        return job

    async def _find(self, tx: Transaction, moment: Moment, job_id: str) -> Plain | None:
        """Lock a job, and return it as its kind; None without such a job."""
        word = await kind_queries.find(tx, job_id)
        if word is None:
            return None
        kind = KINDS[word]
        await kind.lock(tx, job_id)
        return await kind.read(self._frame(tx, moment), await _row(tx, job_id))

    def _frame(self, tx: Transaction, moment: Moment) -> Frame:
        return Frame(tx, self._context, self._terms, self._bounds().free_below, moment)


class JobNotices:
    """Publishes changes of jobs, and counts the outcomes of attempts.

    Attributes:
        attempt_ends: the number of attempts that ended here, by outcome.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self.attempt_ends = dict.fromkeys(("completed", "failed", "lost", "cancelled"), 0)

    @property
    def are_carried(self) -> bool:
        """Whether other daemons may get the notices."""
        return WAITING in self._bus.carried

    def publish_waiting(self, job_ids: Sequence[str]) -> None:
        """Publish that jobs may wait for a device."""
        self._bus.publish(WAITING, job_ids)

    @contextmanager
    def waiting_if_unknown(self, job_ids: Sequence[str]) -> Iterator[None]:
        """Publish that jobs may wait, where the reply to a commit within the block is lost.

        A repetition of the request, or the next look, publishes nothing.
        """
        try:
            yield
        except UnknownOutcomeError:
            self.publish_waiting(job_ids)
            raise

    def publish_gone(self, job_id: str) -> None:
        """Publish that a job no longer waits for a device."""
        self._bus.publish(GONE, [job_id])

    def publish_device(self, device_id: str) -> None:
        """Publish that the work of a device has changed."""
        self._bus.publish(DEVICES, [device_id])

    def publish_stopped(self, job: JobRow) -> None:
        """Publish that a job was cancelled, once that is committed.

        Args:
            job: the job as it was before.
        """
        self.publish_gone(job.id)
        if job.device_id is not None:
            self.publish_device(job.device_id)
            self.publish_end(job, "cancelled")
        else:
            self._publish_replica(job)

    def publish_end(self, job: JobRow, outcome: str) -> None:
        """Count and publish the end of an attempt."""
        self.attempt_ends[outcome] += 1
        self.publish_change(job)

    def publish_change(self, job: JobRow) -> None:
        """Notify the logs and the rollouts that an attempt began or ended."""
        self._bus.publish(ATTEMPTS, [job.id])
        self._publish_replica(job)

    def publish_progress(self, job_id: str) -> None:
        """Notify the rollouts that the work of an attempt began, or is ready."""
        self._bus.publish(REPLICAS, [job_id])

    def _publish_replica(self, job: JobRow) -> None:
        """Notify the rollouts of a change of a job, if it belongs to a deploy."""
        if job.deploy_id is not None:
            self._bus.publish(REPLICAS, [job.id])


async def _kind(tx: Transaction, job_id: str) -> type[Plain]:
    """Return the kind of a job, which never changes.

    Raises:
        MarketError: `job_not_found`.
    """
    word = await kind_queries.find(tx, job_id)
    if word is None:
        raise MarketError(Code.JOB_NOT_FOUND)
    return KINDS[word]


async def _row(tx: Transaction, job_id: str) -> JobRow:
    """Return a job.

    Raises:
        MarketError: `job_not_found`.
    """
    row = await queries.find(tx, job_id)
    if row is None:
        raise MarketError(Code.JOB_NOT_FOUND)
    return row


async def _require_current(job: Plain, report: Report) -> None:
    """Check that the device of a report runs the job, in its attempt.

    Raises:
        MarketError: `job_not_found`, `attempt_not_current`.
    """
    if not job.is_current(report):
        await require_current(job.tx, report.device.id, job.job.id, report.attempt)


def _require_own(job: JobRow, user_id: str) -> None:
    """Check that a job is a buyer's own.

    Raises:
        MarketError: `job_not_found`.
    """
    if job.user_id != user_id:
        raise MarketError(Code.JOB_NOT_FOUND)
