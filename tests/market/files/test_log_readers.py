"""Who reads a log hears of what comes, here and through other daemons, within bounds."""

import asyncio
from contextlib import ExitStack

import pytest
from support.base.waiting import until

from market.base.errors import Code, MarketError
from market.files.log_readers import IDS_PER_NOTICE, STREAMS, Reader, ReaderBounds, Readers
from storage.engines.errors import UnavailableError
from storage.engines.open import open_store
from storage.engines.store import Store

TIMEOUT_SECONDS = 15.0


def rested(reader: Reader) -> Reader:
    """Return a reader that has looked at everything."""
    reader.streams.clear()
    reader.is_stale = False
    return reader


async def test_a_reader_hears_of_its_own_job_alone(store: Store) -> None:
    readers = Readers(store, is_shared=False)
    with readers.reading("a", "one") as mine, readers.reading("b", "two") as other:
        rested(mine)
        rested(other)
        readers.written("a", "err")
        assert await mine.wait(0)
        assert (mine.streams, mine.is_stale) == ({"err"}, False)
        assert not await other.wait(0)
        readers.changed("b")
        assert await other.wait(0)
        assert (other.streams, other.is_stale) == (set(), True)
        assert not await mine.wait(0)
        readers.catch_up()
        assert await mine.wait(0)
        assert await other.wait(0)
        assert mine.streams == set(STREAMS)
    assert len(readers) == 0
    readers.written("a", "out")


async def test_readers_are_bounded_each_and_all(store: Store) -> None:
    readers = Readers(store, is_shared=False, bounds=ReaderBounds(total=3, per_user=2))

    def is_refused(user: str) -> bool:
        try:
            with readers.reading("a", user):
                return False
        except MarketError as error:
            return error.code is Code.TOO_BUSY

    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(readers.reading("a", "one"))
        assert is_refused("one")
        assert not is_refused("two")
        stack.enter_context(readers.reading("b", "two"))
        assert is_refused("two")
        assert len(readers) == 3
    assert not is_refused("one")


async def test_the_end_is_heard_by_all_and_by_those_who_come_later(store: Store) -> None:
    readers = Readers(store, is_shared=False)
    with readers.reading("a", "one") as reader:
        readers.end()
        assert await reader.wait(0)
        assert reader.has_ended
    with readers.reading("a", "one") as late:
        assert late.has_ended


@pytest.mark.both_engines
@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_other_daemons_hear_of_it(
    store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_store = await open_store(store_url)
    here, there = Readers(store, is_shared=True), Readers(other_store, is_shared=True)
    links = [store.link(TIMEOUT_SECONDS), other_store.link(TIMEOUT_SECONDS)]
    ids = [f"{number:036d}" for number in range(IDS_PER_NOTICE + 1)]
    task = asyncio.create_task(here.run())
    try:
        for link, readers in zip(links, (here, there), strict=True):
            assert link is not None
            await link.connect(readers.hear, lambda: None)
        with here.reading(ids[0], "u") as echo, there.reading(ids[-1], "u") as reader:
            rested(reader)
            for each in ids:
                here.written(each, "out")
            assert await reader.wait(TIMEOUT_SECONDS)
            assert (reader.streams, reader.is_stale) == (set(STREAMS), True)
            assert await echo.wait(0)
            rested(echo)
            here.changed(ids[-1])
            assert await reader.wait(TIMEOUT_SECONDS)
            assert not echo.is_stale  # its own notice tells it nothing
    finally:
        task.cancel()
        for link in links:
            if link is not None:
                await link.close()
        await other_store.close()


async def test_notices_of_others_are_passed_over(store: Store) -> None:
    readers = Readers(store, is_shared=True)
    with readers.reading("a", "one") as reader:
        rested(reader)
        for text in ("", "log", "log other", "work other waiting a", "logs other a"):
            readers.hear(text)
        assert not await reader.wait(0)


class FailingStore:
    """Fails once, then counts."""

    def __init__(self) -> None:
        self.failures = 0
        self.job_ids: list[str] = []

    async def write(self, unit: object, origin: str, job_ids: list[str]) -> None:
        if not self.failures:
            self.failures += 1
            raise UnavailableError("away")
        self.job_ids += job_ids


async def test_a_store_that_fails_loses_notices_and_not_the_sender() -> None:
    store, bounds = FailingStore(), ReaderBounds(failed_seconds=0.0)
    readers = Readers(store, is_shared=True, bounds=bounds)  # type: ignore[arg-type]
    task = asyncio.create_task(readers.run())
    readers.written("lost", "out")
    await until(lambda: store.failures == 1)
    readers.written("sent", "out")
    await until(lambda: store.job_ids == ["sent"])
    task.cancel()
