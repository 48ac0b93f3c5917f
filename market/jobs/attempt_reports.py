"""Reports of devices while they run jobs: work has begun, work is ready, work continues."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from market.attempts.attempts import NAMED_MAX, Action, actions_for, require_current
from market.attempts.renewals import Renewals
from market.base.errors import Code, MarketError
from market.devices.devices import Devices, Report
from market.events.context import Context
from market.jobs.sweeper import JobSweeper
from market.logs.logs import Logs, note_begin
from market.trust import trust
from market.trust.reputation import Reputation
from storage.attempts import attempts as queries
from storage.attempts.attempts import AttemptRow, HeldRow
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.jobs import jobs as job_queries
from storage.jobs.jobs import JobRow
from storage.logs.files import Attempt

# Listed for a job; the limits of owners and of their failures keep a job far below this.
ATTEMPTS_MAX = 1_000
# A device can send the list of its attempts before it receives a job that was just assigned to it.
UNNAMED_SECONDS = 60
# After this time, every list that a device made before its work began has arrived.
TRANSIT_SECONDS = 30
UNNAMED_MAX = 10_000  # attempts that are remembered as not named; the oldest are forgotten
FORGOTTEN = "the device does not know of the job any more"


class Named(Struct, frozen=True):
    """Attempt that a device reports as its own: its phase, and the finished share of the work."""

    job_id: str
    attempt: int
    phase: str | None = None
    progress: float | None = None


class _Unnamed(Struct):
    """An attempt that a device has left out: since when, by observed time.

    `is_begun`: it was left out after its work had begun.
    """

    since: float
    is_begun: bool = False


class Past(Struct, frozen=True):
    """Attempt with the current reputation of its device."""

    row: AttemptRow
    reputation: Reputation


class _Begun(Struct, frozen=True):
    """The report of a device that the work of an attempt has begun, and perhaps is ready."""

    device_id: str
    job_id: str
    attempt: int | None
    is_ready: bool = False
    image_digest: str | None = None


class AttemptReports:
    """Reports of devices about the attempts that they hold.

    Args:
        sweeper: takes back the jobs that a device has forgotten. Its notices also publish the
            progress of attempts.
        observed_seconds: for how many seconds this daemon has been there to hear devices, by a
            clock that cannot be set.
    """

    def __init__(
        self,
        context: Context,
        devices: Devices,
        sweeper: JobSweeper,
        renewals: Renewals,
        logs: Logs,
        observed_seconds: Callable[[], float],
    ) -> None:
        self._store = context.store
        self._now = context.now
        self._devices = devices
        self._notices = sweeper.notices
        self._sweeper = sweeper
        self._renewals = renewals
        self._logs = logs
        self._observed_seconds = observed_seconds
        self._unnamed: dict[tuple[str, int], _Unnamed] = {}

    async def started(
        self, device: DeviceRow, job_id: str, attempt: int | None, image_digest: str | None = None
    ) -> None:
        """Note that work has begun: from here on a job that is cancelled pays for it.

        A second call changes nothing.

        Raises:
            MarketError: `job_not_found`, `attempt_not_current`.
        """
        begun = _Begun(device.id, job_id, attempt, image_digest=image_digest)
        number, is_new = await self._store.write(_start, begun, now=self._now())
        self._notices.publish_progress(job_id)
        self._logs.begun(device.id, Attempt(job_id, number), is_new=is_new)

    async def ready(self, device: DeviceRow, job_id: str, attempt: int | None) -> None:
        """Note that the service of a job can be used; raises as `started`."""
        begun = _Begun(device.id, job_id, attempt, is_ready=True)
        await self._store.write(_begin, begun, now=self._now())
        self._notices.publish_progress(job_id)

    async def sync(
        self, device: DeviceRow, report: Report, named: Sequence[Named] | None
    ) -> list[Action]:
        """Process a heartbeat that names every attempt of the device. Return the actions to stop.

        The lease of each is renewed. An attempt that the store assigns to the device, but that the
        device does not name, is taken back. This happens immediately if the device named it before,
        or if its work had begun when the device made this list; otherwise it happens after
        `UNNAMED_SECONDS`. A job without a payload is taken back only if the device named it before,
        because its owner may run it by hand.

        Args:
            device: the device that reports.
            report: the report of the heartbeat.
            named: the attempts that the device holds; None when the heartbeat has no list.

        Raises:
            MarketError: `invalid_field`.
        """
        if named is None:
            self._devices.heartbeat(device, report)
            return []
        if len(named) > NAMED_MAX:
            message = f"A device holds at most {NAMED_MAX} attempts."
            raise MarketError(Code.INVALID_FIELD, message, field="attempts")
        self._devices.heartbeat(device, report)
        keys = [(each.job_id, each.attempt) for each in named]
        held, actions = await self._store.read(_held, device.id, keys)
        names = {(each.job_id, each.attempt): each for each in named}
        for row in held:
            name = names.get((row.job_id, row.attempt))
            if name is not None:
                self._unnamed.pop((row.job_id, row.attempt), None)
                self._renewals.name(row.job_id, row.attempt, name.phase, name.progress)
            elif self._is_forgotten(row):
                self._unnamed.pop((row.job_id, row.attempt), None)
                await self._sweeper.take_back_attempt(row.job_id, row.attempt, FORGOTTEN)
        return actions

    async def of_job(self, user_id: str, job_id: str) -> list[Past]:
        """Return the attempts at one of a buyer's jobs, the first one first.

        Raises:
            MarketError: `job_not_found`, when the job does not exist or belongs to another user.
        """
        return await self._store.read(_of_job, user_id, job_id)

    def _is_forgotten(self, row: HeldRow) -> bool:
        key = row.job_id, row.attempt
        if row.named_at is not None or self._renewals.has_named(*key):
            return True
        if not row.has_payload:
            return False
        observed = self._observed_seconds()
        unnamed = self._unnamed.setdefault(key, _Unnamed(observed))
        if len(self._unnamed) > UNNAMED_MAX:
            del self._unnamed[next(iter(self._unnamed))]
        if row.work_started_at is not None:
            # This list may be from before the work began. The next one is not: a device makes it
            # when this one was answered.
            is_known = self._now() - row.work_started_at > TRANSIT_SECONDS
            if is_known or unnamed.is_begun:
                return True
            unnamed.is_begun = True
        return observed - unnamed.since >= UNNAMED_SECONDS


async def _start(tx: Transaction, begun: _Begun, *, now: int) -> tuple[int, bool]:
    """Note that work and its log begin; return the attempt, and whether its log is a new one.

    Nearly every job prints something: with a transaction of its own, its first line would wait.
    """
    job = await _begin(tx, begun, now=now)
    return job.attempts, await note_begin(tx, job, now)


async def _begin(tx: Transaction, begun: _Begun, *, now: int) -> JobRow:
    await tx.lock("jobs", [begun.job_id])
    job = await require_current(tx, begun.device_id, begun.job_id, begun.attempt)
    await queries.begin_work(
        tx,
        job.id,
        job.attempts,
        is_ready=begun.is_ready,
        image_digest=begun.image_digest,
        now=now,
    )
    return job


async def _held(
    tx: Transaction, device_id: str, named: Sequence[tuple[str, int]]
) -> tuple[list[HeldRow], list[Action]]:
    held = await queries.held(tx, device_id, limit=NAMED_MAX)
    return held, await actions_for(tx, device_id, named)


async def _of_job(tx: Transaction, user_id: str, job_id: str) -> list[Past]:
    job = await job_queries.find(tx, job_id)
    if job is None or job.user_id != user_id:
        raise MarketError(Code.JOB_NOT_FOUND)
    rows = await queries.of_job(tx, job_id, limit=ATTEMPTS_MAX)
    reputations = await trust.of_devices(tx, [row.device_id for row in rows])
    return [Past(row, reputations[row.device_id]) for row in rows]
