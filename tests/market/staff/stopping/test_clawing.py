"""Exits that the staff claws back: barred, unpaid, and in the log."""

import json

import pytest
from support.market.books import available, balance, refusal
from support.market.exits import exit_device, through
from support.market.market import Market
from support.market.staff import ROOT, acting, member

from market.base.errors import Code
from market.money import ledger
from market.money.money import GB
from market.staff.audit import audit_all
from market.staff.base.roles import Role
from market.staff.finding import history
from market.staff.members import accounts
from market.staff.stopping import clawing
from market.staff.stopping.clawing import ClawedBack


async def pending(market: Market, user: str) -> int:
    return await balance(market, ledger.pending(user))


@pytest.mark.both_engines
async def test_all_exits_of_an_owner_are_clawed_back(market: Market) -> None:
    owner = await market.person()
    made = [await exit_device(market, owner) for _ in range(3)]
    honest, session = await exit_device(market), await through(market)
    await session.report(GB, *((each, GB // 5) for each in (*made, honest)))
    await session.end()
    before = await available(market, session.buyer)
    operator = acting(await member(market, Role.OPERATOR))
    done = await clawing.claw_back(market.context, operator, made[1].id, "injects", with_owner=True)
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
    again = await clawing.claw_back(market.context, operator, made[1].id, "injects")
    assert again == ClawedBack((made[1].id,))
    assert (await audit_all(market.store)).passed


async def test_only_operators_claw_back_and_only_an_exit(market: Market) -> None:
    made = await exit_device(market)
    for role in (Role.SUPPORT, Role.FINANCE):
        author = acting(await member(market, role))
        refused = clawing.claw_back(market.context, author, made.id, "injects")
        assert await refusal(refused) is Code.NOT_PERMITTED
    for with_owner in (False, True):
        unknown = clawing.claw_back(market.context, ROOT, "none", "x", with_owner=with_owner)
        assert await refusal(unknown) is Code.TOKEN_NOT_FOUND
    [exit_] = await market.exits.page(made.owner, before="", limit=9)
    assert exit_.state != "barred"


@pytest.mark.both_engines
async def test_nobody_claws_back_for_an_account_of_their_own(market: Market) -> None:
    made, session = await exit_device(market), await through(market)
    await session.report(GB, (made, GB))
    await session.end()
    first, second = [acting(await member(market, Role.OPERATOR, each)) for each in "ab"]
    await accounts.declare(market.context, first, first.staff_id, session.buyer, "mine")
    before = await available(market, session.buyer)
    own = clawing.claw_back(market.context, first, made.id, "injects")
    assert await refusal(own) is Code.NOT_PERMITTED
    [exit_] = await market.exits.page(made.owner, before="", limit=9)
    assert exit_.state != "barred"
    assert (await clawing.claw_back(market.context, second, made.id, "injects")).earnings == 1
    assert await available(market, session.buyer) > before
