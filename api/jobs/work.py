"""Routes that give work to worker devices: one held request, and a list."""

from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from api.devices.reputations import Reputation, shown
from api.http.literals import JOB_TYPES, JobType
from api.routing.codec import Money, money
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.attempts.attempts import NAMED_MAX
from market.attempts.attempts import Action as ToldAction
from market.base.errors import Code, MarketError
from market.base.networks import site
from market.dispatch.asks import Agent, Ask, DispatchTerms, GivenJob, OfferedJob
from market.dispatch.device import NO_ATTEMPTS
from market.dispatch.dispatch import Dispatch
from market.files.artifacts import WorkInput
from market.jobs.matching import MILLION, Offer
from proxyctl.protocol.jobspec import Capacity
from storage.devices.devices import DeviceRow

# The longest wait of a request, so that devices show life at least this often: an unplugged device
# sends no notice.
WAIT_MAX_SECONDS = 300
SLOTS_MAX = 1_000
OFFERS_MAX = 100
# More kinds of GPUs than a machine has: each is compared with each model that jobs ask for.
GPU_KINDS_MAX = 8
# The largest whole number that every reader of JSON keeps as it is.
SEEN_MAX = 2**53
WORDS_KEPT = 256  # sets of executors or types; nearly all devices have one of a few
OFFERS_KEPT = 1_024  # a device repeats its offer, and devices of one kind have the same
# Of an offer that is kept, so that all kept ones take a few MB at most.
KEPT_GPUS_MAX = 8

Amount = Annotated[float, Meta(ge=0, le=1_000_000)]
Word = Annotated[str, Meta(min_length=1, max_length=32)]
# As the buyer of the job wrote it.
Written = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]
ShortText = Annotated[str, Meta(max_length=200)]


class FreeCapacity(Struct, frozen=True):
    """Free resources of a device; with 0 slots it wants no work, and receives only actions.

    Sizes are in GB of 10^9 bytes; `vram_gb` is the memory of the smallest free GPU.
    """

    slots: Annotated[int, Meta(ge=0, le=SLOTS_MAX)]
    cores: Amount = 0.0
    ram_gb: Amount = 0.0
    disk_gb: Amount = 0.0
    gpus: Annotated[int, Meta(ge=0, le=64)] = 0
    vram_gb: Amount = 0.0


class Gpu(Struct, frozen=True):
    """A GPU of a device."""

    name: ShortText
    uuid: ShortText = ""
    vram_mb: Amount = 0.0
    driver: ShortText = ""


class Capabilities(Struct, frozen=True):
    """Abilities of a device: its sandboxes, and the types of jobs that its owner allows.

    Without the executor bwrap it runs no job that has no image; every other one runs images.
    `ports` are those of its executors whose jobs can be reached at ports on which they listen.
    Without `archives` it gets no job with inputs to unpack, or with checkpoints.
    """

    executors: Annotated[tuple[Word, ...], Meta(max_length=16)]
    job_types: Annotated[tuple[JobType, ...], Meta(max_length=16)]
    arch: Annotated[str, Meta(max_length=32)] = ""
    gpus: Annotated[tuple[Gpu, ...], Meta(max_length=64)] = ()
    cuda: Annotated[str, Meta(max_length=32)] = ""
    network: Literal["none", "egress"] = "none"
    ports: Annotated[tuple[Word, ...], Meta(max_length=16)] = ()
    archives: bool = True


class HeldAttempt(Struct):
    """An attempt that a device has."""

    job_id: Annotated[str, Meta(min_length=1, max_length=36)]
    attempt: Annotated[int, Meta(ge=1, le=1_000_000)]


class NextRequest(Struct):
    """Free resources and abilities of a device, its attempts, and the time that it waits.

    `min_price_usd` is per hour, and by default the price of the token. `seen` is the number of the
    last answer that has arrived. `agent` names the requesting program, and `agent_since` is its
    start, in UTC seconds: of two programs with the same token, the later one gets the jobs.
    """

    capacity: FreeCapacity
    capabilities: Capabilities
    attempts: Annotated[list[HeldAttempt], Meta(max_length=NAMED_MAX)] = []
    min_price_usd: Money | None = None
    wait_s: Annotated[float, Meta(ge=0, le=WAIT_MAX_SECONDS)] = 0.0
    seen: Annotated[int, Meta(ge=0, le=SEEN_MAX)] = 0
    agent: Annotated[str, Meta(max_length=64)] = ""
    agent_since: Annotated[int, Meta(ge=0, le=SEEN_MAX)] = 0


class NewInput(Struct, kw_only=True):
    """A file that the job is given: an artifact, or the file at a `url`. Its hash must be checked.

    `path` is its place for the job; with `unpack`, that is a folder with its content.
    """

    name: str
    path: str
    sha256: str
    unpack: bool
    size_bytes: int | UnsetType = UNSET
    artifact_id: str | UnsetType = UNSET
    url: str | UnsetType = UNSET


class NewCheckpoint(Struct):
    """Checkpoints that an earlier attempt left for this one, as a .tar file."""

    artifact_id: str
    sha256: str
    size_bytes: int


class NewWork(Struct):
    """A job that the device now holds, with the secrets of its payload.

    It may run for `timeout_s`; it is taken back when the device does not name it for `lease_s`. The
    device has `prepare_s` to fetch image and inputs, from when it gets the job: then it reports a
    failure, with the kind `input` or `image` where a server of the buyer's was slow. A little later
    the marketplace takes the job back, which counts against the device.
    """

    job_id: str
    attempt: int
    title: str
    job_type: JobType
    duration_hrs: int
    price_credit: float
    payload: Written
    resources: Written
    timeout_s: int
    lease_s: int
    prepare_s: int
    inputs: list[NewInput]
    checkpoint: NewCheckpoint | UnsetType = UNSET


class Action(Struct):
    """Action that a device should take on an attempt, and the reason."""

    job_id: str
    attempt: int
    action: Literal["stop"]
    reason: str


class NextReply(Reply, kw_only=True):
    """Jobs and actions for the device; `seen` is the number of this answer.

    `replaced`: another agent with this token was started later, and gets the jobs.
    """

    jobs: list[NewWork]
    actions: list[Action]
    lease_s: int
    seen: int
    replaced: bool | UnsetType = UNSET


class OffersQuery(Struct, kw_only=True):
    """How many jobs to list."""

    limit: Annotated[int, Meta(ge=1, le=OFFERS_MAX)] = OFFERS_MAX


class OfferItem(Struct):
    """A waiting job that a device could get; price in credits, and in USD per hour."""

    id: str
    title: str
    job_type: JobType
    price_credit: float
    price_usd_per_hour: float
    duration_hrs: int
    resources: Written


class OffersReply(Reply, kw_only=True):
    """Waiting jobs that would fit the device, the best first, and the reputation that it has."""

    jobs: list[OfferItem]
    reputation: Reputation


class WorkRoutes:
    """The routes of work."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._dispatch = dispatch

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                "/api/worker/next",
                "Get work for this device, and hear what to stop, as soon as there is some",
                self.next,
                NextReply,
                auth=Auth.WORKER,
                body=NextRequest,
                example={
                    "capacity": {"slots": 1, "cores": 4, "ram_gb": 8, "disk_gb": 50},
                    "capabilities": {
                        "executors": ["bwrap", "podman"],
                        "job_types": ["script", "docker"],
                        "arch": "x86_64",
                    },
                    "attempts": [],
                    "wait_s": 0,
                },
                errors=(Code.TOO_BUSY,),
                ends_with_client=True,
                is_held=True,
            ),
            Route(
                "GET",
                "/api/worker/offers",
                "List the waiting jobs that would fit this device",
                self.offers,
                OffersReply,
                auth=Auth.WORKER,
                query=OffersQuery,
            ),
        ]

    async def next(self, call: Call[NextRequest, Any]) -> NextReply:
        """Wait for work."""
        ask = _ask(call.device, call.body, site(call.address))
        waiting = self._dispatch.next(call.device, ask, call.send_space)
        del ask, call  # with all that was sent: thousands wait here, each for minutes
        told = await waiting
        terms = self._dispatch.terms
        return NextReply(
            jobs=[_work(job, terms) for job in told.jobs],
            actions=[_action(each) for each in told.actions],
            lease_s=terms.lease_seconds,
            seen=told.seen,
            replaced=True if told.is_replaced else UNSET,
        )

    async def offers(self, call: Call[Nothing, OffersQuery]) -> OffersReply:
        """List the jobs that would fit the last offer of the device."""
        offers = await self._dispatch.offers(call.device, call.query.limit, site(call.address))
        return OffersReply(
            jobs=[_offer_item(job) for job in offers.jobs], reputation=shown(offers.reputation)
        )


@lru_cache(maxsize=WORDS_KEPT)
def _words(words: tuple[str, ...]) -> frozenset[str]:
    """Return the same set for the same words: thousands of devices keep theirs while they wait."""
    return frozenset(words)


def _ask(device: DeviceRow, body: NextRequest, network: str) -> Ask:
    least = device.min_price_usd if body.min_price_usd is None else body.min_price_usd
    is_kept = len(body.capabilities.gpus) <= KEPT_GPUS_MAX
    offer = (_kept_offer if is_kept else _offer)(body.capacity, body.capabilities, least or 0)
    named = ((each.job_id, each.attempt) for each in body.attempts)
    attempts = frozenset(named) if body.attempts else NO_ATTEMPTS
    agent = Agent(body.agent, body.agent_since)
    return Ask(offer, attempts, body.wait_s, body.seen, agent, network)


def _offer(free: FreeCapacity, can: Capabilities, least_price: int) -> Offer:
    """Return the offer of a device; its least price is in micro-USD per hour.

    Raises:
        MarketError: `invalid_field`, for GPUs of too many names.
    """
    if len({gpu.name for gpu in can.gpus}) > GPU_KINDS_MAX:
        message = f"A device has GPUs of at most {GPU_KINDS_MAX} different names."
        raise MarketError(Code.INVALID_FIELD, message, field="capabilities.gpus")
    capacity = Capacity(
        slots=free.slots,
        cores=free.cores,
        ram_gb=free.ram_gb,
        disk_gb=free.disk_gb,
        gpus=free.gpus,
        vram_gb=free.vram_gb,
        gpu_names=tuple(gpu.name for gpu in can.gpus),
        arch=can.arch,
        cuda=can.cuda,
    )
    return Offer(
        capacity,
        _words(can.executors),
        _words(can.job_types),
        can.network == "egress",
        least_price * MILLION,
        _words(can.ports),
        can.archives,
    )


# The same object for the same offer: it is compared in each search, and its hash is computed once.
_kept_offer = lru_cache(maxsize=OFFERS_KEPT)(_offer)


def _work(job: GivenJob, terms: DispatchTerms) -> NewWork:
    row = job.row
    return NewWork(
        job_id=row.job_id,
        attempt=row.attempt,
        title=row.title,
        job_type=JOB_TYPES[row.job_type],
        duration_hrs=row.duration_hrs,
        price_credit=money(row.price_credit),
        payload=msgspec.Raw(job.payload),
        resources=msgspec.Raw(row.resources.encode()),
        timeout_s=row.timeout_seconds,
        lease_s=terms.lease_seconds,
        prepare_s=terms.prepare_seconds,
        inputs=[_input(each) for each in job.files.inputs],
        checkpoint=UNSET
        if job.files.checkpoint is None
        else NewCheckpoint(*msgspec.structs.astuple(job.files.checkpoint)),
    )


def _input(given: WorkInput) -> NewInput:
    return NewInput(
        name=given.name,
        path=given.path,
        sha256=given.sha256,
        unpack=given.unpack,
        size_bytes=UNSET if given.size_bytes is None else given.size_bytes,
        artifact_id=UNSET if given.artifact_id is None else given.artifact_id,
        url=UNSET if given.url is None else given.url,
    )


def _action(action: ToldAction) -> Action:
    assert action.action == "stop"  # noqa: S101 - there is no other
    return Action(action.job_id, action.attempt, "stop", action.reason)


def _offer_item(job: OfferedJob) -> OfferItem:
    row = job.row
    return OfferItem(
        id=row.job_id,
        title=row.title,
        job_type=JOB_TYPES[row.job_type],
        price_credit=money(row.price_credit),
        price_usd_per_hour=money(job.price // MILLION),
        duration_hrs=row.duration_hrs,
        resources=msgspec.Raw(row.resources.encode()),
    )
