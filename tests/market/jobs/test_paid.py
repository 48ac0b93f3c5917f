"""The event `job.paid`: once for each pay, when it is available, and never without pay."""

import asyncio
from typing import Any

import pytest
from support.market.events import said
from support.market.jobs import on, running, specified
from support.market.market import Market
from support.market.reviews import decide_review
from support.market.staff import ROOT

from market.attempts.attempts import Ending, FailureKind
from market.base.states import ReviewStatus
from market.money.money import MICRO, Currency
from market.staff.money import judging
from market.staff.money.judging import Verdict

DAY = 86_400
LIMITS = dict.fromkeys(Currency, 10**15)


async def paid(market: Market, worker: str) -> list[dict[str, Any]]:
    return await said(market, worker, "job.paid")


async def done(market: Market, buyer: str, worker: str) -> str:
    """Have a job done for 10 credits, which its buyer may look at first."""
    job_id = await specified(market, buyer)
    await market.jobs.complete(await on(market, job_id, worker), job_id, "the result")
    return job_id


async def test_pay_without_a_review_is_available_at_once(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker, price=10 * MICRO)
    assert await paid(market, worker) == []
    for _ in range(2):
        await market.jobs.complete(device, job_id, "done")
    assert await paid(market, worker) == [{"job_id": job_id, "attempt": 1, "amount_credit": 9.0}]
    assert await paid(market, buyer) == []


@pytest.mark.both_engines
async def test_pay_in_review_is_available_at_its_end_once(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    confirmed, expired = [await done(market, buyer, worker) for _ in range(2)]
    assert await paid(market, worker) == []
    await asyncio.gather(*(market.reviews.confirm(buyer, confirmed) for _ in range(3)))
    market.clock.now += 2 * DAY
    await asyncio.gather(*(market.reviews.expire() for _ in range(3)))
    assert await paid(market, worker) == [
        {"job_id": job_id, "attempt": 1, "amount_credit": 9.0} for job_id in (confirmed, expired)
    ]


async def test_a_decision_is_an_event_of_the_part_that_the_worker_keeps(market: Market) -> None:
    buyer, worker = await market.person(credit="30"), await market.person()
    jobs = [await done(market, buyer, worker) for _ in range(3)]
    for job_id in jobs:
        await market.reviews.dispute(buyer, job_id, "an empty file")
    await decide_review(market.context, jobs[0], ReviewStatus.UPHELD)
    for job_id, percent in ((jobs[1], 40), (jobs[2], 100)):
        await judging.decide(market.context, ROOT, job_id, Verdict(percent), LIMITS, "half of it")
    amounts = [(each["job_id"], each["amount_credit"]) for each in await paid(market, worker)]
    assert amounts == [(jobs[0], 9.0), (jobs[1], 5.4)]


async def test_work_that_failed_by_itself_is_paid_for_its_time(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer)
    device = await on(market, job_id, worker)
    market.clock.now += 1_800
    ending = Ending(FailureKind.JOB, exit_code=1)
    await market.jobs.fail(device, job_id, "it ended with the status 1", ending=ending)
    assert await paid(market, worker) == []
    market.clock.now += 2 * DAY
    await market.reviews.expire()
    [event] = await paid(market, worker)
    assert (event["job_id"], event["attempt"]) == (job_id, 1)
    assert 0 < event["amount_credit"] < 9
