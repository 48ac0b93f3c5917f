"""Attempts that end without a word: silent ones, those not begun, those that take too long."""

import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.market.books import stored_job
from support.market.jobs import device_of, history, on, running, specified, wanted
from support.market.market import SWEEP_SECONDS, Market

from market.attempts.attempts import Ending, FailureKind
from market.base.errors import Code, MarketError
from market.base.states import JobStatus
from market.base.sweeping import PUT_OFF_SECONDS
from market.jobs.attempt_reports import FORGOTTEN, TRANSIT_SECONDS, Named
from market.jobs.overdue import NOT_STARTED, TOO_LONG, VANISHED, Ended, Leases
from market.jobs.pay import Moment
from market.money.audit import audit_ledger
from market.money.money import MICRO
from storage.attempts import attempts as queries
from storage.attempts.attempts import AttemptRow
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.jobs.jobs import JobRow

HOUR = 3_600
LEASE, START, PREPARE, STOP, DELIVERY = 600, 300, 1_800, 720, 6 * HOUR


async def attempt_of(market: Market, job_id: str, number: int = 1) -> AttemptRow:
    rows = await market.store.read(queries.of_job, job_id, limit=10)
    return rows[number - 1]


async def named(
    market: Market, device: DeviceRow, *job_ids: str, phase: str | None = "running"
) -> None:
    """Let a device say that it holds these jobs, in their first attempts."""
    await market.attempt_reports.sync(device, {}, [Named(job_id, 1, phase) for job_id in job_ids])


async def pass_with(
    market: Market, seconds: int, device: DeviceRow, *job_ids: str, phase: str | None = "running"
) -> int:
    """Let time pass while a device names its jobs every minute. Return the number taken back."""
    taken = 0
    for _ in range(seconds // 60):
        await named(market, device, *job_ids, phase=phase)
        taken += await market.silence(60)
    return taken + await market.silence(seconds % 60)


async def test_an_attempt_that_no_device_names_is_taken_back_after_its_lease(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer)
    device = await on(market, job_id, worker)
    taken, began = 0, market.clock.steady()
    while (await stored_job(market, job_id)).status == JobStatus.RUNNING:
        market.devices.heartbeat(device, {})  # without any of its attempts
        taken += await market.silence(SWEEP_SECONDS)
        assert market.clock.steady() - began < 2 * LEASE
    assert taken == 1
    assert LEASE <= market.clock.steady() - began <= LEASE + 2 * SWEEP_SECONDS
    attempt = await attempt_of(market, job_id)
    assert (attempt.outcome, attempt.reason) == ("lost", VANISHED)


async def test_an_attempt_that_is_named_or_logs_lives_on(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    told, logging = await specified(market, buyer), await specified(market, buyer)
    device = await on(market, told, worker)
    other = await on(market, logging, worker)
    for _ in range(30):
        await named(market, device, told)
        market.renewals.renew(logging, 1)
        assert await market.silence(60) == 0
    for job_id, each in ((told, device), (logging, other)):
        assert (await stored_job(market, job_id)).device_id == each.id
    row = await attempt_of(market, told)
    assert row.phase == "running"


async def test_a_restart_loses_no_running_attempt(market: Market) -> None:
    market.change_bounds(replace(market.bounds(), new_owner_slots=0))
    buyer, worker = await market.person(credit="1000"), await market.person()
    jobs = [await specified(market, buyer, price=MICRO) for _ in range(100)]
    devices = [await on(market, job_id, worker) for job_id in jobs]
    assert await market.silence(LEASE - 2 * SWEEP_SECONDS) == 0
    market.clock.now += 10 * HOUR  # the daemon was away, its devices heard nothing
    later = Market(market.store, market.clock)
    try:
        assert await later.silence(LEASE - 6 * SWEEP_SECONDS) == 0
        for job_id, device in zip(jobs, devices, strict=True):
            assert await later.attempt_reports.sync(device, {}, [Named(job_id, 1)]) == []
        assert await later.silence(LEASE - 6 * SWEEP_SECONDS) == 0
        assert {(await stored_job(market, job_id)).status for job_id in jobs} == {JobStatus.RUNNING}
    finally:
        later.passwords.close()


@pytest.mark.parametrize("jump", [-1, 1])
async def test_a_clock_that_jumps_takes_nothing_back(market: Market, jump: int) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id = await specified(market, buyer, duration_hrs=1)
    device = await on(market, job_id, worker)
    plain, other = await running(market, buyer, worker, duration_hrs=1)
    assert await pass_with(market, 120, device, job_id) == 0
    market.clock.jump(jump * 100 * HOUR)
    market.devices.heartbeat(other, {})
    assert await pass_with(market, 300, device, job_id) == 0
    assert (await stored_job(market, job_id)).status == JobStatus.RUNNING
    assert (await stored_job(market, plain)).status == JobStatus.RUNNING
    # It does not hide another device's silence.
    assert await market.silence(LEASE + 3 * SWEEP_SECONDS) == 2


async def test_work_that_is_not_begun_in_time_is_taken_back_unpaid(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id = await specified(market, buyer)
    device = await device_of(market, worker)
    await market.jobs.accept(device, job_id)
    by_hand = await market.jobs.create(buyer, wanted())
    await market.jobs.accept(device, by_hand)
    assert await pass_with(market, START - 60, device, job_id, phase="taken") == 0
    assert await pass_with(market, 120, device, job_id, phase="taken") == 1
    attempt = await attempt_of(market, job_id)
    assert (attempt.outcome, attempt.reason) == ("lost", NOT_STARTED)
    assert (await stored_job(market, job_id)).status == JobStatus.WAITING
    # A job without a payload can be begun at any time.
    assert (await stored_job(market, by_hand)).status == JobStatus.RUNNING
    assert (await audit_ledger(market.store)).passed


async def test_fetching_an_image_may_take_longer_and_not_for_ever(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer)
    device = await device_of(market, worker)
    await market.jobs.accept(device, job_id)
    assert await pass_with(market, PREPARE - 120, device, job_id, phase="preparing") == 0
    assert await pass_with(market, 240, device, job_id, phase="preparing") == 1
    assert (await attempt_of(market, job_id)).reason == NOT_STARTED


@cases("seconds", [30, 100, 1_800, 86_400])
def test_a_device_ends_its_preparation_before_the_daemon_does(seconds: int) -> None:
    margin = seconds - Leases(prepare_seconds=seconds).device_prepare_seconds
    assert 0 < margin <= 120
    assert margin <= seconds / 10


async def test_work_that_takes_too_long_has_failed(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(
        market, buyer, timeout_seconds=1_200, payload={"restart": "on_failure"}
    )
    device = await on(market, job_id, worker)
    assert await pass_with(market, 1_200 + STOP - 60, device, job_id) == 0
    assert await pass_with(market, 180, device, job_id) == 1
    attempt = await attempt_of(market, job_id)
    assert (attempt.outcome, attempt.failure_kind) == ("failed", FailureKind.TIMEOUT)
    assert attempt.reason == TOO_LONG
    job = await stored_job(market, job_id)
    assert (job.status, job.failure_reason) == (JobStatus.WAITING, TOO_LONG)
    with pytest.raises(MarketError) as caught:
        await market.jobs.complete(device, job_id, "late", attempt=1)
    assert caught.value.code is Code.ATTEMPT_NOT_CURRENT


async def test_work_that_ignores_its_end_for_all_its_grace_is_paid(market: Market) -> None:
    """It prints its result in time: taken back before its device could end it, it costs nothing."""
    buyer, worker = await market.person(credit="10"), await market.person()
    payload = {"script": "trap '' TERM; echo 42; sleep 9999", "interpreter": "bash", "grace_s": 600}
    job_id = await specified(market, buyer, timeout_seconds=1_200, payload=payload)
    device = await on(market, job_id, worker)
    assert await pass_with(market, 1_200 + 600 + 60, device, job_id) == 0
    await market.jobs.fail(
        device, job_id, "it ran too long", attempt=1, ending=Ending(FailureKind.TIMEOUT)
    )
    assert await market.reviews.earned_in_review(worker) > 0
    assert (await stored_job(market, job_id)).status == JobStatus.FAILED
    assert (await audit_ledger(market.store)).passed


async def test_work_that_runs_once_and_takes_too_long_has_failed_for_good(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer, timeout_seconds=60)
    device = await on(market, job_id, worker)
    assert await pass_with(market, 60 + STOP + 120, device, job_id) == 1
    assert (await stored_job(market, job_id)).status == JobStatus.FAILED
    assert (await audit_ledger(market.store)).passed


async def test_a_delivery_after_the_work_may_take_longer(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer, timeout_seconds=60)
    device = await on(market, job_id, worker)
    assert await pass_with(market, 2 * HOUR, device, job_id, phase="uploading") == 0
    assert (await stored_job(market, job_id)).status == JobStatus.RUNNING
    assert await pass_with(market, DELIVERY, device, job_id, phase="uploading") == 1
    assert (await attempt_of(market, job_id)).failure_kind == FailureKind.TIMEOUT


async def test_a_plain_job_may_take_twice_its_estimate(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await running(market, buyer, worker, duration_hrs=1)
    taken = 0
    for minute in range(2 * 60 + 10):
        market.devices.heartbeat(device, {})
        taken += await market.silence(60)
        assert taken == 0 or minute >= 2 * 60
    assert taken == 1
    [attempt] = await history(market, job_id)
    assert attempt.outcome == "lost"
    assert (await stored_job(market, job_id)).failure_reason == TOO_LONG


async def test_a_restart_gives_work_no_more_time(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer, timeout_seconds=1_800)
    device = await on(market, job_id, worker)
    assert await pass_with(market, 1_200, device, job_id) == 0
    later = Market(market.store, market.clock)
    later.passwords.close()
    assert await pass_with(later, 480, device, job_id) == 0
    assert await pass_with(later, 480 + 600, device, job_id) == 1


async def test_a_daemon_that_stood_still_counts_no_time(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer, timeout_seconds=600)
    device = await on(market, job_id, worker)
    assert await pass_with(market, 300, device, job_id) == 0
    market.clock.now += 5 * HOUR
    await named(market, device, job_id)
    assert await pass_with(market, 300, device, job_id) == 0
    assert await pass_with(market, 300 + 600, device, job_id) == 1


async def test_an_older_list_of_held_attempts_may_come_after_the_report_of_a_new_job(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer)
    device = await on(market, job_id, worker)  # it has said that work has begun
    await named(market, device)
    assert (await stored_job(market, job_id)).status == JobStatus.RUNNING
    # The next list was made when that one had been answered.
    await named(market, device)
    assert (await attempt_of(market, job_id)).reason == FORGOTTEN


@pytest.mark.both_engines
async def test_an_attempt_that_a_device_has_begun_and_forgotten_is_taken_back_at_once(
    market: Market,
) -> None:
    """It has never named the attempt: its agent was lost with its journal before that."""
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer)
    device = await device_of(market, worker)
    await market.jobs.accept(device, job_id)
    await named(market, device)  # it does not know of the job yet
    await market.attempt_reports.started(device, job_id, 1)
    await named(market, device)  # on its way since before that
    assert (await stored_job(market, job_id)).status == JobStatus.RUNNING
    market.clock.now += TRANSIT_SECONDS + 1
    later = Market(market.store, market.clock)  # another daemon reads the same rows
    later.passwords.close()
    await named(later, device)
    assert (await attempt_of(market, job_id)).reason == FORGOTTEN


@pytest.mark.both_engines
async def test_an_attempt_that_a_device_has_forgotten_is_taken_back_at_once(market: Market) -> None:
    buyer, worker = await market.person(credit="30"), await market.person()
    jobs = [await specified(market, buyer) for _ in range(2)]
    device = await on(market, jobs[0], worker)
    await market.jobs.accept(device, jobs[1])
    await named(market, device, *jobs)
    await named(market, device, jobs[1])
    assert (await stored_job(market, jobs[0])).status == JobStatus.WAITING
    assert (await attempt_of(market, jobs[0])).reason == FORGOTTEN
    assert (await stored_job(market, jobs[1])).status == JobStatus.RUNNING
    # The agent begins anew, and its journal is empty.
    await market.renewals.flush()
    later = Market(market.store, market.clock)
    later.passwords.close()
    await named(later, device)
    assert (await stored_job(market, jobs[1])).status == JobStatus.WAITING


async def test_a_device_need_not_name_an_attempt_that_it_was_just_given(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id = await specified(market, buyer)
    device = await device_of(market, worker)
    await market.jobs.accept(device, job_id)
    by_hand = await market.jobs.create(buyer, wanted())
    await market.jobs.accept(device, by_hand)
    for _ in range(4):
        await named(market, device)
        assert (await stored_job(market, job_id)).status == JobStatus.RUNNING
        market.clock.now += 15
    await named(market, device)
    assert (await stored_job(market, job_id)).status == JobStatus.WAITING
    # A program that never knew of a job cannot end a job that a person runs by hand.
    assert (await stored_job(market, by_hand)).status == JobStatus.RUNNING


async def test_a_heartbeat_that_names_nothing_at_all_takes_nothing_back(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer)
    device = await on(market, job_id, worker)
    assert await market.attempt_reports.sync(device, {"cpu_pct": 5.0}, None) == []
    assert (await stored_job(market, job_id)).status == JobStatus.RUNNING
    assert market.devices.is_heard((await market.devices.page(worker, before="", limit=1))[0])


async def test_each_kind_is_ended_a_part_at_a_time(market: Market) -> None:
    market.job_sweeper._overdue.end_max_attempts = 2
    buyer, worker = await market.person(credit="30"), await market.person()
    market.change_bounds(replace(market.bounds(), new_device_slots=10))
    device = await device_of(market, worker)
    for _ in range(3):
        await market.jobs.accept(device, await specified(market, buyer))
    market.clock.now += SWEEP_SECONDS
    assert await market.job_sweeper.take_back() == 0
    market.clock.now += START
    assert [await market.job_sweeper.take_back() for _ in range(3)] == [2, 1, 0]


@cases("kind", [VANISHED, NOT_STARTED, TOO_LONG])
async def test_jobs_that_cannot_be_taken_back_delay_no_other(
    market: Market, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    market.job_sweeper._overdue.end_max_attempts = 2
    buyer, worker = await market.person(credit="30"), await market.person()
    jobs: dict[str, DeviceRow] = {}
    for _ in range(3):
        if kind == NOT_STARTED:
            job_id, device = await specified(market, buyer), await device_of(market, worker)
            await market.jobs.accept(device, job_id)
        else:
            job_id, device = await running(market, buyer, worker, duration_hrs=1)
        jobs[job_id] = device
        market.clock.now += 1
    *broken, last = jobs
    end, reasons = market.jobs.outcomes.take_back, set[str]()

    async def failing(tx: Transaction, moment: Moment, ended: Ended) -> JobRow | None:
        reasons.add(ended.reason)
        if ended.job_id in broken:
            raise LookupError("this row is broken")
        return await end(tx, moment, ended)

    monkeypatch.setattr(market.jobs.outcomes, "take_back", failing)
    taken, until = 0, market.clock.now + 3 * HOUR
    while not taken and market.clock.now < until:
        if kind == TOO_LONG:
            for device in jobs.values():
                market.devices.heartbeat(device, {})
        taken = await market.silence(SWEEP_SECONDS)
    assert (taken, reasons) == (1, {kind})
    assert (await stored_job(market, last)).status == JobStatus.WAITING
    # The broken ones are tried again after a pause.
    monkeypatch.undo()
    assert await market.silence(PUT_OFF_SECONDS + SWEEP_SECONDS) == 2


async def test_an_idle_daemon_writes_nothing(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise AssertionError("nothing was to be written")

    monkeypatch.setattr(market.store, "write", refuse)
    assert await market.silence(60) == 0
