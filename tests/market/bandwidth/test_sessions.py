"""Buying, listing and ending sessions, on both engines."""

import asyncio
from typing import Any

import pytest
from support.market.books import available, revenue
from support.market.market import Market

from market.bandwidth.leases import Usage
from market.base.errors import Code, MarketError
from market.base.states import SessionStatus
from market.base.sweeping import PUT_OFF_SECONDS
from market.money.money import GB, Currency
from storage.engines.errors import UnavailableError

USD = Currency.USD


async def test_a_purchase_holds_its_price_and_names_the_address_to_dial(market: Market) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB // 2, price_per_gb=3_000_001)
    assert (bought.host, bought.port, bought.cost) == ("proxy.example.com", 1080, 1_500_001)
    assert await available(market, user) == 10_000_000 - 1_500_001


@pytest.mark.both_engines
async def test_a_hundred_purchases_with_money_for_ten_sell_ten(market: Market) -> None:
    user = await market.person("10")
    outcomes = await asyncio.gather(
        *(market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None) for _ in range(100)),
        return_exceptions=True,
    )
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert len(refused) == 90
    assert {type(refusal) for refusal in refused} == {MarketError}
    assert {getattr(refusal, "code", None) for refusal in refused} == {Code.INSUFFICIENT_FUNDS}
    sold = await market.bandwidth.page(user, status=None, before="", limit=100)
    assert len(sold) == 10
    assert await available(market, user) == 0


@pytest.mark.parametrize("quota", [0, -1, 10_000 * GB + 1])
async def test_a_quota_out_of_range_is_refused(market: Market, quota: int) -> None:
    user = await market.person("10")
    with pytest.raises(MarketError) as caught:
        await market.bandwidth.buy(user, quota_bytes=quota, price_per_gb=None)
    assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, "gb")


async def test_a_price_below_the_floor_is_refused(market: Market) -> None:
    user = await market.person("10")
    with pytest.raises(MarketError) as caught:
        await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=99_999)
    assert caught.value.code is Code.PRICE_BELOW_FLOOR
    assert await available(market, user) == 10_000_000


async def test_ending_captures_the_used_bytes_and_releases_the_rest(market: Market) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=1_234_567)
    grant = await market.lease(bought)
    assert grant is not None
    assert grant.lease_id is not None
    market.traffic.usage[bought.session_id] = Usage(bought.session_id, grant.lease_id, 123_456_789)
    await market.bandwidth.end(user, bought.session_id)
    owed = 123_456_789 * 1_234_567 // GB
    assert await revenue(market) == owed
    assert await available(market, user) == 10_000_000 - owed
    [session] = await market.bandwidth.page(user, status=None, before="", limit=10)
    assert (session.status, session.bytes_used) == (SessionStatus.ENDED, 123_456_789)
    assert session.ended_at == market.clock.now


@pytest.mark.both_engines
async def test_ending_twice_or_twenty_times_at_once_settles_once(market: Market) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    await asyncio.gather(*(market.bandwidth.end(user, bought.session_id) for _ in range(20)))
    await market.bandwidth.end(user, bought.session_id)
    assert await available(market, user) == 10_000_000


async def test_a_session_of_another_user_is_not_found_and_not_cut(market: Market) -> None:
    user, other = await market.person("10"), await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    with pytest.raises(MarketError) as caught:
        await market.bandwidth.end(other, bought.session_id)
    assert caught.value.code is Code.SESSION_NOT_FOUND
    assert market.traffic.cuts == []


async def test_an_ending_that_cannot_be_written_is_taken_back(market: Market) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)

    async def fail(*_: object) -> bool:
        raise UnavailableError("gone")

    settle, market.leases.settle = market.leases.settle, fail  # type: ignore[method-assign]
    with pytest.raises(UnavailableError):
        await market.bandwidth.end(user, bought.session_id)
    assert market.traffic.restored == [bought.session_id]
    market.leases.settle = settle  # type: ignore[method-assign]
    await market.bandwidth.end(user, bought.session_id)


@pytest.mark.both_engines
@pytest.mark.parametrize("is_stored", [True, False])
async def test_an_end_whose_request_is_cancelled_is_taken_back_only_if_it_was_not_stored(
    market: Market, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    write, was_sent, is_answered = market.store.write, asyncio.Event(), asyncio.Event()

    async def answer_late(*args: Any, **kwargs: Any) -> Any:
        result = await write(*args, **kwargs) if is_stored else None
        was_sent.set()
        await is_answered.wait()
        if not is_stored:
            raise UnavailableError("the test says so")
        return result

    monkeypatch.setattr(market.store, "write", answer_late)
    request = asyncio.create_task(market.bandwidth.end(user, bought.session_id))
    await was_sent.wait()
    request.cancel()
    await asyncio.wait([request], timeout=0)
    assert market.traffic.restored == []  # the outcome is not known yet
    is_answered.set()
    with pytest.raises(asyncio.CancelledError):
        await request
    assert market.traffic.restored == ([] if is_stored else [bought.session_id])
    [session] = await market.bandwidth.page(user, status=None, before="", limit=10)
    assert session.status == (SessionStatus.ENDED if is_stored else SessionStatus.ACTIVE)


async def test_a_session_that_cannot_be_ended_holds_up_no_other(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    market.bandwidth.expire_max_sessions = 2
    user = await market.person("10")
    bought = []
    for _ in range(5):
        bought.append(await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None))
        market.clock.now += 1  # they end in this order
    oldest = [each.session_id for each in bought[:2]]
    market.clock.now += 31 * 86_400
    async with market.without_hold(bought[0]), market.without_hold(bought[1]):
        assert await market.bandwidth.expire() == 0
        assert [await market.bandwidth.expire() for _ in range(3)] == [2, 1, 0]
        told = [each for each in caplog.records if "cannot be ended" in each.getMessage()]
        assert [each.args for each in told] == [(each,) for each in oldest]
        assert market.traffic.restored == oldest
        market.clock.now += PUT_OFF_SECONDS
        assert await market.bandwidth.expire() == 0
        assert market.traffic.restored == oldest * 2
    market.clock.now += PUT_OFF_SECONDS
    assert await market.bandwidth.expire() == 2
    assert await available(market, user) == 10_000_000


async def test_a_store_that_does_not_answer_puts_no_session_off(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person("10")
    await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    market.clock.now += 31 * 86_400

    async def fail(*_: object) -> bool:
        raise UnavailableError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(market.leases, "settle", fail)
        with pytest.raises(UnavailableError):
            await market.bandwidth.expire()
    assert await market.bandwidth.expire() == 1


async def test_a_session_expires_when_its_time_is_over_and_not_before(market: Market) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    market.clock.now += 30 * 86_400 - 1
    assert await market.bandwidth.expire() == 0
    market.clock.now += 1
    assert await market.bandwidth.expire() == 1
    assert await market.bandwidth.expire() == 0
    assert market.traffic.cuts == [(bought.session_id, SessionStatus.EXPIRED)]
    [session] = await market.bandwidth.page(user, status=None, before="", limit=10)
    assert session.status is SessionStatus.EXPIRED
    assert await available(market, user) == 10_000_000


async def test_the_list_adds_the_unreported_bytes_of_live_traffic(market: Market) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    grant = await market.lease(bought)
    assert grant is not None
    assert grant.lease_id is not None
    await market.leases.report([Usage(bought.session_id, grant.lease_id, 1_000)])
    market.traffic.live[grant.lease_id] = 1_500
    [session] = await market.bandwidth.page(user, status=None, before="", limit=10)
    assert session.bytes_used == 1_500


async def test_pages_follow_each_other_newest_first(market: Market) -> None:
    user = await market.person("10")
    bought = [
        (await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)).session_id
        for _ in range(5)
    ]
    first = await market.bandwidth.page(user, status=None, before="", limit=3)
    rest = await market.bandwidth.page(user, status=None, before=first[-1].id, limit=3)
    assert [session.id for session in (*first, *rest)] == bought[::-1]
