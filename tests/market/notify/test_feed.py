"""Feed in the store: its events and their lifetime, and the view of two daemons."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from support.base.generators import watched
from support.base.waiting import until
from support.market.events import rows_of
from support.market.market import Market

from market.base.bus import BETWEEN_DAEMONS, EVENTS, notices
from market.base.errors import MarketError
from market.base.ids import Identifiers
from market.events import recording as event_log
from market.events.catalogue import Ping
from market.events.context import Context
from market.events.recording import NewEvent
from market.money.money import GB
from market.notify import feed as event_feed
from market.notify.feed import (
    USUAL_PACE,
    EventFeed,
    EventFeedTerms,
    FeedPace,
    Idle,
    Item,
    Wanted,
    beginning_of,
)
from market.notify.live_usage import LiveUsage, UsageFrame
from storage.engines.store import Transaction
from storage.events.events import EventRow

DAY = 86_400


async def ping(market: Market, context: Context, user: str, subject: str = "w") -> EventRow:
    return await market.store.write(
        event_log.record, context, user, Ping(subject), subject_id=subject
    )


def feed_of(market: Market, context: Context, pace: FeedPace = USUAL_PACE) -> EventFeed:
    usage = LiveUsage(context, market.leases, None, market.clock.steady)
    return EventFeed(context, EventFeedTerms(), usage, pace)


def following(feed: EventFeed, since: str | None = None) -> AsyncGenerator[Item, None]:
    return feed.follow("u", "login", Wanted(), since=since)


async def next_row(items: AsyncGenerator[Item, None]) -> EventRow:
    async with asyncio.timeout(20):
        async for item in items:
            if not isinstance(item, Idle):
                assert isinstance(item, EventRow)
                return item
    raise AssertionError("the stream ended")


async def test_events_are_deleted_after_a_month(market: Market) -> None:
    old = [await ping(market, market.context, "u") for _ in range(3)]
    market.clock.now += 29 * DAY
    new = await ping(market, market.context, "u")
    assert await market.event_feed.sweep() == 0
    market.clock.now += DAY + 1
    assert await market.event_feed.sweep() == len(old)
    assert await rows_of(market, "u") == [new]


async def test_a_sweep_deletes_a_bounded_number(market: Market) -> None:
    feed = feed_of(market, market.context, FeedPace(deleted_events=2, deleted_times=2))
    for _ in range(5):
        await ping(market, market.context, "u")
    market.clock.now += 31 * DAY
    assert [await feed.sweep() for _ in range(3)] == [4, 1, 0]


async def test_identifiers_of_a_time_are_behind_its_beginning(market: Market) -> None:
    before = market.identifiers.new()
    market.clock.now += 1
    after = market.identifiers.new()
    assert before < beginning_of(market.clock.now) < after


async def test_a_reader_that_leaves_between_two_events_leaves_nothing_open(market: Market) -> None:
    first, second, third = [await ping(market, market.context, "u") for _ in range(3)]
    left_open: list[str] = []
    with watched(left_open.append):
        missed = following(feed_of(market, market.context), since=first.id)
        assert isinstance(await anext(missed), Idle)
        assert await next_row(missed) == first  # the overlap
        await missed.aclose()
        feed = feed_of(market, market.context, FeedPace(heartbeat_seconds=0.05))
        items = following(feed, since=third.id)
        assert [await next_row(items) for _ in range(3)] == [first, second, third]
        fourth = await ping(market, market.context, "u")
        await ping(market, market.context, "u")
        assert await next_row(items) == fourth
        await items.aclose()
    assert left_open == []


@pytest.mark.both_engines
async def test_an_event_that_another_daemon_records_is_sent(market: Market) -> None:
    context = market.context
    other = Context(context.store, Identifiers(market.clock.milliseconds), context.now)
    other.bus.carried = BETWEEN_DAEMONS
    feed = feed_of(market, context)
    fetching = asyncio.create_task(feed.run())
    items = following(feed)
    assert isinstance(await anext(items), Idle)
    news = [NewEvent("u", Ping(f"{number}"), f"{number}") for number in range(60)]
    rows = await market.store.write(event_log.record_all, other, news)
    await ping(market, other, "somebody else")
    for text in notices(EVENTS, other.bus._origin, other.bus._unsent[EVENTS]):
        context.bus.hear(text)
    assert [await next_row(items) for _ in rows] == rows
    await items.aclose()
    fetching.cancel()


async def test_notices_that_were_lost_are_made_up_for_at_the_next_heartbeat(
    market: Market,
) -> None:
    other = Context(market.store, market.identifiers, market.clock.seconds)
    feed = feed_of(market, market.context, FeedPace(heartbeat_seconds=0.05))
    items = following(feed)
    assert isinstance(await anext(items), Idle)
    row = await ping(market, other, "u")
    assert await next_row(items) == row
    await items.aclose()


@pytest.mark.both_engines
async def test_an_event_of_another_program_comes_before_the_heartbeat(market: Market) -> None:
    if market.store.version() is None:
        pytest.skip("there, notices say it")
    other = Context(market.store, market.identifiers, market.clock.seconds)
    pace = FeedPace(watch_seconds=0.01, heartbeat_seconds=3_600)
    feed = feed_of(market, market.context, pace)
    watching = asyncio.create_task(feed.watch())
    items = following(feed)
    assert isinstance(await anext(items), Idle)
    rows = [await ping(market, other, "u") for _ in range(3)]
    assert [await next_row(items) for _ in rows] == rows
    await ping(market, other, "v")
    own = await ping(market, market.context, "u")  # also by a notice: it comes once
    assert await next_row(items) == own
    last = await ping(market, other, "u")
    assert await next_row(items) == last
    await items.aclose()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_an_event_from_before_a_new_stream_does_not_come(market: Market) -> None:
    other = Context(market.store, market.identifiers, market.clock.seconds)
    pace = FeedPace(watch_seconds=0.01, heartbeat_seconds=0.05)
    feed = feed_of(market, market.context, pace)
    watching = asyncio.create_task(feed.watch())
    await ping(market, other, "u", "before")
    items = following(feed)
    assert isinstance(await anext(items), Idle)
    assert await anext(items) == Idle()  # a heartbeat: the store is read behind it
    new = await ping(market, other, "u", "new")
    assert await next_row(items) == new
    assert await anext(items) == Idle()
    await items.aclose()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


@pytest.mark.both_engines
async def test_an_event_that_is_committed_late_is_replayed(market: Market) -> None:
    late_id = market.identifiers.new()
    market.clock.now += 20
    seen = await ping(market, market.context, "u")

    async def insert(tx: Transaction) -> None:
        await tx.run(
            """
            INSERT INTO events (id, user_id, type, data, created_at)
            VALUES (:id, 'u', 'test.ping', '{}', 0)
            """,
            id=late_id,
        )

    await market.store.write(insert)
    items = following(feed_of(market, market.context), since=seen.id)
    assert [(await next_row(items)).id for _ in range(2)] == [late_id, seen.id]
    await items.aclose()


async def test_events_missed_while_the_process_stood_still_are_made_up_for(
    market: Market,
) -> None:
    other = Context(market.store, market.identifiers, market.clock.seconds)
    items = following(feed_of(market, market.context, FeedPace(heartbeat_seconds=0.05)))
    await anext(items)
    row = await ping(market, other, "u")
    market.clock.now += 10 * event_feed.OVERLAP_SECONDS
    assert await next_row(items) == row
    await items.aclose()


async def test_no_user_has_more_streams_than_are_left_for_the_others(market: Market) -> None:
    feed = feed_of(market, market.context)
    feed.terms = EventFeedTerms(streams=4)

    def opened(user_id: str) -> AsyncGenerator[Item, None]:
        return feed.follow(user_id, user_id, Wanted(), since=None)

    mine = [opened("u") for _ in range(2)]
    for items in mine:
        await anext(items)
    with pytest.raises(MarketError):
        await anext(opened("u"))
    others = opened("v")
    await anext(others)
    for items in (*mine, others):
        await items.aclose()


async def test_a_user_may_not_have_every_stream(market: Market) -> None:
    feed = feed_of(market, market.context, FeedPace(streams_per_user=2))
    open_streams = []
    for number in range(2):
        items = feed.follow("u", f"{number}", Wanted(), since=None)
        await anext(items)
        open_streams.append(items)
    with pytest.raises(Exception, match="Too many"):
        await anext(feed.follow("u", "x", Wanted(), since=None))
    for items in open_streams:
        await items.aclose()
    await until(lambda: len(feed) == 0)


async def test_the_streams_of_a_user_share_the_usage_that_is_sent_in_a_round(
    market: Market,
) -> None:
    user = await market.person("10")
    sessions = [
        (await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)).session_id
        for _ in range(6)
    ]
    feed = feed_of(market, market.context, FeedPace(frames_per_round=6))
    heard: list[list[str]] = [[], []]

    async def follow(number: int) -> None:
        async for item in feed.follow(user, f"login {number}", Wanted(), since=None):
            if isinstance(item, UsageFrame):
                heard[number].append(item.session_id)

    streams = [asyncio.create_task(follow(number)) for number in range(2)]
    await until(lambda: len(feed) == 2)
    for count in (3, 6):
        await feed.send_usage()
        await until(lambda count=count: [len(each) for each in heard] >= [count, count])
        for _ in range(50):
            await asyncio.sleep(0)
        assert [len(each) for each in heard] == [count, count]
    # Each stream got each session once: frames of the first round are not repeated.
    assert [sorted(each) for each in heard] == [sorted(sessions)] * 2
    for stream in streams:
        stream.cancel()
    await asyncio.wait(streams)
