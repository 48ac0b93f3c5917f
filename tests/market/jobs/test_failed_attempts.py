"""Attempts whose own work failed are paid for their time, for any restart policy of the job."""

import asyncio
import random
from functools import partial
from typing import Any

import pytest
from support.market import books
from support.market.books import stored_job
from support.market.jobs import code_of, device_of, on, specified, wanted
from support.market.market import Market
from support.market.reviews import decide_review
from support.market.work import posted

from market.attempts.attempts import WORK_KINDS, Ending, FailureKind
from market.base.errors import MarketError
from market.base.states import JobStatus, ReviewStatus
from market.jobs.copies import Copying
from market.jobs.draws import SECONDS_MIN
from market.jobs.specs import NewSpec, understand
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from proxyctl.protocol.jobspec import Payload
from storage.devices.devices import DeviceRow

CREDIT = Currency.CREDIT
HOUR = 3_600
AGAIN = {"restart": "on_failure"}

available = partial(books.available, currency=CREDIT)
held = partial(books.held, currency=CREDIT)
earned = books.earned


async def audited(market: Market) -> bool:
    report = await audit_ledger(market.store)
    assert report.passed, [check for check in report.checks if check.differences]
    return True


async def restarting(market: Market, buyer: str, **changes: Any) -> str:
    """Put up a job for 10 credits and two hours that is run again when it fails."""
    return await specified(market, buyer, payload=AGAIN, **changes)


async def fails(
    market: Market, job_id: str, worker: str, seconds: int, kind: FailureKind = FailureKind.JOB
) -> DeviceRow:
    """Let a new device of a worker run a job for some seconds, until its work fails."""
    device = await on(market, job_id, worker)
    market.clock.now += seconds
    await market.jobs.fail(device, job_id, "exit 1", ending=Ending(kind, exit_code=1))
    return device


@pytest.mark.parametrize("restart", ["on_failure", "always"])
@pytest.mark.parametrize("kind", sorted(WORK_KINDS))
async def test_an_attempt_that_failed_by_its_work_is_paid_though_the_job_waits(
    market: Market, restart: str, kind: FailureKind
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer, payload={"restart": restart})
    await fails(market, job_id, worker, HOUR // 2, kind)
    assert (await stored_job(market, job_id)).status == JobStatus.WAITING
    assert await earned(market, worker) == 2_250_000
    quote = await market.jobs.cancelling_costs(buyer, job_id)
    assert (quote.pays, quote.returns) == (2_500_000, 7_500_000)
    await market.jobs.cancel(buyer, job_id)
    assert (await market.jobs.find(buyer, job_id)).paid == 2_500_000
    assert (await available(market, buyer), await held(market, buyer)) == (7_500_000, 0)
    assert await audited(market)


async def test_a_buyer_sees_how_much_of_an_open_job_is_paid_and_how_much_is_held(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await restarting(market, buyer)

    async def shown() -> tuple[int | None, int | None]:
        [listed] = await market.jobs.page_of_user(buyer, status=None, before="", limit=10)
        one = await market.jobs.find(buyer, job_id)
        assert (one.paid, one.left) == (listed.paid, listed.left)
        return one.paid, one.left

    assert await shown() == (None, 10 * MICRO)
    await fails(market, job_id, worker, HOUR // 2)
    assert await shown() == (2_500_000, 7_500_000)
    await market.jobs.cancel(buyer, job_id)
    assert await shown() == (2_500_000, None)


@pytest.mark.parametrize("kind", sorted(set(FailureKind) - WORK_KINDS))
async def test_no_attempt_is_paid_that_failed_by_anything_else(
    market: Market, kind: FailureKind
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await restarting(market, buyer)
    await fails(market, job_id, worker, HOUR // 2, kind)
    assert (await stored_job(market, job_id)).status == JobStatus.WAITING
    assert await earned(market, worker) == 0
    quote = await market.jobs.cancelling_costs(buyer, job_id)
    assert (quote.pays, quote.returns) == (0, 10 * MICRO)
    assert await audited(market)


async def test_each_attempt_has_the_same_pay_for_its_time_and_the_last_one_has_the_rest(
    market: Market,
) -> None:
    buyer = await market.person(credit="10")
    first, second = await market.person(), await market.person()
    job_id = await restarting(market, buyer)
    await fails(market, job_id, first, HOUR // 2)
    device = await device_of(market, second)
    await market.jobs.accept(device, job_id)
    work = await market.jobs.work(device, job_id)
    assert work.spec is not None
    assert work.spec.timeout_seconds == 3 * HOUR // 2  # of two hours: the rest of the price
    await market.attempt_reports.started(device, job_id, None)
    market.clock.now += HOUR
    quote = await market.jobs.cancelling_costs(buyer, job_id)
    assert (quote.pays, quote.returns) == (7_500_000, 2_500_000)
    await market.jobs.complete(device, job_id, "done")
    assert await earned(market, first) == 2_250_000
    assert await earned(market, second) == 6_750_000
    assert await audited(market)
    await market.reviews.confirm(buyer, job_id)
    assert await available(market, first) == 2_250_000
    assert await available(market, second) == 6_750_000
    assert (await market.jobs.find(buyer, job_id)).paid == 10 * MICRO
    assert await audited(market)


async def test_a_job_ends_when_failed_attempts_have_used_up_its_price(market: Market) -> None:
    buyer = await market.person(credit="10")
    workers = [await market.person() for _ in range(2)]
    job_id = await restarting(market, buyer)
    await fails(market, job_id, workers[0], HOUR)
    await fails(market, job_id, workers[1], HOUR - SECONDS_MIN + 1)
    job = await stored_job(market, job_id)
    assert (job.status, job.attempts) == (JobStatus.FAILED, 2)
    paid = (await market.jobs.find(buyer, job_id)).paid
    assert paid is not None
    assert 9_900_000 < paid < 10 * MICRO
    assert await available(market, buyer) == 10 * MICRO - paid
    assert await earned(market, workers[0]) == 4_500_000
    assert await audited(market)


async def test_a_buyer_disputes_each_attempt_that_is_in_review(market: Market) -> None:
    buyer = await market.person(credit="10")
    workers = [await market.person() for _ in range(2)]
    job_id = await restarting(market, buyer)
    await fails(market, job_id, workers[0], HOUR // 2)
    await market.reviews.dispute(buyer, job_id, "it ran nothing")
    await fails(market, job_id, workers[1], HOUR // 2)
    assert len(await decide_review(market.context, job_id, ReviewStatus.REVERSED)) == 1
    assert [await earned(market, each) for each in workers] == [0, 2_250_000]
    assert await available(market, buyer) == 2_500_000
    await market.jobs.cancel(buyer, job_id)
    assert (await market.jobs.find(buyer, job_id)).paid == 2_500_000
    market.clock.now += 25 * HOUR
    assert await market.reviews.expire() == 1
    assert await available(market, workers[1]) == 2_250_000
    assert await audited(market)


async def test_a_job_that_pays_nothing_is_run_again_as_before(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    free = await restarting(market, buyer, price=0)
    await fails(market, free, worker, 2 * HOUR)
    paid = await restarting(market, buyer)
    await fails(market, paid, worker, 0)
    for job_id in (free, paid):
        assert (await stored_job(market, job_id)).status == JobStatus.WAITING
    assert await earned(market, worker) == 0
    assert await audited(market)


@pytest.mark.parametrize(("second_result", "pay"), [("42", 0), ("43", 2_250_000)])
async def test_a_failed_copy_is_paid_unless_the_others_show_that_the_work_can_be_done(
    market: Market, second_result: str, pay: int
) -> None:
    buyer = await market.person(credit="20")
    workers = [await market.person() for _ in range(3)]
    payload = Payload(command=("true",), restart="on_failure")
    spec = understand(NewSpec(payload=payload), job_type="script", duration_hrs=2, text="")
    new = wanted(job_type="script", spec=spec)
    first, second = await market.jobs.create_copies(buyer, new, Copying(2, "bytes"))
    await fails(market, first, workers[0], HOUR // 2)
    assert await earned(market, workers[0]) == 2_250_000
    market.clock.now += 30 * HOUR  # longer than a review of a job without copies
    await market.reviews.expire()
    assert await available(market, workers[0]) == 0
    for job_id, worker, result in (
        (first, workers[1], "42"),
        (second, workers[2], second_result),
    ):
        device = await on(market, job_id, worker)
        await market.jobs.complete(device, job_id, result)
    assert [await earned(market, each) for each in workers] == [pay, 6_750_000, 9 * MICRO]
    assert await audited(market)
    market.clock.now += 25 * HOUR
    while await market.reviews.expire():
        pass
    assert await available(market, workers[0]) == pay
    assert await held(market, buyer) == 0
    assert await audited(market)


@pytest.mark.both_engines
async def test_of_twelve_at_once_one_ends_the_attempt(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await restarting(market, buyer)
    device = await on(market, job_id, worker)
    market.clock.now += HOUR // 2
    ending = Ending(FailureKind.JOB, exit_code=1)
    rivals = [market.jobs.fail(device, job_id, "exit 1", ending=ending) for _ in range(6)]
    rivals += [market.jobs.cancel(buyer, job_id) for _ in range(3)]
    rivals += [market.jobs.complete(device, job_id, "done", attempt=1) for _ in range(3)]
    outcomes = [code_of(each) for each in await asyncio.gather(*rivals, return_exceptions=True)]
    assert None in outcomes
    job = await stored_job(market, job_id)
    assert job.status in (JobStatus.CANCELLED, JobStatus.COMPLETED)
    share = 9 * MICRO if job.status == JobStatus.COMPLETED else 2_250_000
    assert await earned(market, worker) == share
    assert await held(market, buyer) == 0
    assert await audited(market)


async def test_the_books_are_right_after_any_failures_and_ends(market: Market) -> None:
    buyer = await market.person(credit="400")
    owners = [await market.person() for _ in range(6)]
    for seed in range(8):
        chance = random.Random(seed)
        job_id = await posted(market, buyer, payload={"script": "x", **AGAIN}, price=1_234_567)
        await live(market, chance, buyer, owners, job_id)
        market.clock.now += chance.choice((0, 30 * HOUR))
        await market.reviews.expire()
    assert await audited(market)
    assert await held(market, buyer) == 0


async def live(
    market: Market, chance: random.Random, buyer: str, owners: list[str], job_id: str
) -> None:
    """Let devices try a job, and its buyer and the operator judge, until it is over."""
    while (await stored_job(market, job_id)).status == JobStatus.WAITING:
        device = await device_of(market, chance.choice(owners))
        try:
            await market.jobs.accept(device, job_id)
        except MarketError:  # the owner has failed at it
            await market.jobs.cancel(buyer, job_id)
            return
        await market.attempt_reports.started(device, job_id, None)
        market.clock.now += chance.choice((0, 1, 7, 600, 1_801))
        match chance.randrange(6):
            case 0:
                await market.jobs.complete(device, job_id, "done")
            case 1:
                await market.jobs.cancel(buyer, job_id)
            case _:
                kind = chance.choice([*FailureKind])
                await market.jobs.fail(device, job_id, "why", ending=Ending(kind))
        try:
            await market.reviews.dispute(buyer, job_id, "slow")
            state = chance.choice((ReviewStatus.UPHELD, ReviewStatus.REVERSED))
            await decide_review(market.context, job_id, state)
        except MarketError:  # nothing is in review
            continue
