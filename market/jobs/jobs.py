"""Jobs: posted by a buyer, run by a worker's device, paid when they are done.

A job's price is held when the job is posted, captured when the job is completed, and released when
the job has failed or is cancelled. Each change is one guarded update of the state in which the job
was read, so of a thousand devices that accept a job one wins. After the commit of a change its
listeners are notified: devices, readers of logs, and rollouts that replace replicas.
"""

import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
from msgspec import Struct

from market.accounts.bounds import Bounds, lock_and_keep
from market.accounts.funds import naming_funds
from market.accounts.spending import Spender, reporting_limits
from market.accounts.suspensions import require_devices
from market.attempts.attempts import Ending, require_current, slots_left
from market.base.errors import Code, MarketError
from market.base.states import JobStatus, ReviewStatus
from market.base.throttle import Throttle
from market.events.catalogue import JobAccepted
from market.events.context import Context
from market.events.idempotency import Receipt
from market.events.recording import record
from market.jobs import copies, offers, owner_slots, postings, reviews
from market.jobs.chances import attempt_outcome
from market.jobs.copies import Copying
from market.jobs.kinds.base import Report
from market.jobs.matching import Needs, Offer
from market.jobs.outcomes import JobNotices, Outcomes, Quote
from market.jobs.pay import hold_of
from market.jobs.postings import DAY_SECONDS, CopyGroup, NewJob, Order, Posting, waiting
from market.jobs.specs import UNREADABLE, Spec, Specs, size_of
from market.jobs.terms import JobTerms
from market.jobs.waiting_jobs import needs_of
from market.logs.logs import Logs
from market.trust import trust
from storage.deploys import deploys as deploy_queries
from storage.devices import devices as device_queries
from storage.devices.devices import DeviceRow
from storage.dispatch import claims as claim_queries
from storage.dispatch.claims import PairRow
from storage.engines.store import Transaction
from storage.jobs import job_specs as spec_queries
from storage.jobs import jobs as queries
from storage.jobs import reviews as review_queries
from storage.jobs.jobs import JobRow, OpenJobRow, OwnJobRow
from storage.jobs.reviews import ReviewRow
from storage.money import ledger as ledger_queries
from storage.trust import samples as sample_queries

# The sum of a user's jobs takes the writer milliseconds, whether there is room or not.
REFUSALS_MAX = 60
REFUSALS_SECONDS = 60
FULL = frozenset((Code.TOO_MANY_JOBS, Code.TOO_MANY_FREE_JOBS, Code.TOO_MUCH_JOB_TEXT))
NOTHING_SAID = Ending()
OWNER_FULL = "All devices of this owner together have as many jobs as they may; finish one."


_logger = logging.getLogger("jobs")


class Owned(Struct, frozen=True):
    """Job in its buyer's view, with two amounts in its currency.

    An open job without a paid attempt has no `paid`. `left` is the part of the
    price that is held, None once the job is over.

    `review` is there once it is completed, if its buyer may look at the result, or might; of a
    replica that is paid by time, once an attempt was paid, and it is the last one that is open.
    `group` is there if it is one of several copies.
    """

    job: JobRow
    paid: int | None
    left: int | None = None
    spec: Spec | None = None
    review: ReviewRow | None = None
    group: copies.Group | None = None


class Work(Struct, frozen=True):
    """Job for the device that runs it; for a replica with the image and command of its deploy.

    `spec` has the job's secrets.
    """

    job: JobRow
    image: str | None = None
    command: str | None = None
    spec: Spec | None = None


class Open(Struct, frozen=True):
    """Open job in the view of a worker that may accept it; a copy has a `group`."""

    job: JobRow
    spec: Spec | None = None
    group: copies.Group | None = None


class _Taker(Struct, frozen=True):
    """Device that accepts a job: its last report, and its network."""

    device: DeviceRow
    offer: Offer
    network: str


class Jobs:
    """The marketplace of jobs.

    Args:
        bounds: returns the limits on the open things of one user or one device.

    Attributes:
        outcomes: the units of work that end jobs and attempts.
        notices: publish changes of jobs.
    """

    def __init__(
        self,
        context: Context,
        terms: JobTerms,
        bounds: Callable[[], Bounds],
        specs: Specs,
        logs: Logs,
    ) -> None:
        self.bounds = bounds
        self._specs = specs
        self._logs = logs
        self._terms = terms
        self._context = context
        self._store = context.store
        self._now = context.now
        self.outcomes = Outcomes(context, terms, bounds)
        self.notices = JobNotices(context.bus)
        self._has_warned_of_key = False
        self._refusals = Throttle(REFUSALS_MAX, REFUSALS_SECONDS, context.now)

    @property
    def fee(self) -> int:
        """The house's part of a payment, in ten-thousandths."""
        return self._terms.fee

    @property
    def lease_seconds(self) -> int:
        """The longest silence of a device about an attempt at a job with a payload, in seconds."""
        return self._terms.leases.lease_seconds

    @property
    def waiting_days(self) -> int:
        """The days after which a job without a device is cancelled."""
        return self._terms.waiting_seconds // DAY_SECONDS

    async def create(
        self,
        user_id: str,
        new: NewJob,
        receipt: Receipt[str] | None = None,
        spender: Spender | None = None,
    ) -> str:
        """Post a job, hold its price, and return its identifier.

        Raises:
            MarketError: `invalid_field`, `insufficient_funds`, `too_many_jobs`,
                `too_many_free_jobs`, `too_much_job_text`, `too_many_attempts`,
                `idempotency_key_reused`, `spend_limit_reached`.
            Replayed: this was answered before.
        """
        job = self._posting(user_id, new)

        async def begin(tx: Transaction) -> None:
            await lock_and_keep(tx, user_id, receipt, job.row.id)

        await self._put_up(user_id, Order([job], begin, spender=spender))
        return job.row.id

    async def create_copies(
        self,
        user_id: str,
        new: NewJob,
        copying: Copying,
        receipt: Receipt[list[str]] | None = None,
        spender: Spender | None = None,
    ) -> list[str]:
        """Post the same work several times, for devices of different owners.

        The price of each is held. Returns the identifiers; the first one names them all.

        Raises:
            MarketError, Replayed: as `create`.
        """
        posted = [self._posting(user_id, new) for _ in range(copying.copies)]
        job_ids = [each.row.id for each in posted]
        seconds = self._terms.review_seconds(None if new.spec is None else new.spec.review_hours)
        group = CopyGroup(copying, seconds)

        async def begin(tx: Transaction) -> None:
            await lock_and_keep(tx, user_id, receipt, job_ids)

        await self._put_up(user_id, Order(posted, begin, group, spender))
        return job_ids

    def _posting(self, user_id: str, new: NewJob) -> Posting:
        """Return the rows of a new job.

        Raises:
            MarketError: `invalid_field`.
        """
        postings.check(new)
        job = waiting(new, job_id=self._context.identifiers.new(), user_id=user_id, now=self._now())
        row = None if new.spec is None else self._specs.row(job.id, new.spec)
        if row is not None:
            job = job._replace(text_bytes=job.text_bytes + size_of(row))
        artifact_ids = [] if new.spec is None else new.spec.artifact_ids
        return Posting(job, row, artifact_ids, self._context.identifiers.new())

    async def _put_up(self, user_id: str, order: Order) -> None:
        """Post jobs in one unit of work."""
        specs = ((each.row.id, each.spec) for each in order.posted)
        job_ids = [
            job_id for job_id, spec in specs if spec is not None and spec.payload is not None
        ]
        context, spender = self._context, order.spender
        with self.counting_refusals(user_id), self.notices.waiting_if_unknown(job_ids):
            async with (
                naming_funds(context, spender, order.price, "price_credit"),
                reporting_limits(context, spender),
            ):
                await self._store.write(postings.create, context, order, self.bounds())
        self.notices.publish_waiting(job_ids)

    @contextmanager
    def counting_refusals(self, user_id: str) -> Iterator[None]:
        """Count refusals of a user with too many jobs, because adding up these jobs is expensive.

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
        """Return waiting and running jobs of all users, newest first; "" filters nothing."""
        return await self._store.read(
            _page_open, status=status or "", job_type=job_type, before=before, limit=limit
        )

    async def page_of_user(
        self, user_id: str, *, status: JobStatus | None, before: str, limit: int
    ) -> list[OwnJobRow]:
        """Return a buyer's jobs, newest first."""
        return await self._store.read(
            queries.page_of_user, user_id=user_id, status=status or "", before=before, limit=limit
        )

    async def waiting_needs(
        self, job_ids: Sequence[str]
    ) -> list[tuple[str, Needs, tuple[int, int]]]:
        """Return the needs of those of some jobs that wait for any device that suits.

        With each is its price in micro-credits, and for how many hours that is.
        """
        if not job_ids:
            return []
        return [
            (
                row.job_id,
                needs_of(row.payload, row.resources, row.job_type, row.min_reputation),
                (row.price_credit, row.duration_hrs),
            )
            for row in await self._store.read(claim_queries.waiting, job_ids)
        ]

    async def failed_owners(self, job_ids: Sequence[str]) -> dict[str, frozenset[str]]:
        """Return the owners whose devices have failed at jobs and do not get them now, by job."""
        if not job_ids:
            return {}
        found: dict[str, set[str]] = {}
        for row in await self._store.read(claim_queries.excluded, job_ids, now=self._now()):
            found.setdefault(row.job_id, set()).add(row.user_id)
        return {job_id: frozenset(owners) for job_id, owners in found.items()}

    async def spec_warnings(self, job_ids: Sequence[str]) -> dict[str, list[str]]:
        """Return the parts of requirements that were not understood, of the jobs that have any."""
        if not job_ids:
            return {}
        rows = await self._store.read(spec_queries.warnings, job_ids)
        found = {row.job_id: msgspec.json.decode(row.warnings, type=list[str]) for row in rows}
        return {job_id: warnings for job_id, warnings in found.items() if warnings}

    async def find(self, user_id: str, job_id: str) -> Owned:
        """Return one of a buyer's jobs.

        Raises:
            MarketError: `job_not_found`, when the job does not exist or belongs to another user.
        """
        return await self._store.read(self._find, user_id, job_id)

    async def find_open(self, job_id: str) -> Open:
        """Return any user's waiting or running job, whole, for a worker who may accept it.

        Raises:
            MarketError: `job_not_found`, when the job does not exist or is over.
        """
        return await self._store.read(self._find_open, job_id)

    async def cancel(self, user_id: str, job_id: str) -> None:
        """Cancel one of a buyer's jobs.

        A running one pays for the share of its estimated hours that has passed since its worker
        began; one that no worker has begun pays nothing. A second call changes nothing. If the job
        is one of several copies, all open copies are cancelled.

        Raises:
            MarketError: `job_not_found`, `job_over`.
        """
        for job in await self._store.write(self.outcomes.cancel, user_id, job_id):
            self.notices.publish_stopped(job)

    async def cancelling_costs(self, user_id: str, job_id: str) -> Quote:
        """Return the present cost of cancelling one of a buyer's jobs; see `cancel`.

        Raises:
            MarketError: `job_not_found`, `job_over`.
        """
        return await self._store.read(self.outcomes.quote, user_id, job_id)

    async def end_unreadable(self, job_id: str) -> None:
        """Cancel a job whose secrets cannot be read any more, and give its buyer the reason.

        The service has another key now, and no device could run the job. Where there may be other
        daemons nothing is ended: it may be this one alone that has another key.

        Raises:
            StoreError: the job is as it was.
        """
        if self.notices.are_carried:
            if not self._has_warned_of_key:
                self._has_warned_of_key = True
                _logger.warning("job %s has secrets that cannot be read with this key", job_id)
            return
        outcomes = self.outcomes
        job = await self._store.write(outcomes.give_up, outcomes.moment(), job_id, UNREADABLE)
        if job is not None:
            _logger.warning("job %s is cancelled: its secrets cannot be read any more", job_id)
            self.notices.publish_stopped(job)

    async def cancel_all(self, user_id: str, job_ids: Sequence[str]) -> None:
        """Cancel those of a buyer's jobs that are not over; raises as `cancel`."""
        for job_id in job_ids:
            try:
                await self.cancel(user_id, job_id)
            except MarketError as error:
                if error.code is not Code.JOB_OVER:
                    raise

    async def accept(
        self, device: DeviceRow, job_id: str, network: str = "", offer: Offer | None = None
    ) -> JobRow:
        """Assign a waiting job to a device; a second call while it runs there changes nothing.

        Args:
            device: the device that accepts it.
            job_id: the job.
            network: where the device is (`market.base.networks.site`).
            offer: its last offer (`AskingDevices.offer_of`); None for its last report.

        Raises:
            MarketError: `job_not_found`, `job_not_waiting`, `job_failed_here`, `device_full`,
                `device_unsuitable`, `reputation_too_low`; `copy_taken_here`, when it is one of
                several copies, and the device's owner or network has another one, or has put it
                up; `account_suspended`; `worker_unauthorized`, when the device was revoked
                meanwhile.
        """
        taker = _Taker(device, offers.reported(device) if offer is None else offer, network)
        job, others = await self._store.write(_accept, self._context, taker, job_id, self.bounds())
        self.notices.publish_gone(job_id)
        self.notices.publish_waiting(others)  # other devices may have these now
        self.notices.publish_change(job)
        return job

    async def work(self, device: DeviceRow, job_id: str) -> Work:
        """Return a job for the device that runs it.

        Raises:
            MarketError: `job_not_found`, `attempt_not_current`; `payload_invalid`, when the job's
                secrets cannot be read any more; see `end_unreadable`.
        """
        try:
            return await self._store.read(self._work, device.id, job_id)
        except MarketError as error:
            if error.code is Code.PAYLOAD_INVALID:
                await self.end_unreadable(job_id)
            raise

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
        """Store a result and pay the device's owner; a second report changes nothing.

        Args:
            device: the device that reports.
            job_id: the finished job.
            result: the result of the work.
            attempt: the attempt; None for the running one.
            ending: the details of the report.

        Raises:
            MarketError: `job_not_found`, `attempt_not_current`, `log_incomplete`; `invalid_field`,
                when the job has a payload, and its work has failed.
        """
        is_logged = await self._has_log(job_id, attempt, ending.log_bytes)
        report = Report(device, job_id, attempt, result, ending)
        done = await self._store.write(
            self.outcomes.complete, self.outcomes.moment(), report, is_logged=is_logged
        )
        if done is None:
            return
        if done.status == JobStatus.WAITING:
            self.notices.publish_waiting([job_id])
        self.notices.publish_end(
            done.job, "completed" if done.status == JobStatus.COMPLETED else "failed"
        )
        for job in done.unneeded:
            self.notices.publish_stopped(job)

    async def _has_log(
        self, job_id: str, attempt: int | None, announced: Mapping[str, int] | None
    ) -> bool:
        """Return whether the announced bytes of the log of an attempt have arrived."""
        if not announced:
            return True
        if attempt is None:
            message = "attempt must be the number of the log's attempt."
            raise MarketError(Code.INVALID_FIELD, message, field="attempt")
        stored = await self._logs.stored(job_id, attempt)
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
        """Take a failed job back from a device; its owner's other devices do not get it either.

        If the device reports a fault of its own, its owner has another chance. If the buyer wants
        only one attempt, a failure of the work ends the job.

        Raises:
            MarketError: `job_not_found`, `attempt_not_current`.
        """
        report = Report(device, job_id, attempt, reason, ending)
        with self.notices.waiting_if_unknown([job_id]):
            done = await self._store.write(self.outcomes.fail, self.outcomes.moment(), report)
        if done.status == JobStatus.WAITING:
            self.notices.publish_waiting([job_id])
        self.notices.publish_end(done.job, attempt_outcome(ending))

    async def earned_today(self, user_id: str) -> dict[str, int]:
        """Return the earnings of each device of a user since 00:00 UTC, in micro-credits."""
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
        paid = left = None
        if hold is not None:
            paid = hold.captured
            if paid is None:
                left = await ledger_queries.left_in_hold(tx, hold.id)
                paid = hold.amount - left or None
        if paid is not None:
            paid -= sum(
                row.price if row.state == ReviewStatus.REVERSED else row.refunded for row in rows
            )
        group = await copies.find(tx, job_id)
        return Owned(job, paid, left, spec, reviews.most_urgent(rows), group)

    async def _find_open(self, tx: Transaction, job_id: str) -> Open:
        job = await queries.find(tx, job_id)
        if job is None or job.status not in (JobStatus.WAITING, JobStatus.RUNNING):
            raise MarketError(Code.JOB_NOT_FOUND)
        shown = await sample_queries.shown(tx, [job_id])
        job = job._replace(user_id=shown.get(job_id, job.user_id))
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


async def _page_open(
    tx: Transaction, *, status: str, job_type: str, before: str, limit: int
) -> list[OpenJobRow]:
    rows = await queries.page_open(tx, status=status, job_type=job_type, before=before, limit=limit)
    shown = await sample_queries.shown(tx, [row.id for row in rows])
    return [row._replace(user_id=shown.get(row.id, row.user_id)) for row in rows]


async def _require_able(
    tx: Transaction, device: DeviceRow, job: JobRow, bounds: Bounds, offer: Offer
) -> None:
    """Check that a device may hold one more job, can do this one, and is trusted enough for it.

    Raises:
        MarketError: `device_full`, `device_unsuitable`, `reputation_too_low`.
    """
    device_id, job_id = device.id, job.id
    left = await slots_left(tx, device_id, bounds)
    if left is not None and left < 0:
        raise MarketError(Code.DEVICE_FULL)
    owner_left = await owner_slots.left(tx, [device.user_id], bounds)
    if owner_left.get(device.user_id, 0) < 0:
        raise MarketError(Code.DEVICE_FULL, OWNER_FULL)
    spec = await spec_queries.find(tx, job_id)
    least = 0 if spec is None else spec.min_reputation
    if spec is not None:
        needs = needs_of(spec.payload, spec.resources, job.job_type, least)
        has_payload, is_replica = spec.payload is not None, job.deploy_id is not None
        lacking = offers.missing(needs, offer, has_payload=has_payload, is_replica=is_replica)
        if lacking is not None:
            raise MarketError(Code.DEVICE_UNSUITABLE, lacking)
    if least:
        reputation = (await trust.of_devices(tx, [device_id]))[device_id]
        if reputation.score < least:
            raise MarketError(Code.REPUTATION_TOO_LOW)


async def _accept(
    tx: Transaction, context: Context, taker: _Taker, job_id: str, bounds: Bounds
) -> tuple[JobRow, Sequence[str]]:
    """Start a job on a device; return it, and its other copies that wait."""
    device, network = taker.device, taker.network
    device_id, now = device.id, context.now()
    # The token may be revoked while this request is under way. Revoking takes the device's jobs
    # back and must not miss one that begins, so both lock the device.
    await owner_slots.lock(tx, [device_id], bounds)
    if await device_queries.is_revoked(tx, device_id):
        raise MarketError(Code.WORKER_UNAUTHORIZED)
    await require_devices(tx, device.user_id)
    pair = PairRow(job_id, device_id, 0, group_id=job_id, network=network)
    members = await copies.lock_members(tx, job_id)
    is_permitted = bool(await copies.independent(tx, [pair], members))
    started = None
    if is_permitted:
        started = await queries.start(tx, job_id=job_id, device_id=device_id, now=now)
    if started is not None:
        await _require_able(tx, device, started, bounds, taker.offer)
        if members:
            await copies.note_networks(tx, [pair], [job_id])
        begun = JobAccepted(job_id, started.title, started.attempts, started.deploy_id)
        await record(tx, context, started.user_id, begun, subject_id=job_id)
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
