"""The customer who used an exit: the ranking, the one customer, and the question that is left."""

import asyncio
from typing import Any

import pytest
from support.market.market import Market
from support.market.staff import ROOT, acting, member

from market.base.errors import Code, MarketError
from market.money.money import GB
from market.staff.abuse import exit_use, tickets
from market.staff.abuse.exit_use import (
    Answer,
    Destination,
    Found,
    Match,
    Question,
    Searches,
    Use,
    rank,
)
from market.staff.abuse.tickets import Category, Facts, State
from market.staff.base.roles import Author, Role
from market.staff.finding import history

AT = 1_769_860_800
SCAN = Question("192.0.2.1", AT, "203.0.113.9", 22)
USE = Use("s", "d", AT - 5, AT + 5, "tcp", 22, 0, Destination.EQUAL, 1, 2, "ended")


def use(session: str = "s", **changes: Any) -> Use:
    fields = {name: getattr(USE, name) for name in USE.__struct_fields__}
    return Use(**{**fields, "session_id": session, **changes})


async def session_of(market: Market, user: str) -> str:
    return (await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)).session_id


async def answer(
    market: Market,
    question: Question,
    *uses: Use,
    author: Author = ROOT,
    ticket: int | None = None,
    gaps: tuple[str, ...] = (),
) -> Answer:
    async def found(_: Question) -> Found:
        return Found(uses, gaps)

    return await exit_use.look_up(market.context, author, question, ticket, found)


@pytest.mark.parametrize(
    ("question", "changes", "expected"),
    [
        (SCAN, {}, Match.DESTINATION_AND_PORT),
        (SCAN, {"port": 23}, Match.DESTINATION),
        (SCAN, {"destination": Destination.UNKNOWN}, Match.PORT),
        (SCAN, {"destination": Destination.UNKNOWN, "port": 23}, None),
        (SCAN, {"destination": Destination.UNKNOWN, "port": 0}, Match.TIME),
        (SCAN, {"destination": Destination.DIFFERENT}, None),
        (Question("192.0.2.1", AT), {}, Match.TIME),
        (Question("192.0.2.1", AT, source_port=7), {"source_port": 7}, Match.SOURCE_PORT),
        # The carrier of the exit has changed it: a right destination stays the best.
        (Question("192.0.2.1", AT, "203.0.113.9", 22, 7), {"source_port": 8}, Match(1)),
    ],
)
def test_a_connection_is_ranked_by_its_match(
    question: Question, changes: dict[str, Any], expected: Match | None
) -> None:
    found = rank(question, [use(**changes)])
    assert [each.match for each in found] == ([] if expected is None else [expected])


async def test_a_member_has_one_search_and_a_node_few() -> None:
    goes_on = asyncio.Event()

    async def slow(_: Question) -> Found:
        await goes_on.wait()
        return Found((), ["read"])

    searches = Searches(slow, most=2)
    first, second = [asyncio.create_task(searches.run(each, SCAN)) for each in ("ada", "bob")]
    await asyncio.sleep(0)
    for member_id, words in (("ada", "still runs"), ("eve", "2 searches")):
        with pytest.raises(MarketError, match=words) as refused:
            await searches.run(member_id, SCAN)
        assert refused.value.code is Code.TOO_BUSY
    first.cancel()  # its thread reads on, so it counts on
    await asyncio.gather(first, return_exceptions=True)
    with pytest.raises(MarketError, match="still runs"):
        await searches.run("ada", SCAN)
    goes_on.set()
    assert (await second).gaps == ["read"]
    assert (await searches.run("ada", SCAN)).gaps == ["read"]


async def test_a_search_that_fails_is_over() -> None:
    async def broken(_: Question) -> Found:
        raise MarketError(Code.INVALID_FIELD, "The access log: gone.")

    searches = Searches(broken)
    for _ in range(2):
        with pytest.raises(MarketError, match="gone"):
            await searches.run("ada", SCAN)


async def test_the_one_customer_of_the_best_matches_is_named(market: Market) -> None:
    ada, bob = [await market.person(usd="20") for _ in range(2)]
    of_ada, again, of_bob = [await session_of(market, each) for each in (ada, ada, bob)]
    datagrams = use(of_bob, destination=Destination.UNKNOWN, port=0, protocol="udp")
    found = await answer(market, SCAN, datagrams, use(of_ada), use(again))
    assert found.gaps == (
        "1 connections of other sessions carried datagrams to unknown destinations.",
    )
    assert found.customer is not None
    assert (found.customer.user_id, found.users, found.others, found.ask) == (ada, 1, 1, "")
    assert {each.use.session_id for each in found.uses} == {of_ada, again}
    [row] = await history.read(market.context, ROOT, action="search.exit", limit=9)
    assert row.user_id == ada
    assert row.text is not None
    assert row.text == (
        "exit 192.0.2.1 at 2026-01-31T12:00:00Z, within 60 s, to 203.0.113.9, port 22"
    )
    assert "203.0.113.9" not in row.changes


async def test_several_customers_are_not_named_and_a_question_is_left(market: Market) -> None:
    uses = [use(await session_of(market, await market.person(usd="20"))) for _ in range(2)]
    found = await answer(market, SCAN, *uses)
    assert (found.customer, found.users) == (None, 2)
    assert found.ask == "Please send the exact second in UTC, and the source port."
    found = await answer(market, Question("192.0.2.1", AT), *uses)
    assert found.ask.startswith("Please send the destination address and port")
    found = await answer(market, Question("192.0.2.1", AT, "203.0.113.9"), *uses)
    assert found.ask.startswith("Please send the destination port")


async def test_a_connection_by_a_name_keeps_another_user_from_being_the_only_match(
    market: Market,
) -> None:
    innocent, guilty = [await session_of(market, await market.person(usd="20")) for _ in range(2)]
    by_name = use(guilty, destination=Destination.UNKNOWN)
    found = await answer(market, SCAN, use(innocent), by_name)
    assert (found.customer, found.users, found.others) == (None, 2, 0)
    assert [each.use.session_id for each in found.uses] == [innocent, guilty]
    with_port = Question("192.0.2.1", AT, "203.0.113.9", 22, 7)
    found = await answer(market, with_port, use(innocent), by_name)
    assert found.customer is None
    found = await answer(market, with_port, use(innocent, source_port=7), by_name)
    assert found.customer is not None
    found = await answer(market, SCAN, use(innocent), use(guilty, destination=Destination(3)))
    assert found.customer is not None


async def test_a_connection_to_another_port_of_the_destination_names_nobody(
    market: Market,
) -> None:
    session = await session_of(market, await market.person(usd="20"))
    found = await answer(market, SCAN, use(session, port=443))
    assert (found.customer, found.users) == (None, 1)
    assert found.gaps == ("The connections to this destination went to other ports of it.",)
    found = await answer(market, Question("192.0.2.1", AT, "203.0.113.9"), use(session, port=443))
    assert found.customer is not None


async def test_too_many_connections_name_nobody(market: Market) -> None:
    session = await session_of(market, await market.person(usd="20"))

    async def find(_: Question) -> Found:
        return Found((use(session),), ("More.",), has_more=True)

    found = await exit_use.look_up(market.context, ROOT, SCAN, None, find)
    assert (found.customer, found.users, found.gaps) == (None, 1, ("More.",))


async def test_connections_elsewhere_name_nobody(market: Market) -> None:
    elsewhere = use(
        await session_of(market, await market.person(usd="20")),
        destination=Destination.DIFFERENT,
    )
    found = await answer(market, SCAN, elsewhere, gaps=("3 lines were lost.",))
    assert (found.customer, found.users, found.uses, found.others) == (None, 0, (), 1)
    assert found.gaps == ("3 lines were lost.",)
    assert found.ask.startswith("Please check")


async def test_a_session_that_is_unknown_makes_the_answer_uncertain(market: Market) -> None:
    known = await session_of(market, await market.person(usd="20"))
    found = await answer(market, SCAN, use(known), use("unknown"))
    assert found.customer is None
    assert found.gaps == ("1 of 2 sessions are not compared.",)


async def test_a_look_up_for_a_ticket_moves_the_ticket(market: Market) -> None:
    ada = await market.person(usd="20")
    opened = await tickets.open_ticket(market.context, ROOT, Category.SCAN, Facts(), "a scan")
    found = use(await session_of(market, ada))
    await answer(market, SCAN, found, ticket=opened.number)
    page = await tickets.show(market.context, ROOT, opened.number)
    assert (page.row.state, page.row.user_id) == ("looked_up", ada)
    await tickets.move(market.context, ROOT, opened.number, State.CONTACTED, "wrote")
    await answer(market, SCAN, found, ticket=opened.number)
    page = await tickets.show(market.context, ROOT, opened.number)
    assert page.row.state == "contacted"


async def test_the_support_needs_a_ticket_that_is_open(market: Market) -> None:
    support = acting(await member(market, Role.SUPPORT))
    opened = await tickets.open_ticket(market.context, ROOT, Category.SCAN, Facts(), "a scan")
    await answer(market, SCAN, author=support, ticket=opened.number)
    await tickets.close(market.context, ROOT, opened.number, tickets.Outcome.NO_MATCH, "none")
    for ticket, code in (
        (None, Code.NOT_PERMITTED),
        (opened.number, Code.TICKET_STATE),
        (99, Code.TICKET_NOT_FOUND),
    ):
        with pytest.raises(MarketError) as refused:
            await answer(market, SCAN, author=support, ticket=ticket)
        assert refused.value.code is code
