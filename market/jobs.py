"""Jobs: put up by a buyer, run by a worker's device, paid when they are done.

A job's price is held when it is put up. Each change is one guarded update of the state it was read
in, in one transaction with the money it moves, so that of a thousand who accept a job one wins, and
no late report is paid.
"""

import json
import logging
import shlex
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from market import copies, ledger, reviews, trust
from market.artifacts import require_inputs
from market.attempts import (
    HOST_KINDS,
    PROVEN_JOBS,
    WORK_KINDS,
    Ending,
    FailureKind,
    is_of,
    require_current,
    slots_left,
)
from market.bounds import Bounds, lock_user, require
from market.context import Context
from market.copies import Copying
from market.draws import FEE_WHOLE, SECONDS_MIN, Drawing, Drawn, accounts_of, draw, pay
from market.errors import Code, MarketError
from market.idempotency import Receipt
from market.ledger import Movement, Transfer, TransferIds, TransferKind
from market.money import MICRO, Currency, as_decimal
from market.overdue import GRACE_SECONDS, Ended, Leases, Overdue
from market.reputation import NEW_RELIABILITY
from market.specs import Spec, Specs, size_of
from market.states import CopiesStatus, JobStatus, ReviewStatus
from market.sweeping import Sweep
from market.throttle import Throttle
from market.waking import Waking
from storage import attempts as attempt_queries
from storage import copies as copy_queries
from storage import deploys as deploy_queries
from storage import devices as device_queries
from storage import job_specs as spec_queries
from storage import jobs as queries
from storage import ledger as ledger_queries
from storage import reviews as review_queries
from storage.attempts import EndRow
from storage.claims import PairRow
from storage.copies import GroupRow
from storage.devices import DeviceRow
from storage.errors import StoreError
from storage.job_specs import SpecRow
from storage.jobs import JobRow, OpenJobRow, OwnJobRow
from storage.ledger import HoldRow
from storage.reviews import ReviewRow
from storage.store import Transaction

TITLE_MAX_CHARACTERS = 200
TEXT_MAX_CHARACTERS = 20_000
DURATION_MAX_HOURS = 8_760
PRICE_MAX = 1_000_000 * MICRO
# Owners of devices, not devices or attempts: anybody may register as many devices as they like. Nor
# do accounts cost anything, so the word of those counts whose devices were seen to work.
PROVEN_OWNERS_MAX = 3
# Proven or not: else a job that nobody can do would wait, and cost transactions, for long.
OWNERS_MAX = 10
# However many refuse it: each of them costs a transaction, and a line that its buyer is shown.
ATTEMPTS_MAX = 100
TAKE_BACK_MAX_JOBS = 100
EXPIRE_MAX_JOBS = 100
# Adding up what a user has takes the writer milliseconds, whether there is room or not.
REFUSALS_MAX = 60
REFUSALS_SECONDS = 60
FULL = frozenset((Code.TOO_MANY_JOBS, Code.TOO_MANY_FREE_JOBS, Code.TOO_MUCH_JOB_TEXT))
# What the rows of a job, its hold and their transfers take beside its texts, and their indexes.
JOB_BYTES = 1_024
HOUR_SECONDS = 3_600
DAY_SECONDS = 86_400
NOTHING_SAID = Ending()
UNWANTED = "No worker took the job in time."
UNNEEDED = "The other copies agree already."
# Devices of others have a service first that has ended: for so long, and twice as long each time,
# so that one which always ends at once takes little of anybody's time.
AGAIN_SECONDS = 10
AGAIN_DOUBLED_MAX = 5
AGAIN_SECONDS_MAX = 300
ENDED_EARLY = "the service ended by itself before its time"
REVOKED = "the token of the device was revoked"

Outcomes = TypeVar("Outcomes")

_logger = logging.getLogger("jobs")


class JobTerms(Struct, frozen=True):
    """What the operator decides about jobs.

    Attributes:
        fee: the house's part of a payment, in ten-thousandths.
        waiting_seconds: how long a job waits for a worker.
        leases: how long attempts may be silent.
        review_hours: how long the buyer of a job with a payload may look at its result before the
            worker is paid; 0 pays at once.
    """

    fee: int
    waiting_seconds: int
    leases: Leases = Leases()
    review_hours: int = 24


class AttemptLogs(Protocol):
    """Keeps the logs of attempts."""

    async def stored(self, job_id: str, attempt: int) -> Mapping[str, int]:
        """Return how many bytes of each stream have arrived; a stream without any may be left out.

        Raises:
            StoreError: it cannot be said now.
        """

    def changed(self, job_id: str) -> None:
        """Hear that an attempt at a job began or ended; it is committed. It raises nothing."""


class NewJob(Struct, frozen=True):
    """What a buyer wants done: `price` in micro-credits, `duration_hrs` as estimated.

    `spec` is what it runs and needs, as it was understood; None for a job that says so in words.
    """

    title: str
    job_type: str
    price: int
    duration_hrs: int
    description: str
    requirements: str
    spec: Spec | None = None


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


class Owned(Struct, frozen=True):
    """A job as its buyer sees it, and what it has cost, in its currency, once it is over.

    `review` is there once it is completed, if its buyer may look at the result, or might; of a
    replica that is paid by time, once an attempt was paid, and it is the last one that is open.
    `group` is there if it is one of several copies.
    """

    job: JobRow
    paid: int | None
    spec: Spec | None = None
    review: ReviewRow | None = None
    group: copies.Group | None = None


class Work(Struct, frozen=True):
    """A job for the device that runs it; of a replica, what its deploy says is to run.

    `spec` has the job's secrets.
    """

    job: JobRow
    image: str | None = None
    command: str | None = None
    spec: Spec | None = None


class Open(Struct, frozen=True):
    """An open job as a worker sees it who may accept it; one of several copies has a `group`."""

    job: JobRow
    spec: Spec | None = None
    group: copies.Group | None = None


class Posting(Struct, frozen=True):
    """A new job as it is stored, the artifacts that it is given, and its hold's transfer."""

    row: JobRow
    spec: SpecRow | None
    artifact_ids: Sequence[str]
    transfer_id: str


class CopyGroup(Struct, frozen=True):
    """How new jobs are copies of each other, and for how long their buyer may look at results."""

    copying: Copying
    review_seconds: int


class Completion(Struct, frozen=True):
    """How a job is once a result was taken, and copies that need not be done any more."""

    status: JobStatus
    unneeded: Sequence[JobRow] = ()


class Moment(Struct, frozen=True):
    """What a change needs from outside its transaction: the time, and identifiers of transfers."""

    now: int
    resolution: TransferIds
    payout_id: str


class Jobs:
    """The marketplace of jobs.

    Args:
        context: the store, identifiers and the time.
        overdue: knows which attempts have ended without a word.
        terms: what the operator decides.
        bounds: how much one user or device may have open at once; may be replaced.
        specs: stores what jobs run.
        waking: passes on that jobs wait, and that devices have something to hear.
    """

    def __init__(
        self,
        context: Context,
        overdue: Overdue,
        terms: JobTerms,
        bounds: Bounds,
        specs: Specs,
        waking: Waking,
    ) -> None:
        self.bounds = bounds
        # Whoever keeps logs puts itself here.
        self.logs: AttemptLogs | None = None
        # And whoever replaces replicas; it neither waits nor raises.
        self.on_change: Callable[[str], None] | None = None
        # How many attempts ended here, by outcome.
        self.ends = dict.fromkeys(("completed", "failed", "lost", "cancelled"), 0)
        self._specs = specs
        self._waking = waking
        self._terms = terms
        self._store = context.store
        self._overdue = overdue
        self._identifiers = context.identifiers
        self._now = context.now
        self._refusals = Throttle(REFUSALS_MAX, REFUSALS_SECONDS, context.now)
        self._expiring = Sweep("job %s cannot be cancelled", _logger)

    @property
    def lease_seconds(self) -> int:
        """For how long a device may be silent about an attempt at a job with a payload."""
        return self._terms.leases.lease_seconds

    async def create(self, user_id: str, new: NewJob, receipt: Receipt[str] | None = None) -> str:
        """Put a job up, hold its price, and return its identifier.

        Raises:
            MarketError: `invalid_field`, `insufficient_funds`, `too_many_jobs`,
                `too_many_free_jobs`, `too_much_job_text`, `too_many_attempts`,
                `idempotency_key_reused`.
            Replayed: this was answered before.
        """
        job = self._posting(user_id, new)
        await self._put_up(user_id, new.price, [job], None, _keeping(receipt, job.row.id))
        return job.row.id

    async def create_copies(
        self,
        user_id: str,
        new: NewJob,
        copying: Copying,
        receipt: Receipt[list[str]] | None = None,
    ) -> list[str]:
        """Put the same work up several times, for devices of different owners, and compare.

        The price of each is held. Returns the identifiers; the first one names them all.

        Raises:
            MarketError, Replayed: as `create`.
        """
        posted = [self._posting(user_id, new) for _ in range(copying.copies)]
        job_ids = [each.row.id for each in posted]
        seconds = self._review_seconds(None if new.spec is None else new.spec.review_hours)
        group = CopyGroup(copying, seconds)
        price = new.price * copying.copies
        await self._put_up(user_id, price, posted, group, _keeping(receipt, job_ids))
        return job_ids

    def _posting(self, user_id: str, new: NewJob) -> Posting:
        """Return what is stored of a new job.

        Raises:
            MarketError: `invalid_field`.
        """
        _check(new)
        job = waiting(new, job_id=self._identifiers.new(), user_id=user_id, now=self._now())
        row = None if new.spec is None else self._specs.row(job.id, new.spec)
        if row is not None:
            job = job._replace(text_bytes=job.text_bytes + size_of(row))
        artifact_ids = [] if new.spec is None else new.spec.artifact_ids
        return Posting(job, row, artifact_ids, self._identifiers.new())

    def _review_seconds(self, hours: int | None) -> int:
        """Return how long a buyer may look at a result, who has said so, or has not."""
        return (self._terms.review_hours if hours is None else hours) * HOUR_SECONDS

    async def _put_up(
        self,
        user_id: str,
        price: int,
        posted: Sequence[Posting],
        group: CopyGroup | None,
        keep: Callable[[Transaction], Awaitable[None]] | None,
    ) -> None:
        """Put jobs up in one unit of work, which `keep` begins."""
        try:
            with self.counting_refusals(user_id):
                await self._store.write(_create, posted, self.bounds, group, keep)
        except MarketError as error:
            if error.code is not Code.INSUFFICIENT_FUNDS:
                raise
            message = f"The price of {as_decimal(price)} credits is more than is available."
            raise MarketError(error.code, message, field="price_credit") from error
        for each in posted:
            if each.spec is not None and each.spec.payload is not None:
                self._waking.job(each.row.id)

    @contextmanager
    def counting_refusals(self, user_id: str) -> Iterator[None]:
        """Count refusals of a user who has too many jobs: adding up what they have is dear.

        Raises:
            MarketError: `too_many_attempts`, on entry.
        """
        self._refusals.check(user_id)
        try:
            yield
        except MarketError as error:
            if error.code in FULL:
                self._refusals.count(user_id)
            raise

    async def page_open(
        self, *, status: JobStatus | None, job_type: str, before: str, limit: int
    ) -> list[OpenJobRow]:
        """Return waiting and running jobs of everybody, newest first; "" filters nothing."""
        return await self._store.read(
            queries.page_open, status=status or "", job_type=job_type, before=before, limit=limit
        )

    async def page_of_user(
        self, user_id: str, *, status: JobStatus | None, before: str, limit: int
    ) -> list[OwnJobRow]:
        """Return a buyer's jobs, newest first."""
        return await self._store.read(
            queries.page_of_user, user_id=user_id, status=status or "", before=before, limit=limit
        )

    async def find(self, user_id: str, job_id: str) -> Owned:
        """Return one of a buyer's jobs.

        Raises:
            MarketError: `job_not_found`, when there is none or it is another user's.
        """
        return await self._store.read(self._find, user_id, job_id)

    async def find_open(self, job_id: str) -> Open:
        """Return any user's waiting or running job, whole, for a worker who may accept it.

        Raises:
            MarketError: `job_not_found`, when there is none, or it is over.
        """
        return await self._store.read(self._find_open, job_id)

    async def cancel(self, user_id: str, job_id: str) -> None:
        """Cancel one of a buyer's jobs.

        A running one pays for the share of its estimated hours that has passed since its worker
        began; one that no worker has begun pays nothing. Cancelling what is cancelled changes
        nothing. With one of several copies all are cancelled that are not over.

        Raises:
            MarketError: `job_not_found`, `job_over`.
        """
        for job in await self._store.write(self._cancel, user_id, job_id):
            self.stopped(job)

    def stopped(self, job: JobRow) -> None:
        """Tell whoever waits for it that a job was cancelled, once that is committed.

        Args:
            job: as it was before.
        """
        self._waking.gone([job.id])
        if job.device_id is not None:
            self._waking.device(job.device_id)
            self._ended(job.id, "cancelled")

    async def cancel_all(self, user_id: str, job_ids: Sequence[str]) -> None:
        """Cancel those of a buyer's jobs that are not over; raises as `cancel`."""
        for job_id in job_ids:
            try:
                await self.cancel(user_id, job_id)
            except MarketError as error:
                if error.code is not Code.JOB_OVER:
                    raise

    async def accept(self, device: DeviceRow, job_id: str, network: str = "") -> JobRow:
        """Let a device run a waiting job; doing it again while it runs there changes nothing.

        Args:
            device: which accepts it.
            job_id: the job.
            network: where the device is (`market.networks.site`).

        Raises:
            MarketError: `job_not_found`, `job_not_waiting`, `job_failed_here`, `device_full`,
                `reputation_too_low`; `copy_taken_here`, when it is one of several copies, and the
                device's owner or network has another one, or has put it up; `worker_unauthorized`,
                when the device was revoked meanwhile.
        """
        job, others = await self._store.write(
            _accept, device, job_id, network, bounds=self.bounds, now=self._now()
        )
        self._waking.gone([job_id])
        for other in others:  # who may have these is another matter now
            self._waking.job(other)
        self._changed(job_id)
        return job

    async def work(self, device: DeviceRow, job_id: str) -> Work:
        """Return a job for the device that runs it.

        Raises:
            MarketError: `job_not_found`, `attempt_not_current`; `payload_invalid`, when the job's
                secrets cannot be read any more.
        """
        return await self._store.read(self._work, device.id, job_id)

    async def page_of_device(
        self, device: DeviceRow, *, before: str, limit: int
    ) -> list[OwnJobRow]:
        """Return the jobs that a device runs, newest first."""
        return await self._store.read(
            queries.page_of_device, device_id=device.id, before=before, limit=limit
        )

    async def complete(
        self,
        device: DeviceRow,
        job_id: str,
        result: str,
        *,
        attempt: int | None = None,
        ending: Ending = NOTHING_SAID,
    ) -> None:
        """Take a result and pay the device's owner; reporting it again changes nothing.

        Args:
            device: which reports.
            job_id: what it has done.
            result: what came of it.
            attempt: in which attempt; None for the one that runs.
            ending: what else the device says of it.

        Raises:
            MarketError: `job_not_found`, `attempt_not_current`, `log_incomplete`; `invalid_field`,
                when the job has a payload, and what it ran has failed.
        """
        is_logged = await self._has_log(job_id, attempt, ending.log_bytes)
        done = await self._store.write(
            self._complete, self.moment(), device, job_id, attempt, result, ending, is_logged
        )
        if done is None:
            return
        if done.status == JobStatus.WAITING:
            self._waking.job(job_id)
        self._ended(job_id, "completed" if done.status == JobStatus.COMPLETED else "failed")
        for job in done.unneeded:
            self.stopped(job)

    async def _has_log(
        self, job_id: str, attempt: int | None, announced: Mapping[str, int] | None
    ) -> bool:
        """Say whether as much of the log of an attempt has arrived as its device announces."""
        if not announced or self.logs is None:
            return True
        if attempt is None:
            message = "attempt must say which log it is."
            raise MarketError(Code.INVALID_FIELD, message, field="attempt")
        stored = await self.logs.stored(job_id, attempt)
        return all(stored.get(stream, 0) >= size for stream, size in announced.items())

    async def fail(
        self,
        device: DeviceRow,
        job_id: str,
        reason: str,
        *,
        attempt: int | None = None,
        ending: Ending = NOTHING_SAID,
    ) -> None:
        """Take a job back that a device could not do; its owner's others do not get it either.

        If the device says that it was its own fault, its owner has another chance. A job that its
        buyer wants run once has failed when what it ran did.

        Raises:
            MarketError: `job_not_found`, `attempt_not_current`.
        """
        is_waiting = await self._store.write(
            self._fail, self.moment(), device, job_id, attempt, reason, ending
        )
        if is_waiting:
            self._waking.job(job_id)
        self._ended(job_id, _outcome(ending))

    async def take_back(self) -> int:
        """Take jobs back from devices that say nothing, or take too long; return how many.

        To be called again and again.

        Raises:
            StoreError: devices may not have been heard either.
        """
        taken = 0
        for each in await self._overdue.find():
            try:
                taken += await self._end(each)
            except StoreError as error:
                _logger.warning("job %s could not be taken back: %s", each.job_id, error)
            except Exception:  # it holds up no other
                _logger.exception("job %s cannot be taken back", each.job_id)
        return taken

    async def take_back_attempt(self, job_id: str, attempt: int, reason: str) -> bool:
        """Take a job back from the device that has it in this attempt; False when none has."""
        return await self._end(Ended(job_id, attempt, reason))

    async def _end(self, ended: Ended) -> bool:
        job = await self._store.write(self._take_back, self.moment(), ended)
        if job is None:
            return False
        if job.device_id is not None:
            self._waking.device(job.device_id)
        # It may have failed for good instead: whoever looks finds that it does not wait.
        self._waking.job(job.id)
        self._ended(job.id, "failed" if ended.is_timeout else "lost")
        return True

    def _ended(self, job_id: str, outcome: str) -> None:
        self.ends[outcome] += 1
        self._changed(job_id)

    def _changed(self, job_id: str) -> None:
        """Tell who keeps logs, and who replaces replicas, that an attempt began or ended."""
        if self.logs is not None:
            self.logs.changed(job_id)
        self.changed(job_id)

    def changed(self, job_id: str) -> None:
        """Tell who replaces replicas that an attempt began, was ready, or ended."""
        if self.on_change is not None:
            self.on_change(job_id)

    async def expire(self) -> int:
        """Cancel jobs that have waited for a worker for too long; return how many.

        A job that cannot be cancelled is logged, and tried again after a while: it delays no other.

        Raises:
            UnavailableError: the store did not answer; the others wait for it.
        """
        now = self._now()
        before, untaken = now - self._terms.waiting_seconds, now - copies.UNTAKEN_SECONDS

        async def find(limit: int) -> list[str]:
            due = await self._store.read(queries.due_to_expire, created_before=before, limit=limit)
            late = await self._store.read(
                copy_queries.due_to_expire, result_before=untaken, limit=limit
            )
            return list(dict.fromkeys((*due, *late)))[:limit]

        async def cancel(job_id: str) -> None:
            await self._store.write(self._expire, self.moment(), job_id)
            self._waking.gone([job_id])

        return await self._expiring.run(find, cancel, most=EXPIRE_MAX_JOBS, now=now)

    async def take_back_from(self, device_id: str) -> None:
        """Take every job back from a device whose token was revoked, and answer it at once."""
        self._waking.device(device_id)
        while True:
            jobs = await self._store.read(queries.held_by, device_id, limit=TAKE_BACK_MAX_JOBS)
            if not jobs:
                return
            for job in jobs:
                await self.take_back_attempt(job.id, job.attempts, REVOKED)

    async def earned_today(self, user_id: str) -> dict[str, int]:
        """Return what each device of a user earned since 00:00 UTC, in micro-credits."""
        now = self._now()
        rows = await self._store.read(
            queries.earned_since, user_id=user_id, since=now - now % DAY_SECONDS
        )
        return {row.device_id: row.earned for row in rows}

    async def _find(self, tx: Transaction, user_id: str, job_id: str) -> Owned:
        job = await queries.find(tx, job_id)
        if job is None or job.user_id != user_id:
            raise MarketError(Code.JOB_NOT_FOUND)
        hold = await ledger_queries.find_hold(tx, hold_of(job_id))
        spec = await self._specs.find(tx, job_id)
        rows = await review_queries.of_job(tx, job_id)
        paid = hold.captured if hold is not None else None
        if paid is not None:
            paid -= sum(row.price for row in rows if row.state == ReviewStatus.REVERSED)
        group = await copies.find(tx, job_id)
        return Owned(job, paid, spec, reviews.most_urgent(rows), group)

    async def _find_open(self, tx: Transaction, job_id: str) -> Open:
        job = await queries.find(tx, job_id)
        if job is None or job.status not in (JobStatus.WAITING, JobStatus.RUNNING):
            raise MarketError(Code.JOB_NOT_FOUND)
        spec = await self._specs.find(tx, job_id)
        return Open(job, spec, await copies.find(tx, job_id))

    async def _work(self, tx: Transaction, device_id: str, job_id: str) -> Work:
        job = await require_current(tx, device_id, job_id, None)
        spec = await self._specs.work_of(tx, job_id)
        if job.deploy_id is None:
            return Work(job, spec=spec)
        if spec is not None and spec.payload is not None:
            image, command = spec.payload.image, shlex.join(spec.payload.command)
            return Work(job, image or None, command or None, spec)
        deploy = await deploy_queries.find(tx, job.deploy_id)
        return Work(job, deploy.image, deploy.command) if deploy is not None else Work(job)

    async def _cancel(self, tx: Transaction, user_id: str, job_id: str) -> list[JobRow]:
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

    async def stop(
        self, tx: Transaction, job: JobRow, moment: Moment, group: GroupRow | None = None
    ) -> None:
        """Cancel an open job, which is locked, with its `group`; what was done of it is paid."""
        device_id = job.device_id
        worker = None if device_id is None else await device_queries.owner_of(tx, device_id)
        began, _, _ = await attempt_queries.begun(tx, job.id, job.attempts)
        spec = await attempt_queries.spec(tx, job.id)
        gross = _share(job, began, moment.now, spec) if worker is not None else 0
        outcome = Outcome(JobStatus.CANCELLED, gross)
        await self._leave(tx, moment, job, outcome, worker, group=group)

    async def _complete(
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
        is_done = job is not None and job.status == JobStatus.COMPLETED
        if job is not None and is_done and job.device_id == device.id and is_of(job, attempt):
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
        outcome = Outcome(JobStatus.COMPLETED, job.price_credit, result, ending=ending)
        seconds = 0 if spec is None else self._review_seconds(spec.review_hours)
        if group is not None:
            seconds = copies.review_seconds(job, group)
            await copies.lock_reputations(tx, group)
        else:
            await trust.lock(tx, device.id)
        unneeded = await self._leave(
            tx, moment, job, outcome, device.user_id, review_seconds=seconds, group=group
        )
        return Completion(JobStatus.COMPLETED, unneeded)

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
        began, _, _ = await attempt_queries.begun(tx, job.id, job.attempts)
        gross = 0 if spec is None else _share(job, began, moment.now, spec)
        if spec is None or not gross:
            await self._leave(tx, moment, job, outcome, None, group=group)
            return
        paid = replace(outcome, gross=gross)
        seconds = self._review_seconds(spec.review_hours)
        if group is not None:
            seconds = copies.review_seconds(job, group)
        await self._leave(tx, moment, job, paid, worker, review_seconds=seconds, group=group)

    async def _fail(
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

    async def _take_back(self, tx: Transaction, moment: Moment, ended: Ended) -> JobRow | None:
        """Take a job back and return it as it was; None when it is not in that attempt any more."""
        group = await copies.lock(tx, ended.job_id)
        job = await queries.find(tx, ended.job_id)
        if job is None or job.status != JobStatus.RUNNING or job.attempts != ended.attempt:
            return None
        ending = Ending(FailureKind.TIMEOUT) if ended.is_timeout else Ending()
        is_lost = not ended.is_timeout
        await self._retry(tx, moment, job, ended.reason, ending, is_lost=is_lost, group=group)
        return job

    async def _expire(self, tx: Transaction, moment: Moment, job_id: str) -> None:
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
        once; a copy also when enough others have agreed. `worker` is who owns the device, if that
        says itself how the attempt ended.
        """
        attempt = "lost" if is_lost else _outcome(ending)
        if job.device_id is not None:
            await trust.lock(tx, job.device_id)
        drawn = await self._draw(tx, moment, job, is_lost=is_lost)
        if drawn is not None and _is_used_up(drawn, ending):
            done = Outcome(JobStatus.COMPLETED, result=reason, attempt=attempt, ending=ending)
            await self._leave(tx, moment, job, done, None, drawn=drawn)
            return False
        over = await _has_failed(tx, job, ending)
        over = over or (group is not None and group.state != CopiesStatus.OPEN)
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
        return not over

    async def _draw(
        self, tx: Transaction, moment: Moment, job: JobRow, *, is_lost: bool = False
    ) -> Drawn | None:
        """Record what an attempt at a replica is paid that ends now; None for a job that is none.

        To be followed by `_pay_drawn`.
        """
        return await draw(tx, job, self._drawing(moment), is_lost=is_lost)

    async def _pay_drawn(self, tx: Transaction, moment: Moment, job: JobRow, drawn: Drawn) -> None:
        if drawn.due is not None:
            await pay(tx, job, drawn.due, hold_of(job.id), self._drawing(moment))

    def _drawing(self, moment: Moment) -> Drawing:
        review_seconds = self._terms.review_hours * HOUR_SECONDS
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
            least = self.bounds.free_below
            compared = await copies.compare(tx, group.id, least_price=least, now=moment.now)
            await copies.lock_accounts(tx, group, job.user_id)
        await self._settle(tx, moment, job, outcome, worker, earned, review_seconds)
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

    async def _settle(
        self,
        tx: Transaction,
        moment: Moment,
        job: JobRow,
        outcome: Outcome,
        worker: str | None,
        earned: int,
        review_seconds: int,
    ) -> None:
        """Pay what a job that has ended is worth, or let its buyer look at the result first."""
        if worker is not None and review_seconds:
            how = reviews.Beginning(
                worker=worker,
                price=_held_part(job, outcome.gross),
                earned=earned,
                seconds=review_seconds,
                resolution=moment.resolution,
                hold_id=moment.payout_id,
                now=moment.now,
            )
            await reviews.begin(tx, job, hold_of(job.id), how)
            return
        house, fee = ledger.revenue(Currency(job.currency)), outcome.gross - earned
        if worker is None:
            payments = []
        elif job.currency == Currency.CREDIT:
            payments = [(ledger.available(worker, Currency.CREDIT), earned), (house, fee)]
        else:
            payments = [(house, _held_part(job, outcome.gross))]
            await _pay_out(tx, moment, job, worker, earned)
        await ledger.capture(
            tx, hold_of(job.id), payments, transfer_ids=moment.resolution, now=moment.now
        )

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
                again_at=again_at,
            ),
            earned=earned,
            result=outcome.result,
            failure_reason=outcome.failure_reason,
            now=now,
        )
        if not moved:
            raise MarketError(Code.ATTEMPT_NOT_CURRENT)
        how = outcome.attempt or outcome.status
        if outcome.status is JobStatus.COMPLETED:  # also a replica that has served all its time
            how = outcome.status
        await trust.ended(tx, job, how, ending.kind, least_price=self.bounds.free_below, now=now)

    def moment(self) -> Moment:
        """Return what a change needs that is made now."""
        new = self._identifiers.new
        return Moment(self._now(), TransferIds(new(), new()), new())


def _share(job: JobRow, began: int | None, now: int, spec: attempt_queries.SpecRow | None) -> int:
    """Return what the part of a job's estimated time is worth that has passed since work began.

    No more than the job may take: its device may tell later that this was over, or be late with all
    that it tells because the service was away.
    """
    if began is None:
        return 0
    ran = max(now - began, 0)
    if spec is not None and spec.timeout_seconds:
        ran = min(ran, spec.timeout_seconds)
    return min(job.price_credit * ran // (job.duration_hrs * HOUR_SECONDS), job.price_credit)


def _held_part(job: JobRow, gross: int) -> int:
    """Return the part of what a buyer holds, in its currency, that is worth so many credits."""
    if job.currency == Currency.CREDIT and gross < job.price_credit:
        return gross
    return job.price_held * gross // job.price_credit if job.price_credit else job.price_held


def _is_used_up(drawn: Drawn, ending: Ending) -> bool:
    """Say whether a replica has had all its time: a service ends then, and that is no failure.

    One that became ready late has worked for all of it and was paid for less.
    """
    has_worked = drawn.worked >= drawn.had - GRACE_SECONDS
    return drawn.left < SECONDS_MIN or (ending.kind is FailureKind.TIMEOUT and has_worked)


def _outcome(ending: Ending) -> str:
    """Return how an attempt ended that its device could not complete."""
    return "lost" if ending.kind in HOST_KINDS else "failed"


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


async def _pay_out(tx: Transaction, moment: Moment, job: JobRow, worker: str, earned: int) -> None:
    """Pay a worker in credits for what the buyer holds in another currency."""
    payout = Movement(
        ledger.revenue(Currency.CREDIT), ledger.available(worker, Currency.CREDIT), earned
    )
    currency = Currency(job.currency)
    buyer = ledger.available(job.user_id, currency)
    held = Movement(ledger.held(job.user_id, currency), buyer, job.price_held)
    captured = Movement(buyer, ledger.revenue(currency), job.price_held)
    await ledger.lock(tx, (payout, held, captured))
    reference, kind = hold_of(job.id), TransferKind.PAYOUT
    key = f"{reference}:{kind}"
    transfer = Transfer(
        moment.payout_id, key, kind, reference, Currency.CREDIT, (payout,), moment.now
    )
    await ledger.post(tx, transfer)


def hold_of(job_id: str) -> str:
    """Return the hold that pays for a job."""
    return f"job:{job_id}"


def _check(new: NewJob) -> None:
    for field, text, least, most in (
        ("title", new.title, 1, TITLE_MAX_CHARACTERS),
        ("description", new.description, 0, TEXT_MAX_CHARACTERS),
        ("requirements", new.requirements, 0, TEXT_MAX_CHARACTERS),
    ):
        if not least <= len(text) <= most:
            message = f"{field} must have {least} to {most} characters."
            raise MarketError(Code.INVALID_FIELD, message, field=field)
    if not 1 <= new.duration_hrs <= DURATION_MAX_HOURS:
        message = f"duration_hrs must be from 1 to {DURATION_MAX_HOURS}."
        raise MarketError(Code.INVALID_FIELD, message, field="duration_hrs")
    if new.price > PRICE_MAX:
        message = f"price_credit must be at most {PRICE_MAX // MICRO}."
        raise MarketError(Code.INVALID_FIELD, message, field="price_credit")


def waiting(
    new: NewJob,
    *,
    job_id: str,
    user_id: str,
    now: int,
    deploy_id: str | None = None,
    currency: Currency = Currency.CREDIT,
    price_held: int | None = None,
) -> JobRow:
    """Return a new job's row; by default its price is held in credits."""
    return JobRow(
        id=job_id,
        user_id=user_id,
        title=new.title,
        job_type=new.job_type,
        price_credit=new.price,
        duration_hrs=new.duration_hrs,
        description=new.description,
        requirements=new.requirements,
        status=JobStatus.WAITING,
        attempts=0,
        device_id=None,
        created_at=now,
        accepted_at=None,
        finished_at=None,
        earned=0,
        result=None,
        deploy_id=deploy_id,
        currency=currency,
        price_held=new.price if price_held is None else price_held,
        failure_reason=None,
        text_bytes=sum(
            len(text.encode()) for text in (new.title, new.description, new.requirements)
        ),
    )


def _keeping(
    receipt: Receipt[Outcomes] | None, outcome: Outcomes
) -> Callable[[Transaction], Awaitable[None]] | None:
    """Return what keeps the reply to a request that came with a key."""
    return None if receipt is None else lambda tx: receipt.keep(tx, outcome)


async def _create(
    tx: Transaction,
    posted: Sequence[Posting],
    bounds: Bounds,
    group: CopyGroup | None,
    keep: Callable[[Transaction], Awaitable[None]] | None,
) -> None:
    if keep is not None:
        await keep(tx)
    await put_up(tx, [(each.row, each.transfer_id) for each in posted], bounds)
    for each in posted:
        if each.spec is not None:
            await spec_queries.insert(tx, each.spec)
            await require_inputs(tx, each.row.user_id, each.row.id, each.artifact_ids)
    if group is not None:
        job_ids = [each.row.id for each in posted]
        await copies.begin(tx, group.copying, job_ids, group.review_seconds)


async def put_up(tx: Transaction, jobs: Sequence[tuple[JobRow, str]], bounds: Bounds) -> None:
    """Add jobs of one user, each with the identifier of its transfer, and hold their prices.

    Raises:
        MarketError: `insufficient_funds`, `too_many_jobs`, `too_many_free_jobs`,
            `too_much_job_text`.
    """
    user_id, now = jobs[0][0].user_id, jobs[0][0].created_at
    await lock_user(tx, user_id)
    for job, transfer_id in jobs:
        hold = HoldRow(hold_of(job.id), job.user_id, job.currency, job.price_held, None)
        await ledger.hold(tx, hold, transfer_id=transfer_id, now=now)
        await queries.insert(tx, job)
    if not (bounds.jobs or bounds.free_jobs or bounds.job_bytes):
        return
    work = await queries.open_work(
        tx, user_id, free_below=bounds.free_below, job_bytes=JOB_BYTES, since=now - DAY_SECONDS
    )
    require(work.jobs, bounds.jobs, Code.TOO_MANY_JOBS)
    if any(job.price_credit < bounds.free_below for job, _ in jobs):
        require(work.free_jobs, bounds.free_jobs, Code.TOO_MANY_FREE_JOBS, field="price_credit")
    require(work.size_bytes, bounds.job_bytes, Code.TOO_MUCH_JOB_TEXT)


async def _require_able(tx: Transaction, device_id: str, job_id: str, bounds: Bounds) -> None:
    """Check that a device may hold one more job, and is trusted enough for this one.

    Raises:
        MarketError: `device_full`, `reputation_too_low`.
    """
    left = await slots_left(tx, device_id, bounds)
    if left is not None and left < 0:
        raise MarketError(Code.DEVICE_FULL)
    least = await spec_queries.min_reputation(tx, job_id)
    if least:
        reputation = (await trust.of_devices(tx, [device_id]))[device_id]
        if reputation.score < least:
            raise MarketError(Code.REPUTATION_TOO_LOW)


async def _accept(
    tx: Transaction, device: DeviceRow, job_id: str, network: str, *, bounds: Bounds, now: int
) -> tuple[JobRow, Sequence[str]]:
    """Start a job on a device; return it, and its other copies that wait."""
    device_id = device.id
    # The token may be revoked while this request is under way. Revoking takes the device's jobs
    # back and must not miss one that begins, so both lock the device.
    await device_queries.lock(tx, device_id)
    if await device_queries.is_revoked(tx, device_id):
        raise MarketError(Code.WORKER_UNAUTHORIZED)
    pair = PairRow(job_id, device_id, 0, group_id=job_id, network=network)
    members = await copies.lock_members(tx, job_id)
    is_permitted = bool(await copies.independent(tx, [pair], members))
    started = None
    if is_permitted:
        started = await queries.start(tx, job_id=job_id, device_id=device_id, now=now)
    if started is not None:
        await _require_able(tx, device_id, job_id, bounds)
        if members:
            await copies.note_networks(tx, [pair], [job_id])
        return started, [member.job_id for member in members if member.job_id != job_id]
    job = await queries.find(tx, job_id)
    if job is None:
        raise MarketError(Code.JOB_NOT_FOUND)
    if job.status == JobStatus.RUNNING and job.device_id == device_id:
        return job, ()
    if job.status == JobStatus.WAITING and not is_permitted:
        raise MarketError(Code.COPY_TAKEN_HERE)
    excluded = await queries.has_no_chance(tx, job_id=job_id, device_id=device_id, now=now)
    if job.status == JobStatus.WAITING and excluded:
        raise MarketError(Code.JOB_FAILED_HERE)
    raise MarketError(Code.JOB_NOT_WAITING)
