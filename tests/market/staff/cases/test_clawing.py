"""Exits that the staff claws back: barred, unpaid, and in the log."""

import json
from typing import Any

import pytest
from support.market.books import available, balance, refusal
from support.market.cases import cases_of
from support.market.exits import ExitDevice, Through, exit_device, through
from support.market.market import Market
from support.market.staff import ROOT, acting, member
from support.market.staff_money import LIMITS, USD

from market.base.errors import Code
from market.exits import payouts
from market.money import ledger
from market.money.money import GB, MICRO
from market.staff.audit import audit_all
from market.staff.base.roles import Author, Member, Role, Via
from market.staff.cases import clawing
from market.staff.cases.clawing import ClawedBack
from market.staff.finding import history
from market.staff.members import accounts
from market.staff.money import approvals, second_person
from market.staff.money.approvals import Outcome, State
from market.staff.stopping import stopping
from storage.engines.errors import UnavailableError
from storage.exits import exits as exit_queries

WEEK_SECONDS = 7 * 86_400


async def pending(market: Market, user: str) -> int:
    return await balance(market, ledger.pending(user))


async def is_barred(market: Market, owner: str) -> bool:
    [exit_] = await market.exits.page(owner, before="", limit=9)
    return exit_.state == "barred"


async def carried(market: Market, made: ExitDevice, sessions: int = 1) -> list[Through]:
    """Sell sessions, and carry a GB of each for 1 USD; the owner of the exit earns 0.60."""
    sold = [await through(market) for _ in range(sessions)]
    for session in sold:
        await session.report(GB, (made, GB))
        await session.end()
    return sold


async def operators(market: Market, names: str) -> list[Member]:
    made = [await member(market, Role.OPERATOR, each) for each in names]
    return [Member(each.id, each.role, Via.API) for each in made]


async def approved(market: Market, author: Author, approval_id: str) -> Outcome:
    posters = cases_of(market).posters
    return await second_person.approve(market.context, author, approval_id, posters=posters)


@pytest.mark.both_engines
async def test_all_exits_of_an_owner_are_clawed_back(market: Market) -> None:
    owner = await market.person()
    made = [await exit_device(market, owner) for _ in range(3)]
    honest, session = await exit_device(market), await through(market)
    await session.report(GB, *((each, GB // 5) for each in (*made, honest)))
    await session.end()
    before = await available(market, session.buyer)
    operator = acting(await member(market, Role.OPERATOR))
    done = await clawing.claw_back(
        market.context, operator, LIMITS, made[1].id, "injects", with_owner=True
    )
    assert set(done.devices) == {each.id for each in made}
    assert (done.earnings, done.amount, done.refunded) == (3, 360_000, 600_000)
    states = [each.state for each in await market.exits.page(owner, before="", limit=9)]
    assert states == ["barred"] * 3
    assert await pending(market, owner) == 0
    assert await available(market, session.buyer) == before + 600_000
    assert await pending(market, honest.owner) == 120_000
    rows = await history.read(market.context, ROOT, user=owner, limit=9)
    assert {row.action for row in rows} == {"device.claw_back"}
    changes = [json.loads(row.changes) for row in rows]
    assert changes.count({"barred": [False, True]}) == 3
    reversed_ = {"earnings": [None, 1], "refunded_usd": [None, 200_000], "usd": [None, -120_000]}
    assert changes.count(reversed_) == 3
    again = await clawing.claw_back(market.context, operator, LIMITS, made[1].id, "injects")
    assert again == ClawedBack((made[1].id,))
    assert (await audit_all(market.store)).passed


async def test_only_operators_claw_back_and_only_an_exit(market: Market) -> None:
    made = await exit_device(market)
    for role in (Role.SUPPORT, Role.FINANCE):
        author = acting(await member(market, role))
        refused = clawing.claw_back(market.context, author, LIMITS, made.id, "injects")
        assert await refusal(refused) is Code.NOT_PERMITTED
    for with_owner in (False, True):
        unknown = clawing.claw_back(
            market.context, ROOT, LIMITS, "none", "x", with_owner=with_owner
        )
        assert await refusal(unknown) is Code.TOKEN_NOT_FOUND
    assert not await is_barred(market, made.owner)


@pytest.mark.both_engines
async def test_nobody_claws_back_for_an_account_of_their_own(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB, (made, GB))
    await session.end()
    first, second = [acting(await member(market, Role.OPERATOR, each)) for each in "ab"]
    await accounts.declare(market.context, first, first.staff_id, session.buyer, "mine")
    before = await available(market, session.buyer)
    own = clawing.claw_back(market.context, first, LIMITS, made.id, "injects")
    assert await refusal(own) is Code.NOT_PERMITTED
    assert not await is_barred(market, made.owner)
    done = await clawing.claw_back(market.context, second, LIMITS, made.id, "injects")
    assert done.earnings == 1
    assert await available(market, session.buyer) > before


@pytest.mark.both_engines
async def test_above_the_limit_the_earnings_wait_for_a_second_person(market: Market) -> None:
    made = await exit_device(market)
    sold = await carried(market, made, 3)
    before = [await available(market, each.buyer) for each in sold]
    limits = {**LIMITS, USD: 3 * MICRO - 1}
    first, second = await operators(market, "ab")
    market.clock.now += WEEK_SECONDS - 60
    done = await clawing.claw_back(market.context, first, limits, made.id, "injects")
    [waits] = done.waiting
    assert (done.earnings, waits.state, waits.amount) == (0, State.WAITS, -3 * MICRO)
    assert await is_barred(market, made.owner)
    assert await pending(market, made.owner) == 1_800_000
    market.clock.now += 60
    await market.exit_payouts.pay_due()
    again = await clawing.claw_back(market.context, second, limits, made.id, "injects")
    assert (again.earnings, again.waiting[0].id) == (0, waits.id)
    assert await refusal(approved(market, first, waits.id)) is Code.NOT_PERMITTED
    assert await pending(market, made.owner) == 1_800_000
    await approved(market, second, waits.id)
    assert await pending(market, made.owner) == 0
    assert [await available(market, each.buyer) for each in sold] == [
        each + MICRO for each in before
    ]
    assert await refusal(approved(market, second, waits.id)) is Code.APPROVAL_OVER
    [row, *_] = await history.read(market.context, ROOT, user=made.owner, limit=9)
    sums = json.loads(row.changes)
    assert (sums["earnings"], sums["refunded_usd"]) == ([None, 3], [None, 3 * MICRO])
    assert (await audit_all(market.store)).passed


@pytest.mark.both_engines
async def test_slices_and_other_exits_do_not_pass_the_limit(market: Market) -> None:
    owner = await market.person()
    exits = [await exit_device(market, owner) for _ in range(3)]
    for each in exits:
        await carried(market, each)
    operator = acting(await member(market, Role.OPERATOR))
    limits = {**LIMITS, USD: 2 * MICRO}
    done = await clawing.claw_back(
        market.context, operator, limits, exits[0].id, "injects", with_owner=True
    )
    assert (done.earnings, done.refunded, len(done.waiting)) == (2, 2 * MICRO, 1)
    assert await pending(market, owner) == 600_000
    other = await exit_device(market)
    await carried(market, other)
    done = await clawing.claw_back(market.context, operator, limits, other.id, "injects")
    assert (done.earnings, len(done.waiting)) == (0, 1)


async def test_each_part_has_its_sums_in_the_log(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await exit_device(market)
    await carried(market, made, 3)
    monkeypatch.setattr(clawing, "REVERSED_MAX_EARNINGS", 2)
    operator, reverse, calls = acting(await member(market, Role.OPERATOR)), payouts.reverse, []

    async def fails_at_the_second(*args: Any, **more: Any) -> payouts.ClawedBack:
        calls.append(args)
        if len(calls) == 2:
            raise UnavailableError("the disk is gone")
        return await reverse(*args, **more)

    monkeypatch.setattr(payouts, "reverse", fails_at_the_second)
    with pytest.raises(UnavailableError):
        await clawing.claw_back(market.context, operator, LIMITS, made.id, "injects")
    assert await pending(market, made.owner) == 600_000
    done = await clawing.claw_back(market.context, operator, LIMITS, made.id, "injects")
    assert (done.earnings, done.refunded) == (1, MICRO)
    rows = await history.read(market.context, ROOT, user=made.owner, limit=9)
    changes = [json.loads(row.changes) for row in rows]
    sums = [each["refunded_usd"][1] for each in changes if "refunded_usd" in each]
    assert sums == [MICRO, 2 * MICRO]


async def test_an_approval_reverses_no_more_than_was_asked(market: Market) -> None:
    made, limits = await exit_device(market), {**LIMITS, USD: 0}
    await carried(market, made)
    first, second, third = await operators(market, "abc")
    done = await clawing.claw_back(market.context, first, limits, made.id, "injects")
    [waits] = done.waiting
    market.clock.now += 1
    await stopping.pardon_device(market.context, second, made.id, "a mistake")
    assert await refusal(approved(market, second, waits.id)) is Code.APPROVAL_OVER
    [session] = await carried(market, made)
    await market.store.write(exit_queries.bar, made.id, market.clock.now)
    await accounts.declare(market.context, third, third.staff_id, session.buyer, "mine")
    assert await refusal(approved(market, third, waits.id)) is Code.NOT_PERMITTED
    await approved(market, second, waits.id)
    assert await pending(market, made.owner) == 600_000  # of the session after the request
    assert (await audit_all(market.store)).passed


async def test_a_request_whose_time_is_over_is_asked_again(market: Market) -> None:
    made, limits = await exit_device(market), {**LIMITS, USD: 0}
    await carried(market, made)
    operator = acting(await member(market, Role.OPERATOR))
    ids = []
    for _ in range(2):
        done = await clawing.claw_back(market.context, operator, limits, made.id, "injects")
        ids += [each.id for each in done.waiting]
        market.clock.now += approvals.WAITS_SECONDS
    assert len(set(ids)) == 2
