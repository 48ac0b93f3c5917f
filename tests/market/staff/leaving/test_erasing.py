"""Erasures by the staff: by two persons, once, with their acts in the log."""

import asyncio
import json

import pytest
from support.market.books import refusal
from support.market.leaving import tools
from support.market.market import Market
from support.market.staff import acting, member
from support.market.staff_money import LIMITS

from market.base.errors import Code, MarketError
from market.erasure.closing import TAKE_BACK_SECONDS
from market.staff.audit import audit_all
from market.staff.base.roles import Action, Author, Machine, Role
from market.staff.finding import history
from market.staff.leaving import closing, erasing
from market.staff.money import approvals, second_person
from market.staff.money.approvals import Outcome, State
from storage.accounts import closures

ASKER, SECOND = Machine("olga"), Machine("igor")


async def erase(market: Market, author: Author, user: str, *, needs_second: bool = True) -> Outcome:
    return await erasing.erase(
        market.context,
        tools(market),
        author,
        user,
        waives=False,
        needs_second=needs_second,
        limits=LIMITS,
        why="ticket 7",
    )


async def approve(market: Market, author: Author, approval: str) -> Outcome:
    posters = {
        **second_person.POSTERS,
        Action.USER_ERASE: erasing.Eraser(tools(market)).post,
    }
    return await second_person.approve(market.context, author, approval, posters=posters)


async def is_erased(market: Market, user: str) -> bool:
    row = await market.store.read(closures.find, user)
    return row is not None and row.state == "erased"


async def test_a_second_person_erases(market: Market) -> None:
    user = await market.person()
    asked = await erase(market, ASKER, user)
    assert asked.state is State.WAITS
    again = await erase(market, ASKER, user)
    assert (again.state, again.id) == (State.WAITS, asked.id)
    assert not await is_erased(market, user)
    assert await refusal(approve(market, ASKER, asked.id)) is Code.NOT_PERMITTED
    unknown = second_person.approve(market.context, SECOND, asked.id)
    assert await refusal(unknown) is Code.NOT_PERMITTED
    done = await approve(market, SECOND, asked.id)
    assert (done.state, done.user_id) == (State.DONE, user)
    assert await is_erased(market, user)
    assert await refusal(erase(market, ASKER, user)) is Code.ACCOUNT_CLOSED
    rows = await history.read(market.context, ASKER, user=user, limit=9)
    assert [row.action for row in rows] == ["approval.approve", "user.erase", "user.erase"]
    assert [row.text for row in rows] == [None, "", ""]
    assert (await audit_all(market.store)).passed


async def test_a_lone_operator_erases_by_a_setting(market: Market) -> None:
    user = await market.person()
    assert (await erase(market, ASKER, user, needs_second=False)).state is State.DONE
    assert await is_erased(market, user)
    assert (await audit_all(market.store)).passed


async def test_support_and_finance_erase_nobody(market: Market) -> None:
    user = await market.person()
    for role in (Role.SUPPORT, Role.FINANCE):
        author = acting(await member(market, role))
        assert await refusal(erase(market, author, user)) is Code.NOT_PERMITTED


async def test_money_that_came_meanwhile_stops_the_approval(market: Market) -> None:
    user = await market.person()
    asked = await erase(market, ASKER, user)
    await market.deposit("person1@example.com", 1)
    assert await refusal(approve(market, SECOND, asked.id)) is Code.ACCOUNT_NOT_EMPTY
    assert not await is_erased(market, user)


@pytest.mark.both_engines
async def test_ten_approvals_at_the_same_time_erase_once(market: Market) -> None:
    user = await market.person()
    asked = await erase(market, ASKER, user)
    outcomes = await asyncio.gather(
        *(approve(market, Machine(f"second{number}"), asked.id) for number in range(10)),
        return_exceptions=True,
    )
    done = [each for each in outcomes if isinstance(each, Outcome)]
    assert len(done) == 1
    refused = [each for each in outcomes if isinstance(each, MarketError)]
    assert {each.code for each in refused} == {Code.APPROVAL_OVER}


async def test_the_end_of_14_days_is_an_act_of_a_rule(market: Market) -> None:
    user = await market.person()
    login = await market.accounts.login(email="person1@example.com", password="long enough")
    caller = await market.accounts.authenticate(login.token)
    await market.leaving.closing.close(caller, "long enough", waives=False)
    market.clock.now += TAKE_BACK_SECONDS
    assert await market.leaving.erasures.erase_due() == 1
    [row] = await history.read(market.context, ASKER, user=user, limit=9)
    assert (row.via, row.action) == ("rule", "user.erase")


async def test_an_erasure_by_another_way_makes_the_request_moot(market: Market) -> None:
    user = await market.person()
    asked = await erase(market, ASKER, user)
    assert (await erase(market, ASKER, user, needs_second=False)).state is State.DONE
    await require_moot(market, asked.id)
    [row] = await history.read(market.context, ASKER, user=user, limit=1)
    assert json.loads(row.changes)[f"approval {asked.id}"] == ["waits", "moot"]


async def test_the_end_of_14_days_makes_the_request_moot(market: Market) -> None:
    user = await market.person()
    act = {"waives": False, "why": "asked by letter"}
    await closing.close(market.context, tools(market).letters, LIMITS, ASKER, user, **act)
    market.clock.now += TAKE_BACK_SECONDS - 1
    asked = await erase(market, ASKER, user)
    market.clock.now += 1
    assert await market.leaving.erasures.erase_due() == 1
    await require_moot(market, asked.id)


async def require_moot(market: Market, approval: str) -> None:
    """Check that a request is moot, and waits no more."""
    assert await refusal(approve(market, SECOND, approval)) is Code.APPROVAL_OVER
    assert await approvals.listed(market.context, ASKER, limit=9) == []
    [shown] = await approvals.listed(market.context, ASKER, is_open=False, limit=9)
    assert approvals.state_of(shown.approval, market.clock.now) == "moot"
