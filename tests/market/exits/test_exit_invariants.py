"""For any events in any order, exits get their share of the buyers' payments, to the cent.

Lives of a market with exits, drawn from seeds: sales, leases of several nodes, reports good and
impossible, advances, ends, crashes, payouts, claw-backs. The test computes every balance
separately.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from support.market import nodes
from support.market.books import available, balance, revenue
from support.market.exits import ExitDevice, claw_back, exit_device, through
from support.market.market import Market

from market.bandwidth.leases import Leases, LeaseState, Rejection, Usage
from market.bandwidth.sessions import Purchase
from market.base.states import SessionStatus
from market.exits.earnings import USUAL_PACE
from market.exits.wishes import ExitWishes
from market.money import ledger
from market.money.audit import audit_ledger
from market.money.money import GB, MICRO, Currency
from storage.bandwidth import sessions as bandwidth_queries
from storage.exits import exits as exit_queries

STEPS = 90
HOLD_SECONDS = 7 * 86_400
SHARE_PERCENT = 60


@dataclass
class Lease:
    """Lease of a node, and its last report."""

    node: Leases
    id: str
    granted: int
    used: int = 0
    carried: dict[str, int] = field(default_factory=dict)


@dataclass
class Session:
    """Session with all leases that it had."""

    bought: Purchase
    buyer: str
    price: int
    is_active: bool = True
    leases: list[Lease] = field(default_factory=list)
    is_open: set[str] = field(default_factory=set)

    @property
    def used(self) -> int:
        return sum(lease.used for lease in self.leases)

    def earned(self, device: ExitDevice) -> int:
        """Return a device's earnings of it: of each lease its share, rounded down."""
        if device.owner == self.buyer:
            return 0
        sizes = [lease.carried.get(device.id, 0) for lease in self.leases]
        return sum(size * self.price * SHARE_PERCENT // (GB * 100) for size in sizes)

    def carried(self, device: ExitDevice) -> int:
        return sum(lease.carried.get(device.id, 0) for lease in self.leases)


@dataclass
class Earning:
    """Posting for a device of a session: pending at first, then paid or reversed."""

    device: ExitDevice
    session: Session
    size: int
    amount: int
    posted_at: int


class Life:
    """Market, and beside it the expected balances.

    Args:
        market: the market.
        seed: the seed of all events.
    """

    def __init__(self, market: Market, seed: int) -> None:
        self.market = market
        self.random = random.Random(seed)
        self.nodes: list[Leases] = []
        self.sessions: list[Session] = []
        self.devices: list[ExitDevice] = []
        self.buyers: list[str] = []
        self.barred: set[str] = set()
        self.earnings: list[Earning] = []  # the pending ones
        self.kept: list[Earning] = []  # all but those that were reversed
        self.posted: Counter[tuple[str, str]] = Counter()  # bytes, by session and device
        self.given: Counter[tuple[str, str]] = Counter()  # micro-USD, by session and device
        self.paid: Counter[str] = Counter()
        self.revenue = 0
        self.spent: Counter[str] = Counter()
        self.refunded: Counter[str] = Counter()

    async def begin(self) -> None:
        self.buyers = [await self.market.person("1000") for _ in range(2)]
        owners = [self.buyers[0], await self.market.person(), await self.market.person()]
        self.devices = [await exit_device(self.market, owner) for owner in (*owners, owners[2])]
        for _ in range(2):
            await self.join()

    async def join(self) -> None:
        node = Leases(self.market.context)
        node.node_id = self.market.identifiers.new()
        await self.market.store.write(nodes.register, node.node_id, self.market.clock.seconds())
        self.nodes.append(node)

    # Events

    async def buy(self) -> None:
        buyer, price = self.random.choice(self.buyers), self.random.randint(100_000, 3 * MICRO)
        bought = await self.market.bandwidth.buy(
            buyer,
            quota_bytes=self.random.choice([1_000, 999_983, 40_000_000]),
            price_per_gb=price,
            exit_wishes=self.random.choice([None, ExitWishes()]),
        )
        self.sessions.append(Session(bought, buyer, price))

    async def lease(self) -> None:
        session, node = self.random.choice(self.sessions), self.random.choice(self.nodes)
        if any(each.node is node and each.id in session.is_open for each in session.leases):
            return
        grant = await node.open(session.bought.session_id)
        assert grant is not None
        assert (grant.lease_id is not None) == session.is_active
        if grant.lease_id is not None:
            session.leases.append(Lease(node, grant.lease_id, grant.granted_bytes))
            session.is_open.add(grant.lease_id)

    async def report(self) -> None:
        """Report on some leases at once; some are impossible, and some come too late."""
        node = self.random.choice(self.nodes)
        batch = [
            (session, lease)
            for session in self.sessions
            for lease in session.leases
            if lease.node is node and self.random.random() < 0.5
        ]
        asked = [(*each, *self._next(each[1])) for each in batch]
        usages = [self._usage(session, lease, used, at) for session, lease, used, at in asked]
        replies = await node.report(usages)
        for (session, lease, used, carried), reply in zip(asked, replies, strict=True):
            if lease.id not in session.is_open:
                assert reply is None
            elif self._is_possible(lease, used, carried):
                assert isinstance(reply, LeaseState)
                lease.used, lease.carried = used, lease.carried | carried
            else:
                assert reply == Rejection()

    def _next(self, lease: Lease) -> tuple[int, dict[str, int]]:
        """Return more use of a lease; one in five is impossible."""
        used = self.random.randint(lease.used, lease.granted)
        if self.random.random() < 0.2:
            used = self.random.choice([lease.granted + 1, 0])
        room, carried = used - sum(lease.carried.values()), {}
        for device in self.random.sample(self.devices, self.random.randint(0, 3)):
            before = lease.carried.get(device.id, 0)
            more = self.random.randint(0, max(room, 0))
            room -= more
            carried[device.id] = before + more
        if carried and self.random.random() < 0.1:
            device_id = next(iter(carried))
            too_few = lease.carried.get(device_id, 0) - 1
            carried[device_id] = self.random.choice([carried[device_id] + room + 1, too_few])
        return used, carried

    def _is_possible(self, lease: Lease, used: int, carried: dict[str, int]) -> bool:
        after = lease.carried | carried
        never_falls = all(size >= lease.carried.get(each, 0) for each, size in carried.items())
        return never_falls and sum(after.values()) <= used <= lease.granted

    def _usage(self, session: Session, lease: Lease, used: int, at: dict[str, int]) -> Usage:
        return Usage(session.bought.session_id, lease.id, used, tuple(at.items()))

    async def release(self) -> None:
        session = self.random.choice(self.sessions)
        for lease in session.leases:
            if lease.id in session.is_open:
                counts = self._usage(session, lease, lease.used, lease.carried)
                await lease.node.release([counts])
                session.is_open.discard(lease.id)
                return

    async def end(self) -> None:
        session = self.random.choice(self.sessions)
        last = next((each for each in session.leases if each.id in session.is_open), None)
        usage = None
        if last is not None:
            used = self.random.randint(last.used, last.granted)
            carried = {self.devices[1].id: last.carried.get(self.devices[1].id, 0)}
            carried[self.devices[1].id] += used - last.used
            usage = self._usage(session, last, used, carried)
        status = self.random.choice([SessionStatus.ENDED, SessionStatus.EXPIRED])
        settled = await self.market.leases.settle(session.bought.session_id, status, usage)
        assert settled == session.is_active
        if settled and last is not None:
            last.used, last.carried = used, last.carried | carried
        await self._notice_ends()

    async def crash(self) -> None:
        """Lose a node; the others bury it."""
        node = self.nodes.pop(self.random.randrange(len(self.nodes)))
        dead = [each for each in await self.market.leases.nodes() if each.id == node.node_id]
        assert await self.market.leases.reap(dead) == 1
        for session in self.sessions:
            session.is_open -= {lease.id for lease in session.leases if lease.node is node}
        await self._notice_ends()
        await self.join()

    async def recover(self) -> None:
        """Start again as the one daemon: all leases were others'."""
        await self.market.leases.recover()
        self.nodes.clear()
        for session in self.sessions:
            session.is_open.clear()
        await self._notice_ends()
        for _ in range(2):
            await self.join()

    async def advance(self) -> None:
        """Post the earnings of active sessions, where these are worth a row."""
        await self.market.exit_advances.advance()
        for session in [each for each in self.sessions if each.is_active]:
            self._post(session, USUAL_PACE.least)

    def _post(self, session: Session, least: int) -> None:
        """Credit devices with the earnings of a session that were not posted before."""
        for device in self.devices:
            key = session.bought.session_id, device.id
            amount = session.earned(device) - self.given[key]
            if amount < least or device.id in self.barred:
                continue
            size = session.carried(device) - self.posted[key]
            earning = Earning(device, session, size, amount, self.market.clock.now)
            self.earnings.append(earning)
            self.kept.append(earning)
            self.given[key] += amount
            self.posted[key] += size

    def _kept(self, session: Session) -> list[Earning]:
        return [each for each in self.kept if each.session is session]

    async def pay(self) -> None:
        self.market.clock.now += self.random.choice([86_400, HOLD_SECONDS // 2, HOLD_SECONDS])
        await self.market.exit_payouts.pay_due()
        moment = self.market.clock.now - HOLD_SECONDS
        for earning in [each for each in self.earnings if each.posted_at <= moment]:
            self.earnings.remove(earning)
            self.paid[earning.device.owner] += earning.amount

    async def claw_back(self) -> None:
        device = self.random.choice(self.devices)
        if len(self.barred) == 2 and device.id not in self.barred:
            return
        self.barred.add(device.id)
        done = await claw_back(self.market.context, device.id, "cheats")
        reversed_ = [each for each in self.earnings if each.device is device]
        assert (done.earnings, done.amount) == (len(reversed_), sum(e.amount for e in reversed_))
        for earning in reversed_:
            self.earnings.remove(earning)
            self.kept.remove(earning)
            if earning.session.is_active:
                continue
            price = earning.size * earning.session.price // GB
            self.refunded[earning.session.buyer] += price
            self.revenue += earning.amount - price

    async def _notice_ends(self) -> None:
        """Charge for sessions that have left `active`, and credit their exits."""
        for session in [each for each in self.sessions if each.is_active]:
            row = await self.market.store.read(bandwidth_queries.find, session.bought.session_id)
            assert row is not None
            assert row.bytes_used == session.used
            if row.status == SessionStatus.ACTIVE:
                continue
            session.is_active = False
            session.is_open.clear()
            self._post(session, 1)
            kept = self._kept(session)
            paid = session.used - sum(
                session.carried(each) for each in self.devices if each.id in self.barred
            )
            paid += sum(each.size for each in kept if each.device.id in self.barred)
            shares = sum(each.amount for each in kept)
            captured = max(paid * session.price // GB, 1, shares) if paid else 0
            self.spent[session.buyer] += captured
            self.revenue += captured - shares

    # Invariants

    async def check(self) -> None:
        market = self.market
        report = await audit_ledger(market.store)
        assert report.passed, report
        assert await revenue(market) == self.revenue
        advanced = sum(each.amount for each in self.kept if each.session.is_active)
        assert await balance(market, ledger.exit_payable()) == -advanced
        assert all(each.amount > 0 for each in self.kept)
        for owner in {device.owner for device in self.devices}:
            expected = sum(each.amount for each in self.earnings if each.device.owner == owner)
            assert await balance(market, ledger.pending(owner)) == expected
        for user in {*self.buyers, *(device.owner for device in self.devices)}:
            owned = await available(market, user) + await balance(
                market, ledger.held(user, Currency.USD)
            )
            begun = 1_000 * MICRO if user in self.buyers else 0
            assert owned == begun - self.spent[user] + self.refunded[user] + self.paid[user]
        for device in self.devices:
            [sums] = await market.store.read(exit_queries.sums, [device.id], day=0)
            assert sums.used_bytes == sum(each.carried(device) for each in self.sessions)
            assert sums.earned == sum(each.earned(device) for each in self.sessions)


@pytest.mark.parametrize("seed", range(6))
async def test_exits_get_their_share_of_the_payments_of_buyers(market: Market, seed: int) -> None:
    life = Life(market, seed)
    await life.begin()
    await life.buy()
    weights = {
        life.buy: 4,
        life.lease: 8,
        life.report: 12,
        life.release: 2,
        life.end: 3,
        life.crash: 1,
        life.recover: 1,
        life.advance: 4,
        life.pay: 3,
        life.claw_back: 1,
    }
    for step in range(STEPS):
        [happens] = life.random.choices(list(weights), list(weights.values()))
        await happens()
        if step % 10 == 0:
            await life.check()
    for session in life.sessions:
        await market.leases.settle(session.bought.session_id, SessionStatus.ENDED, None)
    await life._notice_ends()
    await life.check()
    assert life.revenue > 0


@pytest.mark.both_engines
async def test_reports_ends_payouts_and_claw_backs_at_once_lose_nothing(market: Market) -> None:
    """They meet on the same exits, in every order, and none is refused or lost."""
    chance = random.Random(7)
    made = [await exit_device(market) for _ in range(5)]
    sessions = [await through(market) for _ in range(8)]
    for used in (1_000_000, 2_000_000):
        carried = [chance.sample(made, len(made)) for _ in sessions]
        await asyncio.gather(
            *(
                session.report(used, *((each, used // 5) for each in order))
                for session, order in zip(sessions, carried, strict=True)
            )
        )
    for session in sessions[:3]:
        await session.end()
    market.clock.now += HOLD_SECONDS
    outcomes = await asyncio.gather(
        *(session.report(3_000_000, *((each, 600_000) for each in made)) for session in sessions),
        *(session.end() for session in sessions),
        *(market.exit_advances.advance() for _ in range(3)),
        *(market.exit_payouts.pay_due() for _ in range(3)),
        claw_back(market.context, made[0].id, "cheats"),
        claw_back(market.context, made[1].id, "cheats"),
        return_exceptions=True,
    )
    assert [each for each in outcomes if isinstance(each, BaseException)] == []
    assert await market.exit_payouts.pay_due() == 0
    market.clock.now += HOLD_SECONDS
    await market.exit_payouts.pay_due()
    for device in made:
        assert await balance(market, ledger.pending(device.owner)) == 0
    report = await audit_ledger(market.store)
    assert report.passed, report
