"""Jobs of a run: buyers post, cancel, confirm and dispute them; agents on devices do the work.

An agent asks for work, begins it, names its attempts in heartbeats, and reports the end again and
again until it gets an answer. Some agents crash and forget their attempts, and some report attempts
that were taken from them.
"""

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from market.accounts.spending import Spender
from market.attempts.attempts import Ending, FailureKind
from market.base.errors import MarketError
from market.dispatch.asks import Agent, Ask
from market.events.idempotency import Replayed
from market.jobs.attempt_reports import Named
from market.jobs.copies import Copying
from market.jobs.matching import Offer
from market.jobs.postings import NewJob
from market.jobs.specs import Spec
from proxyctl.protocol.jobspec import Capacity, payload_of, resources_of
from tests.sim.clients import RequestError, receipt_of

if TYPE_CHECKING:
    from tests.sim.clients import Network
    from tests.sim.process import Life

DEVICES = 4
CREDIT = 1_000_000
# In most runs some orders exceed it.
KEY_LIMIT = 20 * CREDIT
BUYERS = 2
COMPARISONS = ("bytes", "json", "numbers:1e-6")
ASK_SECONDS = 4.0
HEARTBEAT_SECONDS = 3.0
RETRY_SECONDS = 0.4
SMALL = Capacity(slots=4, cores=8, ram_gb=16, disk_gb=100, arch="x86_64")
BWRAP = frozenset(("bwrap",))
OFFER = Offer(SMALL, BWRAP, frozenset(("script",)), least_price=0, ports=BWRAP)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job, or several copies of one.

    Attributes:
        buyer: the number of the user.
        at: the time of its posting.
        price: of each copy, in micro-credits.
        copies: the number of copies.
        hours: the hours of the review by its buyer.
        cancels_at: the time of its cancellation; None for never.
        verdict: "confirm" or "dispute"; "" if the buyer decides nothing.
    """

    buyer: int
    at: float
    price: int
    copies: int
    hours: int
    cancels_at: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """A device and its agent.

    Attributes:
        device: its number.
        at: the time at which it starts.
        seconds: the average time of the work of a job.
        failing: the share of jobs that fail.
        crashes: seconds between two crashes, on average; None for never.
        lies: whether it reports results of attempts that were taken from it, or that it had before
            a crash.
        deviates: the share of results that differ from those of honest devices.
    """

    device: int
    at: float
    seconds: float
    failing: float
    crashes: float | None
    lies: bool
    deviates: float


def device_name(number: int) -> str:
    """Return the identifier of a device."""
    return f"worker{number % DEVICES}"


def key_name(buyer: int) -> str:
    """Return the API key that pays for the jobs of a buyer."""
    return f"key{buyer}"


def owner_name(number: int) -> str:
    """Return the owner of a device."""
    return f"user{number % DEVICES + 2}"


def plans_of(
    draw: Random, seconds: float, subject: str | None = None
) -> tuple[tuple[JobPlan, ...], tuple[AgentPlan, ...]]:
    """Return the jobs and the agents of a run; half of the runs have none.

    Args:
        draw: the random stream.
        seconds: how long things go wrong.
        subject: "jobs" for few devices, which are copied while they work; "hooks" for jobs in any
            case, because they have events; "staff" for disputes in any case.
    """
    if draw.random() < 0.5 and subject not in ("jobs", "hooks", "staff"):
        return (), ()
    jobs = []
    for _ in range(1 + int(draw.random() * 10)):
        at = 0.3 + 0.7 * seconds * draw.random()
        jobs.append(
            JobPlan(
                buyer=int(draw.random() * BUYERS),
                at=round(at, 3),
                price=int(CREDIT * (0.001 + 10 * draw.random())),
                copies=2 + int(draw.random() * 2) if draw.random() < 0.3 else 1,
                hours=int(draw.random() * 2),
                cancels_at=at + 6 * draw.random() if draw.random() < 0.3 else None,
                verdict=("", "confirm", "dispute")[int(draw.random() * 3)],
            )
        )
    agents = [
        AgentPlan(
            device=number,
            at=round(2 * draw.random(), 3),
            seconds=0.2 + 4 * draw.random(),
            failing=0.3 * draw.random() ** 2,
            crashes=3.0 + 10 * draw.random() if draw.random() < 0.3 else None,
            lies=draw.random() < 0.3,
            deviates=0.3 * draw.random() ** 3,
        )
        for number in range(1 + int(draw.random() * DEVICES))
    ]
    if subject == "jobs":
        agents = [
            replace(each, seconds=4.0, failing=0.0, crashes=2.0, lies=True) for each in agents[:2]
        ]
    if subject == "staff":
        jobs = [replace(each, cancels_at=None, hours=1, verdict="dispute") for each in jobs]
        agents = [replace(each, seconds=0.5, failing=0.0) for each in agents]
    return tuple(jobs), tuple(agents)


class Records:
    """Answers that devices got to their reports of results, for a comparison with the database."""

    def __init__(self) -> None:
        self.completed: dict[str, dict[int, str]] = {}

    def complete(self, job_id: str, attempt: int, result: str) -> None:
        """Record the answer to a device that its result is stored."""
        self.completed.setdefault(job_id, {})[attempt] = result


class Actor:
    """Sender that repeats each request, at one daemon after the other."""

    def __init__(self, network: "Network", name: str, number: int, until: float) -> None:
        self.network = network
        self.name = name
        self.until = until
        self._number = number

    async def insist(self, what: str, make: Any) -> Any:
        """Return the result of a request, or its `MarketError`; None after the end of the run."""
        world = self.network.world
        while world.now < self.until:
            life = self.daemon()
            if life is not None:
                try:
                    return await self.network.request(f"{self.name} {what}", make, life)
                except RequestError as error:
                    if isinstance(error.__cause__, MarketError):
                        return error.__cause__
            self._number += 1
            await asyncio.sleep(RETRY_SECONDS)
        return None

    def daemon(self) -> "Life | None":
        """Return a daemon with the marketplace, if one serves."""
        lives = [each.serving for each in self.network.processes if each.has_services]
        serving = [each for each in lives if each is not None]
        return serving[self._number % len(serving)] if serving else None


class JobBuyer(Actor):
    """Buyer that posts a job, and then cancels, confirms or disputes it.

    Args:
        network: the network to the daemons.
        plan: its actions.
        number: the number of the job.
        until: the time at which it stops.
    """

    def __init__(self, network: "Network", plan: JobPlan, number: int, until: float) -> None:
        super().__init__(network, f"job{number}", number, until)
        self.plan = plan
        self.user_id = f"user{plan.buyer}"

    async def run(self) -> None:
        """Post the job, then cancel it or decide about the result, as planned."""
        plan, world = self.plan, self.network.world
        await asyncio.sleep(plan.at)
        job_ids = await self.insist("post", self._post)
        if not isinstance(job_ids, list):
            world.say(f"{self.name} not posted: {job_ids!r}")
            return
        world.say(f"{self.name} posted {' '.join(each[-6:] for each in job_ids)}")
        if plan.cancels_at is not None:
            await asyncio.sleep(max(0.0, plan.cancels_at - world.now))
            ended = await self.insist(
                "cancel", lambda market: market.jobs.cancel(self.user_id, job_ids[0])
            )
            world.say(f"{self.name} cancelled: {ended!r}")
        while plan.verdict and world.now < self.until:
            await asyncio.sleep(1.0)
            for job_id in job_ids:
                await self.insist(plan.verdict, partial(self._decide, job_id))

    async def _post(self, market: Any) -> list[str]:
        plan = self.plan
        spec = Spec(
            payload_of({"script": "print(6 * 7)"}),
            resources_of({}),
            timeout_seconds=3_600,
            review_hours=plan.hours,
        )
        new = NewJob(self.name, "script", plan.price, 1, "", "", spec)
        receipt = receipt_of(market, self.user_id, self.name)
        spender = Spender(key_name(plan.buyer), self.user_id)
        try:
            if plan.copies == 1:
                return [await market.jobs.create(self.user_id, new, receipt, spender)]
            copying = Copying(plan.copies, COMPARISONS[plan.price % len(COMPARISONS)])
            return list(
                await market.jobs.create_copies(self.user_id, new, copying, receipt, spender)
            )
        except Replayed as replayed:
            answer = msgspec.json.decode(replayed.answer)
            return [answer] if isinstance(answer, str) else list(answer)

    async def _decide(self, job_id: str, market: Any) -> None:
        if self.plan.verdict == "confirm":
            await market.reviews.confirm(self.user_id, job_id)
        else:
            await market.reviews.dispute(self.user_id, job_id, "it is wrong")


class DeviceAgent(Actor):
    """Agent that does jobs on a device.

    Args:
        network: the network to the daemons.
        plan: its actions.
        records: receives the answers to its reports.
        until: the time at which it stops requesting work.
    """

    def __init__(self, network: "Network", plan: AgentPlan, records: Records, until: float) -> None:
        super().__init__(network, device_name(plan.device), plan.device, until)
        self.plan = plan
        self.owner_id = owner_name(plan.device)
        self.held: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._records = records
        self._draw = network.world.draw("agent", plan.device)
        self._since = 1
        self._seen = 0
        self.is_idle = False

    async def run(self) -> None:
        """Ask for work and do it, until the time is over."""
        plan, world = self.plan, self.network.world
        loop = asyncio.get_running_loop()
        await asyncio.sleep(plan.at)
        heart = loop.create_task(self._beat())
        crash_at = self._crash_at()
        while world.now < self.until:
            if world.now >= crash_at:
                await self._crash()
                crash_at = self._crash_at()
            told = await self.insist("ask", self._ask)
            if told is None or isinstance(told, MarketError):
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self._seen = told.seen
            for job in told.jobs:
                key = job.row.job_id, job.row.attempt
                if key not in self.held:
                    world.say(f"{self.name} has {key[0][-6:]} attempt {key[1]}")
                    self.held[key] = loop.create_task(self._work(job))
            self._stop(told.actions)
            await asyncio.sleep(0.01)
        heart.cancel()
        self.is_idle = not self.held and plan.crashes is None and not plan.lies
        for task in tuple(self.held.values()):
            task.cancel()

    def _crash_at(self) -> float:
        crashes = self.plan.crashes
        if crashes is None:
            return float("inf")
        return self.network.world.now + crashes * 2 * self._draw.random()

    async def _crash(self) -> None:
        self.network.world.say(f"{self.name} crashes with {len(self.held)} attempts")
        if not self.plan.lies:  # else a copy of the machine goes on with them
            for task in tuple(self.held.values()):
                task.cancel()
        self.held.clear()
        self._since += 1
        self._seen = 0
        await asyncio.sleep(3 * self._draw.random())

    async def _device(self, market: Any) -> Any:
        return await market.devices.find(self.owner_id, self.name)

    async def _ask(self, market: Any) -> Any:
        device = await self._device(market)
        ask = Ask(OFFER, frozenset(self.held), ASK_SECONDS, self._seen, Agent("a", self._since))
        with self.network.supply.asking(market, device.id):
            return await market.dispatch.next(device, ask)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            named = [Named(*key, phase="running") for key in sorted(self.held)]

            async def sync(market: Any, named: list[Named] = named) -> Any:
                return await market.attempt_reports.sync(await self._device(market), {}, named)

            actions = await self.insist("sync", sync)
            if isinstance(actions, list):
                self._stop(actions)

    def _stop(self, actions: Any) -> None:
        for action in actions:
            task = self.held.get((action.job_id, action.attempt))
            if task is not None and not self.plan.lies:
                self.network.world.say(f"{self.name} stops {action.job_id[-6:]}: {action.reason}")
                task.cancel()
                del self.held[action.job_id, action.attempt]

    def _right_result(self, job_id: str) -> str:
        """Return what an honest device computes: of a sample, the known answer."""
        answers = self.network.books.database.rows(
            "SELECT answer FROM job_samples WHERE job_id = :id", id=job_id
        )
        return str(answers[0][0]) if answers else "42"

    async def _work(self, job: Any) -> None:
        plan, draw = self.plan, self._draw
        job_id, attempt = job.row.job_id, job.row.attempt

        async def start(market: Any) -> None:
            await market.attempt_reports.started(await self._device(market), job_id, attempt)

        is_failing, is_wrong = draw.random() < plan.failing, draw.random() < plan.deviates
        seconds, is_own = plan.seconds * 2 * draw.random(), draw.random() < 0.5
        began = await self.insist("start", start)
        if isinstance(began, MarketError) and not plan.lies:
            self.held.pop((job_id, attempt), None)
            return
        await asyncio.sleep(seconds)
        result = f"wrong {self.name}" if is_wrong else self._right_result(job_id)

        async def end(market: Any) -> bool:
            device = await self._device(market)
            if is_failing:
                ending = Ending(FailureKind.JOB if is_own else FailureKind.HOST)
                await market.jobs.fail(device, job_id, "it broke", attempt=attempt, ending=ending)
            else:
                await market.jobs.complete(device, job_id, result, attempt=attempt)
            return True

        ended = await self.insist("end", end)
        self.network.world.say(f"{self.name} ended {job_id[-6:]} attempt {attempt}: {ended!r}")
        if ended is True and not is_failing:
            self._records.complete(job_id, attempt, result)
        self.held.pop((job_id, attempt), None)


def check(records: Records, rows: Any, fail: Any) -> None:
    """Compare the jobs in the database with the answers to devices.

    Args:
        records: the answers to devices.
        rows: reads the database.
        fail: called with each difference.
    """
    stored = {
        job_id: (status, attempts, result, is_erased)
        for job_id, status, attempts, result, is_erased in rows(
            "SELECT j.id, j.status, j.attempts, COALESCE(j.result, ''), EXISTS ("
            " SELECT 1 FROM closures AS c WHERE c.state = 'erased' AND c.user_id = j.user_id)"
            " FROM jobs AS j"
        )
    }
    for job_id, results in records.completed.items():
        status, attempts, result, is_erased = stored[job_id]
        if len(results) > 1:
            fail(f"job {job_id[-6:]}: devices were answered that {len(results)} attempts count")
        for attempt, told in results.items():
            kept = "" if is_erased else told
            if (attempts, result) != (attempt, kept) or status not in ("completed", "failed"):
                fail(
                    f"job {job_id[-6:]}: attempt {attempt} was accepted, and the job is"
                    f" {status} after attempt {attempts}"
                )
    for user_id, spent in rows(
        "SELECT j.user_id, SUM(h.amount) FROM jobs AS j JOIN holds AS h ON h.id = 'job:' || j.id"
        " WHERE j.title LIKE 'job%' GROUP BY j.user_id"
    ):
        if spent > KEY_LIMIT:
            fail(f"the key of {user_id} has spent {spent}, beyond its limit")
    for job_id, count in rows(
        "SELECT job_id, COUNT(*) FROM job_attempts WHERE ended_at IS NULL GROUP BY job_id"
        " HAVING COUNT(*) > 1"
    ):
        fail(f"job {job_id[-6:]}: {count} attempts at once")
