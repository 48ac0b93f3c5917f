"""The life cycle of a job and the money it moves, on both engines."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace
from support.base.brief import brief
from support.base.clock import Clock
from support.market import books
from support.market.books import refusal, stored_job
from support.market.jobs import code_of, device_of, history, on, prove, running, wanted
from support.market.market import SWEEP_SECONDS, Market

from market.accounts.bounds import Bounds
from market.attempts.attempts import Ending, FailureKind
from market.base.errors import Code, MarketError
from market.base.states import JobStatus
from market.devices.devices import Devices
from market.jobs.chances import ATTEMPTS_MAX, OWNERS_MAX
from market.jobs.jobs import Work
from market.jobs.specs import Spec
from market.jobs.sweeper import REVOKED, JobSweeps
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from proxyctl.protocol.jobspec import Resources
from storage.devices.devices import DeviceRow
from storage.engines.errors import UnavailableError
from storage.engines.store import Transaction
from storage.jobs.jobs import JobRow
from storage.money import ledger as ledger_queries

CREDIT = Currency.CREDIT
HOUR = 3_600
SILENCE = 600
UNHEARD = 510  # observed seconds of them, by any clock
ATTEMPTS = 3

available = partial(books.available, currency=CREDIT)
held = partial(books.held, currency=CREDIT)
revenue = partial(books.revenue, currency=CREDIT)


async def test_a_new_job_waits_and_holds_exactly_its_price(market: Market) -> None:
    user = await market.person(credit="10")
    new = wanted(price=3_333_333, description="run it", requirements="a GPU")
    job_id = await market.jobs.create(user, new)
    job = await stored_job(market, job_id)
    assert (job.id, job.user_id, job.title, job.job_type) == (job_id, user, "train", "training")
    assert (job.price_credit, job.duration_hrs) == (3_333_333, 2)
    assert (job.description, job.requirements) == ("run it", "a GPU")
    assert (job.status, job.attempts, job.device_id) == (JobStatus.WAITING, 0, None)
    assert (job.created_at, job.accepted_at, job.finished_at) == (market.clock.now, None, None)
    assert (job.earned, job.result) == (0, None)
    assert (await available(market, user), await held(market, user)) == (6_666_667, 3_333_333)


async def test_without_the_credits_nothing_is_left_behind(market: Market) -> None:
    user = await market.person(credit="1", usd="100")
    before = await market.store.read(ledger_queries.count_transfers)
    with pytest.raises(MarketError) as caught:
        await market.jobs.create(user, wanted(price=MICRO + 1))
    assert (caught.value.code, caught.value.field) == (Code.INSUFFICIENT_FUNDS, "price_credit")
    assert "1.000001 credits" in caught.value.message
    assert await market.store.read(ledger_queries.count_transfers) == before
    assert await market.jobs.page_of_user(user, status=None, before="", limit=10) == []
    assert (await available(market, user), await held(market, user)) == (MICRO, 0)


@pytest.mark.both_engines
async def test_a_hundred_jobs_with_credits_for_ten_are_ten(market: Market) -> None:
    user = await market.person(credit="10")
    outcomes = await asyncio.gather(
        *(market.jobs.create(user, wanted(price=MICRO)) for _ in range(100)),
        return_exceptions=True,
    )
    codes = [code_of(outcome) for outcome in outcomes]
    assert codes.count(None) == 10
    assert codes.count(Code.INSUFFICIENT_FUNDS) == 90
    assert (await available(market, user), await held(market, user)) == (0, 10 * MICRO)
    assert len(await market.jobs.page_of_user(user, status=None, before="", limit=100)) == 10


async def test_a_job_without_a_price_lives_and_is_paid_nothing(market: Market) -> None:
    buyer, worker = await market.person(), await market.person()
    job_id, device = await running(market, buyer, worker, price=0)
    await market.jobs.complete(device, job_id, "done")
    assert (await stored_job(market, job_id)).status == JobStatus.COMPLETED
    assert (await available(market, worker), await revenue(market)) == (0, 0)
    cancelled, _ = await running(market, buyer, worker, price=0)
    await market.jobs.cancel(buyer, cancelled)
    assert (await stored_job(market, cancelled)).status == JobStatus.CANCELLED


async def test_a_field_out_of_range_is_refused_by_name(market: Market) -> None:
    user = await market.person(credit="2000000")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"title": ""}, "title"),
        ({"title": "x" * 201}, "title"),
        ({"title": "\u3164"}, "title"),
        ({"description": "x" * 20_001}, "description"),
        ({"requirements": "x" * 20_001}, "requirements"),
        ({"duration_hrs": 0}, "duration_hrs"),
        ({"duration_hrs": -1}, "duration_hrs"),
        ({"duration_hrs": 8_761}, "duration_hrs"),
        ({"price": 1_000_000 * MICRO + 1}, "price_credit"),
    ]
    for changes, field in wrong:
        with pytest.raises(MarketError) as caught:
            await market.jobs.create(user, wanted(**changes))
        assert (caught.value.code, caught.value.field) == (Code.INVALID_FIELD, field)
    assert await market.jobs.page_of_user(user, status=None, before="", limit=10) == []
    assert await held(market, user) == 0


async def test_a_field_at_the_end_of_its_range_is_taken(market: Market) -> None:
    user = await market.person(credit="1000000")
    right: list[dict[str, Any]] = [
        {"price": 1_000_000 * MICRO},
        {"title": "x"},
        {"title": "\N{ROCKET}" * 200},
        {"description": "é" * 20_000, "requirements": "é" * 20_000},
        {"duration_hrs": 1},
        {"duration_hrs": 8_760},
        *({"job_type": kind} for kind in ("docker", "training", "inference", "script")),
    ]
    for changes in right:
        job = await stored_job(market, await market.jobs.create(user, wanted(**changes)))
        kept = {**job._asdict(), "price": job.price_credit}
        assert {name: kept[name] for name in changes} == changes
        await market.jobs.cancel(user, job.id)


async def test_accepting_lets_the_device_run_the_job(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await market.jobs.create(buyer, wanted())
    device = await device_of(market, worker)
    market.clock.now += 7
    job = await market.jobs.accept(device, job_id)
    assert job == await stored_job(market, job_id)
    assert (job.status, job.device_id, job.attempts) == (JobStatus.RUNNING, device.id, 1)
    assert job.accepted_at == market.clock.now
    assert await market.jobs.work(device, job_id) == Work(job)
    assert await held(market, buyer) == 10 * MICRO
    assert await history(market, job_id) == [(1, device.id, market.clock.now, None, None)]


async def test_accepting_again_changes_nothing(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    first = await stored_job(market, job_id)
    market.clock.now += 60
    assert await market.jobs.accept(device, job_id) == first
    assert await stored_job(market, job_id) == first
    assert len(await history(market, job_id)) == 1


@pytest.mark.both_engines
@pytest.mark.parametrize("rounds", brief([2, 20]))
async def test_one_of_many_devices_wins_a_job(market: Market, rounds: int) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await market.jobs.create(buyer, wanted())
    devices = [await device_of(market, worker) for _ in range(50)]
    outcomes: list[JobRow | BaseException] = []
    for _ in range(rounds):  # a busy machine serves 50, not 1,000, before the pool's time is up
        outcomes += await asyncio.gather(
            *(market.jobs.accept(device, job_id) for device in devices),
            return_exceptions=True,
        )
    codes = [code_of(outcome) for outcome in outcomes]
    assert codes.count(Code.JOB_NOT_WAITING) == 49 * rounds
    assert codes.count(None) == rounds  # the winner, and the same device again
    assert len({outcome.device_id for outcome in outcomes if isinstance(outcome, JobRow)}) == 1
    job = await stored_job(market, job_id)
    assert (job.status, job.attempts) == (JobStatus.RUNNING, 1)
    assert [attempt.device_id for attempt in await history(market, job_id)] == [job.device_id]


async def test_a_job_that_does_not_wait_cannot_be_accepted(market: Market) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    other = await device_of(market, worker)
    assert await refusal(market.jobs.accept(other, market.identifiers.new())) is Code.JOB_NOT_FOUND
    job_id, device = await running(market, buyer, worker)
    assert await refusal(market.jobs.accept(other, job_id)) is Code.JOB_NOT_WAITING
    await market.jobs.complete(device, job_id, "")
    for late in (device, other):
        assert await refusal(market.jobs.accept(late, job_id)) is Code.JOB_NOT_WAITING
    cancelled = await market.jobs.create(buyer, wanted())
    await market.jobs.cancel(buyer, cancelled)
    assert await refusal(market.jobs.accept(other, cancelled)) is Code.JOB_NOT_WAITING


@pytest.mark.parametrize(
    ("price", "fee"),
    [(1, 0), (9, 0), (10, 1), (19, 1), (3_333_333, 333_333), (10 * MICRO, MICRO)],
)
async def test_completing_pays_the_price_less_a_fee_rounded_down(
    market: Market, price: int, fee: int
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker, price=price)
    market.clock.now += 5
    await market.jobs.complete(device, job_id, "the result")
    assert (await available(market, worker), await revenue(market)) == (price - fee, fee)
    assert (await available(market, buyer), await held(market, buyer)) == (10 * MICRO - price, 0)
    job = await stored_job(market, job_id)
    assert (job.status, job.earned, job.result) == (JobStatus.COMPLETED, price - fee, "the result")
    assert (job.device_id, job.finished_at) == (device.id, market.clock.now)


@pytest.mark.both_engines
async def test_completing_again_pays_once(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await market.jobs.complete(device, job_id, "first")
    market.clock.now += 60
    await asyncio.gather(*(market.jobs.complete(device, job_id, "again") for _ in range(20)))
    assert await available(market, worker) == 9 * MICRO
    job = await stored_job(market, job_id)
    assert (job.result, job.finished_at) == ("first", market.clock.now - 60)


@pytest.mark.both_engines
async def test_twenty_completions_at_once_pay_once(market: Market) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await asyncio.gather(*(market.jobs.complete(device, job_id, "") for _ in range(20)))
    assert (await available(market, worker), await revenue(market)) == (9 * MICRO, MICRO)
    assert (await available(market, buyer), await held(market, buyer)) == (90 * MICRO, 0)


async def test_a_worker_may_run_its_own_job_and_loses_the_fee(market: Market) -> None:
    user = await market.person(credit="10")
    job_id, device = await running(market, user, user, price=3_333_333)
    await market.jobs.complete(device, job_id, "")
    assert (await available(market, user), await held(market, user)) == (10 * MICRO - 333_333, 0)
    assert await revenue(market) == 333_333
    report = await audit_ledger(market.store)
    assert report.passed, report


async def test_a_job_that_was_not_begun_pays_nothing_when_it_is_cancelled(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await market.jobs.create(buyer, wanted()), await device_of(market, worker)
    await market.jobs.accept(device, job_id)
    market.clock.now += HOUR
    await market.jobs.cancel(buyer, job_id)
    assert (await available(market, buyer), await available(market, worker)) == (10 * MICRO, 0)


async def test_work_that_was_begun_again_is_paid_from_its_last_beginning(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker, price=4 * MICRO, duration_hrs=2)
    market.clock.now += HOUR
    await market.jobs.fail(device, job_id, "no GPU")
    other = await device_of(market, await market.person())
    await market.jobs.accept(other, job_id)
    market.clock.now += HOUR
    await market.jobs.cancel(buyer, job_id)
    assert await available(market, buyer) == 10 * MICRO


async def test_a_worker_whose_own_running_job_is_cancelled_loses_the_fee(market: Market) -> None:
    user = await market.person(credit="10")
    job_id, _ = await running(market, user, user, price=4 * MICRO, duration_hrs=2)
    market.clock.now += HOUR
    await market.jobs.cancel(user, job_id)
    assert (await available(market, user), await held(market, user)) == (10 * MICRO - 200_000, 0)
    report = await audit_ledger(market.store)
    assert report.passed, report


@pytest.mark.both_engines
@pytest.mark.parametrize("rival", ["cancel", "fail", "take_back", "another completion"])
async def test_of_a_completion_and_its_rival_one_wins(market: Market, rival: str) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    jobs = [await running(market, buyer, worker) for _ in range(10)]
    assert await market.silence(SILENCE) == 0
    market.clock.now += SWEEP_SECONDS

    async def oppose(job_id: str, device: DeviceRow) -> None:
        if rival == "cancel":
            await market.jobs.cancel(buyer, job_id)
        elif rival == "fail":
            await market.jobs.fail(device, job_id, "cannot")
        elif rival == "take_back":
            await market.job_sweeper.take_back()
        else:
            await market.jobs.complete(device, job_id, "rival")

    races = []
    for number, (job_id, device) in enumerate(jobs):
        race = [market.jobs.complete(device, job_id, "done"), oppose(job_id, device)]
        races.extend(race if number % 2 else race[::-1])
    outcomes = [code_of(each) for each in await asyncio.gather(*races, return_exceptions=True)]
    shares = 0
    for number, (job_id, _) in enumerate(jobs):
        pair = outcomes[2 * number : 2 * number + 2]
        completion, opposed = pair if number % 2 else pair[::-1]
        job = await stored_job(market, job_id)
        if completion is None:
            assert (job.status, job.earned) == (JobStatus.COMPLETED, 9 * MICRO)
            lost = {"cancel": Code.JOB_OVER, "fail": Code.ATTEMPT_NOT_CURRENT}.get(rival)
            assert opposed is lost
        else:
            assert completion is Code.ATTEMPT_NOT_CURRENT
            assert opposed is None
            left = JobStatus.CANCELLED if rival == "cancel" else JobStatus.WAITING
            assert job.status == left
        shares += job.earned
        retried = "lost" if rival == "take_back" else "failed"
        outcome = retried if job.status == JobStatus.WAITING else job.status
        assert [attempt.outcome for attempt in await history(market, job_id)] == [outcome]
    assert await available(market, worker) == shares
    report = await audit_ledger(market.store)
    assert report.passed, report


@pytest.mark.both_engines
async def test_of_accepting_and_cancelling_at_once_the_books_agree(market: Market) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    device = await device_of(market, worker)
    jobs = [await market.jobs.create(buyer, wanted()) for _ in range(10)]
    races: list[Awaitable[Any]] = []
    for number, job_id in enumerate(jobs):
        race = [market.jobs.accept(device, job_id), market.jobs.cancel(buyer, job_id)]
        races.extend(race if number % 2 else race[::-1])
    outcomes = await asyncio.gather(*races, return_exceptions=True)
    assert {code_of(outcome) for outcome in outcomes} <= {None, Code.JOB_NOT_WAITING}
    assert {(await stored_job(market, job_id)).status for job_id in jobs} == {JobStatus.CANCELLED}
    assert (await available(market, buyer), await held(market, buyer)) == (100 * MICRO, 0)


async def test_a_job_that_fails_waits_again_and_keeps_its_hold(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await market.jobs.fail(device, job_id, "no GPU")
    job = await stored_job(market, job_id)
    assert (job.status, job.device_id, job.attempts) == (JobStatus.WAITING, None, 1)
    assert (job.accepted_at, job.finished_at, job.earned) == (None, None, 0)
    assert (job.result, job.failure_reason) == (None, "no GPU")
    assert (await available(market, worker), await held(market, buyer)) == (0, 10 * MICRO)
    other = await device_of(market, await market.person())
    assert (await market.jobs.accept(other, job_id)).attempts == 2


async def test_an_owner_that_has_failed_at_a_job_by_any_device_leaves_it_to_others(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await market.jobs.fail(device, job_id, "no GPU")
    sibling = await device_of(market, worker)
    for each in (device, sibling):
        assert await refusal(market.jobs.accept(each, job_id)) is Code.JOB_FAILED_HERE
    assert (await stored_job(market, job_id)).attempts == 1
    assert await market.jobs.failed_owners([job_id]) == {job_id: {worker}}
    await market.jobs.accept(device, await market.jobs.create(buyer, wanted()))
    other = await device_of(market, await market.person())
    await market.jobs.accept(other, job_id)
    assert await refusal(market.jobs.accept(device, job_id)) is Code.JOB_NOT_WAITING


@pytest.mark.both_engines
async def test_the_words_that_were_not_understood_are_found_for_a_list(market: Market) -> None:
    buyer = await market.person(credit="100")
    spec = Spec(None, Resources(), warnings=("one", "two"))
    job_id = await market.jobs.create(buyer, replace(wanted(), spec=spec))
    clear = await market.jobs.create(buyer, replace(wanted(), spec=Spec(None, Resources())))
    plain = await market.jobs.create(buyer, wanted())
    found = await market.jobs.spec_warnings([job_id, clear, plain])
    assert found == {job_id: ["one", "two"]}
    assert await market.jobs.spec_warnings([]) == {}


async def test_a_device_that_lost_a_job_may_take_it_once_more(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    assert await market.silence(SILENCE + SWEEP_SECONDS) == 1
    assert (await market.jobs.accept(device, job_id)).attempts == 2
    assert await market.silence(SILENCE + SWEEP_SECONDS) == 1
    for each in (device, await device_of(market, worker)):
        assert await refusal(market.jobs.accept(each, job_id)) is Code.JOB_FAILED_HERE
    assert (await stored_job(market, job_id)).status == JobStatus.WAITING


async def test_one_person_s_devices_do_not_make_a_job_fail(market: Market) -> None:
    buyer, hostile, honest = (
        await market.person(credit="10"),
        *[await market.person() for _ in range(2)],
    )
    job_id = await market.jobs.create(buyer, wanted())
    for device in [await device_of(market, hostile) for _ in range(ATTEMPTS)]:
        with suppress(MarketError):
            await market.jobs.accept(device, job_id)
            await market.jobs.fail(device, job_id, "I do not like it")
    job = await stored_job(market, job_id)
    assert (job.status, job.attempts) == (JobStatus.WAITING, 1)
    device = await device_of(market, honest)
    await market.jobs.accept(device, job_id)
    await market.jobs.complete(device, job_id, "done")
    assert await available(market, honest) == 9 * MICRO


async def test_a_late_report_of_an_earlier_attempt_is_refused(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    assert await market.silence(SILENCE + SWEEP_SECONDS) == 1
    await market.jobs.accept(device, job_id)
    for late in (
        market.jobs.complete(device, job_id, "late", attempt=1),
        market.jobs.fail(device, job_id, "late", attempt=1),
        market.jobs.complete(device, job_id, "early", attempt=3),
    ):
        assert await refusal(late) is Code.ATTEMPT_NOT_CURRENT
    assert (await stored_job(market, job_id)).status == JobStatus.RUNNING
    for _ in range(2):
        await market.jobs.complete(device, job_id, "done", attempt=2)
    late = market.jobs.complete(device, job_id, "late", attempt=1)
    assert await refusal(late) is Code.ATTEMPT_NOT_CURRENT
    assert (await stored_job(market, job_id)).result == "done"


async def test_a_device_that_was_revoked_after_it_was_recognised_gets_no_job(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await market.jobs.create(buyer, wanted()), await device_of(market, worker)
    await market.devices.revoke(worker, device.id)
    assert await refusal(market.jobs.accept(device, job_id)) is Code.WORKER_UNAUTHORIZED
    assert (await stored_job(market, job_id)).status == JobStatus.WAITING


async def test_a_revoked_device_hands_its_jobs_back(market: Market) -> None:
    sweeper = market.sweeper(JobSweeps(take_back=2))
    buyer, worker = await market.person(credit="60"), await market.person()
    other, another = await running(market, buyer, worker)
    device = await device_of(market, worker)
    jobs = [await market.jobs.create(buyer, wanted()) for _ in range(5)]
    await market.jobs.accept(device, jobs[0])
    await market.jobs.complete(device, jobs[0], "")
    for job_id in jobs[1:]:
        await market.jobs.accept(device, job_id)
    for _ in range(2):
        await market.devices.revoke(worker, device.id)
        await sweeper.take_back_from(device.id)
    assert (await stored_job(market, jobs[0])).status == JobStatus.COMPLETED
    for job_id in jobs[1:]:
        job = await stored_job(market, job_id)
        assert (job.status, job.failure_reason) == (JobStatus.WAITING, REVOKED)
    assert (await stored_job(market, other)).device_id == another.id


@pytest.mark.both_engines
async def test_of_revoking_and_accepting_at_once_no_job_stays_with_the_device(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="200"), await market.person()
    for _ in range(10):
        job_id, device = await market.jobs.create(buyer, wanted()), await device_of(market, worker)

        async def revoke(revoked: DeviceRow = device) -> None:
            await market.devices.revoke(worker, revoked.id)
            await market.job_sweeper.take_back_from(revoked.id)

        accepting = market.jobs.accept(device, job_id)
        outcome, _ = await asyncio.gather(accepting, revoke(), return_exceptions=True)
        assert code_of(outcome) in (None, Code.WORKER_UNAUTHORIZED)
        assert (await stored_job(market, job_id)).status == JobStatus.WAITING


async def test_a_device_lists_the_jobs_that_it_runs(market: Market) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    await running(market, buyer, worker)
    device = await device_of(market, worker)
    jobs = [await market.jobs.create(buyer, wanted()) for _ in range(4)]
    for job_id in jobs:
        await market.jobs.accept(device, job_id)
    await market.jobs.complete(device, jobs[0], "")
    page = await market.jobs.page_of_device(device, before="", limit=2)
    assert [job.id for job in page] == [jobs[3], jobs[2]]
    page = await market.jobs.page_of_device(device, before=jobs[2], limit=2)
    assert [job.id for job in page] == [jobs[1]]


async def test_the_cost_of_a_job_is_known_once_it_is_over(market: Market) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    done, device = await running(market, buyer, worker)
    shared, _ = await running(market, buyer, worker)
    released = await market.jobs.create(buyer, wanted())
    assert (await market.jobs.find(buyer, done)).paid is None
    await market.jobs.complete(device, done, "")
    market.clock.now += HOUR
    await market.jobs.cancel(buyer, shared)
    await market.jobs.cancel(buyer, released)
    expected = {done: 10 * MICRO, shared: 5 * MICRO, released: 0}
    for job_id, paid in expected.items():
        assert (await market.jobs.find(buyer, job_id)).paid == paid
    page = await market.jobs.page_of_user(buyer, status=None, before="", limit=10)
    assert {job.id: job.paid for job in page} == expected


async def test_the_third_owner_that_fails_is_the_last_and_the_price_is_released(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await market.jobs.create(buyer, wanted())
    owners = [worker, await market.person(), await market.person()]
    await prove(market, *owners)
    devices = [await device_of(market, owner) for owner in owners]
    for number, device in enumerate(devices):
        assert (await stored_job(market, job_id)).status == JobStatus.WAITING
        await market.jobs.accept(device, job_id)
        await market.jobs.fail(device, job_id, f"reason {number}")
    job = await stored_job(market, job_id)
    assert (job.status, job.attempts, job.result) == (JobStatus.FAILED, 3, None)
    assert job.failure_reason == "reason 2"
    assert (job.finished_at, job.earned) == (market.clock.now, 0)
    assert (await available(market, buyer), await held(market, buyer)) == (10 * MICRO, 0)
    assert (await available(market, worker), await revenue(market)) == (0, 0)
    assert await refusal(market.jobs.accept(devices[0], job_id)) is Code.JOB_NOT_WAITING
    assert await refusal(market.jobs.cancel(buyer, job_id)) is Code.JOB_OVER


async def test_failing_again_is_late(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await market.jobs.fail(device, job_id, "cannot")
    assert await refusal(market.jobs.fail(device, job_id, "x")) is Code.ATTEMPT_NOT_CURRENT
    assert (await stored_job(market, job_id)).attempts == 1


async def test_a_result_that_comes_after_the_job_was_taken_back_is_not_paid(
    market: Market,
) -> None:
    buyer, worker, other = [await market.person(credit="10") for _ in range(3)]
    job_id, late = await running(market, buyer, worker)
    assert await market.silence(SILENCE + SWEEP_SECONDS) == 1
    for attempt in (
        market.jobs.complete(late, job_id, ""),
        market.jobs.fail(late, job_id, "x"),
        market.jobs.work(late, job_id),
    ):
        assert await refusal(attempt) is Code.ATTEMPT_NOT_CURRENT
    current = await device_of(market, other)
    await market.jobs.accept(current, job_id)
    assert await refusal(market.jobs.complete(late, job_id, "")) is Code.ATTEMPT_NOT_CURRENT
    await market.jobs.complete(current, job_id, "")
    assert await refusal(market.jobs.complete(late, job_id, "")) is Code.ATTEMPT_NOT_CURRENT
    assert (await available(market, worker), await available(market, other)) == (
        10 * MICRO,
        19 * MICRO,
    )


async def test_another_device_has_no_such_job(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    sibling = await device_of(market, worker)
    for _ in range(2):
        for attempt in (
            market.jobs.complete(sibling, job_id, ""),
            market.jobs.fail(sibling, job_id, "x"),
            market.jobs.work(sibling, job_id),
            market.jobs.complete(device, market.identifiers.new(), ""),
        ):
            assert await refusal(attempt) is Code.JOB_NOT_FOUND
        await market.jobs.complete(device, job_id, "")
    assert await refusal(market.jobs.work(device, job_id)) is Code.ATTEMPT_NOT_CURRENT


async def test_cancelling_a_waiting_job_releases_the_price(market: Market) -> None:
    buyer = await market.person(credit="10")
    job_id = await market.jobs.create(buyer, wanted())
    market.clock.now += 10 * HOUR
    await market.jobs.cancel(buyer, job_id)
    job = await stored_job(market, job_id)
    assert (job.status, job.finished_at) == (JobStatus.CANCELLED, market.clock.now)
    assert (await available(market, buyer), await held(market, buyer)) == (10 * MICRO, 0)
    assert await history(market, job_id) == []


@pytest.mark.parametrize(
    ("price", "hours", "ran", "gross"),
    [
        (10 * MICRO, 2, 0, 0),
        (10 * MICRO, 2, HOUR, 5 * MICRO),
        (10 * MICRO, 2, 2 * HOUR, 10 * MICRO),
        (10 * MICRO, 2, 300 * HOUR, 10 * MICRO),
        (3_333_333, 1, 1_234, 1_142_592),
        (1, 1, HOUR - 1, 0),
        (10 * MICRO, 2, -60, 0),
    ],
)
async def test_cancelling_a_running_job_pays_for_the_share_that_has_run(
    market: Market, price: int, hours: int, ran: int, gross: int
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker, price=price, duration_hrs=hours)
    market.clock.now += ran
    await market.jobs.cancel(buyer, job_id)
    fee = gross // 10
    assert (await available(market, worker), await revenue(market)) == (gross - fee, fee)
    assert (await available(market, buyer), await held(market, buyer)) == (10 * MICRO - gross, 0)
    job = await stored_job(market, job_id)
    assert (job.status, job.earned) == (JobStatus.CANCELLED, gross - fee)
    assert await refusal(market.jobs.complete(device, job_id, "")) is Code.ATTEMPT_NOT_CURRENT


async def test_only_the_attempt_that_runs_is_paid_when_the_job_is_cancelled(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    again, device = await running(market, buyer, worker)
    waiting, _ = await running(market, buyer, worker)
    market.clock.now += HOUR
    await market.jobs.fail(device, again, "cannot")
    await market.jobs.accept(await device_of(market, await market.person()), again)
    await market.jobs.cancel(buyer, again)
    assert (await available(market, worker), await available(market, buyer)) == (0, 10 * MICRO)
    assert await market.silence(SILENCE + SWEEP_SECONDS) == 1
    await market.jobs.cancel(buyer, waiting)
    assert (await available(market, worker), await available(market, buyer)) == (0, 20 * MICRO)


async def test_cancelling_again_changes_nothing(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, _ = await running(market, buyer, worker)
    market.clock.now += HOUR
    await asyncio.gather(*(market.jobs.cancel(buyer, job_id) for _ in range(20)))
    first = await stored_job(market, job_id)
    market.clock.now += HOUR
    await market.jobs.cancel(buyer, job_id)
    assert await stored_job(market, job_id) == first
    assert (await available(market, worker), await available(market, buyer)) == (
        4_500_000,
        5 * MICRO,
    )


async def test_a_job_that_is_over_cannot_be_cancelled(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await market.jobs.complete(device, job_id, "")
    assert await refusal(market.jobs.cancel(buyer, job_id)) is Code.JOB_OVER
    assert (await stored_job(market, job_id)).status == JobStatus.COMPLETED


async def test_a_job_of_another_user_is_not_found(market: Market) -> None:
    buyer, other = await market.person(credit="10"), await market.person()
    job_id = await market.jobs.create(buyer, wanted())
    for attempt in (
        market.jobs.cancel(other, job_id),
        market.jobs.find(other, job_id),
        market.jobs.cancel(buyer, market.identifiers.new()),
        market.jobs.find(buyer, market.identifiers.new()),
    ):
        assert await refusal(attempt) is Code.JOB_NOT_FOUND
    assert (await market.jobs.find(buyer, job_id)).job.status == JobStatus.WAITING


async def test_a_job_is_taken_back_after_ten_silent_minutes_and_not_before(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    assert await market.silence(105) == 0
    market.devices.heartbeat(device, {})
    assert await market.silence(SILENCE) == 0
    assert (await stored_job(market, job_id)).status == JobStatus.RUNNING
    assert await market.silence(SWEEP_SECONDS) == 1
    job = await stored_job(market, job_id)
    assert (job.status, job.device_id, job.attempts) == (JobStatus.WAITING, None, 1)
    assert await held(market, buyer) == 10 * MICRO
    assert await market.job_sweeper.take_back() == 0


async def test_a_device_that_never_reported_has_ten_minutes_from_accepting(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    market.clock.now += 10 * SILENCE
    job_id, _ = await running(market, buyer, worker)
    assert await market.silence(SILENCE) == 0
    assert await market.silence(SWEEP_SECONDS) == 1
    assert (await stored_job(market, job_id)).status == JobStatus.WAITING


async def test_a_job_whose_device_reports_is_never_taken_back(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    for _ in range(5):
        assert await market.silence(SILENCE) == 0
        market.devices.heartbeat(device, {})
    assert (await stored_job(market, job_id)).status == JobStatus.RUNNING


@pytest.mark.both_engines
async def test_a_report_that_is_being_written_keeps_the_job(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    assert await market.silence(SILENCE) == 0
    market.clock.now += SWEEP_SECONDS
    market.devices.heartbeat(device, {})
    write, writing, written = market.store.write, asyncio.Event(), asyncio.Event()

    async def slow(*args: Any, **kwargs: Any) -> Any:
        if not writing.is_set():
            writing.set()
            await written.wait()
        return await write(*args, **kwargs)

    looking = asyncio.Event()
    read = market.store.read

    async def seen(*args: Any, **kwargs: Any) -> Any:
        looking.set()
        return await read(*args, **kwargs)

    monkeypatch.setattr(market.store, "write", slow)
    monkeypatch.setattr(market.store, "read", seen)
    flushing = asyncio.create_task(market.devices.reports.flush())
    await writing.wait()
    taking = asyncio.create_task(market.job_sweeper.take_back())
    for _ in range(5):
        await asyncio.sleep(0)
    if looking.is_set():  # it did not wait for the report
        await taking
    written.set()
    await asyncio.gather(flushing, taking)
    monkeypatch.undo()
    assert (await stored_job(market, job_id)).status == JobStatus.RUNNING


async def test_silence_counts_only_while_the_service_listens(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, _ = await running(market, buyer, worker)
    market.clock.now += 100 * SILENCE
    sweeper = market.sweeper(JobSweeps())
    assert await market.silence(UNHEARD, sweeper) == 0
    assert (await stored_job(market, job_id)).status == JobStatus.RUNNING
    assert await market.silence(SWEEP_SECONDS, sweeper) == 1
    assert (await stored_job(market, job_id)).status == JobStatus.WAITING


async def test_a_jump_of_the_clock_is_no_silence(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    kept, living = await running(market, buyer, worker)
    lost, vanished = await running(market, buyer, worker)
    for device in (living, vanished):
        market.devices.heartbeat(device, {})
    assert await market.silence(300) == 0
    market.devices.heartbeat(living, {})
    market.clock.jump(HOUR)
    taken = 0
    for _ in range(2 * SILENCE // 30):
        taken += await market.silence(30)
        market.devices.heartbeat(living, {})
    assert taken == 1
    assert (await stored_job(market, kept)).status == JobStatus.RUNNING
    assert (await stored_job(market, lost)).status == JobStatus.WAITING


async def test_a_daemon_with_a_late_clock_uses_the_time_of_one_with_a_right_clock(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    behind = Clock(market.clock.now)
    elsewhere = Devices(replace(market.context, now=behind.seconds), Bounds, is_shared=True)
    market.clock.jump(HOUR)
    for _ in range(2 * SILENCE // 30):
        behind.now += 30
        elsewhere.heartbeat(device, {})
        await elsewhere.reports.flush()
        assert await market.silence(30) == 0
    assert (await stored_job(market, job_id)).status == JobStatus.RUNNING
    assert await market.silence(UNHEARD + SWEEP_SECONDS) == 1


async def test_the_job_of_a_revoked_device_is_taken_back_in_the_end(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    assert await market.silence(SILENCE) == 0
    market.devices.heartbeat(device, {})
    await market.devices.reports.flush()  # no report is written about a revoked device
    await market.devices.revoke(worker, device.id)
    assert await market.silence(UNHEARD) == 0
    assert await market.silence(SWEEP_SECONDS) == 1
    assert (await stored_job(market, job_id)).status == JobStatus.WAITING


async def test_a_job_that_machines_of_three_owners_abandon_has_failed(market: Market) -> None:
    buyer = await market.person(credit="10")
    job_id = await market.jobs.create(buyer, wanted())
    for _ in range(ATTEMPTS):
        owner = await market.person()
        await prove(market, owner)
        await market.jobs.accept(await device_of(market, owner), job_id)
        assert await market.silence(SILENCE + SWEEP_SECONDS) == 1
    assert (await stored_job(market, job_id)).status == JobStatus.FAILED
    assert (await available(market, buyer), await held(market, buyer)) == (10 * MICRO, 0)


async def test_many_abandoned_jobs_are_taken_back_a_part_at_a_time(market: Market) -> None:
    market.job_sweeper._overdue.end_max_attempts = 2
    buyer, worker = await market.person(credit="30"), await market.person()
    for _ in range(3):
        await running(market, buyer, worker)
    assert await market.silence(SILENCE) == 0
    market.clock.now += SWEEP_SECONDS
    assert [await market.job_sweeper.take_back() for _ in range(3)] == [2, 1, 0]


async def test_a_job_that_could_not_be_taken_back_is_not_counted_and_comes_next_time(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    first, _ = await running(market, buyer, worker)
    market.clock.now += 1
    second, _ = await running(market, buyer, worker)
    assert await market.silence(SILENCE - SWEEP_SECONDS) == 0
    market.clock.now += 2 * SWEEP_SECONDS
    write, failures = market.store.write, [UnavailableError("gone")]

    async def once(unit: Any, *args: Any, **kwargs: Any) -> Any:
        if failures and unit.__name__ == "take_back":
            raise failures.pop()
        return await write(unit, *args, **kwargs)

    monkeypatch.setattr(market.store, "write", once)
    taken = await market.job_sweeper.take_back()
    monkeypatch.undo()
    assert (await stored_job(market, first)).status == JobStatus.RUNNING
    assert (await stored_job(market, second)).status == JobStatus.WAITING
    assert await market.job_sweeper.take_back() == 1
    assert (await stored_job(market, first)).status == JobStatus.WAITING
    assert taken == 1


async def test_earnings_of_today_begin_at_midnight_utc(market: Market) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    midnight = market.clock.now - market.clock.now % 86_400 + 86_400
    assert await market.jobs.earned_today(worker) == {}
    jobs = [await running(market, buyer, worker, duration_hrs=100) for _ in range(3)]
    devices = [device for _, device in jobs]
    market.clock.now = midnight - 1
    await market.jobs.complete(devices[0], jobs[0][0], "")
    assert await market.jobs.earned_today(worker) == {devices[0].id: 9 * MICRO}
    market.clock.now = midnight
    assert await market.jobs.earned_today(worker) == {}
    await market.jobs.complete(devices[1], jobs[1][0], "")
    more, _ = await running(market, buyer, buyer, price=MICRO)
    await market.jobs.cancel(buyer, more)
    await market.jobs.accept(devices[1], last := await market.jobs.create(buyer, wanted(price=10)))
    await market.jobs.complete(devices[1], last, "")
    assert await market.jobs.earned_today(worker) == {devices[1].id: 9 * MICRO + 9}
    assert await market.jobs.earned_today(buyer) == {}
    market.clock.now = midnight + 86_399
    assert await market.jobs.earned_today(worker) == {devices[1].id: 9 * MICRO + 9}


async def test_a_share_of_a_cancelled_job_is_earned_today(market: Market) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    job_id, device = await running(market, buyer, worker)
    market.clock.now += HOUR
    await market.jobs.cancel(buyer, job_id)
    assert await market.jobs.earned_today(worker) == {device.id: 4_500_000}


async def test_the_attempts_are_a_jobs_history(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    start = market.clock.now
    job_id, failing = await running(market, buyer, worker)
    market.clock.now = start + 10
    await market.jobs.fail(failing, job_id, "cannot")
    vanishing = await device_of(market, await market.person())
    await market.jobs.accept(vanishing, job_id)
    assert await market.silence(SILENCE + SWEEP_SECONDS) == 1
    market.clock.now += 5
    done = market.clock.now
    await market.jobs.accept(vanishing, job_id)
    await market.jobs.complete(vanishing, job_id, "")
    assert await history(market, job_id) == [
        (1, failing.id, start, start + 10, "failed"),
        (2, vanishing.id, start + 10, done - 5, "lost"),
        (3, vanishing.id, done, done, "completed"),
    ]


class Spy:
    """A transaction that notes which accounts it locks, in order."""

    def __init__(self, tx: Transaction, locked: list[str]) -> None:
        self._tx = tx
        self._locked = locked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    async def lock(self, table: str, ids: Sequence[str]) -> None:
        if table == "accounts":
            self._locked.extend(each for each in ids if each not in self._locked)
        await self._tx.lock(table, ids)


async def test_every_change_locks_accounts_in_the_one_order_that_cannot_deadlock(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    write, transactions = market.store.write, []

    async def spied(unit: Any, *args: Any, **kwargs: Any) -> Any:
        async def noting(tx: Transaction) -> Any:
            locked: list[str] = []
            transactions.append((unit.__name__, locked))
            return await unit(Spy(tx, locked), *args, **kwargs)

        return await write(noting)

    monkeypatch.setattr(market.store, "write", spied)
    done, device = await running(market, buyer, worker)
    await market.jobs.complete(device, done, "")
    stopped, _ = await running(market, buyer, worker)
    market.clock.now += HOUR
    await market.jobs.cancel(buyer, stopped)
    await market.jobs.cancel(buyer, await market.jobs.create(buyer, wanted()))
    monkeypatch.undo()
    assert max(len(locked) for _, locked in transactions) > 2
    unordered = [each for each in transactions if each[1] != sorted(each[1])]
    assert unordered == []


@pytest.mark.both_engines
async def test_the_marketplace_lists_open_jobs_of_all_users_newest_first(market: Market) -> None:
    buyer, other, worker = [await market.person(credit="100") for _ in range(3)]
    waiting = await market.jobs.create(buyer, wanted(job_type="docker"))
    run, _ = await running(market, other, worker, job_type="docker")
    done, device = await running(market, buyer, worker)
    await market.jobs.complete(device, done, "")
    cancelled = await market.jobs.create(buyer, wanted())
    await market.jobs.cancel(buyer, cancelled)
    script = await market.jobs.create(other, wanted(job_type="script"))

    async def listed(
        status: JobStatus | None = None, job_type: str = "", before: str = "", limit: int = 10
    ) -> list[str]:
        page = await market.jobs.page_open(
            status=status, job_type=job_type, before=before, limit=limit
        )
        return [job.id for job in page]

    assert await listed() == [script, run, waiting]
    assert await listed(JobStatus.WAITING) == [script, waiting]
    assert await listed(JobStatus.RUNNING) == [run]
    assert await listed(job_type="docker") == [run, waiting]
    assert await listed(JobStatus.WAITING, "docker") == [waiting]
    assert await listed(JobStatus.COMPLETED) == []
    assert await listed(limit=2) == [script, run]
    assert await listed(before=run, limit=2) == [waiting]


async def test_a_buyer_lists_all_jobs_of_its_own(market: Market) -> None:
    buyer, other = await market.person(credit="100"), await market.person(credit="100")
    await market.jobs.create(other, wanted())
    made = [await market.jobs.create(buyer, wanted()) for _ in range(4)]
    await market.jobs.cancel(buyer, made[1])

    async def listed(
        status: JobStatus | None = None, before: str = "", limit: int = 10
    ) -> list[str]:
        page = await market.jobs.page_of_user(buyer, status=status, before=before, limit=limit)
        return [job.id for job in page]

    assert await listed() == made[::-1]
    assert await listed(JobStatus.CANCELLED) == [made[1]]
    assert await listed(limit=3) == made[:0:-1]
    assert await listed(before=made[1]) == [made[0]]


@pytest.mark.both_engines
async def test_owners_that_refuse_a_job_do_not_end_it(market: Market) -> None:
    buyer = await market.person(credit="20")
    job_id = await market.jobs.create(buyer, wanted())
    refused = Ending(FailureKind.REFUSED)
    for _ in range(4):
        device = await on(market, job_id, await market.person())
        await market.jobs.fail(device, job_id, "not this image", ending=refused)
        assert (await stored_job(market, job_id)).status == JobStatus.WAITING
    device = await on(market, job_id, await market.person())
    await market.jobs.fail(device, job_id, "broken")
    assert (await stored_job(market, job_id)).status == JobStatus.WAITING
    # And not for ever.

    async def before_last(tx: Transaction) -> None:
        sql = "UPDATE jobs SET attempts = :attempts WHERE id = :id"
        await tx.run(sql, attempts=ATTEMPTS_MAX - 1, id=job_id)

    await market.store.write(before_last)
    device = await on(market, job_id, await market.person())
    await market.jobs.fail(device, job_id, "not this image", ending=refused)
    assert (await stored_job(market, job_id)).status == JobStatus.FAILED


@pytest.mark.parametrize("kind", [None, FailureKind.HOST, FailureKind.IMAGE])
async def test_three_unknown_accounts_do_not_end_anothers_job(
    market: Market, kind: FailureKind | None
) -> None:
    buyer, honest = await market.person(credit="10"), await market.person()
    job_id = await market.jobs.create(buyer, wanted())
    for _ in range(ATTEMPTS):
        rival = await device_of(market, await market.person())
        await market.jobs.accept(rival, job_id)
        await market.jobs.fail(rival, job_id, "it is broken", ending=Ending(kind))
    assert (await stored_job(market, job_id)).status == JobStatus.WAITING
    await market.jobs.complete(await on(market, job_id, honest), job_id, "done")
    assert await available(market, honest) == 9 * MICRO


async def test_a_job_that_every_owner_fails_is_failed(market: Market) -> None:
    buyer = await market.person(credit="10")
    job_id = await market.jobs.create(buyer, wanted())
    for attempt in range(OWNERS_MAX):
        assert (await stored_job(market, job_id)).attempts == attempt
        device = await on(market, job_id, await market.person())
        await market.jobs.fail(device, job_id, "it is broken")
    assert (await stored_job(market, job_id)).status == JobStatus.FAILED
    assert await available(market, buyer) == 10 * MICRO
