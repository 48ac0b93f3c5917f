"""Findings of rules: one open ticket for each user and category."""

import asyncio

import pytest
from support.market.market import Market
from support.market.staff import ROOT

from market.base.errors import Code, MarketError
from market.money.money import GB
from market.staff.abuse import rule_tickets, tickets
from market.staff.abuse.rule_tickets import Found
from market.staff.abuse.tickets import Outcome
from market.staff.audit import audit_all

FIGURES = {"port": 22, "connections": 120}


async def test_a_finding_opens_one_ticket(market: Market) -> None:
    user = await market.person(usd="20")
    session = (await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)).session_id
    opened = await rule_tickets.report(market.context, Found("login", session, 1_000, FIGURES))
    assert opened is not None
    assert (opened.category, opened.user_id, opened.state) == ("break_in", user, "new")
    assert (
        await rule_tickets.report(market.context, Found("login", session, 1_001, FIGURES)) is None
    )
    assert (
        await rule_tickets.report(market.context, Found("login", "unknown", 1_001, FIGURES)) is None
    )
    page = await tickets.show(market.context, ROOT, opened.number)
    assert page.facts == {"rule": "login", "session": session, "at": 1_000, **FIGURES}
    [row] = page.history
    assert (row.via, row.unix_user) == ("rule", None)
    assert row.text == "Rule login, in a minute: port 22, connections 120."
    assert (
        await rule_tickets.report(market.context, Found("scan", session, 1_001, FIGURES))
        is not None
    )
    await tickets.close(market.context, ROOT, opened.number, Outcome.UNFOUNDED, "a backup")
    assert (
        await rule_tickets.report(market.context, Found("login", session, 1_002, FIGURES))
        is not None
    )
    counted = dict(await market.store.read(rule_tickets.opened, 0))
    assert counted == {"break_in": 2, "scan": 1}
    assert (await audit_all(market.store)).passed


async def test_rules_do_not_flood_the_list(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    user = await market.person(usd="20")
    session = (await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)).session_id
    monkeypatch.setattr(tickets, "OPEN_MAX", 0)
    with pytest.raises(MarketError) as refused:
        await rule_tickets.report(market.context, Found("scan", session, 1_000, FIGURES))
    assert refused.value.code is Code.TOO_MANY_TICKETS


async def test_two_nodes_with_one_finding_open_one_ticket(market: Market) -> None:
    user = await market.person(usd="20")
    session = (await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)).session_id
    found = Found("scan", session, 1_000, FIGURES)
    opened = await asyncio.gather(*(rule_tickets.report(market.context, found) for _ in range(5)))
    assert [each.number for each in opened if each is not None] == [1]
    assert len(await tickets.listed(market.context, ROOT, state=None, limit=9)) == 1
    # Each of several tickets at the same time gets a number of its own.
    many = await asyncio.gather(
        *(
            tickets.open_ticket(
                market.context, ROOT, tickets.Category.ABUSE, tickets.Facts(), "a complaint"
            )
            for _ in range(5)
        )
    )
    assert sorted(each.number for each in many) == [2, 3, 4, 5, 6]
