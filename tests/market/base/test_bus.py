"""The bus calls subscribers of this process at once, and those of other processes soon."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.base.waiting import until

from market.base import bus as module
from market.base.bus import (
    BETWEEN_DAEMONS,
    BETWEEN_PROCESSES,
    EVENTS,
    GATHER_SECONDS,
    GONE,
    LOGS,
    REPLICAS,
    TEXT_MAX_BYTES,
    UNSENT_MAX,
    WAITING,
    Bus,
    Topic,
    notices,
)
from storage.engines.errors import UnavailableError
from storage.engines.open import open_store
from storage.engines.store import Link, Store
from storage.events.events import EventRow

TIMEOUT_SECONDS = 15.0
TOPICS = [value for value in vars(module).values() if isinstance(value, Topic)]


class Ear:
    """A subscriber that remembers its calls."""

    def __init__(self, bus: Bus, *topics: Topic[Any]) -> None:
        self.keys: list[str] = []
        self.missed = 0
        for topic in topics:
            bus.subscribe(topic, self.keys.extend)
        bus.on_missed(self.miss)

    def miss(self) -> None:
        self.missed += 1


@asynccontextmanager
async def running(bus: Bus, store: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(bus.run(store))
    try:
        yield
    finally:
        task.cancel()


async def linked(bus: Bus, store: Store) -> Link:
    link = store.link(TIMEOUT_SECONDS)
    assert link is not None
    await link.connect(bus.hear, lambda: None)
    return link


def row(number: int) -> EventRow:
    return EventRow(f"{number:036}", f"{number % 7:036}", "test.ping", None, "{}", 0)


class FailingStore:
    """Fails a number of times, then remembers the texts of each transaction."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.units: list[Sequence[str]] = []

    async def write(self, unit: object, texts: Sequence[str]) -> None:
        if self.failures:
            self.failures -= 1
            raise UnavailableError("away")
        self.units.append(texts)

    @property
    def said(self) -> list[list[str]]:
        """The topic and the keys of each notice."""
        texts = [text.split(" ") for unit in self.units for text in unit]
        return [[word, *keys] for word, _, *keys in texts]


def test_no_two_topics_have_the_same_word() -> None:
    assert len({topic.word for topic in TOPICS}) == len(TOPICS)
    assert BETWEEN_PROCESSES <= BETWEEN_DAEMONS <= {*TOPICS}


def test_subscribers_of_this_process_learn_of_their_topic_at_once() -> None:
    bus = Bus()
    jobs, logs = Ear(bus, WAITING, GONE), Ear(bus, LOGS)
    bus.publish(WAITING, ["a"])
    bus.publish(GONE, ["b", "c"])
    assert jobs.keys == ["a", "b", "c"]
    bus.publish(LOGS, ["a:out"])
    bus.publish(REPLICAS, ["d"])
    assert (jobs.keys, logs.keys) == (["a", "b", "c"], ["a:out"])


def test_all_subscribers_look_when_notices_may_be_lost() -> None:
    bus = Bus()
    ears = [Ear(bus, WAITING), Ear(bus)]
    bus.catch_up()
    assert [ear.missed for ear in ears] == [1, 1]


@pytest.mark.both_engines
@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_other_processes_learn_of_all_keys_once(store: Store, store_url: str) -> None:
    other_store = await open_store(store_url)
    here, there = Bus(BETWEEN_DAEMONS), Bus(BETWEEN_DAEMONS)
    echo, ear, logs = Ear(here, WAITING), Ear(there, WAITING), Ear(there, LOGS)
    links = [await linked(here, store), await linked(there, other_store)]
    ids = [f"{number:036d}" for number in range(2_500)]  # more than one transaction has
    try:
        async with running(here, store):
            for each in ids:
                here.publish(WAITING, [each])
            here.publish(LOGS, ["a:out"])
            await until(lambda: len(ear.keys) >= len(ids) and bool(logs.keys))
            here.publish(WAITING, ["last"])
            await until(lambda: "last" in ear.keys)
    finally:
        for link in links:
            await link.close()
        await other_store.close()
    assert ear.keys == [*ids, "last"]
    assert logs.keys == ["a:out"]
    assert echo.keys == [*ids, "last"]  # and not a second time, when the notice came back


def test_of_an_event_other_processes_get_the_keys() -> None:
    here, there = Bus(BETWEEN_PROCESSES), Bus()
    rows: list[EventRow] = []
    keys: list[str] = []
    here.subscribe(EVENTS, rows.extend, keys.extend)
    there.subscribe(EVENTS, rows.extend, keys.extend)
    events = [row(number) for number in range(120)]
    here.publish(EVENTS, events)
    assert (rows, keys) == (events, [])
    texts = list(notices(EVENTS, here._origin, here._unsent[EVENTS]))
    assert len(texts) > 1
    assert all(len(text.encode()) <= TEXT_MAX_BYTES for text in texts)
    for text in texts:
        there.hear(text)
        here.hear(text)
    assert (rows, keys) == (events, [f"{each.user_id}:{each.id}" for each in events])


async def test_a_notice_of_another_kind_is_ignored() -> None:
    bus = Bus()
    ear = Ear(bus, WAITING)
    for text in ("", "waiting", "waiting other", "cut session active node", "strange other a"):
        bus.hear(text)
    assert ear.keys == []
    bus.hear("waiting other a b")
    assert ear.keys == ["a", "b"]


async def test_a_notice_that_is_not_carried_is_not_sent() -> None:
    store, bus = FailingStore(), Bus(BETWEEN_PROCESSES)
    async with running(bus, store):
        bus.publish(WAITING, ["a"])
        bus.publish(EVENTS, [])
        bus.publish(EVENTS, [row(1)])
        await until(lambda: bool(store.units))
    assert store.said == [["event", f"{1:036}:{1:036}"]]


async def test_an_urgent_notice_takes_along_the_gathered_ones() -> None:
    store, bus = FailingStore(), Bus(BETWEEN_DAEMONS, gather_seconds=600.0)
    async with running(bus, store):
        for _ in range(2):
            bus.publish(LOGS, ["a:out"])
        await asyncio.sleep(GATHER_SECONDS)
        assert not store.units
        bus.publish(WAITING, ["b"])
        await until(lambda: bool(store.units))
    assert len(store.units) == 1
    assert store.said == [["waiting", "b"], ["log", "a:out"]]


async def test_a_store_that_fails_loses_notices_and_not_the_sender() -> None:
    store, bus = FailingStore(1), Bus(BETWEEN_DAEMONS, failed_seconds=0.0)
    async with running(bus, store):
        bus.publish(WAITING, ["lost"])
        await until(lambda: not store.failures)
        bus.publish(WAITING, ["sent"])
        await until(lambda: bool(store.units))
    assert store.said == [["waiting", "sent"]]


def test_the_unsent_keys_of_each_topic_are_bounded() -> None:
    bus = Bus(BETWEEN_DAEMONS)
    ear = Ear(bus, WAITING)
    for start in (0, UNSENT_MAX - 10, UNSENT_MAX + 10):
        bus.publish(WAITING, [str(start + number) for number in range(UNSENT_MAX)])
    bus.publish(GONE, ["a"])
    assert [len(keys) for keys in bus._unsent.values()] == [UNSENT_MAX, 1]
    assert len(ear.keys) == 3 * UNSENT_MAX
