"""Usage by the hour adds up to the bill, for any events in any order."""

import random
from collections import Counter

import pytest
from support.base.cost import seconds_of
from support.market import nodes
from support.market.books import refusal
from support.market.market import Market

from market.bandwidth.leases import Ask, Leases, LeaseState, Tally, Usage
from market.bandwidth.sessions import Purchase
from market.bandwidth.usage import (
    FINAL_AFTER_SECONDS,
    FORECAST_HOURS,
    FORECAST_LEAST_HOURS,
    KINDS_MAX,
    Series,
    _sums,
)
from market.bandwidth.usage_range import HOURS_KEPT_DAYS, ROWS_MAX, UTC, Step, range_of, zone_of
from market.base.errors import Code
from market.base.states import SessionStatus
from market.money.audit import audit_ledger
from market.money.money import GB, MICRO
from storage.bandwidth import sessions as bandwidth
from storage.bandwidth import usage as queries
from storage.bandwidth.usage import RefusedRow, UsedRow

HOUR, DAY = 3_600, 86_400
STEPS = 120


async def bought(market: Market, user: str, price: int = MICRO) -> Purchase:
    return await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=price)


async def leased(market: Market, purchase: Purchase) -> Usage:
    """Lease a session, and return a report of nothing."""
    grant = await market.lease(purchase)
    assert grant is not None
    return Usage(purchase.session_id, grant.lease_id or "", 0)


async def report(market: Market, usage: Usage, used: int, *tallies: Tally) -> None:
    usage = Usage(usage.session_id, usage.lease_id, used)
    await market.leases.report([usage], tallies)


async def series(
    market: Market,
    user: str,
    step: Step = Step.HOUR,
    *,
    since: int | None = None,
    zone: str = "UTC",
    **how: object,
) -> Series:
    range_ = range_of(step, zone_of(zone), since, None, now=market.clock.seconds())
    return await market.usage.series(user, range_, **how)  # type: ignore[arg-type]


async def test_each_hour_has_the_bytes_that_were_reported_in_it(market: Market) -> None:
    user = await market.person("10")
    usage = await leased(market, await bought(market, user))
    began = market.clock.now
    await report(market, usage, 700)
    await report(market, usage, 700)  # again: it is absolute
    await report(market, usage, 1_000)
    market.clock.now += 2 * HOUR
    await report(market, usage, 1_500)
    await report(market, usage, 1_400)  # some was not delivered after all
    shown = await series(market, user, since=began - HOUR)
    assert [(each.bucket.begins_at - began, each.sum.used_bytes) for each in shown.points] == [
        (-HOUR, 0),
        (0, 1_000),
        (HOUR, 0),
        (2 * HOUR, 400),
    ]
    assert shown.total.used_bytes == 1_400
    assert shown.total.cost == 1_400 * MICRO
    dense = await series(market, user, since=began - HOUR, fill=False)
    assert [each.sum.used_bytes for each in dense.points] == [1_000, 400]


@pytest.mark.both_engines
@pytest.mark.parametrize("node_id", [None, "here"])
async def test_usage_agrees_with_the_list_of_sessions_before_the_next_report(
    market: Market, node_id: str | None
) -> None:
    if node_id is not None:
        await market.store.write(nodes.register, node_id, market.clock.seconds())
        market.leases.node_id = node_id
    user = await market.person("10")
    first, second = await bought(market, user), await bought(market, user, 3 * MICRO)
    usages = [await leased(market, each) for each in (first, second)]
    await report(market, usages[0], 700)
    market.traffic.live |= {usages[0].lease_id: 836, usages[1].lease_id: 64}
    sessions = await market.bandwidth.page(user, status=None, before="~", limit=10)
    listed = {each.id: each.bytes_used for each in sessions}
    assert listed == {first.session_id: 836, second.session_id: 64}
    for step in Step:
        shown = await series(market, user, step, by_session=True, fill=False)
        assert {each.session_id: each.sum.used_bytes for each in shown.points} == listed
        total = (await series(market, user, step)).total
        assert (total.used_bytes, total.cost) == (900, (836 + 3 * 64) * MICRO)
    one = await series(market, user, session_id=second.session_id)
    assert one.total.used_bytes == 64
    summary = await market.usage.summary(user, UTC)
    for each in (summary.today, summary.week, summary.month, summary.ever):
        assert (each.used_bytes, each.cost) == (900, (836 + 3 * 64) * MICRO)
    now = market.clock.seconds()
    past = range_of(Step.HOUR, UTC, now - 3 * HOUR, now - HOUR, now=now)
    assert (await market.usage.series(user, past)).total.used_bytes == 0


async def test_an_hour_is_complete_when_no_report_of_it_can_come(market: Market) -> None:
    user = await market.person()
    hour = market.clock.now
    assert hour % HOUR == 0
    for seconds, expected in ((0, hour - HOUR), (FINAL_AFTER_SECONDS, hour)):
        market.clock.now = hour + seconds
        assert (await series(market, user)).complete_until == expected


@pytest.mark.both_engines
async def test_sessions_are_told_apart_and_cost_their_own_price(market: Market) -> None:
    user, other = await market.person("10"), await market.person("10")
    prices = {}
    for price in (MICRO, 2 * MICRO, 2 * MICRO):
        purchase = await bought(market, user, price)
        prices[purchase.session_id] = price
        await report(market, await leased(market, purchase), 500)
    await report(market, await leased(market, await bought(market, other)), 9)
    shown = await series(market, user, by_session=True, fill=False)
    assert {each.session_id: each.sum.cost for each in shown.points} == {
        each: 500 * price for each, price in prices.items()
    }
    assert (await series(market, user)).total == shown.total
    one = next(iter(prices))
    alone = await series(market, user, by_session=True, session_id=one)
    assert len(alone.points) == 25
    assert {each.session_id for each in alone.points} == {one}
    assert alone.total.used_bytes == 500
    for session_id in (one, "00000000-0000-7000-8000-000000000000"):
        code = await refusal(series(market, other, session_id=session_id))
        assert code is Code.SESSION_NOT_FOUND


async def test_more_rows_than_an_answer_has_are_refused(market: Market) -> None:
    user = await market.person("100")
    since = market.clock.now - 80 * DAY
    for _ in range(2):
        await report(market, await leased(market, await bought(market, user)), 1)
    assert len((await series(market, user, since=since, by_session=True, fill=False)).points) == 2
    code = await refusal(series(market, user, since=since, by_session=True, fill=True))
    assert code is Code.TOO_MANY_ROWS


async def test_days_are_of_the_wanted_zone(market: Market) -> None:
    user = await market.person("10")
    usage = await leased(market, await bought(market, user))
    midnight = market.clock.now - market.clock.now % DAY + DAY
    for number, moment in enumerate((midnight - 4 * HOUR, midnight - 3 * HOUR, midnight), start=1):
        market.clock.now = moment
        await report(market, usage, number * 10)
    since = midnight - DAY
    utc = await series(market, user, Step.DAY, since=since)
    assert [each.sum.used_bytes for each in utc.points] == [20, 10]
    istanbul = await series(market, user, Step.DAY, since=since, zone="Europe/Istanbul")
    assert [each.sum.used_bytes for each in istanbul.points] == [10, 20]
    summary = await market.usage.summary(user, zone_of("Europe/Istanbul"))
    assert [each.used_bytes for each in (summary.today, summary.week, summary.ever)] == [20, 30, 30]


async def test_a_summary_has_each_hour_once_and_a_forecast_of_enough(market: Market) -> None:
    user = await market.person("10")
    usage = await leased(market, await bought(market, user))
    noon = market.clock.now - market.clock.now % DAY + 30 * DAY + 12 * HOUR
    used = 0
    for moment in (noon - 20 * DAY, noon - 3 * DAY):
        market.clock.now, used = moment, used + 100
        await report(market, usage, used)
    for number in range(1, FORECAST_LEAST_HOURS + 1):
        market.clock.now = noon + number * HOUR
        shown = await market.usage.summary(user, UTC)
        assert shown.forecast is None, "the present hour, and so the last one, is not over"
        used += 10
        await report(market, usage, used)
    market.clock.now += HOUR
    shown = await market.usage.summary(user, UTC)
    sums = (shown.today, shown.week, shown.month, shown.ever)
    assert [each.used_bytes for each in sums] == [60, 160, 260, 260]
    assert shown.forecast is not None
    assert (shown.forecast.sum.used_bytes, shown.forecast.hours) == (60, FORECAST_LEAST_HOURS)
    assert shown.forecast.sum.cost == 60 * MICRO
    market.clock.now += FORECAST_HOURS * HOUR
    assert (await market.usage.summary(user, UTC)).forecast is None


async def test_connections_and_refusals_stand_beside_the_bytes(market: Market) -> None:
    user = await market.person("10")
    purchase, quiet = await bought(market, user), await bought(market, user)
    usage = await leased(market, purchase)
    known = Tally(purchase.session_id, 3, (("not_allowed", 2), ("timed_out", 1)))
    await report(market, usage, 10, known, Tally(quiet.session_id, 0, (("over", 5),)))
    market.clock.now += HOUR
    await market.leases.report([], [Tally(purchase.session_id, 1, (("not_allowed", 1),))])
    shown = await series(market, user, fill=False)
    assert [(each.sum.connections, each.sum.refusals) for each in shown.points] == [
        (3, {"not_allowed": 2, "timed_out": 1, "over": 5}),
        (1, {"not_allowed": 1}),
    ]
    assert shown.total.refusals == {"not_allowed": 3, "timed_out": 1, "over": 5}
    alone = await series(market, user, fill=False, by_session=True, session_id=quiet.session_id)
    assert [each.sum.refusals for each in alone.points] == [{"over": 5}]
    assert (await market.usage.summary(user, UTC)).today.connections == 4


async def test_old_hours_become_days_and_nothing_is_lost(market: Market) -> None:
    market.usage.rolled_max_rows = 2
    user = await market.person("10")
    purchase = await bought(market, user)
    usage = await leased(market, purchase)
    midnight = market.clock.now = market.clock.now - market.clock.now % DAY + DAY
    for number in range(6):  # two days of three hours, eight hours apart
        tally = Tally(purchase.session_id, 1, (("refused", 1),))
        await report(market, usage, 10 * (number + 1), tally)
        market.clock.now += 8 * HOUR
    assert await market.usage.roll_up() == 0
    before = await series(market, user, Step.DAY, since=midnight)
    market.clock.now = midnight + (HOURS_KEPT_DAYS + 1) * DAY
    assert await market.usage.roll_up() == 6, "the hours of one day, of bytes and of refusals"
    market.clock.now += 10 * DAY
    assert await market.usage.roll_up() == 6
    assert await market.usage.roll_up() == 0
    after = await series(market, user, Step.DAY, since=midnight)
    assert after.points[: len(before.points)] == before.points
    assert after.total == before.total
    assert after.total.refusals == {"refused": 6}
    assert (await audit_ledger(market.store)).passed


async def test_the_rows_always_add_up_to_the_bill(market: Market) -> None:
    """Reports of two nodes, good and impossible, ends and deaths, over months that become days."""
    for seed in range(2):
        await Life(market, random.Random(seed)).run()


class Life:
    """Sessions of a buyer, used under leases of two nodes; beside it the bytes of each hour."""

    def __init__(self, market: Market, chance: random.Random) -> None:
        self.market = market
        self.chance = chance
        self.nodes: list[Leases] = []
        self.leases: list[tuple[Leases, Usage, int]] = []  # with the grant of each
        self.expected: Counter[tuple[str, int]] = Counter()  # by session and hour

    async def run(self) -> None:
        market, chance = self.market, self.chance
        user = await market.person("1000")
        began = market.clock.now
        for _ in range(2):
            await self.join()
        sessions = [
            await bought(market, user, chance.randint(MICRO // 10, MICRO)) for _ in range(4)
        ]
        for _ in range(STEPS):
            step = chance.choices(
                (self.lease, self.report, self.pass_time, self.end, self.die, market.usage.roll_up),
                (4, 10, 5, 1, 1, 1),
            )[0]
            await (step(sessions) if step in (self.lease, self.end) else step())  # type: ignore[operator]
            assert await market.store.read(queries.mismatches) == []
        await self.check(user, [each.session_id for each in sessions], began)

    async def join(self) -> None:
        node = Leases(self.market.context)
        node.node_id = self.market.identifiers.new()
        await self.market.store.write(nodes.register, node.node_id, self.market.clock.seconds())
        self.nodes.append(node)

    async def lease(self, sessions: list[Purchase]) -> None:
        node, purchase = self.chance.choice(self.nodes), self.chance.choice(sessions)
        if any(
            each is node and usage.session_id == purchase.session_id
            for each, usage, _ in self.leases
        ):
            return
        grant = await node.open(purchase.session_id)
        if grant is not None and grant.lease_id is not None:
            usage = Usage(purchase.session_id, grant.lease_id, 0)
            self.leases.append((node, usage, grant.granted_bytes))

    async def report(self) -> None:
        """Report on several leases at once; some reports are of more than was granted."""
        node = self.chance.choice(self.nodes)
        mine = [each for each in self.leases if each[0] is node and self.chance.random() < 0.7]
        asks = []
        for _, usage, granted in mine:
            used = self.chance.randint(usage.used_bytes, granted + granted // 10)
            asks.append(Ask(Usage(usage.session_id, usage.lease_id, used), want_bytes=1_000_000))
        replies = await node.exchange(asks)
        hour = self.market.clock.now // HOUR * HOUR
        for lease, ask, reply in zip(mine, asks, replies, strict=True):
            if isinstance(reply, LeaseState):
                more = ask.usage.used_bytes - lease[1].used_bytes
                self.expected[lease[1].session_id, hour] += more
                self.leases[self.leases.index(lease)] = (node, ask.usage, reply.granted_bytes)

    async def pass_time(self) -> None:
        self.market.clock.now += self.chance.choice((60, HOUR, 7 * HOUR, 3 * DAY, 40 * DAY))

    async def end(self, sessions: list[Purchase]) -> None:
        """Settle a session, with a last report of one of its leases."""
        session_id = self.chance.choice(sessions).session_id
        held = [each for each in self.leases if each[1].session_id == session_id]
        last = None
        if held:
            node, usage, granted = held[0]
            last = Usage(session_id, usage.lease_id, self.chance.randint(usage.used_bytes, granted))
            hour = self.market.clock.now // HOUR * HOUR
            self.expected[session_id, hour] += last.used_bytes - usage.used_bytes
        node = held[0][0] if held else self.nodes[0]
        await node.settle(session_id, SessionStatus.ENDED, last)
        self.leases = [each for each in self.leases if each not in held]

    async def die(self) -> None:
        """Let a node die; its unreported bytes are not used."""
        node = self.nodes.pop(0)
        await node.leave()
        self.leases = [each for each in self.leases if each[0] is not node]
        await self.join()

    async def check(self, user: str, sessions: list[str], began: int) -> None:
        market = self.market
        shown = await series(market, user, Step.DAY, since=began, by_session=True, fill=False)
        days: Counter[tuple[str, int]] = Counter()
        for (session_id, hour), used in self.expected.items():
            days[session_id, hour // DAY * DAY] += used
        # An hour in which nothing came of a report has no row, or one of nothing.
        got = {
            (each.session_id, each.bucket.begins_at): each.sum.used_bytes for each in shown.points
        }
        assert {key: used for key, used in got.items() if used} == {
            key: used for key, used in days.items() if used
        }
        for session_id in sessions:
            row = await market.store.read(bandwidth.find, session_id)
            assert row is not None
            assert row.bytes_used == sum(
                used for (each, _), used in self.expected.items() if each == session_id
            )
        assert sum(self.expected.values()) > 0
        assert shown.total.used_bytes == sum(self.expected.values())
        assert (await market.usage.summary(user, UTC)).ever.cost == shown.total.cost
        assert (await audit_ledger(market.store)).passed


def test_as_many_rows_as_may_be_read_are_added_up_at_once() -> None:
    places = [(at * HOUR, str(session)) for at in range(10) for session in range(ROWS_MAX // 10)]
    used = [UsedRow(*place, kind, 7, 1) for place in places for kind in range(KINDS_MAX)]
    refused = [RefusedRow(*place, f"r{kind}", 2) for place in places for kind in range(KINDS_MAX)]
    sums = _sums(used, refused)
    assert len(sums) == ROWS_MAX
    cost = 7 * sum(range(KINDS_MAX))
    assert {(each.used_bytes, each.cost, each.connections) for each in sums.values()} == {
        (7 * KINDS_MAX, cost, KINDS_MAX)
    }
    assert all(list(each.refusals.values()) == [2] * KINDS_MAX for each in sums.values())
    assert seconds_of(lambda: _sums(used, refused)) < 0.15
