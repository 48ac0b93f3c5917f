"""Watchers of a session see the API's state of it while bytes go through the proxy."""

from support.base.waiting import until
from support.clients.story import buy, reached, used
from support.daemons.service import Service
from support.targets.targets import echo

from market.notify.feed import Wanted
from market.notify.live_usage import UsageFrame
from proxyd.wiring.live_uses import LiveSessions

QUOTA = 10**9
BYTES = 300_000


async def test_a_frame_has_the_fields_of_the_api(service: Service) -> None:
    person, bought = await buy(service, quota=QUOTA)
    feed, wanted = service.daemon.market.event_feed, Wanted(frozenset({"usage"}))
    items = feed.follow(person.user_id, "login", wanted, since=None)
    await anext(items)
    async with echo() as target:
        client = await reached(service, bought, target)
        await feed.send_usage()
        first = await anext(items)
        assert first == UsageFrame(bought.id, 0, QUOTA, 0, 1)
        for step in range(1, 4):
            await client.send(b"x" * BYTES)
            await client.receive(BYTES)
            await feed.send_usage()
            frame = await anext(items)
            assert isinstance(frame, UsageFrame)
            assert (frame.session_id, frame.connections) == (bought.id, 1)
            assert frame.bytes_used == 2 * BYTES * step
            assert frame.bytes_used == await used(service, person, bought)
            assert frame.bytes_left == QUOTA - frame.bytes_used
            assert frame.bytes_per_second > 0
        await feed.send_usage()
        still = await anext(items)
        assert isinstance(still, UsageFrame)
        assert still.bytes_per_second == 0
        again = feed.follow(person.user_id, "login", wanted, since=None)
        await anext(again)
        await feed.send_usage()
        assert await anext(again) == still  # a later watcher gets the present state
        await again.aclose()
        await client.close()
    await items.aclose()


async def test_only_sessions_that_are_watched_and_can_be_used_are_looked_at(
    service: Service,
) -> None:
    person, bought = await buy(service)
    other, others = await buy(service)
    live = LiveSessions(service.daemon.core.meter).live
    async with echo() as target:
        for each in (bought, others):
            await (await reached(service, each, target)).close()
        assert [each.session_id for each in live({person.user_id})] == [bought.id]
        assert len(live({person.user_id, other.user_id})) == 2
        await service.end(person, bought)
        await until(lambda: live({person.user_id}) == [])
