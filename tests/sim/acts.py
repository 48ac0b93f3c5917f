"""The jobs' side of a run beyond plain jobs: deploys, samples, files, photos, webhooks, people.

Days pass at the end. Each part has a stream of draws, and is left out of most runs.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from market.base.errors import MarketError
from market.base.states import JobStatus
from market.dispatch.sample_tasks import SampleSizes
from market.files.evidence import APPEAL_SECONDS
from proxyd.outbound.mailer import Mailer
from tests.sim.deeds import (
    HEALED_SECONDS,
    PICTURES,
    SHARE,
    Assistant,
    DeedBooks,
    DeedPlan,
    DeedUser,
    deeds_of,
)
from tests.sim.deploys import DeployBooks, DeployBuyer, DeployPlan, ReplicaAgent, deploys_of
from tests.sim.file_devices import FileAgent
from tests.sim.files import SHARE as FILES_SHARE
from tests.sim.files import FileBooks, FileBuyer, FilesPlan, files_of
from tests.sim.folder import Folder
from tests.sim.followers import Follower
from tests.sim.halts import SUBJECT as HALTS
from tests.sim.halts import HaltBooks, HaltPerson, HaltPlan, halts_of
from tests.sim.jobs import Actor, AgentPlan, Records, device_name, owner_name
from tests.sim.letters import MailServer, PeopleBooks
from tests.sim.money.plans import MoneyPlan, money_of
from tests.sim.money.story import MoneyStory
from tests.sim.people import Person, PersonPlan, people_of
from tests.sim.process import KEY
from tests.sim.samples import SAMPLE_CREDITS, SampleBooks
from tests.sim.staff.house import House
from tests.sim.staff.plans import SUBJECT as STAFF
from tests.sim.staff.plans import HousePlan, house_of
from tests.sim.store import EPOCH, Commit
from tests.sim.webhooks import (
    LOOK_SECONDS,
    HookOwner,
    HookPlan,
    Servers,
    SimSender,
    hooks_of,
)

if TYPE_CHECKING:
    from tests.sim.clients import Network
    from tests.sim.loop import World
    from tests.sim.process import Life

# A process needs microseconds for each.
SIZES = SampleSizes(hashes=(3, 9), steps=(3, 9), numbers=(3, 9), shell_steps=(3, 9))
HAND_SECONDS = 2.0
# Parts of the marketplace that a run can have for its only subject.
SUBJECTS = (
    *("deeds", "deploys", "files", HALTS, "hooks", "jobs", "money", "people", "samples"),
    STAFF,
)
DAY_SECONDS = 86_400
# Jumps of all wall clocks at the end, each to the next delivery. An endpoint gets one an hour for
# five days before it is disabled.
LEAPS_MOST = 200
# After this number, a leap is an hour at least: each delivery is due at a time of its own.
SHORT_LEAPS = 100
HOUR_SECONDS = 3_600.0
LEAP_SECONDS = 1.5
# A slow server, and the sender's own patience.
DUE_SECONDS = 20.0
# Sweeps that a daemon runs every few minutes, for the end of the days.
SWEEPS: tuple[tuple[str, Callable[[Any], Coroutine[Any, Any, Any]]], ...] = (
    ("reviews", lambda market: market.reviews.expire()),
    ("bonuses", lambda market: market.referrals.pay_due()),
    ("jobs", lambda market: market.job_sweeper.expire()),
    ("keys", lambda market: market.keys.warn()),
    ("app keys", lambda market: market.apps.sweep()),
    ("usage", lambda market: market.usage.roll_up()),
    ("warnings", lambda market: market.bandwidth.warn()),
    ("events", lambda market: market.event_feed.sweep()),
    ("webhooks", lambda market: market.webhooks.sweep()),
    ("ended files", lambda market: market.artifacts.settle()),
    ("files", lambda market: market.artifacts.expire()),
    ("logs", lambda market: market.logs.keeper.sweep()),
    ("suspensions", lambda market: market.suspensions.end_due()),
    ("stops", lambda market: market.rule_stops.delete_old()),
    ("origins", lambda market: market.devices.origins.delete_old()),
    ("erasures", lambda market: market.leaving.erasures.erase_due()),
)


@dataclass(frozen=True)
class ActsPlan:
    """The actors of a run beside those of sessions and plain jobs.

    Attributes:
        deploys: the plans of buyers of deploys.
        hooks: the plans of owners of endpoints.
        people: the plans of people who register.
        deeds: the plans of users with photos of good deeds.
        files: the plans of buyers of jobs with files; None for none.
        agents: devices, where jobs have none.
        has_samples: whether the operator pays for samples.
        has_hand: whether a person takes jobs by hand.
        is_alone: whether no session is bought.
        sample_credits: the operator's money for samples, for each day.
        money: that comes in and goes out; None for none.
        halts: the orders to halt sessions, in a run with nothing else.
        house: the staff; None for none.
    """

    deploys: tuple[DeployPlan, ...] = ()
    hooks: tuple[HookPlan, ...] = ()
    people: tuple[PersonPlan, ...] = ()
    deeds: tuple[DeedPlan, ...] = ()
    files: FilesPlan | None = None
    agents: tuple[AgentPlan, ...] = ()
    has_samples: bool = False
    has_hand: bool = False
    is_alone: bool = False
    sample_credits: Decimal = SAMPLE_CREDITS[0]
    money: MoneyPlan | None = None
    halts: tuple[HaltPlan, ...] = ()
    house: HousePlan | None = None

    def __bool__(self) -> bool:
        return bool(
            self.deploys
            or self.hooks
            or self.people
            or self.deeds
            or self.files
            or self.has_samples
            or self.money
            or self.halts
            or self.house
        )

    def __str__(self) -> str:
        return (
            f"{len(self.deploys)} deploys, {len(self.hooks)} hooks, {len(self.people)} people"
            f"{f', {len(self.deeds)} with photos' if self.deeds else ''}"
            f"{f', {len(self.files.buyers)} with files' if self.files else ''}"
            f"{', samples' if self.has_samples else ''}{', by hand' if self.has_hand else ''}"
            f"{f', {self.money}' if self.money else ''}"
            f"{f', {len(self.halts)} halts' if self.halts else ''}"
            f"{f', {self.house}' if self.house else ''}"
        )


# Sends a request once nothing is broken.
Request = Callable[[str, Callable[[Any], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]
NO_ACTS = ActsPlan()


def acts_of(
    world: "World", seconds: float, *, has_agents: bool, subject: str | None = None
) -> ActsPlan:
    """Return what happens in a run beside plain jobs; nothing in half of them.

    Args:
        world: of the draws.
        seconds: how long things go wrong.
        has_agents: whether plain jobs have devices.
        subject: one of `SUBJECTS`, which happens in any case, without sessions; None for none.
    """
    money = money_of(world, seconds, subject)
    if money is not None and money.is_alone:
        return ActsPlan(money=money, is_alone=True)
    if subject == HALTS:
        return ActsPlan(halts=halts_of(world.draw("halts"), seconds))
    draw = world.draw("acts")
    if draw.random() < 0.5 and subject is None:
        return ActsPlan(money=money)
    has_deploys, has_hooks = draw.random() < 0.5, draw.random() < 0.5
    has_people, has_samples = draw.random() < 0.4, draw.random() < 0.25
    has_hand, is_alone = draw.random() < 0.3, draw.random() < 0.6
    is_alone = is_alone and (has_deploys or has_hooks or has_people)
    if subject is not None:
        has_deploys, has_hooks = subject == "deploys", subject == "hooks"
        has_people, is_alone = subject == "people", True
        has_samples = subject in ("samples", STAFF)
    photos = world.draw("deeds")
    files = world.draw("files")
    has_files = files.random() < FILES_SHARE if subject is None else subject == "files"
    has_deeds = photos.random() < SHARE if subject is None else subject in ("deeds", STAFF)
    return ActsPlan(
        deploys_of(world.draw("deploys"), seconds) if has_deploys else (),
        hooks_of(world.draw("hooks"), seconds) if has_hooks else (),
        people_of(world.draw("people"), seconds) if has_people else (),
        deeds_of(photos, seconds) if has_deeds else (),
        files_of(files, seconds) if has_files else None,
        _agents_of(world.draw("acts agents")) if not has_agents else (),
        has_samples,
        has_hand,
        is_alone,
        SAMPLE_CREDITS[int(world.draw("samples").random() * len(SAMPLE_CREDITS))],
        money,
        house=house_of(world, seconds, subject),
    )


def _agents_of(draw: Random) -> tuple[AgentPlan, ...]:
    return tuple(
        AgentPlan(
            device=number,
            at=round(2 * draw.random(), 3),
            seconds=0.2 + 3 * draw.random(),
            failing=0.3 * draw.random() ** 2,
            crashes=4.0 + 10 * draw.random() if draw.random() < 0.2 else None,
            lies=draw.random() < 0.2,
            deviates=draw.random() ** 3,
        )
        for number in range(1 + int(draw.random() * 4))
    )


class HandWorker(Actor):
    """Takes jobs from the list by hand, and reports their results.

    Args:
        network: leads to the daemons.
        number: of a device.
        until: when it stops.
    """

    def __init__(self, network: "Network", number: int, until: float) -> None:
        super().__init__(network, f"hand{number}", number, until)
        self.device_id = device_name(number)
        self.owner_id = owner_name(number)
        self._draw = network.world.draw("hand", number)

    async def run(self) -> None:
        """Take one job after the other."""
        while self.network.world.now < self.until:
            done = await self.insist("job", self._take)
            if isinstance(done, str):
                await asyncio.sleep(3 * self._draw.random())
                ended = await self.insist("end", partial(self._end, done))
                self.network.world.say(f"{self.name} ended {done[-6:]}: {ended!r}")
            await asyncio.sleep(HAND_SECONDS)

    async def _take(self, market: Any) -> str | None:
        device = await market.devices.find(self.owner_id, self.device_id)
        rows = await market.jobs.page_open(
            status=JobStatus.WAITING, job_type="", before="", limit=10
        )
        ids = [row.id for row in rows]
        await market.jobs.waiting_needs(ids)
        await market.jobs.failed_owners(ids)
        await market.dispatch.offers(device, 5)
        for job_id in ids:
            try:
                await market.jobs.find_open(job_id)
                await market.jobs.accept(device, job_id)
                await market.jobs.work(device, job_id)
                await market.attempt_reports.started(device, job_id, None)
            except MarketError:
                continue
            return str(job_id)
        return None

    async def _end(self, job_id: str, market: Any) -> None:
        device = await market.devices.find(self.owner_id, self.device_id)
        if self._draw.random() < 0.3:
            await market.jobs.fail(device, job_id, "no time", attempt=None)
        else:
            await market.jobs.complete(device, job_id, "42", attempt=None)


class Acts:
    """The actors of a run beside those of sessions and plain jobs, and their rules.

    Args:
        network: leads to the daemons.
        plan: of the actors.
        seconds: how long things go wrong.
        has_clocks: whether wall clocks are set: rows have wrong times then.
        folder: has the files; None where a run has none.
    """

    def __init__(
        self,
        network: "Network",
        plan: ActsPlan,
        seconds: float,
        *,
        has_clocks: bool,
        folder: Folder | None,
    ) -> None:
        self.network = network
        self.plan = plan
        self._seconds = seconds
        self.has_clocks = has_clocks
        self.servers = Servers(network)
        self.mail = MailServer(network)
        self.deploys = DeployBooks(network)
        self.people = PeopleBooks(network)
        self.deeds = DeedBooks(network)
        self.files = None if folder is None else FileBooks(network, folder)
        self.samples = SampleBooks(network, plan.sample_credits)
        self.money = None if plan.money is None else MoneyStory(network, plan.money)
        self.halts = HaltBooks(network) if plan.halts else None
        self.house = None if plan.house is None else House(network, plan.house, KEY)
        if self.house is not None:
            self.house.books.has_clocks = has_clocks
        network.books.halts = self.halts
        self.followers: list[Follower] = []
        if plan:
            network.books.senders = self

    # --- parts of a daemon -----------------------------------------------------------------------

    def begin(self, life: "Life") -> SimSender:
        """Start the senders of a daemon, and return the one of webhooks."""
        assert life.core is not None
        market, tasks = life.market, life.core.tasks
        if market.samples is not None:
            market.samples.sizes = SIZES
        if self.house is not None:
            self.house.begin(life)
        if self.plan.deeds:
            self.deeds.assistants[market] = Assistant(market, self.network.world, life.name)
        sender = SimSender(market, self.servers, life.loop.time)
        is_alone = not life.process.mode.is_remote
        tasks.spawn("mail", Mailer(market.emails, self.mail, is_alone=is_alone).run())
        tasks.every(LOOK_SECONDS, "webhooks", sender.look, "webhooks that are due")
        return sender

    # --- the story -------------------------------------------------------------------------------

    def tasks(self, records: Records, until: float) -> list[asyncio.Task[None]]:
        """Begin."""
        plan, network = self.plan, self.network
        actors: list[Any] = [
            DeployBuyer(network, each, number, until) for number, each in enumerate(plan.deploys)
        ]
        self.deploys.keyed = {each.name for each in actors if each.plan.by_key}
        actors += [
            HookOwner(network, each, number, until, self.servers)
            for number, each in enumerate(plan.hooks)
        ]
        users = sorted({f"user{each.user}" for each in plan.hooks})
        self.followers = [
            Follower(network, user_id, number, until) for number, user_id in enumerate(users)
        ]
        actors += self.followers
        actors += [
            Person(network, each, number, until, self.mail, self.people, records)
            for number, each in enumerate(plan.people)
        ]
        actors += [
            DeedUser(network, each, number, until, self.deeds)
            for number, each in enumerate(plan.deeds)
        ]
        if plan.files and self.files:
            actors += [
                FileBuyer(network, each, number, until, self.files)
                for number, each in enumerate(plan.files.buyers)
            ]
        if plan.has_hand:
            actors.append(HandWorker(network, 3, until))
        if self.money is not None:
            actors += self.money.tasks(until)
        if self.house is not None:
            actors += self.house.tasks(until, self.mail, self.people, records)
        if plan.halts:
            actors.append(HaltPerson(network, plan.halts, self._seconds, until))
        loop = asyncio.get_running_loop()
        return [loop.create_task(each.run()) for each in actors]

    def agents(self, records: Records, until: float) -> list[ReplicaAgent]:
        """Return the agents of the devices that only these actors need."""
        return [self.agent(each, records, until) for each in self.plan.agents]

    def agent(self, plan: AgentPlan, records: Records, until: float) -> ReplicaAgent:
        """Return the agent of a device; it sends files where the run has a folder."""
        if self.files is None:
            return ReplicaAgent(self.network, plan, records, until)
        return FileAgent(self.network, plan, records, until, self.files)

    async def end(self, request: Request) -> None:
        """End every deploy, and send the last photos, once all was calm."""
        if self.files is not None:
            self.files.check_logs()
        if self.money is not None:
            await self.money.heal()
        rows = self.network.books.database.rows
        self.deploys.check_settled(has_clocks=self.has_clocks)
        for deploy_id, user_id in rows("SELECT id, user_id FROM deploys ORDER BY id"):
            await request(
                "last cancel", lambda market, a=user_id, b=deploy_id: market.deploys.cancel(a, b)
            )
        if self.plan.deeds:
            self.deeds.heal()
            await asyncio.sleep(HEALED_SECONDS)
            for number in range(PICTURES):
                await request("last photo", partial(self.deeds.last_look, number))

    async def later(self, request: Request) -> None:
        """Let days pass, until every delivery is over; then let old rows be deleted."""
        if not self.plan:
            return
        if self.files is not None:
            await self.files.decide_disputes(request)
        if not self.has_clocks:  # else identifiers are in another order
            for follower in self.followers:
                await request("last events", follower.last_look)
        await self._deliver()
        self.servers.check(has_clocks=self.has_clocks)
        for days in (4, 32, 60):
            self._leap(days * DAY_SECONDS)
            if self.files is not None:
                self.files.folder.age(days * DAY_SECONDS)
            await self._sweep(request, days)
        if self.money is not None:
            await self.money.settle(request)

    async def _sweep(self, request: Request, days: int) -> None:
        """Run the sweeps after some days."""
        for name, sweep in SWEEPS:
            await request(f"later {name}", sweep)
        if self.money is not None:
            await self.money.sweep(request)
        if self.files is not None and days * DAY_SECONDS > APPEAL_SECONDS:
            await self.files.delete_inputs(request)

    async def _deliver(self) -> None:
        """Let days pass, until every delivery is over."""
        database, world = self.network.books.database, self.network.world
        for number in range(LEAPS_MOST):
            waits = database.rows(
                "SELECT MIN(next_at) FROM webhook_deliveries AS d JOIN webhook_endpoints AS w"
                " ON w.id = d.endpoint_id WHERE d.status = 'pending'"
            )[0][0]
            if waits is None:
                break
            now = EPOCH + world.now + database.leapt
            least = 0.0 if number < SHORT_LEAPS else HOUR_SECONDS
            self._leap(max(least, waits - now + 1.0))
            await asyncio.sleep(LEAP_SECONDS)
            until = world.now + DUE_SECONDS
            while self._is_due() and world.now < until:
                await asyncio.sleep(LEAP_SECONDS)

    def _leap(self, seconds: float) -> None:
        self.network.books.database.leapt += seconds
        self.network.world.say(f"{seconds:.0f} s pass")

    def _is_due(self) -> bool:
        database = self.network.books.database
        now = EPOCH + int(self.network.world.now + database.leapt)
        return bool(
            database.rows(
                "SELECT 1 FROM webhook_deliveries WHERE status = 'pending' AND next_at <= :now"
                " AND endpoint_id IN (SELECT id FROM webhook_endpoints)",
                now=now,
            )
        )

    # --- rules -----------------------------------------------------------------------------------

    def committed(self, commit: Commit) -> None:
        """Look at what a commit has changed."""
        plan = self.plan
        if commit.has_written:  # these look at nothing but rows
            if plan.hooks:
                self.servers.committed(commit)
            if plan.people or plan.house:
                self.people.committed(commit)
            if self.house is not None:
                self.house.committed(commit)
        if plan.deploys:
            self.deploys.committed(commit)
        if plan.deeds:
            self.deeds.committed(commit)
        if self.files is not None:
            self.files.committed(commit)
        if self.money is not None:
            self.money.committed(commit)
        if self.halts is not None:
            self.halts.committed(commit)

    def check(self, records: Records) -> None:
        """Compare everything at the end."""
        if self.plan.deploys:
            self.deploys.check(has_clocks=self.has_clocks)
        if self.plan.people or self.plan.house:
            self.people.check()
        if self.plan.deeds:
            self.deeds.check()
        if self.files is not None:
            self.files.check()
        if self.house is not None:
            self.house.books.check()
        if self.plan.has_samples:
            self.samples.check(records, has_clocks=self.has_clocks)
