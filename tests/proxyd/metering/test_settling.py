"""Sessions that are used up are settled, and one that cannot be holds up no other."""

import asyncio

import pytest
from support.base.waiting import until
from support.market.market import Market
from support.market.metering import admitted

from market.base.states import SessionStatus
from proxyd.metering.meter import solo_meter
from proxyd.metering.session import LiveSession
from proxyd.wire.events import Refusal
from storage.bandwidth.sessions import find
from storage.engines.errors import UnavailableError


async def test_a_session_that_cannot_be_settled_holds_up_no_other(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    user = await market.person("10")
    sold = [await market.bandwidth.buy(user, quota_bytes=10, price_per_gb=None) for _ in range(3)]
    meter = solo_meter(market.leases, market.clock.seconds, connections_per_session=10)
    running = asyncio.create_task(meter.run())
    async with market.without_hold(sold[0]):
        for bought in sold:
            session = await admitted(meter, bought)
            assert isinstance(session, LiveSession)
            session.take(10, None)
            session.deliver(10)

        async def settled() -> bool:
            sessions = await market.bandwidth.page(user, status=None, before="", limit=10)
            over = {each.id for each in sessions if each.status is SessionStatus.EXHAUSTED}
            return over == {each.session_id for each in sold[1:]}

        await until(settled, "the others are settled")
        assert f"session {sold[0].session_id}: used up and cannot be settled" in caplog.text
        assert await admitted(meter, sold[0]) is Refusal.EXHAUSTED
        left = await market.store.read(find, sold[0].session_id)
        assert (left.status, left.bytes_used, left.bytes_leased) == ("active", 10, 0)
        assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await meter.stop()
    await market.leases.recover()


async def test_where_the_store_is_away_one_session_waits_for_it_and_not_each_in_turn(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person("10")
    sold = [await market.bandwidth.buy(user, quota_bytes=10, price_per_gb=None) for _ in range(3)]
    meter = solo_meter(market.leases, market.clock.seconds, connections_per_session=10)
    for bought in sold:
        session = await admitted(meter, bought)
        assert isinstance(session, LiveSession)
        session.take(10, None)
        session.deliver(10)
    tried: list[str] = []

    async def away(session_id: str, *_: object) -> None:
        tried.append(session_id)
        raise UnavailableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(market.leases, "settle", away)
        await meter.flush()
        assert len(tried) == 1
        await meter.flush()
        assert len(set(tried)) == 2  # the session that failed first is the last to be tried again
    await meter.flush()
    await meter.stop()
    sessions = await market.bandwidth.page(user, status=None, before="", limit=10)
    assert {each.status for each in sessions} == {SessionStatus.EXHAUSTED}


async def test_a_node_that_is_declared_dead_while_it_settles_goes_on(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=10, price_per_gb=None)
    meter = solo_meter(market.leases, market.clock.seconds, connections_per_session=10)
    session = await admitted(meter, bought)
    assert isinstance(session, LiveSession)
    session.take(10, None)
    session.deliver(10)

    async def dead_meanwhile(session_id: str, *_: object) -> None:
        meter._settler.clear()
        raise UnavailableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(market.leases, "settle", dead_meanwhile)
        await meter.flush()  # waits for the store to return, like any other time
    assert session.id not in meter._settler
    await meter.stop()
    await market.leases.recover()
