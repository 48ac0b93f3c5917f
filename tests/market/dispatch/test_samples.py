"""Samples: jobs with a known answer find the devices that hand in wrong results; both engines."""

import asyncio
import dataclasses
import uuid
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from support.base.clock import Clock
from support.base.waiting import until
from support.market import books
from support.market.books import refusal, stored_job
from support.market.jobs import device_of, history
from support.market.market import Market
from support.market.work import SMALL, ask, given, offer, posted

from market.accounts.bounds import Bounds
from market.attempts.attempts import Ending, FailureKind
from market.base.bus import DEVICES
from market.base.errors import Code
from market.base.states import JobStatus
from market.dispatch import sample_tasks
from market.dispatch.sample_tasks import SampleSizes
from market.dispatch.samples import (
    FIRSTS_PER_OWNER_DAY,
    READY_MAX,
    Samples,
    SampleTerms,
    allowed_by,
)
from market.jobs import reviews
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from market.trust import sample_checks, trust
from market.trust.reputation import Reputation
from storage.devices.devices import DeviceRow
from storage.engines.store import Store, Transaction
from storage.jobs import jobs as job_queries
from storage.trust import samples as queries
from storage.trust.samples import SampleRow

PRICE = MICRO // 10
READY = 100  # more than a test gives away
CHOOSE = Random(11)
SMALL_TASKS = SampleSizes((10, 20), (10, 20), (10, 20), (10, 20))  # made in no time
DAY = 86_400
REVIEW_SECONDS = 24 * 3_600

available = partial(books.available, currency=Currency.CREDIT)
held = partial(books.held, currency=Currency.CREDIT)


@pytest.fixture(autouse=True)
def after_each_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a sample come after each job."""
    monkeypatch.setattr(sample_checks, "jobs_until_next", lambda streak: 1)


def begin_sampling(market: Market, payer_email: str, a_day: int = 50) -> None:
    """Have a marketplace give samples."""
    terms = SampleTerms(payer_email, a_day * MICRO, PRICE)
    samples = Samples(market.context, terms, market.specs, market.bounds, SMALL_TASKS)
    samples._ready.extend(sample_tasks.make(CHOOSE, SMALL_TASKS) for _ in range(READY))
    market.samples = market.dispatch.lookups.samples = samples
    market.jobs.outcomes._terms = replace(market.jobs.outcomes._terms, has_samples=True)


async def sampling(market: Market, *, credit: str = "100", a_day: int = 50) -> str:
    """Have a marketplace give samples, and return who pays for them."""
    payer = await market.person(credit=credit)
    begin_sampling(market, f"person{market._people}@example.com", a_day)
    return payer


async def sample_of(market: Market, job_id: str) -> SampleRow | None:
    return await market.store.read(queries.find, job_id)


async def reputation_of(market: Market, device: DeviceRow) -> Reputation:
    return (await market.store.read(trust.of_devices, [device.id]))[device.id]


async def take(market: Market, device: DeviceRow) -> SampleRow:
    """Let a device ask, and return the sample that it gets."""
    (job_id,) = await given(market, device)
    sample = await sample_of(market, job_id)
    assert sample is not None
    return sample


async def work(market: Market, buyer: str, device: DeviceRow, **changes: Any) -> str:
    """Let a device do a job of a buyer, which it is given."""
    job_id = await posted(market, buyer, **changes)
    await market.dispatch.pairing.reader.catch_up()
    assert await given(market, device) == [job_id]
    await market.jobs.complete(device, job_id, "done")
    return job_id


async def last_job(market: Market, buyer: str) -> str:
    """Return the job that a buyer has put up last."""
    [row] = await market.jobs.page_of_user(buyer, status=None, before="", limit=1)
    return row.id


async def audited(market: Market) -> bool:
    report = await audit_ledger(market.store)
    assert report.passed, report
    return True


async def test_without_an_allowance_no_device_is_sampled(market: Market) -> None:
    device = await device_of(market, await market.person())
    assert await given(market, device) == []


async def test_a_right_answer_is_paid_and_a_device_works_before_the_next(market: Market) -> None:
    payer, worker = await sampling(market), await market.person()
    buyer, device = await market.person(credit="100"), await device_of(market, worker)
    sample = await take(market, device)
    assert PRICE // 2 <= sample.price <= PRICE * 3 // 2
    assert await held(market, payer) == sample.price
    assert await audited(market)
    await market.jobs.complete(device, sample.job_id, sample.answer + "\n")
    assert (await stored_job(market, sample.job_id)).status == JobStatus.COMPLETED
    reputation = await reputation_of(market, device)
    assert (reputation.checks, reputation.streak, reputation.attempts) == (1, 1, 1)
    assert await audited(market)
    # It is in review as other work is, so that it does not differ when it is paid.
    earned = sample.price - sample.price // 10
    assert (await available(market, worker), await held(market, worker)) == (0, earned)
    market.clock.now += REVIEW_SECONDS
    assert await market.reviews.expire() == 1
    assert await available(market, worker) == earned
    assert await held(market, payer) == 0
    assert await audited(market)
    # However often it asks, there is no other one before it has done something.
    for _ in range(3):
        assert await given(market, device) == []
    await work(market, buyer, device)
    assert (await take(market, device)).is_first == 0


@pytest.mark.parametrize("own", [True, False])
async def test_free_jobs_and_own_jobs_bring_no_samples(market: Market, own: bool) -> None:
    await sampling(market)
    worker, other = await market.person(credit="100"), await market.person(credit="100")
    device = await device_of(market, worker)
    sample = await take(market, device)
    await market.jobs.complete(device, sample.job_id, sample.answer)
    for _ in range(3):
        await work(market, worker if own else other, device, price=MICRO if own else 1)
    assert await given(market, device) == []


async def test_a_wrong_answer_is_not_paid_and_freezes_the_amounts_in_review(market: Market) -> None:
    payer, worker = await sampling(market), await market.person()
    buyer, device = await market.person(credit="100"), await device_of(market, worker)
    innocent = await device_of(market, worker)
    other = await take(market, innocent)
    await market.jobs.complete(innocent, other.job_id, other.answer)
    theirs = await work(market, buyer, innocent)
    sample = await take(market, device)
    await market.jobs.complete(device, sample.job_id, sample.answer)
    done = [await work(market, buyer, device)]
    wrong = await take(market, device)
    spent = await available(market, payer)
    await market.jobs.complete(device, wrong.job_id, "0")
    # It is answered like the first time, and like that of any other job, and changes nothing.
    await market.jobs.complete(device, wrong.job_id, wrong.answer)
    assert await available(market, payer) == spent + wrong.price
    reputation = await reputation_of(market, device)
    assert (reputation.checks, reputation.streak) == (2, 0)
    assert reputation.correctness < 600_000
    disputed = await reviews.disputes(market.context)
    assert [(row.job_id, row.reason) for row in disputed] == [(done[0], sample_checks.FROZEN)]
    assert await audited(market)
    market.clock.now += REVIEW_SECONDS
    await market.reviews.expire()
    assert [row.job_id for row in await reviews.disputes(market.context)] == done
    assert (await stored_job(market, theirs)).status == JobStatus.COMPLETED
    assert await audited(market)


async def test_the_attempt_of_a_wrong_answer_proves_no_device(market: Market) -> None:
    await sampling(market)
    device = await device_of(market, await market.person())
    sample = await take(market, device)
    await market.jobs.complete(device, sample.job_id, "nothing")
    [attempt] = await history(market, sample.job_id)
    assert attempt.outcome == "failed"


@pytest.mark.parametrize("kind", list(FailureKind))
async def test_a_failed_sample_shows_nothing_is_not_paid_and_comes_to_no_other_device(
    market: Market, kind: FailureKind
) -> None:
    payer, worker = await sampling(market), await market.person()
    device, buyer = await device_of(market, worker), await market.person(credit="100")
    sample = await take(market, device)
    await market.attempt_reports.started(device, sample.job_id, None)
    market.clock.now += 600
    await market.jobs.fail(device, sample.job_id, "no", ending=Ending(kind))
    assert (await stored_job(market, sample.job_id)).status == JobStatus.FAILED
    assert (await available(market, payer), await held(market, payer)) == (100 * MICRO, 0)
    # A failure that the script cannot have had is the device's, unless it had refused before.
    reputation = await reputation_of(market, device)
    assert (reputation.checks, reputation.reliability < 500_000) == (0, True)
    assert await audited(market)
    assert await given(market, device) == []
    await work(market, buyer, device)
    await take(market, device)


async def test_one_that_is_lost_is_given_back(market: Market) -> None:
    payer = await sampling(market)
    device = await device_of(market, await market.person())
    sample = await take(market, device)
    assert await market.job_sweeper.take_back_attempt(sample.job_id, 1, "silent")
    assert (await stored_job(market, sample.job_id)).status == JobStatus.FAILED
    assert await available(market, payer) == 100 * MICRO
    assert (await reputation_of(market, device)).reliability < 500_000
    ended = await sample_of(market, sample.job_id)
    assert ended is not None
    assert ended.outcome == "none"
    assert await audited(market)


def test_a_day_is_not_spent_in_its_morning() -> None:
    assert allowed_by(1_000, 0) == 250
    assert allowed_by(1_000, DAY // 2) == 625
    assert allowed_by(1_000, DAY - 1) == 999


async def test_one_owner_gets_a_part_of_the_day(market: Market) -> None:
    await sampling(market, a_day=4)
    market.clock.now += DAY - market.clock.now % DAY - 1
    worker, buyer = await market.person(), await market.person(credit="100")
    device = await device_of(market, worker)
    prices = []
    for _ in range(20):
        for job_id in await given(market, device):
            sample = await sample_of(market, job_id)
            assert sample is not None
            prices.append(sample.price)
            await market.jobs.complete(device, job_id, sample.answer)
        await work(market, buyer, device)
        await market.reviews.confirm(buyer, (await last_job(market, buyer)))
    assert PRICE < sum(prices) <= MICRO
    # No other device is affected.
    assert await given(market, await device_of(market, await market.person()))
    assert await audited(market)


async def test_the_day_and_the_account_bound_the_spent_amount(market: Market) -> None:
    payer = await sampling(market, a_day=2)
    spent, owner = 0, await market.person()
    for number in range(24):
        owner = owner if number % FIRSTS_PER_OWNER_DAY or not number else await market.person()
        for job_id in await given(market, await device_of(market, owner)):
            sample = await sample_of(market, job_id)
            assert sample is not None
            spent += sample.price
        market.samples._paused_until = 0.0  # type: ignore[union-attr]
    assert MICRO * 8 // 10 < spent <= MICRO  # half of a day's, for it is eight in the morning
    market.clock.now += DAY
    # An account without money, and one that does not exist.
    for email in (f"person{market._people}@example.com", "nobody@example.com"):
        begin_sampling(market, email)
        assert await given(market, await device_of(market, await market.person())) == []
    assert await held(market, payer) == spent
    assert await audited(market)


async def test_devices_without_work_are_sampled_a_few_times_a_day(market: Market) -> None:
    await sampling(market)
    worker = await market.person()
    devices = [await device_of(market, worker) for _ in range(FIRSTS_PER_OWNER_DAY + 3)]
    got = [len(await given(market, device)) for device in devices]
    assert got == [1] * FIRSTS_PER_OWNER_DAY + [0] * 3


async def test_the_payer_is_not_sampled_and_offers_are_heeded(market: Market) -> None:
    payer = await sampling(market)
    assert await given(market, await device_of(market, payer)) == []
    device = await device_of(market, await market.person())
    for unfit in (
        offer(least_usd=1_000_000),
        offer(executors=frozenset(("podman",)), job_types=frozenset(("docker",))),
        offer(dataclasses.replace(SMALL, slots=0)),
    ):
        assert await given(market, device, ask(unfit)) == []
    market.change_bounds(Bounds(device_slots=1))
    market.context.bus.publish(DEVICES, [device.id])
    busy = await take(market, device)
    await market.store.write(queries.set_jobs_left, device.id, 0)
    told = await market.dispatch.next(device, ask(offer(), (busy.job_id, 1)))
    assert not told.jobs


@pytest.mark.both_engines
async def test_it_looks_like_another_job_and_is_in_no_count_of_buyers(market: Market) -> None:
    payer = await sampling(market)
    device = await device_of(market, await market.person())
    sample = await take(market, device)
    [shown] = await market.jobs.page_open(status=None, job_type="", before="", limit=10)
    found = await market.jobs.find_open(sample.job_id)
    assert shown.user_id == found.job.user_id == sample.shown_buyer != payer
    [running] = await market.jobs.page_of_device(device, before="", limit=10)
    assert running.id == sample.job_id
    assert [row for row in await market.store.read(job_queries.by_state) if row.jobs] == []
    other = await market.person(credit="10")
    assert await refusal(market.jobs.find(other, sample.job_id)) is Code.JOB_NOT_FOUND
    # No other device gets it, not even by hand.
    rival = await device_of(market, other)
    assert await refusal(market.jobs.accept(rival, sample.job_id)) is Code.JOB_NOT_WAITING
    await market.jobs.complete(device, sample.job_id, "wrong")
    assert await market.store.read(queries.by_outcome) == [("wrong", 1)]


@pytest.mark.both_engines
@pytest.mark.parametrize("a_day", [2, 20])
async def test_two_daemons_give_one_sample_and_keep_to_the_day(
    store: Store, clock: Clock, market: Market, a_day: int
) -> None:
    await sampling(market, a_day=a_day)
    email = f"person{market._people}@example.com"
    second = Market(store, clock)
    begin_sampling(second, email, a_day)
    owners = [await market.person() for _ in range(4)]
    devices = [await device_of(market, owner) for owner in owners for _ in range(6)]
    told = await asyncio.gather(
        *(each.dispatch.next(device, ask()) for device in devices for each in (market, second))
    )
    jobs = [job.row.job_id for answer in told for job in answer.jobs]

    async def all_samples(tx: Transaction) -> list[tuple[str, str]]:
        return await tx.all(
            lambda *row: (row[0], row[1]), "SELECT device_id, owner_id FROM job_samples"
        )

    rows = await store.read(all_samples)
    assert max(Counter(owner for _, owner in rows).values()) <= FIRSTS_PER_OWNER_DAY
    sampled = [device_id for device_id, _ in rows]
    assert sorted(sampled) == sorted(set(sampled))
    assert set(jobs)
    assert await store.read(queries.spent_since, 0) <= a_day * MICRO // 2
    assert await audited(market)


class Spy:
    """Transaction that records its locks, in the order in which it first holds them."""

    def __init__(self, tx: Transaction, ranks: list[int]) -> None:
        self._tx = tx
        self._ranks = ranks
        self._has: set[tuple[str, str]] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    async def lock(self, table: str, ids: Sequence[str]) -> None:
        self._note(table, *ids)
        await self._tx.lock(table, ids)

    async def run(self, sql: str, **values: Any) -> int:
        for table in ("INTO sample_turns", "UPDATE sample_turns"):
            if table in sql:
                self._note("sample_turns", values["device_id"])
        return await self._tx.run(sql, **values)

    def _note(self, table: str, *ids: str) -> None:
        order = ("devices", "jobs", "reputations", "sample_turns", "accounts")
        self._ranks.extend(order.index(table) for each in ids if (table, each) not in self._has)
        self._has.update((table, each) for each in ids)


@pytest.mark.both_engines
async def test_concurrent_reports_of_a_sample_and_of_a_job_cannot_deadlock(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sampling(market)
    buyer = await market.person(credit="100")
    device = await device_of(market, await market.person())
    write, transactions = market.store.write, []

    async def spied(unit: Any, *args: Any, **kwargs: Any) -> Any:
        async def noting(tx: Transaction) -> Any:
            ranks: list[int] = []
            transactions.append((unit.__name__, ranks))
            return await unit(Spy(tx, ranks), *args, **kwargs)

        return await write(noting)

    monkeypatch.setattr(market.store, "write", spied)
    for answer in ("right", "wrong", "none"):
        sample = await take(market, device)
        if answer == "none":
            await market.jobs.fail(device, sample.job_id, "no")
        else:
            result = sample.answer if answer == "right" else ""
            await market.jobs.complete(device, sample.job_id, result)
        await work(market, buyer, device)
    monkeypatch.undo()
    assert {rank for _, ranks in transactions for rank in ranks} == set(range(5))
    assert [each for each in transactions if each[1] != sorted(each[1])] == []


async def test_a_device_is_given_one_without_waiting_until_it_is_made(market: Market) -> None:
    await sampling(market)
    samples = market.samples
    assert samples is not None
    samples._ready.clear()
    device = await device_of(market, await market.person())
    assert await given(market, device) == []
    running = asyncio.create_task(samples.run())
    try:
        await until(lambda: samples.ready == READY_MAX)
        market.context.bus.publish(DEVICES, [device.id])
        await take(market, device)
        await until(lambda: samples.ready == READY_MAX)
    finally:
        running.cancel()


async def test_its_identifier_says_that_it_has_waited_as_jobs_do(market: Market) -> None:
    await sampling(market)
    buyer = await market.person(credit="100")
    await posted(market, buyer)
    market.clock.now += 5_000
    await market.dispatch.pairing.reader.catch_up()
    busy = await device_of(market, buyer)
    await market.jobs.accept(busy, await last_job(market, buyer))
    sample = await take(market, await device_of(market, await market.person()))
    made_at = uuid.UUID(sample.job_id).int >> 80
    assert 5_000 <= market.clock.now - made_at / 1_000 <= 5_001
    shown_at = uuid.UUID(sample.shown_buyer).int >> 80
    assert 0 <= market.clock.now - shown_at / 1_000 <= 5_000  # no older than anybody here


@pytest.mark.both_engines
async def test_the_audit_finds_a_wrong_answer_that_was_paid(market: Market) -> None:
    await sampling(market)
    device = await device_of(market, await market.person())
    sample = await take(market, device)
    await market.jobs.complete(device, sample.job_id, sample.answer)

    async def falsify(tx: Transaction) -> None:
        await tx.run("UPDATE job_samples SET outcome = 'wrong'")

    async def restore(tx: Transaction) -> None:
        await tx.run("UPDATE job_samples SET outcome = 'right'")

    await market.store.write(falsify)
    report = await audit_ledger(market.store)
    [broken] = [check for check in report.checks if check.differences]
    assert broken.promise.startswith("samples")
    await market.store.write(restore)


def test_a_device_that_was_often_right_is_sampled_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    means = {
        streak: sum(sample_checks.jobs_until_next(streak) for _ in range(20_000)) / 20_000
        for streak in (0, 9, 10, 20, 50, 1_000)
    }
    for streak, expected in ((0, 2), (9, 2), (10, 10), (20, 20), (50, 50), (1_000, 50)):
        assert expected * 0.9 < means[streak] < expected * 1.1
    assert min(sample_checks.jobs_until_next(50) for _ in range(2_000)) == 1
