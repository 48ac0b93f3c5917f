"""Waiting jobs are in memory: from the start, as they come, and after lost notices."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.base.waiting import until
from support.market.jobs import device_of
from support.market.market import Market
from support.market.work import posted

from market.jobs import waiting_jobs
from market.jobs.matching import JobBook, WaitingJob
from market.jobs.waiting_jobs import USUAL, BookBounds, Finds, WaitingJobs
from storage.engines.store import Transaction


class Reader:
    """Reader of waiting jobs, with its book."""

    def __init__(self, jobs: WaitingJobs, book: JobBook) -> None:
        self.jobs = jobs
        self.book = book

    async def has(self, *job_ids: str) -> None:
        await until(lambda: set(self.book) == set(job_ids), "the jobs that wait are in the book")


@asynccontextmanager
async def reading(
    market: Market,
    claimed: frozenset[str] = frozenset(),
    bounds: BookBounds = USUAL,
) -> AsyncIterator[Reader]:
    book = JobBook()
    reader = WaitingJobs(
        market.store,
        book,
        10_000,
        Finds(book.add, claimed.__contains__, market.specs.payload_of),
        market.context.now,
        bounds,
    )
    task = asyncio.create_task(reader.run())
    try:
        yield Reader(reader, book)
    finally:
        task.cancel()


async def test_all_jobs_are_read_at_the_start_and_each_notified_one(market: Market) -> None:
    buyer = await market.person(credit="1000")
    first = [await posted(market, buyer) for _ in range(5)]
    async with reading(market, bounds=BookBounds(page_jobs=2, read_jobs=2)) as reader:
        await reader.has(*first)
        more = await posted(market, buyer)
        reader.jobs.read_soon(more)
        await reader.has(*first, more)


@pytest.mark.both_engines
async def test_a_missed_job_is_found_by_comparing(market: Market) -> None:
    buyer = await market.person(credit="1000")
    gone, kept, tried = [await posted(market, buyer) for _ in range(3)]
    device = await device_of(market, await market.person())
    async with reading(market) as reader:
        await reader.has(gone, kept, tried)
        await market.jobs.cancel(buyer, gone)
        await market.jobs.accept(device, tried)
        await market.jobs.fail(device, tried, "broken")
        new = await posted(market, buyer)
        reader.jobs.compare_soon()
        await reader.has(kept, tried, new)
        await until(lambda: reader.book.attempts(tried) == 1)


async def test_a_job_that_is_being_given_away_is_not_taken_for_one_that_waits(
    market: Market,
) -> None:
    buyer = await market.person(credit="1000")
    claimed, other = [await posted(market, buyer) for _ in range(2)]
    async with reading(market, frozenset((claimed,))) as reader:
        reader.jobs.read_soon(claimed)
        await reader.has(other)


@pytest.mark.both_engines
async def test_one_that_cannot_be_read_holds_up_no_other(market: Market) -> None:
    buyer = await market.person(credit="1000")
    broken, whole = [await posted(market, buyer) for _ in range(2)]
    strange = await posted(market, buyer, payload={"script": "x", "secrets": {"A": "b"}})

    async def spoil(tx: Transaction) -> None:
        await tx.run("UPDATE job_specs SET resources = '{' WHERE job_id = :id", id=broken)
        await tx.run(
            "UPDATE job_specs SET payload = '{\"script\":1}' WHERE job_id = :id", id=strange
        )

    await market.store.write(spoil)
    async with reading(market) as reader:
        await reader.has(whole)
        later = await posted(market, buyer)
        reader.jobs.read_soon(later)
        await reader.has(whole, later)


async def test_a_job_without_a_notice_is_found_while_others_are_notified_all_the_time(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_jobs, "COMPARE_SECONDS", 0.5)
    buyer = await market.person(credit="1000")
    async with reading(market) as reader:
        first = await posted(market, buyer)
        reader.jobs.read_soon(first)
        await reader.has(first)

        async def notify() -> None:
            while True:
                reader.jobs.read_soon(first)
                await asyncio.sleep(0.05)

        notifying = asyncio.create_task(notify())
        try:
            missed = await posted(market, buyer)
            await reader.has(first, missed)
        finally:
            notifying.cancel()


async def test_memory_is_bounded_and_the_oldest_jobs_have_it(market: Market) -> None:
    buyer = await market.person(credit="1000")
    jobs = [await posted(market, buyer) for _ in range(5)]
    async with reading(market, bounds=BookBounds(jobs=3, page_jobs=1)) as reader:
        await reader.has(*jobs[:3])
        await market.jobs.cancel(buyer, jobs[0])
        reader.book.remove(jobs[0])
        reader.jobs.compare_soon()
        await reader.has(*jobs[1:4])


class Slow:
    """Store whose readers get their replies later, once `happens` is over.

    Args:
        market: the market with the store.
        happens: the events between the first reply and its arrival.
    """

    def __init__(self, market: Market, happens: Callable[[], Awaitable[None]]) -> None:
        self._store = market.store
        self._happens: Callable[[], Awaitable[None]] | None = happens

    async def read(self, *query: Any, **values: Any) -> Any:
        answer = await self._store.read(*query, **values)
        happens, self._happens = self._happens, None
        if happens is not None:
            await happens()
        return answer


async def test_a_job_that_waits_again_while_it_is_read_is_read_again(market: Market) -> None:
    buyer, device = await market.person(credit="10"), await device_of(market, await market.person())
    job = await posted(market, buyer)
    await market.jobs.accept(device, job)
    book = JobBook()

    async def fail() -> None:
        await market.jobs.fail(device, job, "broken")
        reader.read_soon(job)

    slow: Any = Slow(market, fail)
    reader = WaitingJobs(
        slow,
        book,
        10_000,
        Finds(book.add, frozenset().__contains__, market.specs.payload_of),
        market.context.now,
    )
    reader._to_read.must_compare = False
    reader.read_soon(job)
    await reader.catch_up()
    assert list(book) == [job]


async def test_a_job_missed_while_all_are_compared_is_found(market: Market) -> None:
    buyer = await market.person(credit="10")
    posts: list[str] = []
    book = JobBook()

    async def miss() -> None:
        posts.append(await posted(market, buyer))
        reader.compare_soon()

    slow: Any = Slow(market, miss)
    reader = WaitingJobs(
        slow,
        book,
        10_000,
        Finds(book.add, frozenset().__contains__, market.specs.payload_of),
        market.context.now,
    )
    for _ in range(2):
        await reader.catch_up()
    assert list(book) == posts


async def test_others_have_their_turn_while_many_jobs_are_read(market: Market) -> None:
    buyer = await market.person(credit="1000")
    for _ in range(3 * waiting_jobs.TAKEN_AT_ONCE):
        await posted(market, buyer)
    turns, taken = 0, list[int]()

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    book = JobBook()

    def found(job: WaitingJob) -> None:
        book.add(job)
        taken.append(turns)

    reader = WaitingJobs(
        market.store,
        book,
        10_000,
        Finds(found, frozenset[str]().__contains__, market.specs.payload_of),
        market.context.now,
    )
    task = asyncio.create_task(others())
    await reader.catch_up()
    task.cancel()
    at_once = Counter(taken)
    assert len(book) == 3 * waiting_jobs.TAKEN_AT_ONCE
    assert max(at_once.values()) <= waiting_jobs.TAKEN_AT_ONCE
