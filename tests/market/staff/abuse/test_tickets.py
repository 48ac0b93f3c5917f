"""Tickets: their states, their order, their history, and their bounds."""

import pytest
from support.market.market import Market
from support.market.staff import ROOT

from market.base.errors import Code, MarketError
from market.staff.abuse import tickets
from market.staff.abuse.tickets import TRANSITIONS, Category, Facts, Outcome, State
from storage.engines.errors import ConstraintError
from storage.engines.store import Transaction

FACTS = Facts("192.0.2.1", 1_769_860_800, "203.0.113.9", 22)


async def opened(market: Market, category: Category = Category.SCAN) -> int:
    return (
        await tickets.open_ticket(market.context, ROOT, category, FACTS, "reported by N. N.")
    ).number


async def test_a_ticket_goes_from_its_opening_to_its_end(market: Market) -> None:
    number = await opened(market)
    await tickets.move(market.context, ROOT, number, State.CONTACTED, "wrote to the customer")
    await tickets.answer(market.context, ROOT, number, "we have acted")
    row = await tickets.close(
        market.context, ROOT, number, Outcome.CUSTOMER_WARNED, "no further letter"
    )
    assert (row.state, row.outcome, row.closed_at) == (
        "closed",
        "customer_warned",
        market.context.now(),
    )
    page = await tickets.show(market.context, ROOT, number)
    assert page.facts == {
        "exit_address": "192.0.2.1",
        "at": 1_769_860_800,
        "host": "203.0.113.9",
        "port": 22,
    }
    assert [(each.action, each.text) for each in page.history] == [
        ("ticket.close", "no further letter"),
        ("ticket.answer", "we have acted"),
        ("ticket.move", "wrote to the customer"),
        ("ticket.open", "reported by N. N."),
    ]
    assert not any("203.0.113.9" in each.changes for each in page.history)


@pytest.mark.both_engines
async def test_the_ticket_that_is_due_first_comes_first(market: Market) -> None:
    usual = await opened(market)
    urgent = await opened(market, Category.PHISHING)
    later = await opened(market)
    listed = await tickets.listed(market.context, ROOT, state=None, limit=9)
    assert [each.number for each in listed] == [urgent, usual, later]
    assert [each.due_at - each.opened_at for each in listed] == [7_200, 86_400, 86_400]
    await tickets.close(market.context, ROOT, usual, Outcome.UNFOUNDED, "no abuse")
    for state, expected in ((None, [urgent, later]), (State.NEW, [later, urgent])):
        listed = await tickets.listed(market.context, ROOT, state=state, limit=9)
        assert [each.number for each in listed] == expected


async def test_each_transition_that_is_not_in_the_table_is_refused(market: Market) -> None:
    for before in State:
        for after in set(State) - TRANSITIONS[before] - {State.NEW, State.CLOSED}:
            number = await opened(market)
            if before is State.CLOSED:
                await tickets.close(market.context, ROOT, number, Outcome.NOT_OURS, "elsewhere")
            elif before is not State.NEW:
                await tickets.move(market.context, ROOT, number, before, "a note")
            with pytest.raises(MarketError) as refused:
                await tickets.move(market.context, ROOT, number, after, "a note")
            assert refused.value.code is Code.TICKET_STATE


async def test_what_cannot_be_is_refused(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    number = await opened(market)
    with pytest.raises(MarketError) as refused:
        await tickets.move(market.context, ROOT, number, State.CLOSED, "without an outcome")
    assert refused.value.code is Code.INVALID_FIELD
    with pytest.raises(MarketError) as refused:
        await tickets.answer(market.context, ROOT, number, " ")
    assert refused.value.code is Code.INVALID_FIELD
    with pytest.raises(MarketError) as refused:
        await tickets.show(market.context, ROOT, number + 1)
    assert refused.value.code is Code.TICKET_NOT_FOUND
    monkeypatch.setattr(tickets, "OPEN_MAX", 1)
    with pytest.raises(MarketError) as refused:
        await opened(market)
    assert refused.value.code is Code.TOO_MANY_TICKETS


@pytest.mark.both_engines
async def test_the_database_keeps_every_ticket(market: Market) -> None:
    await opened(market)

    async def run(tx: Transaction, statement: str) -> None:
        await tx.run(statement)

    for statement, constraint in (
        ("DELETE FROM tickets", "tickets_are_only_closed"),
        ("UPDATE tickets SET state = 'closed'", "tickets_closed_whole"),
        ("UPDATE tickets SET state = 'lost'", "tickets_known_state"),
    ):
        with pytest.raises(ConstraintError, match=constraint):
            await market.store.write(run, statement)
