"""Jobs: put up by a buyer, run by a worker's device, paid when they are done.

A job's price is held when it is put up. Each change is one guarded update of the state it was read
in, in one transaction with the money it moves, so that of a thousand who accept a job one wins, and
no late report is paid.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from market import ledger
from market.attempts import is_of, require_current, slots_left
from market.bounds import Bounds, lock_user, require
from market.context import Context
from market.devices import ONLINE_SECONDS, Devices
from market.errors import Code, MarketError
from market.idempotency import Receipt
from market.ledger import Movement, Transfer, TransferIds, TransferKind
from market.money import MICRO, Currency, as_decimal
from market.specs import Spec, Specs, size_of
from market.states import JobStatus
from market.sweeping import Sweep
from market.throttle import Throttle
from market.waking import Waking
from storage import deploys as deploy_queries
from storage import devices as device_queries
from storage import job_specs as spec_queries
from storage import jobs as queries
from storage import ledger as ledger_queries
from storage.devices import DeviceRow
from storage.errors import StoreError
from storage.job_specs import SpecRow
from storage.jobs import JobRow, OpenJobRow, OwnJobRow, QuietRow
from storage.ledger import HoldRow
from storage.store import Transaction

TITLE_MAX_CHARACTERS = 200
TEXT_MAX_CHARACTERS = 20_000
DURATION_MAX_HOURS = 8_760
PRICE_MAX = 1_000_000 * MICRO
# Owners of devices, not devices or attempts: anybody may register as many devices as they like.
OWNERS_MAX = 3
SILENCE_SECONDS = 600
QUIET_SECONDS = ONLINE_SECONDS  # a device that is not online may have abandoned its job
QUIET_MAX_JOBS = 10_000
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
FEE_WHOLE = 10_000
VANISHED = "the device was not heard of any more"
UNWANTED = "No worker took the job in time."
REVOKED = "the token of the device was revoked"

_logger = logging.getLogger("jobs")


class JobTerms(Struct, frozen=True):
    """The house's `fee` of a payment, in ten-thousandths, and how long a job waits for a worker."""

    fee: int
    waiting_seconds: int


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
    that ran until now, where that is not how the job is left.
    """

    status: JobStatus
    gross: int = 0
    result: str | None = None
    failure_reason: str | None = None
    attempt: str = ""


class Owned(Struct, frozen=True):
    """A job as its buyer sees it, and what it has cost, in its currency, once it is over."""

    job: JobRow
    paid: int | None
    spec: Spec | None = None


class Work(Struct, frozen=True):
    """A job for the device that runs it; of a replica, what its deploy says is to run.

    `spec` has the job's secrets.
    """

    job: JobRow
    image: str | None = None
    command: str | None = None
    spec: Spec | None = None


class Open(Struct, frozen=True):
    """An open job as a worker sees it who may accept it."""

    job: JobRow
    spec: Spec | None = None


class Moment(Struct, frozen=True):
    """What a change needs from outside its transaction: the time, and identifiers of transfers."""

    now: int
    resolution: TransferIds
    payout_id: str


class Jobs:
    """The marketplace of jobs.

    Args:
        context: the store, identifiers and the time.
        devices: knows who is alive.
        observed_seconds: for how many seconds this daemon has been there to hear devices, by a
            clock that cannot be set.
        terms: the house's fee, and how long a job may wait.
        bounds: how much one user may have open at once; may be replaced.
        specs: stores what jobs run.
        waking: hears of jobs that wait.
    """

    def __init__(
        self,
        context: Context,
        devices: Devices,
        observed_seconds: Callable[[], float],
        terms: JobTerms,
        bounds: Bounds,
        specs: Specs,
        waking: Waking,
    ) -> None:
        self.bounds = bounds
        self._specs = specs
        self._waking = waking
        self._terms = terms
        self._store = context.store
        self._devices = devices
        self._identifiers = context.identifiers
        self._now = context.now
        self._observed_seconds = observed_seconds
        self._refusals = Throttle(REFUSALS_MAX, REFUSALS_SECONDS, context.now)
        # When, by `observed_seconds`, a running job's device was first seen to be quiet.
        self._quiet_since: dict[QuietRow, float] = {}
        self._expiring = Sweep("job %s cannot be cancelled", _logger)

    async def create(self, user_id: str, new: NewJob, receipt: Receipt[str] | None = None) -> str:
        """Put a job up, hold its price, and return its identifier.

        Raises:
            MarketError: `invalid_field`, `insufficient_funds`, `too_many_jobs`,
                `too_many_free_jobs`, `too_much_job_text`, `too_many_attempts`,
                `idempotency_key_reused`.
            Replayed: this was answered before.
        """
        _check(new)
        job = waiting(new, job_id=self._identifiers.new(), user_id=user_id, now=self._now())
        row = None if new.spec is None else self._specs.row(job.id, new.spec)
        if row is not None:
            job = job._replace(text_bytes=job.text_bytes + size_of(row))
        transfer_id = self._identifiers.new()
        try:
            with self.counting_refusals(user_id):
                await self._store.write(_create, job, row, transfer_id, self.bounds, receipt)
        except MarketError as error:
            if error.code is not Code.INSUFFICIENT_FUNDS:
                raise
            message = f"The price of {as_decimal(new.price)} credits is more than is available."
            raise MarketError(error.code, message, field="price_credit") from error
        if row is not None and row.payload is not None:
            self._waking.job(job.id)
        return job.id

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

        A running one pays for the share of its estimated hours that has run. Cancelling what is
        cancelled changes nothing.

        Raises:
            MarketError: `job_not_found`, `job_over`.
        """
        await self._store.write(self._cancel, self._moment(), user_id, job_id)

    async def cancel_all(self, user_id: str, job_ids: Sequence[str]) -> None:
        """Cancel those of a buyer's jobs that are not over; raises as `cancel`."""
        for job_id in job_ids:
            try:
                await self.cancel(user_id, job_id)
            except MarketError as error:
                if error.code is not Code.JOB_OVER:
                    raise

    async def accept(self, device: DeviceRow, job_id: str) -> JobRow:
        """Let a device run a waiting job; doing it again while it runs there changes nothing.

        Raises:
            MarketError: `job_not_found`, `job_not_waiting`, `job_failed_here`, `device_full`;
                `worker_unauthorized`, when the device was revoked meanwhile.
        """
        return await self._store.write(
            _accept, device.id, job_id, bounds=self.bounds, now=self._now()
        )

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
        self, device: DeviceRow, job_id: str, result: str, *, attempt: int | None = None
    ) -> None:
        """Take a result and pay the device's owner; reporting it again changes nothing.

        Args:
            device: which reports.
            job_id: what it has done.
            result: what came of it.
            attempt: in which attempt; None for the one that runs.

        Raises:
            MarketError: `job_not_found`, `attempt_not_current`.
        """
        await self._store.write(self._complete, self._moment(), device, job_id, attempt, result)

    async def fail(
        self, device: DeviceRow, job_id: str, reason: str, *, attempt: int | None = None
    ) -> None:
        """Take a job back that a device could not do; its owner's others do not get it either.

        Raises:
            MarketError: `job_not_found`, `attempt_not_current`.
        """
        await self._store.write(self._fail, self._moment(), device, job_id, attempt, reason)

    async def take_back(self) -> int:
        """Take jobs back from devices that were silent for too long; return how many.

        To be called again and again. The wall clock may jump, and differs between daemons; it only
        selects candidates. A device is silent when its last report in the store has not changed
        for `SILENCE_SECONDS` of observed time.
        """
        await self._devices.flush()
        quiet = await self._store.read(
            queries.quiet, quiet_since=self._now() - QUIET_SECONDS, limit=QUIET_MAX_JOBS
        )
        observed = self._observed_seconds()
        self._quiet_since = {row: self._quiet_since.get(row, observed) for row in quiet}
        enough = observed - (SILENCE_SECONDS - QUIET_SECONDS)
        silent = [row for row, since in self._quiet_since.items() if since <= enough]
        retried = 0
        for row in silent[:TAKE_BACK_MAX_JOBS]:
            try:
                retried += await self._store.write(
                    self._take_back, self._moment(), row.job_id, row.attempt, VANISHED
                )
            except StoreError as error:
                _logger.warning("job %s could not be taken back: %s", row.job_id, error)
            except Exception:  # it holds up no other
                _logger.exception("job %s cannot be taken back", row.job_id)
        return retried

    async def expire(self) -> int:
        """Cancel jobs that have waited for a worker for too long; return how many.

        A job that cannot be cancelled is logged, and tried again after a while: it delays no other.

        Raises:
            UnavailableError: the store did not answer; the others wait for it.
        """
        now = self._now()
        before = now - self._terms.waiting_seconds

        async def find(limit: int) -> list[str]:
            return await self._store.read(queries.due_to_expire, created_before=before, limit=limit)

        async def cancel(job_id: str) -> None:
            await self._store.write(self._expire, self._moment(), job_id)

        return await self._expiring.run(find, cancel, most=EXPIRE_MAX_JOBS, now=now)

    async def take_back_from(self, device_id: str) -> None:
        """Take every job back from a device whose token was revoked."""
        while True:
            jobs = await self._store.read(queries.held_by, device_id, limit=TAKE_BACK_MAX_JOBS)
            if not jobs:
                return
            for job in jobs:
                await self._store.write(
                    self._take_back, self._moment(), job.id, job.attempts, REVOKED
                )

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
        return Owned(job, hold.captured if hold is not None else None, spec)

    async def _find_open(self, tx: Transaction, job_id: str) -> Open:
        job = await queries.find(tx, job_id)
        if job is None or job.status not in (JobStatus.WAITING, JobStatus.RUNNING):
            raise MarketError(Code.JOB_NOT_FOUND)
        return Open(job, await self._specs.find(tx, job_id))

    async def _work(self, tx: Transaction, device_id: str, job_id: str) -> Work:
        job = await require_current(tx, device_id, job_id, None)
        if job.deploy_id is None:
            return Work(job, spec=await self._specs.work_of(tx, job_id))
        deploy = await deploy_queries.find(tx, job.deploy_id)
        return Work(job, deploy.image, deploy.command) if deploy is not None else Work(job)

    async def _cancel(self, tx: Transaction, moment: Moment, user_id: str, job_id: str) -> None:
        await tx.lock("jobs", [job_id])
        job = await queries.find(tx, job_id)
        if job is None or job.user_id != user_id:
            raise MarketError(Code.JOB_NOT_FOUND)
        if job.status == JobStatus.CANCELLED:
            return
        if job.status not in (JobStatus.WAITING, JobStatus.RUNNING):
            raise MarketError(Code.JOB_OVER)
        device_id = job.device_id
        worker = None if device_id is None else await device_queries.owner_of(tx, device_id)
        gross = _share(job, moment.now) if worker is not None else 0
        await self._leave(tx, moment, job, Outcome(JobStatus.CANCELLED, gross), worker)

    async def _complete(
        self,
        tx: Transaction,
        moment: Moment,
        device: DeviceRow,
        job_id: str,
        attempt: int | None,
        result: str,
    ) -> None:
        await tx.lock("jobs", [job_id])
        job = await queries.find(tx, job_id)
        is_done = job is not None and job.status == JobStatus.COMPLETED
        if job is not None and is_done and job.device_id == device.id and is_of(job, attempt):
            return
        job = await require_current(tx, device.id, job_id, attempt)
        outcome = Outcome(JobStatus.COMPLETED, job.price_credit, result)
        await self._leave(tx, moment, job, outcome, device.user_id)

    async def _fail(
        self,
        tx: Transaction,
        moment: Moment,
        device: DeviceRow,
        job_id: str,
        attempt: int | None,
        reason: str,
    ) -> None:
        await tx.lock("jobs", [job_id])
        job = await require_current(tx, device.id, job_id, attempt)
        await self._retry(tx, moment, job, reason, "failed")

    async def _take_back(
        self, tx: Transaction, moment: Moment, job_id: str, attempt: int, reason: str
    ) -> bool:
        await tx.lock("jobs", [job_id])
        job = await queries.find(tx, job_id)
        if job is None or job.status != JobStatus.RUNNING or job.attempts != attempt:
            return False
        await self._retry(tx, moment, job, reason, "lost")
        return True

    async def _expire(self, tx: Transaction, moment: Moment, job_id: str) -> None:
        await tx.lock("jobs", [job_id])
        job = await queries.find(tx, job_id)
        if job is not None and job.status == JobStatus.WAITING:
            outcome = Outcome(JobStatus.CANCELLED, failure_reason=UNWANTED)
            await self._leave(tx, moment, job, outcome, None)

    async def _retry(
        self, tx: Transaction, moment: Moment, job: JobRow, reason: str, attempt: str
    ) -> None:
        """Put a running job up again; when so many owners' devices did not do it, it has failed."""
        over = await queries.count_unsuccessful(tx, job.id, job.attempts) >= OWNERS_MAX
        status = JobStatus.FAILED if over else JobStatus.WAITING
        outcome = Outcome(status, failure_reason=reason, attempt=attempt)
        if over:
            await self._leave(tx, moment, job, outcome, None)
        else:
            await _move(tx, job, outcome, 0, moment.now)

    async def _leave(
        self,
        tx: Transaction,
        moment: Moment,
        job: JobRow,
        outcome: Outcome,
        worker: str | None,
    ) -> None:
        """End a job and settle its hold: what the work was worth, and the rest.

        A worker is always paid in credits. Where the buyer holds another currency, the house takes
        that and pays the credits.
        """
        fee = outcome.gross * self._terms.fee // FEE_WHOLE
        earned = outcome.gross - fee if worker is not None else 0
        await _move(tx, job, outcome, earned, moment.now)
        await spec_queries.forget_secrets(tx, job.id)
        house = ledger.revenue(Currency(job.currency))
        if worker is None:
            payments = []
        elif job.currency == Currency.CREDIT:
            payments = [(ledger.available(worker, Currency.CREDIT), earned), (house, fee)]
        else:
            payments = [(house, job.price_held * outcome.gross // (job.price_credit or 1))]
            await _pay_out(tx, moment, job, worker, earned)
        await ledger.capture(
            tx, hold_of(job.id), payments, transfer_ids=moment.resolution, now=moment.now
        )

    def _moment(self) -> Moment:
        new = self._identifiers.new
        return Moment(self._now(), TransferIds(new(), new()), new())


def _share(job: JobRow, now: int) -> int:
    """Return what the part of a job's estimated time that has run is worth."""
    if job.accepted_at is None:
        return 0
    ran = max(now - job.accepted_at, 0)
    return min(job.price_credit * ran // (job.duration_hrs * HOUR_SECONDS), job.price_credit)


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


async def _create(
    tx: Transaction,
    job: JobRow,
    spec: SpecRow | None,
    transfer_id: str,
    bounds: Bounds,
    receipt: Receipt[str] | None,
) -> None:
    if receipt is not None:
        await receipt.keep(tx, job.id)
    await put_up(tx, [(job, transfer_id)], bounds)
    if spec is not None:
        await spec_queries.insert(tx, spec)


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


async def _accept(
    tx: Transaction, device_id: str, job_id: str, *, bounds: Bounds, now: int
) -> JobRow:
    # The token may be revoked while this request is under way. Revoking takes the device's jobs
    # back and must not miss one that begins, so both lock the device.
    await device_queries.lock(tx, device_id)
    if await device_queries.is_revoked(tx, device_id):
        raise MarketError(Code.WORKER_UNAUTHORIZED)
    started = await queries.start(tx, job_id=job_id, device_id=device_id, now=now)
    if started is not None:
        left = await slots_left(tx, device_id, bounds)
        if left is not None and left < 0:
            raise MarketError(Code.DEVICE_FULL)
        return started
    job = await queries.find(tx, job_id)
    if job is None:
        raise MarketError(Code.JOB_NOT_FOUND)
    if job.status == JobStatus.RUNNING and job.device_id == device_id:
        return job
    excluded = await queries.has_no_chance(tx, job_id=job_id, device_id=device_id)
    if job.status == JobStatus.WAITING and excluded:
        raise MarketError(Code.JOB_FAILED_HERE)
    raise MarketError(Code.JOB_NOT_WAITING)


async def _move(tx: Transaction, job: JobRow, outcome: Outcome, earned: int, now: int) -> None:
    JobStatus(job.status).require_before(outcome.status)
    moved = await queries.change_status(
        tx,
        job,
        after=outcome.status,
        attempt=outcome.attempt or outcome.status,
        earned=earned,
        result=outcome.result,
        failure_reason=outcome.failure_reason,
        now=now,
    )
    if not moved:
        raise MarketError(Code.ATTEMPT_NOT_CURRENT)
