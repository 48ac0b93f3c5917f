"""Whoever waits hears at once what this daemon says, and soon what others on the database say."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from support.base.waiting import until

from market.jobs.waking import IDS_PER_NOTICE, UNSENT_MAX, Waking
from storage.engines.errors import UnavailableError
from storage.engines.open import open_store
from storage.engines.store import Store

TIMEOUT_SECONDS = 15.0


class Ear:
    """Remembers what it hears."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.gone: list[str] = []
        self.devices: list[str] = []
        self.missed = 0

    def job_waits(self, job_id: str) -> None:
        self.waiting.append(job_id)

    def jobs_gone(self, job_ids: Sequence[str]) -> None:
        self.gone.extend(job_ids)

    def device_wakes(self, device_id: str) -> None:
        self.devices.append(device_id)

    def may_have_missed(self) -> None:
        self.missed += 1


@asynccontextmanager
async def running(waking: Waking) -> AsyncIterator[None]:
    task = asyncio.create_task(waking.run())
    try:
        yield
    finally:
        task.cancel()


@pytest.mark.both_engines
async def test_listeners_of_this_daemon_hear_it_at_once(store: Store) -> None:
    waking, ear = Waking(store), Ear()
    waking.listen(ear)
    waking.job("a")
    waking.gone(["b", "c"])
    waking.device("d")
    assert (ear.waiting, ear.gone, ear.devices) == (["a"], ["b", "c"], ["d"])
    waking.catch_up()
    assert ear.missed == 1


@pytest.mark.both_engines
@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_other_daemons_hear_all_of_it_once(store: Store, store_url: str) -> None:
    other_store = await open_store(store_url)
    here, there = Waking(store, is_shared=True), Waking(other_store, is_shared=True)
    ear, echo = Ear(), Ear()
    here.listen(echo)
    there.listen(ear)
    links = []
    for waking, each in ((here, store), (there, other_store)):
        link = each.link(TIMEOUT_SECONDS)
        assert link is not None
        await link.connect(waking.hear, lambda: None)
        links.append(link)
    ids = [f"{number:036d}" for number in range(3 * IDS_PER_NOTICE + 1)]
    try:
        async with running(here):
            for each in ids:
                here.job(each)
            here.gone(ids)
            here.device("device")
            await until(lambda: len(ear.gone) == len(ids) and bool(ear.devices))
    finally:
        for link in links:
            await link.close()
        await other_store.close()
    assert ear.waiting == ids
    assert ear.gone == ids
    assert ear.devices == ["device"]
    assert echo.waiting == ids  # and not a second time, when the notice came back


async def test_notices_about_something_else_are_passed_over(store: Store) -> None:
    waking, ear = Waking(store), Ear()
    waking.listen(ear)
    for text in ("", "work", "cut session active node", "work other", "work other strange a"):
        waking.hear(text)
    assert (ear.waiting, ear.gone, ear.devices) == ([], [], [])
    waking.hear("work other waiting a b")
    assert ear.waiting == ["a", "b"]


class FailingStore:
    """Fails once, then remembers what is sent."""

    def __init__(self) -> None:
        self.failures = 0
        self.texts: list[str] = []

    async def write(self, unit: object, *args: Sequence[str]) -> None:
        if not self.failures:
            self.failures += 1
            raise UnavailableError("away")
        self.texts.extend(args[0])


async def test_a_store_that_fails_loses_notices_and_not_the_sender() -> None:
    store = FailingStore()
    waking = Waking(store, is_shared=True, failed_seconds=0.0)  # type: ignore[arg-type]
    async with running(waking):
        waking.job("lost")
        await until(lambda: store.failures == 1)
        waking.job("sent")
        await until(lambda: bool(store.texts))
    assert [text.split(" ")[2:] for text in store.texts] == [["waiting", "sent"]]


async def test_what_is_not_sent_yet_is_bounded(store: Store) -> None:
    waking = Waking(store, is_shared=True)
    for number in range(UNSENT_MAX + 10):
        waking.job(str(number))
    assert len(waking._unsent) == UNSENT_MAX
