"""Limits on the spending of keys: exact, however many purchases there are at the same moment."""

import asyncio
from calendar import timegm

import pytest
from support.market.events import types_of
from support.market.jobs import wanted
from support.market.market import Market

from market.accounts.keys import SPENT_KEPT_SECONDS, IssuedKey, KeyChange, NewKey
from market.accounts.scopes import Scope
from market.accounts.spending import LimitsChange, Spender, SpendLimits, beginning
from market.base.errors import Code, MarketError
from market.money.money import GB, MICRO
from storage.engines.store import Transaction


async def key(market: Market, user_id: str, limits: SpendLimits) -> IssuedKey:
    scopes = (Scope.SESSIONS_WRITE, Scope.JOBS_WRITE)
    return await market.keys.create(
        user_id, NewKey(name="buyer", scopes=scopes, spend_limits=limits)
    )


async def spender(market: Market, issued: IssuedKey) -> Spender:
    caller = await market.keys.authenticate(issued.key, "192.0.2.1")
    assert caller.key is not None
    return caller.key.spender


async def buy(market: Market, user_id: str, pays: Spender | None, usd: int = 1) -> Code | None:
    """Buy a GB for `usd` dollars. Return the code of a refusal."""
    try:
        await market.bandwidth.buy(user_id, quota_bytes=GB, price_per_gb=usd * MICRO, spender=pays)
    except MarketError as error:
        return error.code
    return None


@pytest.mark.both_engines
async def test_a_hundred_purchases_at_once_spend_up_to_the_limit(market: Market) -> None:
    ada = await market.person(usd="1000")
    issued = await key(market, ada, SpendLimits(usd=10 * MICRO))
    pays = await spender(market, issued)
    done = await asyncio.gather(*(buy(market, ada, pays) for _ in range(100)))
    assert done.count(None) == 10
    assert set(done) == {None, Code.SPEND_LIMIT_REACHED}
    assert (await market.keys.one(ada, issued.row.id)).spent_usd == 10 * MICRO
    assert await buy(market, ada, None) is None, "by hand there is no limit"
    assert (await types_of(market, ada)).count("key.limit_reached") == 1


async def test_each_period_has_the_whole_limit(market: Market) -> None:
    ada = await market.person(usd="100")
    issued = await key(market, ada, SpendLimits(usd=2 * MICRO, period="day"))
    pays = await spender(market, issued)
    market.clock.now = timegm((2027, 1, 31, 23, 59, 59))
    assert await buy(market, ada, pays, 2) is None
    assert await buy(market, ada, pays) is Code.SPEND_LIMIT_REACHED
    market.clock.jump(1)
    assert await buy(market, ada, pays, 2) is None
    # A limit of a lifetime counts from the beginning, even when it is set later.
    whole = SpendLimits(usd=5 * MICRO, period="lifetime")
    await market.keys.change(
        ada,
        issued.row.id,
        KeyChange(spend_limits=LimitsChange(whole.usd, whole.credit, whole.period)),
    )
    pays = await spender(market, issued)
    assert await buy(market, ada, pays, 2) is Code.SPEND_LIMIT_REACHED
    assert await buy(market, ada, pays, 1) is None
    assert (await market.keys.one(ada, issued.row.id)).spent_usd == 5 * MICRO


async def test_a_purchase_that_fails_counts_for_nothing(market: Market) -> None:
    ada = await market.person(usd="1")
    issued = await key(market, ada, SpendLimits(usd=10 * MICRO))
    assert await buy(market, ada, await spender(market, issued), 5) is Code.INSUFFICIENT_FUNDS
    assert (await market.keys.one(ada, issued.row.id)).spent_usd == 0


async def test_a_key_that_succeeds_another_spends_from_the_same_purse(market: Market) -> None:
    ada = await market.person(usd="100")
    issued = await key(market, ada, SpendLimits(usd=2 * MICRO))
    assert await buy(market, ada, await spender(market, issued), 2) is None
    rolled = await market.keys.roll(ada, issued.row.id, overlap_hours=1)
    assert await buy(market, ada, await spender(market, rolled)) is Code.SPEND_LIMIT_REACHED


async def test_a_request_that_goes_on_beyond_its_key_spends_nothing(market: Market) -> None:
    ada = await market.person(usd="100")
    issued = await key(market, ada, SpendLimits())
    pays = await spender(market, issued)
    lower = KeyChange(spend_limits=LimitsChange(usd=2 * MICRO))
    await market.keys.change(ada, issued.row.id, lower)
    assert await buy(market, ada, pays, 3) is Code.SPEND_LIMIT_REACHED
    await market.keys.revoke(ada, issued.row.id)
    assert await buy(market, ada, pays) is Code.UNAUTHORIZED


async def test_jobs_count_in_credits(market: Market) -> None:
    ada = await market.person(credit="100")
    issued = await key(market, ada, SpendLimits(usd=0, credit=5 * MICRO))
    pays = await spender(market, issued)
    await market.jobs.create(ada, wanted(price=3 * MICRO), spender=pays)
    with pytest.raises(MarketError) as raised:
        await market.jobs.create(ada, wanted(price=3 * MICRO), spender=pays)
    assert raised.value.code is Code.SPEND_LIMIT_REACHED
    await market.jobs.create(ada, wanted(price=2 * MICRO), spender=pays)
    assert (await market.keys.one(ada, issued.row.id)).spent_credit == 5 * MICRO


@pytest.mark.both_engines
async def test_days_and_months_that_are_over_are_forgotten_and_a_lifetime_is_not(
    market: Market,
) -> None:
    ada = await market.person(usd="100")
    issued = await key(market, ada, SpendLimits(usd=5 * MICRO, period="lifetime"))
    assert await buy(market, ada, await spender(market, issued), 3) is None

    async def periods() -> list[str]:
        found = await market.store.read(_periods)
        return sorted(found)

    await market.keys.warn()
    assert await periods() == ["day", "lifetime", "month"]
    market.clock.jump(SPENT_KEPT_SECONDS + 31 * 86_400)
    await market.keys.warn()
    assert await periods() == ["lifetime"]


async def _periods(tx: Transaction) -> list[str]:
    return await tx.all(str, "SELECT period FROM key_spends")


def test_periods_begin_with_the_day_and_the_month_in_utc() -> None:
    now = timegm((2028, 2, 29, 13, 14, 15))
    assert beginning("day", now) == timegm((2028, 2, 29, 0, 0, 0))
    assert beginning("month", now) == timegm((2028, 2, 1, 0, 0, 0))
    assert beginning("lifetime", now) == 0
