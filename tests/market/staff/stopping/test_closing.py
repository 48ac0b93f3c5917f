"""Closing and export by the staff."""

from support.market.books import refusal
from support.market.leaving import tools
from support.market.market import Market
from support.market.staff import ROOT, acting, member

from market.base.errors import Code
from market.staff.audit import audit_all
from market.staff.base.roles import Role
from market.staff.finding import history
from market.staff.stopping import closing
from storage.accounts import closures


async def test_the_staff_closes_an_account(market: Market) -> None:
    user = await market.person(usd="1")
    act = {"waives": False, "why": "asked by letter"}
    letters = tools(market).letters
    closed = closing.close(market.context, letters, ROOT, user, **act)
    assert await refusal(closed) is Code.ACCOUNT_NOT_EMPTY
    act["waives"] = True
    done = await closing.close(market.context, letters, ROOT, user, **act)
    assert done.user_id == user
    again = closing.close(market.context, letters, ROOT, user, **act)
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
        closed = closing.close(market.context, letters, author, user, waives=False, why="x")
        assert await refusal(closed) is Code.NOT_PERMITTED
        assert await refusal(closing.export(market.context, author, user)) is Code.NOT_PERMITTED
    operator = acting(await member(market, Role.OPERATOR))
    assert (await closing.export(market.context, operator, user)).id == user
    [row] = await history.read(market.context, ROOT, user=user, limit=9)
    assert row.action == "user.export"
