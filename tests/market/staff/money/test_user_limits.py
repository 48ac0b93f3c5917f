"""Limits and the price of one user: effective with the next purchase, wherever they are read."""

import pytest
from support.base.cases import cases
from support.market.books import refusal
from support.market.events import said
from support.market.jobs import wanted
from support.market.market import TERMS, Market
from support.market.staff import ROOT, acting, member

from market.base.errors import Code, MarketError
from market.money.money import GB, MICRO
from market.staff.base.roles import Author, Role
from market.staff.finding import users
from market.staff.money import user_limits
from market.staff.money.user_limits import NewLimits, PriceBounds
from storage.accounts.user_limits import UserLimitsRow


async def limited(
    market: Market, user: str, new: NewLimits, author: Author = ROOT
) -> UserLimitsRow:
    return await user_limits.change(market.context, author, user, new, "agreed by letter")


async def bought(market: Market, user: str, price: int | None = None) -> int:
    """Buy a GB, and return its price."""
    return (await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=price)).cost


async def test_a_user_has_other_limits_than_the_service(market: Market) -> None:
    user, other = await market.person(usd="20", credit="20"), await market.person(usd="20")
    await limited(market, user, NewLimits(sessions=1, jobs=1, devices=1))
    for _ in range(2):
        await bought(market, other)
    await bought(market, user)
    assert await refusal(bought(market, user)) is Code.TOO_MANY_SESSIONS
    await market.jobs.create(user, wanted())
    assert await refusal(market.jobs.create(user, wanted())) is Code.TOO_MANY_JOBS
    names = {"name": "rig", "device_type": "server", "min_price_usd": None}
    await market.devices.create(user, **names)  # type: ignore[arg-type]
    attempt = market.devices.create(user, **names)  # type: ignore[arg-type]
    assert await refusal(attempt) is Code.TOO_MANY_DEVICES
    row = await limited(market, user, NewLimits(sessions=0, jobs=None))
    assert (row.sessions, row.jobs, row.devices) == (0, None, 1)
    await bought(market, user)
    await market.jobs.create(user, wanted())
    page = await users.view(market.context, ROOT, user)
    assert page.personal == row


async def test_the_price_of_a_user_is_in_the_terms_and_in_the_purchase(market: Market) -> None:
    user = await market.person(usd="20")
    for percent, price, floor in ((80, 800_000, 80_000), (150, 1_500_000, 150_000)):
        await limited(market, user, NewLimits(price_percent=percent))
        terms = await market.bandwidth.terms_of(user)
        assert (terms.price_default, terms.price_floor) == (price, floor)
        assert await bought(market, user) == price
        assert await bought(market, user, floor) == floor
        assert await refusal(bought(market, user, floor - 1)) is Code.PRICE_BELOW_FLOOR
    assert await market.bandwidth.terms_of(None) == TERMS
    assert await bought(market, await market.person(usd="1")) == MICRO


async def test_the_values_end_with_their_time(market: Market) -> None:
    user = await market.person(usd="20")
    until = market.clock.now + 60
    await limited(market, user, NewLimits(price_percent=50, sessions=1, until=until))
    assert await bought(market, user) == MICRO // 2
    market.clock.now += 59
    assert await refusal(bought(market, user)) is Code.TOO_MANY_SESSIONS
    market.clock.now += 1
    assert await bought(market, user) == MICRO
    assert (await users.view(market.context, ROOT, user)).personal is None
    row = await limited(market, user, NewLimits(jobs=7))
    assert (row.jobs, row.price_percent, row.sessions, row.until) == (7, None, None, None)


async def test_a_price_that_changes_during_a_purchase_counts(market: Market) -> None:
    """The price was read before the transaction, which compares it."""
    user = await market.person(usd="20")
    read = market.bandwidth._percent_of
    changes = iter((60, 70))

    async def changed_after(user_id: str) -> int:
        percent = await read(user_id)
        if (new := next(changes, None)) is not None:
            await limited(market, user, NewLimits(price_percent=new))
        return percent

    market.bandwidth._percent_of = changed_after  # type: ignore[method-assign]
    assert await bought(market, user) == 700_000
    changes = iter((10, 20, 30))
    assert await refusal(bought(market, user)) is Code.TOO_BUSY


async def test_the_user_gets_an_event_and_the_log_has_both_values(market: Market) -> None:
    user = await market.person()
    await limited(market, user, NewLimits(sessions=5, until=market.clock.now + 60))
    [event] = await said(market, user, "account.limits_changed")
    assert (event["sessions"], event["jobs"]) == (5, None)
    assert str(event["until"]).endswith("Z")
    row = (await users.view(market.context, ROOT, user)).log[0]
    assert (row.action, row.text) == ("user.limit", "agreed by letter")
    assert '"sessions":[null,5]' in row.changes


async def test_finance_changes_the_price_alone(market: Market) -> None:
    user, finance = await market.person(), acting(await member(market, Role.FINANCE))
    await limited(market, user, NewLimits(price_percent=90), finance)
    for new in (NewLimits(price_percent=90, jobs=1), NewLimits(until=market.clock.now + 60)):
        assert await refusal(limited(market, user, new, finance)) is Code.NOT_PERMITTED


async def test_a_member_sets_no_price_beyond_the_bounds(market: Market) -> None:
    user, bounds = await market.person(), PriceBounds(50, 200)

    async def priced(author: Author, percent: int | None) -> int | None:
        new = NewLimits(price_percent=percent)
        row = await user_limits.change(market.context, author, user, new, "agreed", prices=bounds)
        return row.price_percent

    for role in (Role.FINANCE, Role.OPERATOR):
        author = acting(await member(market, role))
        for percent in (1, 49, 201, 1_000):
            assert await refusal(priced(author, percent)) is Code.NOT_PERMITTED
        for allowed in (50, 200, None):
            assert await priced(author, allowed) == allowed
    assert await priced(ROOT, 1) == 1  # a command on the machine


@cases(
    "new",
    [
        NewLimits(),
        NewLimits(sessions=-1),
        NewLimits(jobs=1_000_001),
        NewLimits(price_percent=0),
        NewLimits(price_percent=1_001),
        NewLimits(until=0),
        NewLimits(until=2**60),
    ],
)
async def test_values_out_of_range_are_refused(market: Market, new: NewLimits) -> None:
    with pytest.raises(MarketError) as refused:
        await limited(market, await market.person(), new)
    assert refused.value.code is Code.INVALID_FIELD
