"""What becomes of jobs: results, failures, attempts taken back, cancellations.

Each is one guarded update of the state that was read, in one transaction with the money that it
moves, so that no late report is paid.
"""

import json
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import replace

from market.accounts.bounds import Bounds
from market.attempts.attempts import (
    HOST_KINDS,
    PROVEN_JOBS,
    WORK_KINDS,
    Ending,
    FailureKind,
    is_of,
    require_current,
)
from market.base.errors import Code, MarketError
from market.base.states import CopiesStatus, JobStatus
from market.events.catalogue import (
    DeployCancelled,
    DeployFinished,
    EventData,
    JobCancelled,
    JobCompleted,
    JobFailed,
    JobRequeued,
)
from market.events.context import Context
from market.events.recording import record
from market.jobs import copies
from market.jobs import pay as job_pay
from market.jobs.overdue import GRACE_SECONDS, Ended, Leases
from market.jobs.pay import HOUR_SECONDS, Moment
from market.jobs.postings import hold_of
from market.jobs.replica_pay import (
    FEE_WHOLE,
    SECONDS_MIN,
    Drawing,
    Drawn,
    accounts_of,
    draw,
    draw_failed,
    drawn_seconds,
    due_now,
    pay,
    record_failed,
)
from market.money import ledger
from market.money.ledger import TransferIds
from market.money.money import Currency
from market.trust import sample_checks, trust
from market.trust.reputation import NEW_RELIABILITY
from storage.attempts import attempts as attempt_queries
from storage.attempts.attempts import EndRow
from storage.deploys import deploys as deploy_queries
from storage.devices import devices as device_queries
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.jobs import job_specs as spec_queries
from storage.jobs import jobs as queries
from storage.jobs.copies import GroupRow
from storage.jobs.jobs import JobRow
from storage.money import ledger as ledger_queries

# Owners of devices, not devices or attempts: anybody may register as many devices as they like. Nor
# do accounts cost anything, so the word of those counts whose devices were seen to work.
PROVEN_OWNERS_MAX = 3
# Proven or not: else a job that nobody can do would wait, and cost transactions, for long.
OWNERS_MAX = 10
# However many refuse it: each of them costs a transaction, and a line that its buyer is shown.
ATTEMPTS_MAX = 100
UNWANTED = "No worker took the job in time."
UNNEEDED = "The other copies agree already."
# Devices of others have a service first that has ended: for so long, and twice as long each time,
# so that one which always ends at once takes little of anybody's time.
AGAIN_SECONDS = 10
AGAIN_DOUBLED_MAX = 5
AGAIN_SECONDS_MAX = 300
ENDED_EARLY = "the service ended by itself before its time"


class JobTerms(Struct, frozen=True):
    """What the operator decides about jobs.

    Attributes:
        fee: the house's part of a payment, in ten-thousandths.
        waiting_seconds: how long a job waits for a worker.
        leases: how long attempts may be silent.
        review_hours: how long the buyer of a job with a payload may look at its result before the
            worker is paid; 0 pays at once.
        has_samples: whether jobs are counted after which a device is given a sample.
    """

    fee: int
    waiting_seconds: int
    leases: Leases = Leases()
    review_hours: int = 24
    has_samples: bool = False

    def review_seconds(self, hours: int | None) -> int:
        """Return how long a buyer may look at a result, who has said so, or has not."""
        return (self.review_hours if hours is None else hours) * HOUR_SECONDS


class Outcome(Struct, frozen=True):
    """How a job is left: its new status, and what of its price the worker's work was worth.

    `result` is what came of it, `failure_reason` why nothing did; `attempt` how the attempt ended
    that ran until now, if that is not how the job is left, and `ending` what was said of that.
    """

    status: JobStatus
    gross: int = 0
    result: str | None = None
    failure_reason: str | None = None
    attempt: str = ""
    ending: Ending = Ending()


class Quote(Struct, frozen=True):
    """What cancelling would do now: `stopped` jobs, what is paid, and what goes back to the buyer.

    Amounts are in micro-units of `currency`.
    """

    currency: Currency
    stopped: int
    pays: int
    returns: int


class Completion(Struct, frozen=True):
    """How a job is once a result was taken, and copies that need not be done any more."""

    status: JobStatus
    unneeded: Sequence[JobRow] = ()


class Outcomes:
    """Ends attempts and jobs, in transactions of whoever calls, who tells of it once committed.

    Args:
        context: identifiers and the time.
        terms: what the operator decides.
        bounds: gives those that hold now.
    """

    def __init__(self, context: Context, terms: JobTerms, bounds: Callable[[], Bounds]) -> None:
        self._terms = terms
        self._bounds = bounds
        self._context = context
        self._identifiers = context.identifiers
        self._now = context.now

    def moment(self) -> Moment:
        """Return what a change needs that is made now."""
        new = self._identifiers.new
        return Moment(self._now(), TransferIds(new(), new()), new())

    async def cancel(self, tx: Transaction, user_id: str, job_id: str) -> list[JobRow]:
        """Cancel a job, or all copies of it; return those that were open, as they were."""
        group = await copies.lock(tx, job_id)
        job = await queries.find(tx, job_id)
        if job is None or job.user_id != user_id:
            raise MarketError(Code.JOB_NOT_FOUND)
        job_ids = [job_id] if group is None else await copies.open_copies(tx, group)
        stopped = []
        for each in job_ids:
            row = await queries.find(tx, each)
            if row is not None and row.status in (JobStatus.WAITING, JobStatus.RUNNING):
                await self.stop(tx, row, self.moment(), group)
                stopped.append(row)
        if not stopped and job.status != JobStatus.CANCELLED:
            raise MarketError(Code.JOB_OVER)
        return stopped

    async def quote(self, tx: Transaction, user_id: str, job_id: str) -> Quote:
        """Return what cancelling a job now would cost, or all copies of it; nothing is changed.

        That includes the pay of earlier attempts whose own work has failed.
        """
        job = await queries.find(tx, job_id)
        if job is None or job.user_id != user_id:
            raise MarketError(Code.JOB_NOT_FOUND)
        group = await copies.find(tx, job_id)
        job_ids = [job_id] if group is None else [each.job_id for each in group.copies]
        stopped, pays, held = 0, 0, 0
        for each in job_ids:
            row = await queries.find(tx, each)
            if row is None or row.status not in (JobStatus.WAITING, JobStatus.RUNNING):
                continue
            stopped += 1
            before = await _paid_before(tx, row)
            pays += before + await self._pays_now(tx, row)
            held += before + await ledger_queries.left_in_hold(tx, hold_of(row.id))
        if not stopped:
            raise MarketError(Code.JOB_OVER)
        return Quote(Currency(job.currency), stopped, pays, held - pays)

    async def _pays_now(self, tx: Transaction, job: JobRow) -> int:
        """Return what the buyer of an open job would pay for it as `stop` has it."""
        due = await due_now(tx, job, self._drawing(self.moment()))
        if due is not None:
            return due
        if job.device_id is None:
            return 0
        return job_pay.held_part(job, await _share(tx, job, self._now()))

    async def give_up(
        self, tx: Transaction, moment: Moment, job_id: str, reason: str
    ) -> JobRow | None:
        """Cancel a job that nobody can run, and return it as it was; None when it is over."""
        group = await copies.lock(tx, job_id)
        job = await queries.find(tx, job_id)
        if job is None or job.status not in (JobStatus.WAITING, JobStatus.RUNNING):
            return None
        await self.stop(tx, job, moment, group, reason=reason)
        return job

    async def stop(
        self,
        tx: Transaction,
        job: JobRow,
        moment: Moment,
        group: GroupRow | None = None,
        *,
        reason: str | None = None,
    ) -> None:
        """Cancel an open job, which is locked, with its `group`; what was done of it is paid.

        `reason` is what its buyer is told, if it is not the buyer who wants that.
        """
        device_id = job.device_id
        worker = None if device_id is None else await device_queries.owner_of(tx, device_id)
        gross = await _share(tx, job, moment.now) if worker is not None else 0
        outcome = Outcome(JobStatus.CANCELLED, gross, failure_reason=reason)
        await self._leave(tx, moment, job, outcome, worker, group=group)

    async def complete(
        self,
        tx: Transaction,
        moment: Moment,
        device: DeviceRow,
        job_id: str,
        attempt: int | None,
        result: str,
        ending: Ending,
        is_logged: bool,
    ) -> Completion | None:
        """Take a result; return how the job is then, or None when it was taken before."""
        group = await copies.lock(tx, job_id)
        job = await queries.find(tx, job_id)
        if job is not None and await _is_taken(tx, job, device.id, attempt):
            return None
        job = await require_current(tx, device.id, job_id, attempt)
        if not is_logged:
            raise MarketError(Code.LOG_INCOMPLETE, field="log_bytes")
        spec = await attempt_queries.spec(tx, job.id)
        if spec is not None and ending.exit_code:
            message = f"A job whose process ended with {ending.exit_code} has failed."
            raise MarketError(Code.INVALID_FIELD, message, field="exit_code")
        if spec is not None and job.deploy_id is not None and _serves(spec.payload):
            early = replace(ending, kind=FailureKind.JOB, exit_code=0)
            await self._retry(tx, moment, job, ENDED_EARLY, early)
            after = await queries.find(tx, job_id)
            return None if after is None else Completion(JobStatus(after.status))
        sample = await sample_checks.find(tx, job.id)
        if sample is not None and not await sample_checks.judge(tx, sample, result, now=moment.now):
            reason = sample_checks.NOT_RIGHT
            wrong = Outcome(JobStatus.FAILED, 0, result, reason, attempt="failed", ending=ending)
            await self._leave(tx, moment, job, wrong, None)
            return Completion(JobStatus.FAILED)
        gross = job_pay.rest(job, await drawn_seconds(tx, job.id))
        outcome = Outcome(JobStatus.COMPLETED, gross, result, ending=ending)
        seconds = 0 if spec is None else self._terms.review_seconds(spec.review_hours)
        if group is not None:
            seconds = copies.review_seconds(job, group)
            await copies.lock_reputations(tx, group)
        else:
            await trust.lock(tx, device.id)
        if sample is None and self._terms.has_samples:
            least = self._bounds().free_below
            await sample_checks.count(tx, job, device.user_id, least_price=least)
        unneeded = await self._leave(
            tx, moment, job, outcome, device.user_id, review_seconds=seconds, group=group
        )
        return Completion(JobStatus.COMPLETED, unneeded)

    async def fail(
        self,
        tx: Transaction,
        moment: Moment,
        device: DeviceRow,
        job_id: str,
        attempt: int | None,
        reason: str,
        ending: Ending,
    ) -> bool:
        """Take a job back from a device; return whether it waits for another one."""
        group = await copies.lock(tx, job_id)
        job = await require_current(tx, device.id, job_id, attempt)
        worker = device.user_id
        return await self._retry(tx, moment, job, reason, ending, worker=worker, group=group)

    async def take_back(self, tx: Transaction, moment: Moment, ended: Ended) -> JobRow | None:
        """Take a job back and return it as it was; None when it is not in that attempt any more."""
        group = await copies.lock(tx, ended.job_id)
        job = await queries.find(tx, ended.job_id)
        if job is None or job.status != JobStatus.RUNNING or job.attempts != ended.attempt:
            return None
        ending = Ending(FailureKind.TIMEOUT) if ended.is_timeout else Ending()
        is_lost = not ended.is_timeout
        await self._retry(tx, moment, job, ended.reason, ending, is_lost=is_lost, group=group)
        return job

    async def expire(self, tx: Transaction, moment: Moment, job_id: str) -> None:
        """Cancel a job that has waited for too long, unless it does not wait any more."""
        group = await copies.lock(tx, job_id)
        job = await queries.find(tx, job_id)
        if job is not None and job.status == JobStatus.WAITING:
            outcome = Outcome(JobStatus.CANCELLED, failure_reason=UNWANTED)
            await self._leave(tx, moment, job, outcome, None, group=group)

    async def _retry(
        self,
        tx: Transaction,
        moment: Moment,
        job: JobRow,
        reason: str,
        ending: Ending,
        *,
        is_lost: bool = False,
        worker: str | None = None,
        group: GroupRow | None = None,
    ) -> bool:
        """Put a running job up again, and return whether it waits now, or has failed for good.

        It has when so many owners' devices did not do it, refusals apart, or its buyer wants it run
        once, or what the attempts were paid has used its price up; a copy also when enough others
        have agreed. `worker` is who owns the device, if that says itself how the attempt ended.
        """
        attempt = "lost" if is_lost else attempt_outcome(ending)
        if job.device_id is not None:
            await trust.lock(tx, job.device_id)
        is_fault = is_lost or ending.kind not in WORK_KINDS
        drawn = await self._draw(tx, moment, job, is_lost=is_lost, is_devices_fault=is_fault)
        if drawn is not None and _is_used_up(drawn, ending):
            done = Outcome(JobStatus.COMPLETED, result=reason, attempt=attempt, ending=ending)
            await self._leave(tx, moment, job, done, None, drawn=drawn)
            return False
        over = await _has_failed(tx, job, ending)
        over = over or (group is not None and group.state != CopiesStatus.OPEN)
        sample = await sample_checks.find(tx, job.id)
        if sample is not None:
            # It is nobody else's, is paid for by its result alone, and does not fail by itself.
            await sample_checks.unproven(tx, sample)
            over, worker, attempt = True, None, "lost"
        failed = None
        if worker is not None and ending.kind in WORK_KINDS and drawn is None:
            failed = await self._draw_failed(tx, moment, job, worker)
            over = over or (failed is not None and failed.left < SECONDS_MIN)
        status = JobStatus.FAILED if over else JobStatus.WAITING
        outcome = Outcome(status, failure_reason=reason, attempt=attempt, ending=ending)
        if over and worker is not None and ending.kind in WORK_KINDS and drawn is None:
            await self._leave_failed(tx, moment, job, outcome, worker, group)
        elif over:
            await self._leave(tx, moment, job, outcome, None, drawn=drawn, group=group)
        else:
            again_at = None
            if drawn is not None and await _may_run_again(tx, job, drawn, ending):
                again_at = moment.now + _back_off(await queries.count_restarts(tx, job.id))
            await self._move(tx, job, outcome, 0, moment.now, again_at=again_at)
            if drawn is not None:
                await self._pay_drawn(tx, moment, job, drawn)
                await spec_queries.set_timeout(tx, job.id, drawn.left)
            elif failed is not None:
                await self._pay_failed(tx, moment, job, failed, group)
        return not over

    async def _draw_failed(
        self, tx: Transaction, moment: Moment, job: JobRow, worker: str
    ) -> Drawn | None:
        """Return the pay of an attempt whose own work has failed; see `draw_failed`."""
        spec = await attempt_queries.spec(tx, job.id)
        if spec is None:
            return None
        return await draw_failed(tx, job, spec, worker, self._drawing(moment))

    async def _pay_failed(
        self,
        tx: Transaction,
        moment: Moment,
        job: JobRow,
        drawn: Drawn,
        group: GroupRow | None,
    ) -> None:
        """Pay an attempt whose own work has failed, while the job waits for the next one.

        Else a buyer had a result for nothing, by a script that prints it, ends with 1 and is to be
        run again. The next attempt has the time that the rest of the price pays for. The pay for a
        copy is in review until the others are compared, which may have done the work.
        """
        assert drawn.due is not None  # noqa: S101 - or there was nothing to pay
        spec = await attempt_queries.spec(tx, job.id)
        assert spec is not None  # noqa: S101 - it says what has failed
        await record_failed(tx, drawn)
        seconds = self._terms.review_seconds(spec.review_hours)
        if group is not None:
            seconds = copies.review_seconds(job, group)
        how = self._drawing(moment, seconds)
        await pay(tx, job, drawn.due, hold_of(job.id), how)
        least = min(spec.timeout_seconds or drawn.left, drawn.left)
        await spec_queries.set_timeout(tx, job.id, least)

    async def _leave_failed(
        self,
        tx: Transaction,
        moment: Moment,
        job: JobRow,
        outcome: Outcome,
        worker: str,
        group: GroupRow | None,
    ) -> None:
        """End a job whose own work has failed: its time is paid, as if the buyer had cancelled it.

        Else whoever prints a result and exits with 1 has had it for nothing. It is in review like a
        result, because it is the device that says so; of a copy until the others are compared, who
        may have done it.
        """
        spec = await attempt_queries.spec(tx, job.id)
        gross = 0 if spec is None else await _share(tx, job, moment.now)
        if spec is None or not gross:
            await self._leave(tx, moment, job, outcome, None, group=group)
            return
        paid = replace(outcome, gross=gross)
        seconds = self._terms.review_seconds(spec.review_hours)
        if group is not None:
            seconds = copies.review_seconds(job, group)
        await self._leave(tx, moment, job, paid, worker, review_seconds=seconds, group=group)

    async def _draw(
        self,
        tx: Transaction,
        moment: Moment,
        job: JobRow,
        *,
        is_lost: bool = False,
        is_devices_fault: bool = False,
    ) -> Drawn | None:
        """Record what an attempt at a replica is paid that ends now; None for a job that is none.

        To be followed by `_pay_drawn`.
        """
        return await draw(
            tx, job, self._drawing(moment), is_lost=is_lost, is_devices_fault=is_devices_fault
        )

    async def _pay_drawn(self, tx: Transaction, moment: Moment, job: JobRow, drawn: Drawn) -> None:
        if drawn.due is not None:
            await pay(tx, job, drawn.due, hold_of(job.id), self._drawing(moment))

    def _drawing(self, moment: Moment, review_seconds: int | None = None) -> Drawing:
        if review_seconds is None:
            review_seconds = self._terms.review_seconds(None)
        return Drawing(self._terms.fee, moment.now, self._identifiers.new, review_seconds)

    async def _leave(
        self,
        tx: Transaction,
        moment: Moment,
        job: JobRow,
        outcome: Outcome,
        worker: str | None,
        *,
        review_seconds: int = 0,
        drawn: Drawn | None = None,
        group: GroupRow | None = None,
    ) -> list[JobRow]:
        """End a job and settle its hold: what the work was worth, and the rest.

        A worker is always paid in credits. Where the buyer holds another currency, the house takes
        that and pays the credits. With `review_seconds` all of it waits for so long. A replica that
        is paid by time, and by attempts, is paid so; `drawn` is what its last one is paid. With
        `group`, of which the job is a copy, the results are compared; copies that need not be done
        any more are cancelled, and returned as they were.
        """
        drawn = drawn or await self._draw(tx, moment, job)
        if drawn is not None:
            await self._move(tx, job, outcome, 0, moment.now)
            await spec_queries.forget_secrets(tx, job.id)
            await self._pay_drawn(tx, moment, job, drawn)
            hold_id, ids = hold_of(job.id), moment.resolution
            await tx.lock("accounts", sorted(await accounts_of(tx, job)))
            await ledger.capture(tx, hold_id, [], transfer_ids=ids, now=moment.now)
            return []
        fee = outcome.gross * self._terms.fee // FEE_WHOLE
        earned = outcome.gross - fee if worker is not None else 0
        await self._move(tx, job, outcome, earned, moment.now)
        await spec_queries.forget_secrets(tx, job.id)
        compared = None
        if group is not None:
            least = self._bounds().free_below
            compared = await copies.compare(tx, group.id, least_price=least, now=moment.now)
            await copies.lock_accounts(tx, group, job.user_id)
        await job_pay.settle(
            tx,
            moment,
            job,
            worker,
            gross=outcome.gross,
            earned=earned,
            review_seconds=review_seconds,
        )
        if compared is None:
            return []
        await copies.pay(tx, compared, self._identifiers.new, moment.now)
        return [await self._drop(tx, job_id) for job_id in compared.unneeded]

    async def _drop(self, tx: Transaction, job_id: str) -> JobRow:
        """Cancel a copy that waits and that nobody needs any more; return it as it was."""
        job = await queries.find(tx, job_id)
        assert job is not None  # noqa: S101 - it was just read, and is locked
        outcome = Outcome(JobStatus.CANCELLED, failure_reason=UNNEEDED)
        await self._leave(tx, self.moment(), job, outcome, None)
        return job

    async def _move(
        self,
        tx: Transaction,
        job: JobRow,
        outcome: Outcome,
        earned: int,
        now: int,
        *,
        again_at: int | None = None,
    ) -> None:
        """Write down how a job is left, and what that says of the device that ran it.

        From `again_at` on devices of the same owner may have it again, whatever that was.
        """
        JobStatus(job.status).require_before(outcome.status)
        ending = outcome.ending
        moved = await queries.change_status(
            tx,
            job,
            after=outcome.status,
            attempt=EndRow(
                outcome.attempt or outcome.status,
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
        await record(tx, self._context, job.user_id, _event(job, outcome), subject_id=job.id)
        if job.deploy_id is not None and outcome.status is not JobStatus.WAITING:
            await self._leave_deploy(tx, job, job.deploy_id, outcome)
        how = outcome.attempt or outcome.status
        if outcome.status is JobStatus.COMPLETED:  # also a replica that has served all its time
            how = outcome.status
        spec = await attempt_queries.spec(tx, job.id)
        hours = 0 if spec is None else self._terms.review_seconds(spec.review_hours)
        await trust.ended(
            tx,
            job,
            how,
            ending.kind,
            is_reviewed=bool(hours),
            least_price=self._bounds().free_below,
            now=now,
        )

    async def _leave_deploy(
        self, tx: Transaction, job: JobRow, deploy_id: str, outcome: Outcome
    ) -> None:
        """Tell the buyer of a number of replicas when the last of them is over.

        Deploys with revisions tell it themselves (`market.deploys.rollouts`). Of the others nobody
        locks the row but whoever is here, so that of two last replicas one sees that both are over.
        """
        if await deploy_queries.has_rollout(tx, deploy_id):
            return
        await tx.lock("deploys", [deploy_id])
        if await deploy_queries.count_open(tx, deploy_id):
            return
        is_cancelled = outcome.status is JobStatus.CANCELLED and not outcome.failure_reason
        data = DeployCancelled(deploy_id) if is_cancelled else DeployFinished(deploy_id)
        await record(tx, self._context, job.user_id, data, subject_id=deploy_id)


def _event(job: JobRow, outcome: Outcome) -> EventData:
    """Return what a job's buyer is told of how it is left."""
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


def attempt_outcome(ending: Ending) -> str:
    """Return how an attempt ended that its device could not complete."""
    return "lost" if ending.kind in HOST_KINDS else "failed"


async def _share(tx: Transaction, job: JobRow, now: int) -> int:
    """Return the price of the present attempt's time until now, in micro-credits."""
    began, _, _ = await attempt_queries.begun(tx, job.id, job.attempts)
    spec = await attempt_queries.spec(tx, job.id)
    paid_seconds = await drawn_seconds(tx, job.id)
    return job_pay.share(job, began, now, spec, paid_seconds=paid_seconds)


async def _paid_before(tx: Transaction, job: JobRow) -> int:
    """Return the pay of earlier attempts at a job, from its hold; 0 for a replica."""
    if job.deploy_id is not None:
        return 0
    return job_pay.held_part(job, job_pay.spent(job, await drawn_seconds(tx, job.id)))


async def _is_taken(tx: Transaction, job: JobRow, device_id: str, attempt: int | None) -> bool:
    """Say whether this device has handed in a result in this attempt before, right or wrong."""
    if job.device_id != device_id or not is_of(job, attempt):
        return False
    return job.status == JobStatus.COMPLETED or await sample_checks.is_wrong(tx, job)


def _is_used_up(drawn: Drawn, ending: Ending) -> bool:
    """Say whether a replica has had all its time: a service ends then, and that is no failure.

    One that became ready late has worked for all of it and was paid for less.
    """
    has_worked = drawn.worked >= drawn.had - GRACE_SECONDS
    return drawn.left < SECONDS_MIN or (ending.kind is FailureKind.TIMEOUT and has_worked)


def _serves(payload: str) -> bool:
    """Say whether a payload listens on ports: as a replica it is to run until its time is over."""
    said = json.loads(payload)
    return bool(said.get("ports") or said.get("ready"))


async def _may_run_again(tx: Transaction, job: JobRow, drawn: Drawn, ending: Ending) -> bool:
    """Say whether the same owner's devices may have a replica again, after a while.

    They may if it is a service that had been ready there, or that ended well, if too early: nothing
    says that they cannot run it.
    """
    spec = await attempt_queries.spec(tx, job.id)
    if spec is None or not _serves(spec.payload) or ending.kind is FailureKind.REFUSED:
        return False
    _, ready, _ = await attempt_queries.begun(tx, job.id, job.attempts)
    return ready is not None or drawn.worked > 0 or ending.exit_code == 0


def _back_off(restarts: int) -> int:
    """Return for how many seconds others have a service first that has ended so often before."""
    return min(AGAIN_SECONDS << min(restarts, AGAIN_DOUBLED_MAX), AGAIN_SECONDS_MAX)


async def _has_failed(tx: Transaction, job: JobRow, ending: Ending) -> bool:
    """Say whether a job whose attempt ends like this has failed for good."""
    if ending.kind in WORK_KINDS and await _runs_once(tx, job.id):
        return True
    if job.attempts >= ATTEMPTS_MAX:  # those of a replica that served are no failures
        served = await queries.count_served(tx, job.id)
        if job.attempts - served >= ATTEMPTS_MAX:
            return True
    # Owners may have rules of their own, such as which images they run: the job is no worse for
    # what these refuse, and waits for others.
    unsuccessful = await queries.count_unsuccessful(
        tx,
        job.id,
        None if ending.kind is FailureKind.REFUSED else job.attempts,
        proven_attempts=PROVEN_JOBS,
        proven_reliability=NEW_RELIABILITY,
    )
    return unsuccessful.proven >= PROVEN_OWNERS_MAX or unsuccessful.owners >= OWNERS_MAX


async def _runs_once(tx: Transaction, job_id: str) -> bool:
    """Say whether a job is not to be run again when what it ran has failed."""
    spec = await attempt_queries.spec(tx, job_id)
    return spec is not None and json.loads(spec.payload).get("restart", "never") == "never"
