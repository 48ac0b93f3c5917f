"""Reports of devices about their attempts: leases, reports, escrow; on both engines."""

import asyncio

import pytest
from msgspec.structs import replace
from support.base.brief import brief
from support.market import books
from support.market.books import refusal, stored_job
from support.market.jobs import code_of, device_of, history, on, running, specified, wanted
from support.market.market import Market

from market.attempts.attempts import require_current, slots_left
from market.base.errors import Code, MarketError
from market.base.states import JobStatus
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from storage.devices.devices import DeviceRow
from storage.jobs.jobs import JobRow


async def test_only_the_current_attempt_of_the_device_counts(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker)
    read = market.store.read
    assert (await read(require_current, device.id, job_id, 1)).id == job_id
    assert (await read(require_current, device.id, job_id, None)).attempts == 1
    assert await refusal(read(require_current, device.id, job_id, 2)) is Code.ATTEMPT_NOT_CURRENT
    stranger = await device_of(market, worker)
    assert await refusal(read(require_current, stranger.id, job_id, 1)) is Code.JOB_NOT_FOUND
    nothing = market.identifiers.new()
    assert await refusal(read(require_current, device.id, nothing, 1)) is Code.JOB_NOT_FOUND
    await market.jobs.cancel(buyer, job_id)
    with pytest.raises(MarketError, match="buyer has cancelled") as caught:
        await read(require_current, device.id, job_id, 1)
    assert caught.value.code is Code.ATTEMPT_NOT_CURRENT


@pytest.mark.both_engines
@pytest.mark.parametrize("rounds", brief([2, 10]))
async def test_many_accepts_of_one_device_give_it_no_more_than_its_slots(
    market: Market, rounds: int
) -> None:
    buyer, worker = await market.person(), await market.person()
    jobs = [await market.jobs.create(buyer, wanted(price=0)) for _ in range(100)]
    device = await device_of(market, worker)
    outcomes: list[JobRow | BaseException] = []
    for _ in range(rounds):
        outcomes += await asyncio.gather(
            *(market.jobs.accept(device, job_id) for job_id in jobs), return_exceptions=True
        )
    codes = [code_of(outcome) for outcome in outcomes]
    accepted = {outcome.id for outcome in outcomes if isinstance(outcome, JobRow)}
    assert len(accepted) == 4
    assert set(codes) == {None, Code.DEVICE_FULL}
    waiting = await market.jobs.page_of_user(
        buyer, status=JobStatus.WAITING, before="", limit=1_000
    )
    assert len(waiting) == 96
    # It gets its held job again, and its finished job makes room.
    assert (await market.jobs.accept(device, min(accepted))).id in accepted
    await market.jobs.complete(device, min(accepted), "")
    await market.jobs.accept(device, waiting[0].id)
    assert await refusal(market.jobs.accept(device, waiting[1].id)) is Code.DEVICE_FULL
    assert (await audit_ledger(market.store)).passed


async def test_a_device_that_has_completed_ten_jobs_may_hold_more(market: Market) -> None:
    buyer, worker = await market.person(), await market.person()
    device = await device_of(market, worker)
    left = [await market.store.read(slots_left, device.id, market.bounds())]
    for _ in range(10):
        job_id = await market.jobs.create(buyer, wanted(price=0))
        await market.jobs.accept(device, job_id)
        left.append(await market.store.read(slots_left, device.id, market.bounds()))
        await market.jobs.complete(device, job_id, "")
    left.append(await market.store.read(slots_left, device.id, market.bounds()))
    assert left == [4, *[3] * 10, 16]
    unbounded = replace(market.bounds(), device_slots=0, new_device_slots=0)
    assert await market.store.read(slots_left, device.id, unbounded) is None


async def test_full_says_nothing_of_jobs_that_could_not_be_had_anyway(market: Market) -> None:
    buyer, worker = await market.person(), await market.person()
    market.change_bounds(replace(market.bounds(), new_device_slots=1))
    job_id, device = await running(market, buyer, worker, price=0)
    taken, _ = await running(market, buyer, worker, price=0)
    nothing = market.identifiers.new()
    assert await refusal(market.jobs.accept(device, nothing)) is Code.JOB_NOT_FOUND
    assert await refusal(market.jobs.accept(device, taken)) is Code.JOB_NOT_WAITING
    assert (await market.jobs.accept(device, job_id)).attempts == 1
    market.change_bounds(replace(market.bounds(), new_device_slots=0))
    await market.jobs.accept(device, await market.jobs.create(buyer, wanted(price=0)))


@pytest.mark.both_engines
@pytest.mark.parametrize("rival", ["cancel", "forget", "revoke", "fail", "complete elsewhere"])
async def test_of_a_report_and_its_rival_on_another_daemon_one_counts(
    market: Market, rival: str
) -> None:
    buyer, worker = await market.person(credit="50"), await market.person()
    elsewhere = Market(market.store, market.clock)
    elsewhere.passwords.close()
    jobs = []
    for _ in range(5):
        job_id = await specified(market, buyer)
        jobs.append((job_id, await on(market, job_id, worker)))

    async def oppose(job_id: str, device: DeviceRow) -> None:
        if rival == "cancel":
            await elsewhere.jobs.cancel(buyer, job_id)
        elif rival == "forget":
            assert await elsewhere.attempt_reports.sync(device, {}, []) == []
        elif rival == "revoke":
            await elsewhere.devices.revoke(worker, device.id)
            await elsewhere.job_sweeper.take_back_from(device.id)
        elif rival == "fail":
            await elsewhere.jobs.fail(device, job_id, "cannot", attempt=1)
        else:
            await elsewhere.jobs.complete(device, job_id, "there", attempt=1)

    races = []
    for number, (job_id, device) in enumerate(jobs):
        race = [market.jobs.complete(device, job_id, "here", attempt=1), oppose(job_id, device)]
        races += race if number % 2 else race[::-1]
    codes = {code_of(each) for each in await asyncio.gather(*races, return_exceptions=True)}
    assert codes <= {None, Code.ATTEMPT_NOT_CURRENT, Code.JOB_OVER}
    completed = 0
    for job_id, device in jobs:
        job, [attempt] = await stored_job(market, job_id), await history(market, job_id)
        assert attempt.outcome in {"completed", "cancelled", "lost", "failed"}
        completed += job.status == JobStatus.COMPLETED
        if job.status != JobStatus.COMPLETED:
            late = market.jobs.complete(device, job_id, "late", attempt=1)
            assert await refusal(late) is Code.ATTEMPT_NOT_CURRENT
    assert await books.held(market, worker, Currency.CREDIT) == completed * 9 * MICRO
    assert sum(market.jobs.notices.attempt_ends.values()) + sum(
        elsewhere.jobs.notices.attempt_ends.values()
    ) == len(jobs)
    assert (await audit_ledger(market.store)).passed
