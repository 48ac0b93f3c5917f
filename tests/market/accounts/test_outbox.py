"""Outgoing messages wait in the store: with their transaction, sealed, bounded, for one sender."""

import asyncio

import pytest
from support.base.clock import Clock

from market.accounts import outbox
from market.accounts.outbox import Item, Outbox
from market.base.ids import Identifiers
from market.base.sealing import Sealing
from market.events.context import Context
from storage.accounts import outbox as queries
from storage.accounts.outbox import OutboxRow
from storage.engines.store import Store, Transaction

KEY = b"k" * 40
DAY = 86_400


def opened(store: Store, clock: Clock, key: bytes = KEY, most: int = 10_000) -> Outbox:
    context = Context(store, Identifiers(clock.milliseconds), clock.seconds)
    return Outbox(context, Sealing(key, b"outbox"), "mail", most=most)


@pytest.fixture
async def box(store: Store, clock: Clock) -> Outbox:
    return opened(store, clock)


async def put(
    store: Store, box: Outbox, key: str, share: str = "example.com", text: str = "text"
) -> None:
    item = box.item(key, share=share, payload=text.encode(), lifetime_seconds=DAY)
    await store.write(queries.put, item)


async def waiting(store: Store) -> list[str]:
    async def read(tx: Transaction) -> list[str]:
        return await tx.all(str, "SELECT item_key FROM outbox ORDER BY item_key")

    return await store.read(read)


async def due(box: Outbox, *, again: bool = False, limit: int = 100) -> list[OutboxRow]:
    return await box.due(again=again, limit=limit)


async def taken(box: Outbox, *, again: bool = False) -> Item:
    """Take the one that is due in hand."""
    [row] = await due(box, again=again)
    item = await box.claim(row)
    assert item is not None
    return item


async def test_an_email_stands_or_falls_with_its_transaction(store: Store, box: Outbox) -> None:
    async def put_and_fail(tx: Transaction) -> None:
        item = box.item("lost", share="s", payload=b"text", lifetime_seconds=DAY)
        await queries.put(tx, item)
        raise LookupError

    with pytest.raises(LookupError):
        await store.write(put_and_fail)
    await put(store, box, "kept")
    assert await waiting(store) == ["kept"]


@pytest.mark.both_engines
async def test_a_waiting_email_is_sealed(store: Store, box: Outbox) -> None:
    async def kept(tx: Transaction) -> list[str]:
        return await tx.all(str, "SELECT sealed_payload FROM outbox")

    await put(store, box, "a", text="a-secret")
    assert "a-secret" not in str(await store.read(kept))
    assert (await taken(box)).payload == b"a-secret"


async def test_an_email_that_was_sealed_with_another_key_is_given_up(
    store: Store, clock: Clock, box: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    await put(store, opened(store, clock, key=b"o" * 40), "a")
    [row] = await due(box)
    assert await box.claim(row) is None
    assert await waiting(store) == []
    assert "mail a: given up: sealed with another signing key" in caplog.text


async def test_a_later_one_takes_the_place_of_an_earlier(store: Store, box: Outbox) -> None:
    await put(store, box, "a", text="first")
    await put(store, box, "a", text="second")
    assert (await taken(box)).payload == b"second"


@pytest.mark.both_engines
async def test_a_later_one_is_not_deleted_with_the_one_that_was_being_sent(
    store: Store, box: Outbox
) -> None:
    await put(store, box, "a", text="first")
    first = await taken(box)
    await put(store, box, "a", text="second")
    await box.done(first)
    await box.put_back(first)
    assert (await taken(box)).payload == b"second"


@pytest.mark.both_engines
async def test_of_ten_concurrent_takers_of_an_email_one_has_it(store: Store, box: Outbox) -> None:
    await put(store, box, "a")
    [row] = await due(box)
    items = await asyncio.gather(*(box.claim(row) for _ in range(10)))
    assert sum(item is not None for item in items) == 1


async def test_an_email_in_the_hand_of_a_dead_daemon_is_due_after_a_while(
    store: Store, clock: Clock, box: Outbox
) -> None:
    await put(store, box, "a")
    await taken(box)
    clock.now += outbox.CLAIM_SECONDS - 1
    assert await due(box, again=True) == []
    clock.now += 1
    await taken(box, again=True)


@pytest.mark.both_engines
async def test_an_email_in_the_hand_of_the_only_daemon_is_due_at_once_after_its_death(
    store: Store, clock: Clock, box: Outbox
) -> None:
    await put(store, box, "a")
    await taken(box)
    await box.free_all()
    await taken(box, again=True)


async def test_a_failed_email_is_due_after_growing_pauses_until_it_expires(
    store: Store, clock: Clock, box: Outbox
) -> None:
    await put(store, box, "a")
    item, pauses = await taken(box), []
    while (pause := await box.put_off(item)) is not None:
        pauses.append(pause)
        clock.now += pause - 1
        assert await due(box, again=True) == []
        clock.now += 1
        item = await taken(box, again=True)
    assert pauses[:9] == [5, 10, 20, 40, 80, 160, 320, 640, 900]
    assert set(pauses[9:]) == {900}
    assert DAY - 900 <= sum(pauses) < DAY
    assert await waiting(store) == []


async def test_an_email_that_was_not_tried_after_all_counts_as_not_tried(
    store: Store, box: Outbox
) -> None:
    await put(store, box, "a")
    await box.put_back(await taken(box))
    assert (await taken(box)).row.attempts == 1


async def test_a_faster_sender_is_not_disturbed_by_a_slower_one(
    store: Store, clock: Clock, box: Outbox
) -> None:
    await put(store, box, "a")
    slow = await taken(box)
    clock.now += outbox.CLAIM_SECONDS
    await taken(box, again=True)
    await box.put_back(slow)
    assert await due(box) == []
    assert await due(box, again=True) == []


@pytest.mark.both_engines
async def test_an_expired_email_is_given_up(
    store: Store, clock: Clock, box: Outbox, caplog: pytest.LogCaptureFixture
) -> None:
    await put(store, box, "a")
    clock.now += DAY
    assert await due(box) == []
    await put(store, box, "b")
    await box.tidy()
    assert await waiting(store) == ["b"]
    assert "mail: 1 given up: expired before they could be sent" in caplog.text


@pytest.mark.both_engines
async def test_a_sender_that_fills_the_queue_drops_its_own(
    store: Store, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    box = opened(store, clock, most=10)
    await put(store, box, "early", share="first.example")
    for number in range(50):
        await put(store, box, f"flood {number:02}", share="flood.example")
    await put(store, box, "late", share="second.example")
    await box.tidy()
    left = await waiting(store)
    assert {"early", "late"} < set(left)
    assert left[1:-1] == [f"flood {number}" for number in range(42, 50)]
    assert "mail: 42 dropped: more than 10 were waiting" in caplog.text
    assert box.waiting == 52
    await box.tidy()
    assert box.waiting == 10


@pytest.mark.both_engines
async def test_a_clock_that_was_ahead_holds_nothing_back(
    store: Store, clock: Clock, box: Outbox
) -> None:
    clock.now += 30 * DAY
    await put(store, box, "a")
    clock.now -= 30 * DAY
    assert await due(box) == []
    await box.tidy()
    assert [row.item_key for row in await due(box)] == ["a"]


async def test_emails_that_were_tried_stand_apart_and_shares_can_be_passed_over(
    store: Store, clock: Clock, box: Outbox
) -> None:
    await put(store, box, "tried", share="a.example")
    await box.put_off(await taken(box))
    clock.now += 5
    await put(store, box, "new", share="a.example")
    await put(store, box, "other", share="b.example")
    assert [row.item_key for row in await due(box, again=True)] == ["tried"]
    assert [row.item_key for row in await due(box)] == ["new", "other"]
    passed = await box.due(again=False, limit=100, but=["a.example"])
    assert [row.item_key for row in passed] == ["other"]
    assert [row.item_key for row in await due(box, limit=1)] == ["new"]


async def test_a_waiting_sender_is_woken(box: Outbox) -> None:
    waits = asyncio.create_task(box.wait(3_600))
    await asyncio.sleep(0)
    assert not waits.done()
    box.wake()
    await waits
    await box.wait(0.001)
