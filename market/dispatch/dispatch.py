"""Work for devices that ask: one held request each brings jobs, and what to stop.

A device says what it has free, what it holds already, and how long it waits for an answer. What it
should have or stop is looked up in the store only when something has happened since this daemon
last knew: a wake-up, or a device that holds something else than it was given. Otherwise a request
costs no query, and a job that is matched with it a share of one transaction
(`market.dispatch.claims`).

What was given to a device that did not get the answer is told again by its next request: it does
not name what it was given, so that it is looked up.
"""

import asyncio
import math
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from time import monotonic
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec import Struct, structs

from market.accounts.bounds import Bounds
from market.attempts.attempts import PROVEN_JOBS, Action, actions_for_all
from market.base.bus import DEVICES, GONE, WAITING
from market.base.errors import Code, MarketError
from market.base.gathering import Gathering
from market.dispatch import lacking
from market.dispatch.claims import Claims, Outcome, Pair, Refused
from market.dispatch.lacking import Lacking, Seen
from market.dispatch.supply import PRICES_MAX, Given
from market.dispatch.supply import Device as Supplying
from market.events.context import Context
from market.files.artifacts import WorkFiles, files_of, wants_files
from market.jobs.hindrances import Compared, Device, compare
from market.jobs.matching import DeviceBook, JobBook, Needs, Offer, WaitingJob, lack, suits
from market.jobs.offers import reported
from market.jobs.overdue import Leases
from market.jobs.specs import Specs
from market.jobs.waiting_jobs import Finds, WaitingJobs
from market.trust import trust
from market.trust.reputation import NEW_RELIABILITY, Reputation
from proxyctl.protocol.jobspec import Capacity, as_fields
from proxyctl.protocol.jobspec.matching import left
from storage.devices import benchmarks as benchmark_queries
from storage.devices import devices as device_queries
from storage.devices.devices import DeviceRow
from storage.dispatch import claims as queries
from storage.dispatch.claims import GivenRow, HeldRow, OfferedRow
from storage.engines.store import Transaction

# In one answer: more jobs than a device may hold, unless the operator wants that.
JOBS_PER_ANSWER = 16
# A device takes about a kilobyte. Of those asked for longest ago nothing is known; they are looked
# up when they ask again.
DEVICES_MAX = 50_000
# More than a device may hold, unless the operator wants that; of more, the rest are not told again.
HELD_MAX = 1_000
LOOKS_MAX_DEVICES = 50  # looked up together: the first of them waits for the last
NOTHING = Capacity()
# In a market with more devices than that, some of the latest run what is run at all.
KINDS_LOOKED_AT_MAX = 200
# Devices that have left are passed over: a tenth of a millisecond.
LATEST_LOOKED_AT_MAX = 2_000
# Each device has some, and an empty set of its own takes 216 bytes.
NO_ATTEMPTS: Final[frozenset[tuple[str, int]]] = frozenset()
NO_ACTIONS: Final[frozenset[Action]] = frozenset()
NEVER: Final = -math.inf
SayHeld = Callable[[], Awaitable[None]]


class Takers(NamedTuple):
    """How many devices asked last, and how many owners' among them can take a copy of a job."""

    asked: int
    owners: int


class DispatchTerms(Struct, frozen=True):
    """How requests for work are answered.

    Attributes:
        credit: what a credit is worth, in micro-USD.
        lease_seconds: an attempt is taken back when its device does not name it for so long.
        prepare_seconds: for how long a device prepares an attempt before it gives up by itself.
        wait_seconds: for how long a request is held at most.
        sign_seconds: how often whoever waits is told that it is held; proxies on the way close a
            connection on which nothing has come for a minute.
        held_max: of how many devices one is held at once; those of one owner have half of that.
        benchmark_seconds: a device is asked to show what it has once in that time at most; 0 asks
            none.
    """

    credit: int = 10_000
    lease_seconds: int = 600
    prepare_seconds: int = Leases().device_prepare_seconds
    wait_seconds: float = 300.0
    sign_seconds: float = 50.0
    held_max: int = 10_000
    benchmark_seconds: int = 0


class DispatchPace(Struct, frozen=True):
    """The times and sizes of the dispatch that no operator decides.

    Attributes:
        full_seconds: between two tries for a device with as many jobs as it may have, which offers
            to do more: the end of a job is not reported here. All devices of a full owner wait for
            the same time.
        away_seconds: silence of an agent after which it is away. It asks again at once, or after a
            minute if the marketplace was away for long.
        broken_off_seconds: the same for an agent that has broken its request off.
        benchmark_one_in: jobs that end, on average, between two benchmarks of a device, so that
            the moment cannot be foreseen. The device gets no job for some seconds then.
        kept_from_devices: number of devices from which results of comparisons are kept. To compare
            a job with 200 devices takes a millisecond, and a client that lists jobs again and again
            would delay all others.
        kept_seconds: age of a result until which it is used.
        kept_max: results that are kept at most.
    """

    full_seconds: float = 5.0
    away_seconds: float = 120.0
    broken_off_seconds: float = 10.0
    benchmark_one_in: int = 8
    kept_from_devices: int = 20
    kept_seconds: float = 2.0
    kept_max: int = 4_096


USUAL_PACE = DispatchPace()


class Agent(Struct, frozen=True):
    """The program that asks for a device: the name of its folder, and its start in UTC seconds.

    Two of them may have the token of one device, though it is meant for one.
    """

    name: str = ""
    since: int = 0


class Ask(Struct, frozen=True):
    """What a device asks with: what it offers, what it holds, and for how long it waits.

    `seen` is the number of the last answer that it got, 0 for none; `network` where it asks from
    (`market.base.networks.site`); `can_benchmark` says that it can show what it has, and is free
    to.
    """

    offer: Offer
    attempts: frozenset[tuple[str, int]]
    wait_seconds: float
    seen: int
    agent: Agent = Agent()
    network: str = ""
    can_benchmark: bool = False


class GivenJob(Struct, frozen=True):
    """A job that is a device's: `payload` is JSON with its secrets in it, `files` to be fetched."""

    row: GivenRow
    payload: bytes
    files: WorkFiles = WorkFiles()


class OfferedJob(Struct, frozen=True):
    """A job that a device could get, and its price as in an `Offer`."""

    row: OfferedRow
    price: int


class Offers(Struct, frozen=True):
    """The jobs that a device could get, the best first, with the reputation that it has."""

    jobs: list[OfferedJob]
    reputation: Reputation


class Told(Struct, frozen=True):
    """What a device is told: jobs that are now its own, what to stop, the number of the answer.

    `is_replaced`: another agent with the same token was started later, and is given the jobs.
    `benchmark`: it is to show what it has (`market.devices.benchmarks`) before it asks again.
    """

    jobs: Sequence[GivenJob]
    actions: Sequence[Action]
    seen: int
    is_replaced: bool = False
    benchmark: bool = False


class Standing(Struct, frozen=True):
    """What is known of a device as somebody who wants work.

    Attributes:
        is_asking: whether its agent asks for work here, or has within two minutes.
        offer: what it last offered; else what it has reported of itself, if `is_reported`.
        is_reported: whether it has offered nothing here.
        compared: how the jobs that wait suit what it offers, were it free.
    """

    is_asking: bool
    offer: Offer
    is_reported: bool
    compared: Compared


class SampleSource(Protocol):
    """Gives devices jobs whose answers are known (`market.dispatch.samples`)."""

    async def due(self, tx: Transaction, device_ids: Sequence[str]) -> frozenset[str]:
        """Return those of these devices that are to be given one."""

    async def give(self, device_id: str, offer: Offer) -> GivenRow | None:
        """Give a device one; None when it gets none now."""


class _Question(NamedTuple):
    """What a device says it holds, compared with what the store says."""

    device_id: str
    named: frozenset[tuple[str, int]]


class _Found(Struct, frozen=True):
    """What the store says of a device: what it holds, what of that it does not know, actions."""

    held: Sequence[HeldRow]
    unknown: Sequence[GivenRow]
    actions: Sequence[Action]
    reputation: int
    is_due: bool = False
    is_proven: bool = False


class _Device:
    """What is known of a device: what it holds of jobs with a payload, and what it was told.

    `held` counts only while `is_certain`. `told` are actions that still stand, the last of them in
    the answer with the number `told_at`: told again until the device has seen that. `given` are the
    attempts that it was given and does not name, with the number of the answer: one that it has
    seen and does not take is not given again, but taken back. `agents` are the agents that were
    given what it holds, and `agent` the one that gets jobs now, which asked last at `asked_at`.
    `offer`, `owner` and `network` are those of the request that came last. `whole` is everything
    that it lends: the capacity of its last request in which it held nothing.
    `reputation` is as it was last looked up, in millionths. `benchmark_at` is when it was last
    asked to show what it has, or when it was known last that this is not due.
    `is_proven` says that it has done enough jobs well, and `has_broken_off` that its agent did not
    wait for the last answer.
    """

    __slots__ = (
        "agent",
        "agents",
        "asked_at",
        "benchmark_at",
        "claiming",
        "given",
        "has_broken_off",
        "held",
        "is_certain",
        "is_proven",
        "network",
        "offer",
        "owner",
        "reputation",
        "request",
        "settled",
        "told",
        "told_at",
        "whole",
    )

    def __init__(self) -> None:
        self.held = NO_ATTEMPTS
        self.is_certain = False
        self.told = NO_ACTIONS
        self.told_at = 0
        self.given: dict[tuple[str, int], int] = {}
        self.agent = Agent()
        self.agents: dict[tuple[str, int], str] = {}
        self.asked_at = 0.0
        self.benchmark_at = NEVER
        self.offer: Offer | None = None
        self.whole: Capacity | None = None
        self.owner = self.network = ""
        self.reputation = 0
        self.is_proven = self.has_broken_off = False
        self.request: _Request | None = None
        self.claiming = 0
        self.settled: asyncio.Future[None] | None = None

    def is_asking(self, now: float, pace: DispatchPace) -> bool:
        """Say whether its agent asks for work: a request is held, or one ended lately."""
        seconds = pace.broken_off_seconds if self.has_broken_off else pace.away_seconds
        return self.request is not None or now - self.asked_at <= seconds

    def is_for(self, agent: Agent, now: float, pace: DispatchPace) -> bool:
        """Note who asks; say whether that is not an agent in whose place another one works."""
        is_away = self.request is None and now - self.asked_at > pace.away_seconds
        if self.has_other(agent) and agent.since < self.agent.since and not is_away:
            return False
        if agent.name:
            self.agent, self.asked_at = agent, now
        return True

    def has_other(self, agent: Agent) -> bool:
        """Say whether another agent gets the jobs; of one without a name nobody knows."""
        return bool(agent.name and self.agent.name) and agent.name != self.agent.name


class _Request:
    """A held request; a `Waiter` while no job was found for it."""

    __slots__ = (
        "claiming",
        "device",
        "device_id",
        "error",
        "future",
        "jobs",
        "network",
        "offer",
        "owner",
        "say_held",
    )

    def __init__(self, row: DeviceRow, device: _Device, ask: Ask, say_held: SayHeld | None) -> None:
        self.say_held = say_held
        self.device_id = row.id
        self.owner = row.user_id
        self.network = ask.network
        self.device = device
        self.offer = ask.offer
        self.future: asyncio.Future[bool] | None = None
        self.claiming = 0
        self.jobs: list[GivenRow] = []
        self.error: Exception | None = None

    @property
    def reputation(self) -> int:
        """What the device has of it, in millionths."""
        return self.device.reputation

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for it: no later request has taken its place."""
        return self.device.request is self

    def wake(self) -> None:
        """Have it go on."""
        if self.future is not None and not self.future.done():
            self.future.set_result(True)


async def _is_woken(request: _Request, seconds: float) -> bool:
    """Wait for a request's future; return False when so many seconds have passed before."""
    future = request.future
    assert future is not None  # noqa: S101 - made by whoever waits
    timer = asyncio.get_running_loop().call_later(seconds, _pass, future)
    try:
        return await future
    finally:
        timer.cancel()


def _pass(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)


class _Shares:
    """How many devices wait, by owner: none may have more than it leaves to others.

    So whoever has any number of devices takes half of the room, and keeps nobody out.
    """

    def __init__(self) -> None:
        self.total = 0
        self._of: Counter[str] = Counter()

    def take(self, owner: str, most: int) -> None:
        """Let a device wait.

        Raises:
            MarketError: `too_busy`.
        """
        if self._of[owner] >= most - self.total:
            raise MarketError(Code.TOO_BUSY)
        self._of[owner] += 1
        self.total += 1

    def give(self, owner: str) -> None:
        """Note that a device does not wait any more."""
        self.total -= 1
        self._of[owner] -= 1
        if not self._of[owner]:
            del self._of[owner]


class Dispatch:
    """Gives jobs to devices that ask.

    Args:
        context: the store and the time.
        specs: reads payloads with their secrets.
        bounds: returns how much a device may have at once.
        terms: how requests are answered; may be replaced.
        end_unreadable: ends a job whose secrets cannot be read any more.
        samples: gives jobs whose answers are known; None where there are none.
        pace: times and sizes; may be replaced.
    """

    def __init__(
        self,
        context: Context,
        specs: Specs,
        bounds: Callable[[], Bounds],
        terms: DispatchTerms,
        end_unreadable: Callable[[str], Awaitable[None]],
        samples: SampleSource | None = None,
        pace: DispatchPace = USUAL_PACE,
    ) -> None:
        self.terms = terms
        self.pace = pace
        self.claims = Claims(context, bounds)
        self.jobs = JobBook()
        self._store = context.store
        self._now = context.now
        self._bus = context.bus
        self._specs = specs
        self._end_unreadable = end_unreadable
        self._samples = samples
        self._devices: OrderedDict[str, _Device] = OrderedDict()
        # Comparisons of jobs with the devices, each until a time of the loop.
        self._lacks: dict[
            tuple[Needs, int | None, frozenset[str]], tuple[float, Lacking | None]
        ] = {}
        self._waiting: DeviceBook[_Request] = DeviceBook()
        self._held = _Shares()
        self._claimed: set[str] = set()
        self._reader = WaitingJobs(
            context.store,
            self.jobs,
            specs,
            terms.credit,
            Finds(self._add, self._claimed.__contains__, self._end_unreadable),
            context.now,
        )
        self._looks = Gathering(self._look_up, LOOKS_MAX_DEVICES)
        # The owners without a free slot, and the moment of the next try, by the clock of the loop.
        self._full_until: dict[str, float] = {}
        # The last jobs that devices got here; the supply shows their prices.
        self.prices: deque[Given] = deque(maxlen=PRICES_MAX)
        self._is_draining = False
        context.bus.subscribe(WAITING, self._jobs_wait)
        context.bus.subscribe(GONE, self._jobs_gone)
        context.bus.subscribe(DEVICES, self._devices_wake)
        context.bus.on_missed(self._look_again)

    async def run(self) -> None:
        """Keep the jobs that wait in memory, until cancelled."""
        await self._reader.run()

    async def offers(self, row: DeviceRow, limit: int, network: str = "") -> Offers:
        """Return waiting jobs that a device could get, the best first.

        It is judged by what it last offered here, or by its last report: then by what it has, and
        not by what it has free.

        Args:
            row: the device.
            limit: how many at most.
            network: where it asks from.
        """
        offer = self.offer_of(row)
        offer = structs.replace(offer, capacity=replace(offer.capacity, slots=1))
        reputation = (await self._store.read(trust.of_devices, [row.id]))[row.id]
        suitable = self.jobs.best(offer, row.user_id, reputation.score, network)
        best = list(islice(suitable, limit))
        found = await self._store.read(queries.offered, [job.id for job in best])
        rows = {each.job_id: each for each in found}
        jobs = [OfferedJob(rows[job.id], job.price) for job in best if job.id in rows]
        return Offers(jobs, reputation)

    def offer_of(self, row: DeviceRow) -> Offer:
        """Return the last offer of a device here; else one by its heartbeats."""
        known = self._devices.get(row.id)
        return known.offer if known is not None and known.offer is not None else reported(row)

    def is_asking(self, device_id: str) -> bool | None:
        """Say whether a device's agent asks for work here; None if that never has."""
        known = self._devices.get(device_id)
        if known is None or known.offer is None:
            return None
        return known.is_asking(asyncio.get_running_loop().time(), self.pace)

    def slots(self, device_id: str) -> int | None:
        """Return for how many more jobs a device last had room; None if it never said."""
        known = self._devices.get(device_id)
        return None if known is None or known.offer is None else known.offer.capacity.slots

    def standing(self, row: DeviceRow, reputation: int) -> Standing:
        """Return what is known of a device, and how the jobs that wait suit it.

        Args:
            row: the device.
            reputation: what it has, in millionths.
        """
        known = self._devices.get(row.id)
        said = None if known is None else known.offer
        offer = reported(row) if said is None else said
        capacity = replace(offer.capacity, slots=max(offer.capacity.slots, 1))
        kind = Device(
            structs.replace(offer, capacity=capacity),
            row.user_id,
            reputation,
            "" if known is None else known.network,
        )
        return Standing(bool(self.is_asking(row.id)), offer, said is None, compare(self.jobs, kind))

    def lacks(
        self, needs: Needs, price: int | None = None, failed: frozenset[str] = frozenset()
    ) -> Lacking | None:
        """Return the needs of a job that the devices that ask now do not meet, free or not.

        None if one of them meets all. If no device asks, the result counts no device. Where there
        are many devices, the result may be two seconds old.

        Args:
            needs: the needs of the job.
            price: its price as in an `Offer`; None for one that every device takes.
            failed: the owners whose devices have failed at it.
        """
        if len(self._devices) < self.pace.kept_from_devices:
            return self._compared(needs, price, failed)
        key, now = (needs, price, failed), asyncio.get_running_loop().time()
        kept = self._lacks.get(key)
        if kept is not None and now < kept[0]:
            return kept[1]
        if len(self._lacks) >= self.pace.kept_max:
            self._lacks.clear()
        found = self._compared(needs, price, failed)
        self._lacks[key] = now + self.pace.kept_seconds, found
        return found

    def _compared(self, needs: Needs, price: int | None, failed: Container[str]) -> Lacking | None:
        """Compare a job with the devices that ask now."""
        seen = (
            Seen(offer, device.whole, device.reputation, device.owner)
            for device, offer in self._latest()
        )
        return lacking.compare(needs, price, seen, failed)

    def price(self, price_credit: int, duration_hrs: int) -> int:
        """Return the price of a job as in an `Offer`, by its price in micro-credits."""
        return price_credit * self.terms.credit // duration_hrs

    def takers(
        self, needs: Needs, copies: int, owners: Container[str] = (), networks: Container[str] = ()
    ) -> Takers:
        """Return how many of some copies the devices that asked last can take, free or not.

        Args:
            needs: what each copy needs.
            copies: how many wait; no more are counted.
            owners: whose devices get none: the buyer, and those who have taken another copy.
            networks: from which none is taken any more.
        """
        asked = 0
        able: dict[str, set[str]] = {}
        for device, offer in self._latest():
            asked += 1
            if device.owner in owners or (device.network and device.network in networks):
                continue
            is_trusted = needs.min_reputation <= device.reputation
            if is_trusted and lack(needs, offer) is None:
                able.setdefault(device.owner, set()).add(device.network)
        return Takers(asked, apart(able, copies))

    def asking(self) -> Iterator[Supplying]:
        """Yield the devices that ask for work here now; devices may come and go meanwhile."""
        now = asyncio.get_running_loop().time()
        for device in tuple(self._devices.values()):
            if device.offer is not None and device.is_asking(now, self.pace):
                yield Supplying(
                    device.offer,
                    device.whole,
                    device.owner,
                    device.network,
                    device.reputation,
                    device.is_proven,
                )

    def _latest(self) -> Iterator[tuple[_Device, Offer]]:
        """Yield the devices that ask for work now and asked last, with their offers."""
        now = asyncio.get_running_loop().time()
        latest = islice(reversed(self._devices.values()), LATEST_LOOKED_AT_MAX)
        asking = (device for device in latest if device.is_asking(now, self.pace))
        for device in islice(asking, KINDS_LOOKED_AT_MAX):
            if device.offer is not None:
                yield device, device.offer

    @property
    def held(self) -> int:
        """How many devices' requests are held."""
        return self._held.total

    def drain(self) -> None:
        """Answer every held request at once, and hold no more."""
        self._is_draining = True
        for device in self._devices.values():
            if device.request is not None and not device.request.claiming:
                device.request.wake()

    async def next(self, row: DeviceRow, ask: Ask, say_held: SayHeld | None = None) -> Told:
        """Return jobs and actions for a device, as soon as there are some, or after its wait.

        A second request of a device takes the place of the first, which is answered with nothing.

        Args:
            row: the device.
            ask: what it asks with.
            say_held: called each `sign_seconds` while there is nothing; what it raises ends the
                wait, and nothing is lost by it.

        Raises:
            MarketError: `worker_unauthorized`, when the device was revoked meanwhile; `too_busy`,
                when too many devices wait, or too many of this owner's.
            StoreError: nothing was given to the device, as far as is known.
        """
        device = self._device(row.id)
        if not device.is_for(ask.agent, asyncio.get_running_loop().time(), self.pace):
            return replaced(ask)
        earlier, request = device.request, _Request(row, device, ask, say_held)
        del row  # of twenty fields; thousands wait here
        if earlier is None:
            self._held.take(request.owner, self.terms.held_max)
        device.request, device.offer = request, ask.offer
        if not ask.attempts and ask.offer.capacity.slots:
            device.whole = ask.offer.capacity
        device.owner, device.network = request.owner, request.network
        if earlier is not None:
            self._waiting.remove(earlier)
            earlier.wake()
        try:
            told = await self._with_files(await self._answer(request, ask))
        except (asyncio.CancelledError, ConnectionError):
            device.has_broken_off = device.request is request
            raise
        else:
            device.has_broken_off = False
            return told
        finally:
            if device.request is request:
                device.asked_at = asyncio.get_running_loop().time()
                device.request = None
                self._waiting.remove(request)
                self._held.give(request.owner)

    async def _answer(self, request: _Request, ask: Ask) -> Told:
        device, loop = request.device, asyncio.get_running_loop()
        until = loop.time() + min(ask.wait_seconds, self.terms.wait_seconds)
        while device.claiming:  # for an earlier request
            await self._settled(device)
        must_look = device.held != ask.attempts
        while request.is_wanted:
            if not request.claiming and (must_look or not device.is_certain):
                must_look = False
                told = await self._looked_up(request, ask)
                if told is not None:
                    return told
                continue
            if not request.claiming and not self._is_draining:
                self._match(request)
            seconds = until - loop.time()
            if not request.claiming and (seconds <= 0 or self._is_draining):
                break
            is_full = request.offer is not ask.offer or self._is_full(request.owner)
            await self._wait(request, min(seconds, self.pace.full_seconds) if is_full else seconds)
            if is_full:
                request.offer = ask.offer
            if request.error is not None:
                raise request.error
            jobs = await self._claimed_for(request)
            if jobs:
                return self._told(device, ask, jobs)
        return replaced(ask) if device.has_other(ask.agent) else self._told(device, ask)

    async def _looked_up(self, request: _Request, ask: Ask) -> Told | None:
        """Look a device up; return what it is told by that, or None for nothing."""
        rows, actions = await self._look(request, ask)
        jobs = await self._readable(rows)
        if jobs or actions:
            return self._told(request.device, ask, jobs, actions)
        if await self._is_to_show(request, ask) and request.is_wanted:
            return structs.replace(self._told(request.device, ask), benchmark=True)
        return None

    async def _wait(self, request: _Request, seconds: float) -> None:
        """Wait until something has happened to a request, or its time is over."""
        loop = asyncio.get_running_loop()
        request.future = loop.create_future()
        if request.claiming:
            await request.future
            return
        self._waiting.add(request)
        until = loop.time() + seconds
        try:
            while not await _is_woken(request, min(until - loop.time(), self.terms.sign_seconds)):
                if loop.time() >= until:
                    return
                # Before anything is awaited: what wakes it meanwhile is not lost.
                request.future = loop.create_future()
                if request.say_held is not None:
                    await request.say_held()
        finally:
            self._waiting.remove(request)

    async def _settled(self, device: _Device) -> None:
        """Wait until no job is being given to a device."""
        if device.settled is None:
            device.settled = asyncio.get_running_loop().create_future()
        await asyncio.shield(device.settled)

    def _told(
        self,
        device: _Device,
        ask: Ask,
        jobs: Sequence[GivenJob] = (),
        actions: Sequence[Action] = (),
    ) -> Told:
        """Return an answer, with a number that neither side has had."""
        number = max(device.told_at, ask.seen, *device.given.values()) + 1
        keys = [(job.row.job_id, job.row.attempt) for job in jobs]
        device.given.update(dict.fromkeys(keys, number))
        device.agents.update(dict.fromkeys(keys, ask.agent.name))
        if actions:
            device.told, device.told_at = device.told.union(actions), number
        return Told(jobs, actions, number)

    async def _with_files(self, told: Told) -> Told:
        """Add what is to be fetched for its jobs; if that fails, the device hears of them again."""
        jobs = [
            structs.replace(
                job,
                files=await self._store.read(files_of, job.row.job_id, job.row.payload.encode()),
            )
            if wants_files(job.payload)
            else job
            for job in told.jobs
        ]
        return structs.replace(told, jobs=jobs)

    async def _claimed_for(self, request: _Request) -> list[GivenJob]:
        """Return the jobs that were claimed for a request, if somebody still waits for it."""
        if not (request.jobs and request.is_wanted):
            return []
        rows, request.jobs = request.jobs, []
        return await self._readable(rows)

    async def _readable(self, rows: Sequence[GivenRow]) -> list[GivenJob]:
        """Return jobs with their payloads; one whose secrets cannot be read any more is ended."""
        jobs = []
        for row in rows:
            payload = self._payload(row)
            if payload is None:
                await self._end_unreadable(row.job_id)
            else:
                jobs.append(GivenJob(row, payload))
        return jobs

    def _payload(self, row: GivenRow) -> bytes | None:
        """Return a payload with its secrets; nearly all have none, and are as they were stored.

        None when they cannot be read: the key was changed since the job was given to the device.
        """
        if row.secrets is None:
            return row.payload.encode()
        payload = self._specs.payload_of(row.payload, row.secrets)
        return None if payload is None else msgspec.json.encode(as_fields(payload))

    async def _look(
        self, request: _Request, ask: Ask
    ) -> tuple[Sequence[GivenRow], Sequence[Action]]:
        """Look up what a device holds; return what it was given without knowing, and actions.

        One that is due for a sample, and has nothing else to hear, is given that.
        """
        device = request.device
        device.is_certain = True  # unless it is woken while this is looked up
        try:
            found = await self._looks.ask(_Question(request.device_id, ask.attempts))
        except BaseException:
            device.is_certain = False
            raise
        if found is None:
            raise MarketError(Code.WORKER_UNAUTHORIZED)
        device.reputation, device.is_proven = found.reputation, found.is_proven
        held = frozenset((row.job_id, row.attempt) for row in found.held)
        device.held = held or NO_ATTEMPTS
        device.given = {
            key: number
            for key, number in device.given.items()
            if key in device.held and key not in ask.attempts
        }
        device.agents = {key: name for key, name in device.agents.items() if key in device.held}
        actions = found.actions
        if ask.seen >= device.told_at:  # what it was told it has heard, and is at work on
            device.told = device.told.intersection(actions) or NO_ACTIONS
            actions = [each for each in actions if each not in device.told]
        else:
            device.told = NO_ACTIONS
        unknown = [
            row
            for row in found.unknown
            if device.given.get((row.job_id, row.attempt), ask.seen + 1) > ask.seen
            # Another agent may be at work on what it was given, and has named it to nobody yet.
            and device.agents.get((row.job_id, row.attempt), "") in ("", ask.agent.name)
        ]
        if found.is_due and not unknown and not actions:
            sample = await self._sample(request)
            if sample is not None and request.is_wanted:
                return [sample], ()
        return unknown, actions

    async def _is_to_show(self, request: _Request, ask: Ask) -> bool:
        """Say whether a device that holds nothing is to show what it has: now and then, by lot.

        It was looked up just now, which is when a job of it has ended, or it is new here.
        """
        device, seconds = request.device, self.terms.benchmark_seconds
        is_free = ask.can_benchmark and not (device.held or ask.attempts) and not self._is_draining
        if not seconds or not is_free or request.offer.capacity.slots < 1:
            return False
        now = asyncio.get_running_loop().time()
        if now - device.benchmark_at < seconds or secrets.randbelow(self.pace.benchmark_one_in):
            return False
        rows = await self._store.read(benchmark_queries.find, [request.device_id])
        row = rows.get(request.device_id)
        device.benchmark_at = now
        return row is None or self._now() - row.measured_at >= seconds

    async def _sample(self, request: _Request) -> GivenRow | None:
        """Give a device a sample, if it gets one now: else when it is looked up the next time."""
        device = request.device
        if self._samples is None or self._is_draining or request.offer.capacity.slots < 1:
            return None
        device.claiming += 1  # a later request waits, and looks up what this one was given
        try:
            row = await self._samples.give(request.device_id, request.offer)
        except BaseException:
            device.is_certain = False
            raise
        finally:
            device.claiming -= 1
            self._settle(device)
        if row is not None:
            device.held |= {(row.job_id, row.attempt)}
        return row

    async def _look_up(self, questions: Sequence[_Question]) -> dict[_Question, _Found]:
        return await self._store.read(_look, questions, self._samples)

    # --- matching ---------------------------------------------------------------------------

    def _match(self, request: _Request) -> None:
        """Find jobs for a request, the best first, as many as the device has room for."""
        offer = request.offer
        chosen: list[WaitingJob] = []
        most = min(offer.capacity.slots, JOBS_PER_ANSWER)
        if most < 1 or not self.jobs or self._is_full(request.owner):
            return
        groups: set[str] = set()
        best = self.jobs.best(offer, request.owner, request.reputation, request.network)
        for job in best:
            if (chosen and not suits(job.needs, offer)) or job.group in groups:
                continue
            if job.group:
                groups.add(job.group)
            chosen.append(job)
            if len(chosen) == most:
                break
            offer = structs.replace(offer, capacity=left(offer.capacity, job.needs.resources))
        for job in chosen:
            self.jobs.remove(job.id)
            self._claim(request, job)

    def _add(self, job: WaitingJob) -> None:
        """Give a job to a device that waits, or keep it.

        One that there is no room for comes again, as everything that waits and is not kept.
        """
        request = self._waiting.find(job, self._is_full)
        if request is None:
            if self.jobs.has_room(job):
                self.jobs.add(job)
            return
        self._waiting.remove(request)
        self._claim(request, job)

    def _claim(self, request: _Request, job: WaitingJob) -> None:
        request.claiming += 1
        request.device.claiming += 1
        self._claimed.add(job.id)
        for other in self.jobs.copies(job.group):
            other.exclude(request.owner, request.network)

        def on_outcome(job: WaitingJob, outcome: Outcome) -> None:
            self._on_outcome(request, job, outcome)

        pair = Pair(job, request.device_id, lambda: request.is_wanted, on_outcome, request.network)
        self.claims.put(pair)

    def _on_outcome(self, request: _Request, job: WaitingJob, outcome: Outcome) -> None:
        """Go on with what became of a pair."""
        device = request.device
        request.claiming -= 1
        device.claiming -= 1
        self._claimed.discard(job.id)
        self._read_copies(job, outcome)
        if isinstance(outcome, GivenRow):
            device.held |= {(outcome.job_id, outcome.attempt)}
            request.jobs.append(outcome)
            names = request.offer.capacity.gpu_names if job.needs.resources.needed_gpus else ()
            self.prices.append(Given(monotonic(), job.price, "".join(names[:1]), job.buyer))
            self._bus.publish(GONE, (job.id,))
        elif outcome is Refused.TAKEN or outcome is Refused.RELATED:
            self._reader.read_soon(job.id)
        elif isinstance(outcome, Exception):  # another device would get no further
            request.error = outcome
            device.is_certain = False
            self.jobs.add(job.again())
        else:
            if outcome is Refused.FULL:
                request.offer = structs.replace(request.offer, capacity=NOTHING)
            elif outcome is Refused.OWNER_FULL:
                self._owner_is_full(request.owner)
            elif outcome is Refused.REVOKED:
                request.error = MarketError(Code.WORKER_UNAUTHORIZED)
            elif outcome is Refused.UNTRUSTED:  # it has fallen since it was looked up
                device.reputation = min(device.reputation, job.needs.min_reputation - 1)
                device.is_certain = False
            self._add(job.again())
        self._settle(device)
        if not request.claiming:
            request.wake()

    def _owner_is_full(self, owner: str) -> None:
        """Give an owner's devices nothing for a while; else a job goes from one to the next."""
        now = asyncio.get_running_loop().time()
        for other in [each for each, until in self._full_until.items() if until <= now]:
            del self._full_until[other]
        self._full_until[owner] = now + self.pace.full_seconds

    def _is_full(self, owner: str) -> bool:
        until = self._full_until.get(owner)
        return until is not None and until > asyncio.get_running_loop().time()

    def _settle(self, device: _Device) -> None:
        """Have later requests of a device go on, unless a job is still being given to it."""
        if not device.claiming and device.settled is not None:
            device.settled.set_result(None)
            device.settled = None

    def _read_copies(self, job: WaitingJob, outcome: Outcome) -> None:
        """Have the other copies of a job read again: who may have them is another matter now."""
        for other in self.jobs.copies(job.group):
            if isinstance(outcome, GivenRow):  # other daemons do not know, either
                self._bus.publish(WAITING, (other.id,))
            else:
                self._reader.read_soon(other.id)

    # --- notifications -----------------------------------------------------------------------

    def _jobs_wait(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            self._reader.read_soon(job_id)

    def _jobs_gone(self, job_ids: Sequence[str]) -> None:
        for job_id in job_ids:
            self.jobs.remove(job_id)

    def _devices_wake(self, device_ids: Sequence[str]) -> None:
        """Look devices up again, because an attempt or the token of each may have ended."""
        for device in filter(None, map(self._devices.get, device_ids)):
            device.is_certain = False
            self._full_until.pop(device.owner, None)  # perhaps a job of it has ended
            if device.request is not None and not device.request.claiming:
                device.request.wake()

    def _look_again(self) -> None:
        """Compare the jobs, and look all devices up: notices may have been lost."""
        self._reader.compare_soon()
        self._devices_wake(tuple(self._devices))

    def _device(self, device_id: str) -> _Device:
        device = self._devices.get(device_id)
        if device is None:
            device = self._devices[device_id] = _Device()
            self._forget_some()
        self._devices.move_to_end(device_id)
        return device

    def _forget_some(self) -> None:
        """Forget the device that asked longest ago, over the bound, unless it waits."""
        while len(self._devices) > max(DEVICES_MAX, self.held + 1):
            device_id, device = self._devices.popitem(last=False)
            if device.request is not None or device.claiming:
                self._devices[device_id] = device


def apart(networks: Mapping[str, Collection[str]], most: int) -> int:
    """Return how many owners, `most` at most, can each have a copy from a network of their own.

    Args:
        networks: those of each owner's devices; "" is one that is not known, and like no other.
        most: how many copies there are.
    """
    holders: dict[str, str] = {}  # by network

    def place(owner: str, tried: set[str]) -> bool:
        """Find a network for an owner; another one gives way who has a second network."""
        for network in networks[owner]:
            if not network:
                return True
            if network not in tried:
                tried.add(network)
                if network not in holders or place(holders[network], tried):
                    holders[network] = owner
                    return True
        return False

    placed = 0
    for owner in networks:
        if placed >= most:
            break
        placed += place(owner, set())
    return placed


def replaced(ask: Ask) -> Told:
    """Return the answer for an agent in whose place another one works."""
    return Told((), (), ask.seen, is_replaced=True)


async def _look(
    tx: Transaction, questions: Sequence[_Question], samples: SampleSource | None
) -> dict[_Question, _Found]:
    """Compare what devices say they hold with what the store says; revoked ones are left out."""
    device_ids = list({each.device_id for each in questions})
    reputations = await trust.of_devices(tx, device_ids)  # of all that there are
    for device_id in await device_queries.revoked_among(tx, device_ids):
        del reputations[device_id]
    held: dict[str, list[HeldRow]] = {device_id: [] for device_id in device_ids}
    for row in await queries.held(tx, device_ids, limit=HELD_MAX * len(device_ids)):
        held[row.device_id].append(row)
    unknown = {each: _unknown(held[each.device_id], each.named) for each in questions}
    wanted = [job_id for each in unknown.values() for job_id in each]
    given = {row.job_id: row for row in await queries.given(tx, wanted)} if wanted else {}
    due = frozenset[str]() if samples is None else await samples.due(tx, device_ids)
    found = {}
    named = [(each.device_id, sorted(each.named)) for each in questions]
    for each, actions in zip(questions, await actions_for_all(tx, named), strict=True):
        device_id = each.device_id
        if device_id not in reputations:
            continue
        rows = [given[job_id] for job_id in unknown[each] if job_id in given]
        reputation, is_due = reputations[device_id], device_id in due
        found[each] = _Found(
            held[device_id], rows, actions, reputation.score, is_due, _is_proven(reputation)
        )
    return found


def _is_proven(reputation: Reputation) -> bool:
    """Say whether a device has done enough jobs well to be more than a token."""
    return reputation.attempts >= PROVEN_JOBS and reputation.score >= NEW_RELIABILITY


def _unknown(held: Sequence[HeldRow], named: frozenset[tuple[str, int]]) -> list[str]:
    """Return jobs of a device that it neither names nor ever has, as many as one answer has."""
    unknown = (
        row.job_id for row in held if not row.is_known and (row.job_id, row.attempt) not in named
    )
    return list(islice(unknown, JOBS_PER_ANSWER))
