"""Routes about the work of a device: the reasons without work, its jobs, and its earnings."""

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, field

from api.devices.reputations import Reputation, shown
from api.http.identifiers import in_path
from api.http.literals import (
    ATTEMPT_OUTCOMES,
    DEVICE_TYPES,
    EXIT_STATES,
    FAILURE_KINDS,
    HINDRANCES,
    JOB_TYPES,
    WORK_STATES,
    AttemptOutcome,
    DeviceType,
    ExitState,
    FailureKind,
    Hindrance,
    JobType,
    WorkState,
)
from api.routing.codec import money
from api.routing.listing import Listed, Page, Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.base.errors import Code
from market.devices.devices import Devices
from market.dispatch.asks import Standing
from market.dispatch.device_work import DAY_SECONDS, DAYS_MAX, DeviceWork, Done, EarnedDay, Seen
from market.exits.consents import Exits
from market.jobs.matching import MILLION

ONE = "/api/worker/devices/{device_id}"


class OfferedWork(Struct):
    """Last offer of a device: its free resources and its kinds of work; price in USD per hour."""

    slots: int
    cores: float
    ram_gb: float
    disk_gb: float
    gpus: int
    vram_gb: float
    executors: list[str]
    job_types: list[JobType]
    has_network: bool
    min_price_usd: float


class HindranceItem(Struct):
    """Obstacle between jobs and a device, and the number of jobs, each counted at its first."""

    reason: Hindrance
    jobs: int


class Suitability(Struct):
    """How the jobs that wait now suit a device: how many wait, and how many it could be given.

    `best_price_usd` is the price per hour of the best job among the jobs that pay less than the
    device wants. `is_reported`: it has offered nothing to this daemon, and is judged by its own
    report.
    """

    waiting: int
    suitable: int
    hindrances: list[HindranceItem]
    is_reported: bool
    best_price_usd: float | UnsetType = UNSET


class DeviceSeen(Struct):
    """A device as its owner sees it, as of now; see the list. `running` is how many jobs it runs.

    A field that it never reported, or never offered, is absent; so is `exit` without a consent.
    """

    # One field for each thing that an owner wants to know.
    id: str
    name: str
    hostname: str
    device_type: DeviceType
    gpu_name: str
    cpu_cores: int
    ram_gb: float
    is_online: bool
    work: WorkState
    running: int
    reputation: Reputation
    suitability: Suitability
    created_at: Timestamp
    exit: ExitState | UnsetType = UNSET
    offer: OfferedWork | UnsetType = UNSET
    min_price_usd: float | UnsetType = UNSET
    last_heartbeat_at: Timestamp | UnsetType = UNSET
    offline_at: Timestamp | UnsetType = UNSET
    revoked_at: Timestamp | UnsetType = UNSET
    cpu_temp: float | UnsetType = UNSET
    gpu_temp: float | UnsetType = UNSET
    cpu_pct: float | UnsetType = UNSET
    ram_pct: float | UnsetType = UNSET


class DeviceReply(Reply, kw_only=True):
    """One of the caller's devices."""

    device: DeviceSeen


class DoneJob(Struct):
    """A job that a device has or had, by its last attempt there; amounts in credits.

    `outcome` is there once the attempt is over. The `earned` amount may still be in review. Until
    `appeal_until` its owner may appeal against the decision of its dispute. While the pay is
    disputed, since `disputed_at`, the owner may answer; `answer` is the present answer.
    """

    # One field for each thing that an owner wants to know.
    id: str
    title: str
    job_type: JobType
    price_credit: float
    duration_hrs: int
    attempt: int
    accepted_at: Timestamp
    earned: float
    ended_at: Timestamp | UnsetType = UNSET
    outcome: AttemptOutcome | UnsetType = UNSET
    state: str | UnsetType = UNSET
    progress: float | UnsetType = UNSET
    kind: FailureKind | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    appeal_until: Timestamp | UnsetType = UNSET
    disputed_at: Timestamp | UnsetType = UNSET
    answer: str | UnsetType = UNSET


class DoneReply(Listed[DoneJob], kw_only=True):
    """Jobs of a device, newest first; `next_cursor` is there when there are more."""

    items: list[DoneJob] = field(name="jobs")


class DaysQuery(Struct, kw_only=True):
    """Of how many days, today included, in UTC."""

    days: Annotated[int, Meta(ge=1, le=DAYS_MAX)] = 30


class EarnedDayItem(Struct):
    """Earnings of a device on a day: credits by jobs, and USD as an exit, which carried `bytes`."""

    day: Annotated[str, Meta(extra_json_schema={"format": "date"})]
    earned: float
    earned_usd: float
    bytes: int


class EarnedReply(Reply, kw_only=True):
    """The days on which a device earned something, the latest first."""

    earnings: list[EarnedDayItem]


class DeviceRoutes:
    """The routes about the work of a device."""

    def __init__(self, device_work: DeviceWork, devices: Devices, exits: Exits) -> None:
        self._work = device_work
        self._devices = devices
        self._exits = exits

    def table(self) -> list[Route]:
        """Return the declarations."""
        errors = (Code.TOKEN_NOT_FOUND,)
        return [
            Route(
                "GET",
                ONE,
                "Look at one of my devices, and why it gets no work",
                self.one,
                DeviceReply,
                scope=Scope.DEVICES_READ,
                errors=errors,
            ),
            Route(
                "GET",
                f"{ONE}/jobs",
                "List the jobs that one of my devices has had",
                self.jobs,
                DoneReply,
                scope=Scope.DEVICES_READ,
                query=Page,
                errors=errors,
            ),
            Route(
                "GET",
                f"{ONE}/earnings",
                "What one of my devices has earned by day",
                self.earnings,
                EarnedReply,
                scope=Scope.DEVICES_READ,
                query=DaysQuery,
                errors=errors,
            ),
        ]

    async def one(self, call: Call[Nothing, Any]) -> DeviceReply:
        """Return one of the caller's devices."""
        seen = await self._work.find(call.user_id, _device_id(call))
        reputation = (await self._devices.reputations([seen.row.id]))[seen.row.id]
        exit_state = (await self._exits.states([seen.row.id])).get(seen.row.id)
        is_online = self._exits.is_online(seen.row, exit_state)
        device = _seen(seen, shown(reputation), is_online=is_online)
        device.exit = UNSET if exit_state is None else EXIT_STATES[exit_state]
        return DeviceReply(device=device)

    async def jobs(self, call: Call[Nothing, Page]) -> DoneReply:
        """List the jobs of one of the caller's devices."""
        query = call.query
        rows = await self._work.jobs(
            call.user_id, _device_id(call), before=query.before, limit=query.fetch_limit
        )
        return DoneReply.of(query, rows, _done)

    async def earnings(self, call: Call[Nothing, DaysQuery]) -> EarnedReply:
        """Return the earnings of one of the caller's devices."""
        days = await self._work.earned(call.user_id, _device_id(call), call.query.days)
        return EarnedReply(earnings=[_earned(day) for day in days])


def _device_id(call: Call[Any, Any]) -> str:
    return in_path(call.path["device_id"], Code.TOKEN_NOT_FOUND)


def _seen(seen: Seen, reputation: Reputation, *, is_online: bool) -> DeviceSeen:
    row, standing = seen.row, seen.standing
    price = row.min_price_usd
    return DeviceSeen(
        id=row.id,
        name=row.name,
        hostname=row.hostname,
        device_type=DEVICE_TYPES[row.device_type],
        gpu_name=row.gpu_name,
        cpu_cores=row.cpu_cores,
        ram_gb=row.ram_gb,
        is_online=is_online,
        work=WORK_STATES[seen.state],
        running=seen.running,
        reputation=reputation,
        suitability=_suitability(standing),
        created_at=timestamp(row.created_at),
        offer=UNSET if standing.is_reported else _offered(standing),
        min_price_usd=UNSET if price is None else money(price),
        last_heartbeat_at=_moment(row.last_heartbeat_at),
        offline_at=_moment(row.offline_at),
        revoked_at=_moment(row.revoked_at),
        cpu_temp=_known(row.cpu_temp),
        gpu_temp=_known(row.gpu_temp),
        cpu_pct=_known(row.cpu_pct),
        ram_pct=_known(row.ram_pct),
    )


def _suitability(standing: Standing) -> Suitability:
    compared = standing.compared
    counted = sorted(compared.hindrances.items(), key=lambda each: -each[1])
    best = compared.best_price
    return Suitability(
        waiting=compared.waiting,
        suitable=compared.suitable,
        hindrances=[HindranceItem(HINDRANCES[reason], jobs) for reason, jobs in counted],
        is_reported=standing.is_reported,
        best_price_usd=money(best // MILLION) if best else UNSET,
    )


def _offered(standing: Standing) -> OfferedWork:
    offer, capacity = standing.offer, standing.offer.capacity
    return OfferedWork(
        slots=capacity.slots,
        cores=capacity.cores,
        ram_gb=capacity.ram_gb,
        disk_gb=capacity.disk_gb,
        gpus=capacity.gpus,
        vram_gb=capacity.vram_gb,
        executors=sorted(offer.executors),
        job_types=[JOB_TYPES[each] for each in sorted(offer.job_types)],
        has_network=offer.has_network,
        min_price_usd=money(offer.least_price // MILLION),
    )


def _done(done: Done) -> DoneJob:
    row, dispute = done.row, done.dispute
    return DoneJob(
        id=row.id,
        title=row.title,
        job_type=JOB_TYPES[row.job_type],
        price_credit=money(row.price_credit),
        duration_hrs=row.duration_hrs,
        attempt=row.attempt,
        accepted_at=timestamp(row.started_at),
        earned=money(row.earned),
        ended_at=_moment(row.ended_at),
        outcome=UNSET if row.outcome is None else ATTEMPT_OUTCOMES[row.outcome],
        state=UNSET if row.phase is None or row.ended_at is not None else row.phase,
        progress=_known(row.progress),
        kind=UNSET if row.failure_kind is None else FAILURE_KINDS[row.failure_kind],
        reason=UNSET if row.reason is None else row.reason,
        appeal_until=_moment(done.appeal_until),
        disputed_at=_moment(dispute.disputed_at if dispute else None),
        answer=dispute.answer if dispute and dispute.answer is not None else UNSET,
    )


def _earned(day: EarnedDay) -> EarnedDayItem:
    start = timestamp(day.day * DAY_SECONDS).partition("T")[0]
    return EarnedDayItem(start, money(day.earned), money(day.earned_usd), day.shared_bytes)


def _moment(seconds: int | None) -> Timestamp | UnsetType:
    return UNSET if seconds is None else timestamp(seconds)


def _known(value: float | None) -> float | UnsetType:
    return UNSET if value is None else value
