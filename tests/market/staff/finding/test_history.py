"""The log as an operator reads it."""

import pytest
from support.market.market import Market
from support.market.staff import ROOT, acting, member

from market.base.errors import Code, MarketError
from market.staff.base.roles import Role
from market.staff.finding import history, search, users
from market.staff.members import accounts


@pytest.mark.both_engines
async def test_the_log_is_filtered_by_user_member_and_action(market: Market) -> None:
    first, second = await market.person(), await market.person()
    support = await member(market, Role.SUPPORT)
    author = acting(support)
    await users.note(market.context, author, first, "one")
    await users.view(market.context, author, second)
    await users.view(market.context, ROOT, first)
    await search.who(market.context, ROOT, "203.0.113.9")
    rows = await history.read(market.context, ROOT, limit=10)
    assert [row.number for row in rows] == [5, 4, 3, 2, 1]
    assert (rows[0].action, rows[0].text) == ("search.address", "203.0.113.9")

    async def numbers(**filters: str) -> list[int]:
        found = await history.read(market.context, ROOT, limit=10, **filters)
        return [row.number for row in found]

    assert await numbers(user=first) == [4, 2]
    assert await numbers(user="person2") == [3]
    assert await numbers(staff=support.email) == [3, 2]
    assert await numbers(action="user.view") == [4, 3]
    assert await numbers(user=first, action="user.view", staff=support.id) == []
    assert len(await history.read(market.context, ROOT, limit=2)) == 2
    older = await history.read(market.context, ROOT, before=3, limit=10)
    assert [row.number for row in older] == [2, 1]
    older = await history.read(market.context, ROOT, user=first, before=4, limit=10)
    assert [row.number for row in older] == [2]


@pytest.mark.parametrize(
    ("filters", "code"),
    [
        ({"user": "nobody"}, Code.USER_NOT_FOUND),
        ({"staff": "nobody"}, Code.STAFF_NOT_FOUND),
        ({"action": "user.delete"}, Code.INVALID_FIELD),
        ({"user": "\x00"}, Code.INVALID_FIELD),
        ({"staff": "x" * 1_000}, Code.INVALID_FIELD),
    ],
)
async def test_a_filter_that_names_nothing_is_refused(
    market: Market, filters: dict[str, str], code: Code
) -> None:
    with pytest.raises(MarketError) as refused:
        await history.read(market.context, ROOT, limit=10, **filters)
    assert refused.value.code is code


async def test_reading_the_log_writes_nothing(market: Market) -> None:
    await history.read(market.context, ROOT, limit=10)
    await accounts.listed(market.context, ROOT)
    assert await history.read(market.context, ROOT, limit=10) == []
