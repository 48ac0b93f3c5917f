"""The rows of the start of each trial: sessions, exits, jobs, deploys, and people, at work."""

from contextlib import suppress
from dataclasses import dataclass, field

from msgspec.structs import replace
from support.market import nodes
from support.market.exits import ExitDevice, exit_device
from support.market.jobs import device_of, on, prove, specified, wanted
from support.market.market import Market
from support.market.payouts import payouts_in_each_state
from support.market.work import posted

from market.accounts.scopes import Maker
from market.bandwidth.lease_book import Ask
from market.bandwidth.leases import Usage
from market.bandwidth.sessions import Purchase
from market.base.errors import MarketError
from market.deploys.deploys import NewDeploy
from market.deploys.templates import Template
from market.exits.wishes import ExitWishes
from market.jobs.copies import Copying
from market.jobs.postings import NewJob
from market.jobs.specs import Spec
from market.money.money import MICRO, Currency
from market.payments.provider import ProviderError
from market.payments.top_ups import NewTopUp
from market.staff.base.roles import Machine
from market.staff.money import judging
from market.staff.money.judging import Verdict
from proxyctl.protocol.jobspec import payload_of, resources_of
from storage.bandwidth.nodes import SeenRow
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.payments import cards as card_queries
from tests.sim.stepped import belongings
from tests.sim.stepped.belongings import Belongings
from tests.sim.stepped.site import SIDES, Site

MB = 10**6
PAUSE_SECONDS = 3  # between two looks at a page
DEAD = "dead"  # a node that reports no more
CLIENT, OTHER_CLIENT = "198.51.100.7", "198.51.100.8"
SPEC = Spec(payload_of({"script": "print(1)"}), resources_of({}), timeout_seconds=3_600)
# Devices have worked for a minute when a trial begins.
WORKED_SECONDS = 60


@dataclass
class World:
    """Identifiers of the rows; a name says their state.

    Attributes:
        people: the users, by their part.
        leases: the open lease of a session on a node.
        jobs: by their state.
        payments: by their state, and the refund that waits.
        pages: where cards are saved, by their user.
        devices: of the jobs that run, and idle ones.
        payouts: of one user, by their state, and the user's payout methods.
        judgement: the decision about the judged job, which waits for a second person.
    """

    people: dict[str, str] = field(default_factory=dict)
    sessions: dict[str, Purchase] = field(default_factory=dict)
    leases: dict[tuple[str, str], str] = field(default_factory=dict)
    exits: dict[str, ExitDevice] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    devices: dict[str, DeviceRow] = field(default_factory=dict)
    deploys: dict[str, str] = field(default_factory=dict)
    people_have: Belongings = field(default_factory=Belongings)
    payments: dict[str, str] = field(default_factory=dict)
    payouts: dict[str, str] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    dead: SeenRow | None = None
    judgement: str = ""

    def usage(self, name: str, node: str, used: int, *exits: tuple[str, int]) -> Usage:
        """Return a node's report of a session."""
        counts = tuple((self.exits[each].id, size) for each, size in exits)
        return Usage(self.sessions[name].session_id, self.leases[name, node], used, counts)


async def build(site: Site) -> World:
    """Make all rows, by the market's own calls."""
    world, here = World(), site.market(SIDES[0])
    for name in ("buyer", "other", "owner", "second owner", "worker", "second worker"):
        world.people[name] = await here.person("100", "1000")
    world.people["poor"] = await here.person(credit="10")  # for one job
    await prove(here, world.people["worker"], world.people["second worker"])
    now = here.clock.seconds()
    for node in (*SIDES, DEAD):
        await here.store.write(nodes.register, node, now)
    [world.dead] = [each for each in await here.leases.nodes() if each.id == DEAD]
    await _sessions(site, world, here)
    await _jobs(world, here)
    await _deploys(world, here)
    await _payments(site, world, here)
    people = world.people
    world.people["earner"] = await here.person()
    world.payouts = await payouts_in_each_state(here, world.people["earner"])
    world.people_have = await belongings.build(here, people["buyer"], people["worker"])
    here.clock.now += WORKED_SECONDS
    return world


async def _sessions(site: Site, world: World, here: Market) -> None:
    buyer, owner = world.people["buyer"], world.people["owner"]
    world.exits["first"] = await exit_device(here, owner)
    world.exits["second"] = await exit_device(here, world.people["second owner"])
    for name, wishes in (
        ("plain", None),
        ("idle", None),
        ("spent", None),
        ("exits", ExitWishes()),
        ("more exits", ExitWishes()),
    ):
        world.sessions[name] = await here.bandwidth.buy(
            buyer,
            quota_bytes=MB if name == "spent" else 8 * MB,
            price_per_gb=1_000 * MICRO,
            exit_wishes=wishes,
        )
    world.sessions["pending"] = await here.bandwidth.buy(
        buyer, quota_bytes=MB, price_per_gb=None, allow_ips=[CLIENT, OTHER_CLIENT]
    )
    for name in ("plain", "spent", "exits", "more exits"):
        for node in (*SIDES, DEAD):
            leases = site.market(SIDES[0]).leases
            leases.node_id = node
            grant = await leases.open(world.sessions[name].session_id)
            assert grant is not None
            assert grant.lease_id is not None
            world.leases[name, node] = grant.lease_id
    for node in SIDES:
        through = (("first", 40_000), ("second", 50_000))
        asks = [
            Ask(world.usage("plain", node, 10_000)),
            Ask(world.usage("exits", node, 100_000, *through)),
            Ask(world.usage("more exits", node, 100_000, *reversed(through))),
        ]
        await site.market(node).leases.exchange(asks)
    await here.exit_advances.advance()
    for node in SIDES:  # and some that are not posted yet
        through = (("first", 60_000), ("second", 80_000))
        await site.market(node).leases.exchange(
            [Ask(world.usage("exits", node, 150_000, *through))]
        )


async def _jobs(world: World, here: Market) -> None:
    buyer, worker = world.people["buyer"], world.people["worker"]
    for name in ("idle", "second idle"):
        world.devices[name] = await device_of(here, worker)
    for name in ("waiting", "second waiting"):
        world.jobs[name] = await posted(here, buyer)
    for name in ("running", "second running"):
        world.jobs[name] = await here.jobs.create(buyer, wanted())
        world.devices[name] = await on(here, world.jobs[name], worker)
    world.jobs["accepted"] = await here.jobs.create(buyer, wanted())
    world.devices["accepted"] = await device_of(here, worker)
    await here.jobs.accept(world.devices["accepted"], world.jobs["accepted"])
    for name in ("reviewed", "second reviewed", "disputed", "judged"):
        world.jobs[name] = await specified(here, buyer, review_hours=24)
        device = await on(here, world.jobs[name], worker)
        await here.jobs.complete(device, world.jobs[name], "the result")
    for name in ("disputed", "judged"):
        await here.reviews.dispute(buyer, world.jobs[name], "a reason")
    asked = await judging.decide(
        here.context,
        Machine("first"),
        world.jobs["judged"],
        Verdict(50),
        dict.fromkeys(Currency, 0),
        "half of it",
    )
    world.judgement = asked.outcome.id
    await here.store.write(_show_life, here.clock.now)
    copies = await here.jobs.create_copies(buyer, script(), Copying(3, "bytes"))
    for number, job_id in enumerate(copies):
        name = f"copy {number}"
        world.jobs[name] = job_id
        owner = world.people[f"worker of {name}"] = await here.person()
        await prove(here, owner)
        world.devices[name] = await on(here, job_id, owner)
    await here.jobs.complete(world.devices["copy 0"], copies[0], "same")


async def _payments(site: Site, world: World, here: Market) -> None:
    buyer, bank = world.people["buyer"], site.bank

    def lost(moment: str) -> None:
        if moment in ("create", "refund"):
            raise ProviderError("no answer")

    for name in ("open", "doubtful", "paid"):
        world.payments[name] = (await here.payments.create(buyer, 20 * MICRO)).id
    bank.set(world.payments["doubtful"], amount=19 * MICRO)
    for name in ("doubtful", "paid"):
        bank.pay(world.payments[name])
        await here.payments.fulfil(world.payments[name])
    bank.fail = lost
    with suppress(MarketError):
        await here.payments.create(buyer, 5 * MICRO)
    world.payments["unknown"] = (await here.payments.page(buyer, before="", limit=1))[0].id
    view = await here.payments.refund(buyer, world.payments["paid"], 2 * MICRO)
    world.payments["refund"] = view.returns[0].id
    bank.fail = lambda moment: None
    for name in ("buyer", "other"):  # one has a card, the other one a page to save it on
        await here.payments.cards.save(world.people[name])
        row = await here.store.read(card_queries.find, world.people[name])
        assert row is not None
        world.pages[name] = row.setup_id or ""
        bank.cards.fill_in(world.pages[name], f"card-{name}")
    here.clock.now += PAUSE_SECONDS
    await here.payments.cards.look(buyer)
    new = NewTopUp(500 * MICRO, 20 * MICRO, 60 * MICRO)
    await here.top_ups.set_on(buyer, new, Maker())


async def _show_life(tx: Transaction, now: int) -> None:
    await tx.run("UPDATE devices SET is_present = 1, last_heartbeat_at = :now", now=now)


async def _deploys(world: World, here: Market) -> None:
    buyer = world.people["buyer"]
    for name in ("fleet", "second fleet", "in words"):
        new = service("" if name == "in words" else "web:1")
        deploy = await here.deploys.create(buyer, new)
        world.deploys[name] = deploy.id
        found = await here.deploys.find(buyer, deploy.id)
        for number, job_id in enumerate(found.job_ids, 1):
            replica = f"replica {number} of {name}"
            world.jobs[replica] = job_id
            if number == 1 or name == "in words":
                world.devices[replica] = await on(here, job_id, world.people["worker"])
        if name != "in words":
            await here.rollouts.look(deploy.id)


def service(image: str) -> NewDeploy:
    """Return a deploy of an image; "" for one in words."""
    return NewDeploy(
        job_name="a service",
        job_type="Docker",
        gpu_model="A100",
        gpu_count=1,
        duration_hrs=2,
        replicas=2,
        currency=Currency.USD,
        image=image,
        template=Template() if image else None,
    )


def script() -> NewJob:
    """Return a job that any device may do."""
    return replace(wanted(job_type="script"), spec=SPEC)
