"""Closing and export by the staff."""

import json

import pytest
from msgspec import structs
from support.market.books import refusal
from support.market.leaving import tools
from support.market.market import Market
from support.market.staff import ROOT, acting, member
from support.market.staff_money import LIMITS

from market.base.errors import Code
from market.erasure.closing import Closed
from market.money.money import GB, Currency
from market.staff.audit import audit_all
from market.staff.base.roles import Author, Machine, Role
from market.staff.finding import history
from market.staff.leaving import closing
from market.staff.leaving.posters import leaving_posters
from market.staff.money import approvals, money, second_person
from market.staff.money.approvals import Outcome, State
from market.staff.money.second_person_limit import WINDOW_SECONDS
from storage.accounts import closures
from storage.erasure.open_things import active_sessions

ASKER, SECOND = Machine("olga"), Machine("igor")


@pytest.mark.both_engines
async def test_the_staff_closes_an_account(market: Market) -> None:
    user = await market.person(usd="1")
    act = {"waives": False, "why": "asked by letter"}
    letters = tools(market).letters
    closed = closing.close(market.context, letters, LIMITS, ROOT, user, **act)
    assert await refusal(closed) is Code.ACCOUNT_NOT_EMPTY
    act["waives"] = True
    done = await closing.close(market.context, letters, LIMITS, ROOT, user, **act)
    assert isinstance(done, Closed)
    assert done.user_id == user
    again = closing.close(market.context, letters, LIMITS, ROOT, user, **act)
    assert await refusal(again) is Code.ACCOUNT_CLOSED
    assert await market.store.read(closures.is_shut, user)
    await market.accounts.login(email="person1@example.com", password="long enough")
    assert not await market.store.read(closures.is_shut, user)
    assert (await audit_all(market.store)).passed


async def test_only_operators_close_and_export(market: Market) -> None:
    user = await market.person()
    letters = tools(market).letters
    for role in (Role.SUPPORT, Role.FINANCE):
        author = acting(await member(market, role))
        closed = closing.close(market.context, letters, LIMITS, author, user, waives=False, why="x")
        assert await refusal(closed) is Code.NOT_PERMITTED
        assert await refusal(closing.export(market.context, author, user)) is Code.NOT_PERMITTED
    operator = acting(await member(market, Role.OPERATOR))
    assert (await closing.export(market.context, operator, user)).id == user
    [row] = await history.read(market.context, ROOT, user=user, limit=9)
    assert row.action == "user.export"


async def close(market: Market, author: Author, user: str) -> Closed | Outcome:
    """Close the account of a user who gives up the money that is left."""
    letters = tools(market).letters
    return await closing.close(
        market.context, letters, LIMITS, author, user, waives=True, why="asked by letter"
    )


async def approve(market: Market, author: Author, approval: str) -> Outcome:
    """Approve a closing, after the end of its sessions."""
    await closing.end_sessions_of_request(market.context, author, approval, "")
    posters = {**second_person.POSTERS, **leaving_posters(tools(market))}
    return await second_person.approve(market.context, author, approval, posters=posters)


async def is_closed(market: Market, user: str) -> bool:
    return await market.store.read(closures.is_shut, user)


@pytest.mark.both_engines
async def test_more_money_than_one_person_may_move_is_given_up_by_two(market: Market) -> None:
    user = await market.person(usd="50.01", credit="7")
    asked = await close(market, ASKER, user)
    assert isinstance(asked, Outcome)
    assert (asked.state, await is_closed(market, user)) == (State.WAITS, False)
    again = await close(market, ASKER, user)
    assert isinstance(again, Outcome)
    assert again.id == asked.id
    [shown] = await approvals.listed(market.context, SECOND, limit=9)
    waived = approvals.waived_by(json.loads(shown.approval.payload))
    assert waived == {Currency.USD: 50_010_000, Currency.CREDIT: 7_000_000}
    assert await refusal(approve(market, ASKER, asked.id)) is Code.NOT_PERMITTED
    assert (await approve(market, SECOND, asked.id)).state is State.DONE
    assert await is_closed(market, user)
    assert await refusal(approve(market, SECOND, asked.id)) is Code.APPROVAL_OVER
    assert (await audit_all(market.store)).passed


async def test_finance_approves_no_closing(market: Market) -> None:
    user = await market.person(usd="51")
    asked = await close(market, ASKER, user)
    assert isinstance(asked, Outcome)
    for role in (Role.SUPPORT, Role.FINANCE):
        author = structs.replace(acting(await member(market, role)), unix_user=None)
        assert await refusal(approve(market, author, asked.id)) is Code.NOT_PERMITTED
    assert not await is_closed(market, user)


async def test_slices_of_given_up_money_pass_no_limit(market: Market) -> None:
    users = [await market.person(usd="30") for _ in range(3)]
    first = await close(market, ASKER, users[0])
    assert isinstance(first, Closed)
    second = await close(market, ASKER, users[1])
    assert isinstance(second, Outcome)
    corrected = money.correct(
        market.context,
        ASKER,
        users[2],
        LIMITS,
        amount=30_000_000,
        currency=Currency.USD,
        reference="c1",
        why="a fault",
    )
    assert (await corrected).state is State.WAITS
    market.clock.now += WINDOW_SECONDS
    assert isinstance(await close(market, ASKER, users[1]), Closed)
    assert (await audit_all(market.store)).passed


async def test_an_approval_gives_up_no_more_than_was_asked(market: Market) -> None:
    user = await market.person(usd="60")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    asked = await close(market, ASKER, user)
    assert isinstance(asked, Outcome)
    await market.deposit("person1@example.com", 1)
    assert await refusal(approve(market, SECOND, asked.id)) is Code.ACCOUNT_NOT_EMPTY
    assert not await is_closed(market, user)
    assert await market.store.read(active_sessions, user) == [bought.session_id]
    newer = await close(market, ASKER, user)
    assert isinstance(newer, Outcome)
    assert newer.id != asked.id
    assert await refusal(approve(market, SECOND, asked.id)) is Code.APPROVAL_OVER
    await approve(market, SECOND, newer.id)
    assert await is_closed(market, user)
    assert await market.store.read(active_sessions, user) == []
    assert (await audit_all(market.store)).passed


async def test_a_closing_by_the_user_makes_the_request_moot(market: Market) -> None:
    user = await market.person(usd="60")
    asked = await close(market, ASKER, user)
    assert isinstance(asked, Outcome)
    login = await market.accounts.login(email="person1@example.com", password="long enough")
    caller = await market.accounts.authenticate(login.token)
    await market.leaving.closing.close(caller, "long enough", waives=True)
    assert await refusal(approve(market, SECOND, asked.id)) is Code.APPROVAL_OVER
    assert await refusal(close(market, ASKER, user)) is Code.ACCOUNT_CLOSED
    assert (await audit_all(market.store)).passed
