"""The meter's memory of sessions agrees with the store, whatever fails in between."""

import asyncio
import gc

from support import nodes
from support.market import Market

from market.bandwidth import Purchase
from market.money import GB
from market.notices import Notice, Topic
from market.states import SessionStatus
from proxyd.meter import LiveSession, Meter
from proxyd.shared_meter import SharedMeter
from proxyd.shares import Fence
from proxyd.wire.events import Refusal


async def admitted(meter: Meter, bought: Purchase) -> LiveSession | Refusal:
    """Show a session's credentials."""
    answer: asyncio.Future[LiveSession | Refusal] = asyncio.get_running_loop().create_future()
    meter.admit(bought.username.encode(), bought.password.encode(), answer.set_result)
    return await answer


async def test_a_cut_that_is_taken_back_leaves_a_session_usable_that_was_being_leased(
    market: Market,
) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    meter = Meter(market.leases, market.clock.seconds, connections_per_session=10)
    asking = asyncio.create_task(admitted(meter, bought))
    await asyncio.sleep(0)
    meter.cut(bought.session_id, SessionStatus.ENDED)
    assert await asking is Refusal.OVER
    meter.restore(bought.session_id)
    session = await admitted(meter, bought)
    assert isinstance(session, LiveSession)
    assert session.available == GB
    await meter.stop()


async def test_a_session_past_its_time_is_not_made_usable_by_a_cut_that_is_taken_back(
    market: Market,
) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    meter = Meter(market.leases, market.clock.seconds, connections_per_session=10)
    market.clock.now += 31 * 86_400
    assert await admitted(meter, bought) is Refusal.OVER
    meter.cut(bought.session_id, SessionStatus.EXPIRED)
    meter.restore(bought.session_id)
    assert meter.live == 0
    await meter.stop()


async def test_a_session_that_ended_elsewhere_leaves_nothing_behind(market: Market) -> None:
    """Its addresses had kept it in memory for as long as the node lived."""
    market.leases.node_id = "here"
    await market.store.write(nodes.register, "here", market.clock.seconds())
    user = await market.person("10")
    bought = await market.bandwidth.buy(
        user, quota_bytes=GB, price_per_gb=None, allow_ips=["203.0.113.7"]
    )
    fence = Fence(lambda: 0.0)
    meter = SharedMeter(market.leases, market.clock.seconds, fence, connections_per_session=10)
    answer: asyncio.Future[LiveSession | Refusal] = asyncio.get_running_loop().create_future()
    meter.admit_address(0, "203.0.113.7", answer.set_result)
    assert isinstance(await answer, LiveSession)
    meter.hear(Notice(Topic.CUT, bought.session_id, SessionStatus.ENDED, "elsewhere").text)
    await meter.flush()
    del answer
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, LiveSession)]
    assert [each for each in kept if each.id == bought.session_id] == []
    await meter.stop()
