"""Limits on the open things of one user, and no effect of one user's flood on other users."""

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest
from msgspec.structs import replace
from support.database.statements import counted
from support.market.books import available, stored_job
from support.market.market import SWEEP_SECONDS, TERMS, WAITING_SECONDS, Market

from market.accounts.bounds import Bounds
from market.bandwidth.leases import Usage
from market.bandwidth.sessions import Bandwidth, Purchase
from market.base.errors import Code, MarketError
from market.base.states import JobStatus, SessionStatus
from market.base.sweeping import PUT_OFF_SECONDS
from market.deploys.deploys import NewDeploy
from market.jobs import jobs as jobs_module
from market.jobs.kinds.plain import Plain
from market.jobs.outcomes import UNWANTED
from market.jobs.postings import JOB_BYTES, NewJob
from market.jobs.sweeper import JobSweeps
from market.money.money import GB, MICRO, Currency
from storage.devices.devices import DeviceRow

DAY = 86_400
SILENCE = 600
TEXT_MAX = 20_000


async def refused(attempt: Awaitable[Any]) -> tuple[Code, str | None]:
    with pytest.raises(MarketError) as caught:
        await attempt
    return caught.value.code, caught.value.field


async def outcomes_of(attempts: list[Awaitable[Any]]) -> list[Code | None]:
    """Do all at once, and return why each was refused, None where it was not."""
    found: list[Code | None] = []
    for outcome in await asyncio.gather(*attempts, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, MarketError):
            raise outcome
        found.append(outcome.code if isinstance(outcome, MarketError) else None)
    return found


async def buy(market: Market, user: str, quota: int = 1_000) -> Purchase:
    return await market.bandwidth.buy(user, quota_bytes=quota, price_per_gb=None)


async def put_up(market: Market, user: str, price: int = 0, **texts: str) -> str:
    fields = {"title": "t", "description": "", "requirements": "", **texts}
    new = NewJob(job_type="script", price=price, duration_hrs=1, **fields)
    return await market.jobs.create(user, new)


async def make(market: Market, user: str) -> DeviceRow:
    made = await market.devices.create(user, name="rig", device_type="desktop", min_price_usd=None)
    return await market.devices.authenticate(made.token)


# --- sessions ------------------------------------------------------------------------------------


async def test_the_active_sessions_of_a_user_are_bounded(market: Market) -> None:
    market.change_bounds(Bounds(sessions=3))
    user, other = await market.person("10"), await market.person("10")
    refusals = await outcomes_of([buy(market, user) for _ in range(10)])
    assert sorted(refusals, key=str) == [Code.TOO_MANY_SESSIONS] * 7 + [None] * 3
    await buy(market, other)
    [first, *_] = await market.bandwidth.page(user, status=None, before="", limit=10)
    await market.bandwidth.end(user, first.id)
    await buy(market, user)
    assert await refused(buy(market, user)) == (Code.TOO_MANY_SESSIONS, None)
    market.change_bounds(Bounds(sessions=0))
    await buy(market, user)


async def test_bytes_that_are_worth_less_than_a_millionth_are_not_free(market: Market) -> None:
    user = await market.person("1")
    for used, price in ((0, 0), (1, 1), (999, 1), (1_999, 1)):
        bought = await buy(market, user, 2_000)
        grant = await market.lease(bought)
        assert grant is not None
        usage = Usage(bought.session_id, grant.lease_id or "", used)
        await market.leases.settle(bought.session_id, SessionStatus.ENDED, usage)
        [session, *_] = await market.bandwidth.page(user, status=None, before="", limit=1)
        assert session.paid == price
    assert await available(market, user, Currency.USD) == 1_000_000 - 3


async def test_a_session_that_is_sold_for_nothing_costs_nothing(market: Market) -> None:
    terms = replace(TERMS, price_floor=0)
    sales = Bandwidth(market.context, market.leases, market.traffic, terms, Bounds)
    user = await market.person("1")
    bought = await sales.buy(user, quota_bytes=GB, price_per_gb=0)
    grant = await market.lease(bought)
    assert grant is not None
    usage = Usage(bought.session_id, grant.lease_id or "", 7)
    await market.leases.settle(bought.session_id, SessionStatus.ENDED, usage)
    assert await available(market, user, Currency.USD) == 1_000_000


async def test_an_operator_may_set_the_least_worth_of_a_session(market: Market) -> None:
    terms = replace(TERMS, cost_floor=10_000)
    sales = Bandwidth(market.context, market.leases, market.traffic, terms, Bounds)
    user = await market.person("1")
    small = sales.buy(user, quota_bytes=GB // 100 - 1_000, price_per_gb=None)
    assert await refused(small) == (Code.SESSION_TOO_SMALL, "gb")
    await sales.buy(user, quota_bytes=GB // 100, price_per_gb=None)


async def test_a_users_many_sessions_do_not_keep_others_from_expiring(market: Market) -> None:
    market.bandwidth.expire_max_sessions = 3
    flood, user, other = [await market.person("1") for _ in range(3)]
    for _ in range(6):
        await buy(market, flood)
    market.clock.now += 1
    later = [(await buy(market, each)).session_id for each in (user, other)]
    market.clock.now += TERMS.lifetime_seconds
    assert await market.bandwidth.expire() == 3
    assert {session_id for session_id, _ in market.traffic.cuts} > set(later)
    assert [await market.bandwidth.expire() for _ in range(3)] == [3, 2, 0]


# --- jobs ----------------------------------------------------------------------------------------


async def test_the_open_jobs_of_a_user_are_bounded(market: Market) -> None:
    market.change_bounds(Bounds(jobs=3))
    user, other = await market.person(credit="100"), await market.person(credit="100")
    attempts = [put_up(market, user, MICRO) for _ in range(10)]
    refusals = await outcomes_of(attempts)
    assert sorted(refusals, key=str) == [Code.TOO_MANY_JOBS] * 7 + [None] * 3
    assert await available(market, user, Currency.CREDIT) == 97 * MICRO
    await put_up(market, other, MICRO)
    [first, *_] = await market.jobs.page_of_user(user, status=None, before="", limit=10)
    await market.jobs.cancel(user, first.id)
    await put_up(market, user, MICRO)
    assert await refused(put_up(market, user, MICRO)) == (Code.TOO_MANY_JOBS, None)


async def test_the_replicas_of_a_deploy_are_open_jobs(market: Market) -> None:
    market.change_bounds(Bounds(jobs=5))
    user = await market.person("100")

    def deploy(replicas: int) -> Awaitable[object]:
        new = NewDeploy("web", "Docker", "any", 1, 1, replicas, Currency.USD)
        return market.deploys.create(user, new)

    assert await refused(deploy(6)) == (Code.TOO_MANY_JOBS, None)
    await deploy(3)
    assert await refused(deploy(3)) == (Code.TOO_MANY_JOBS, None)
    assert (await market.deploys.page(user, before="", limit=10))[0]
    assert await available(market, user, Currency.USD) == 97 * MICRO
    await deploy(2)


async def test_jobs_that_pay_next_to_nothing_are_bounded_more_tightly(market: Market) -> None:
    market.change_bounds(Bounds(free_jobs=2, free_below=10_000))
    user = await market.person(credit="100")
    await put_up(market, user, 0)
    await put_up(market, user, 9_999)
    for price in (0, 1, 9_999):
        refusal = await refused(put_up(market, user, price))
        assert refusal == (Code.TOO_MANY_FREE_JOBS, "price_credit")
    await put_up(market, user, 10_000)
    worker = await make(market, user)
    [_, free, _] = await market.jobs.page_of_user(user, status=None, before="", limit=10)
    await market.jobs.accept(worker, free.id)
    assert (await refused(put_up(market, user)))[0] is Code.TOO_MANY_FREE_JOBS
    await market.jobs.complete(worker, free.id, "")
    await put_up(market, user)


async def test_the_text_of_a_users_jobs_is_bounded_in_bytes(market: Market) -> None:
    text = "\N{GRINNING FACE}" * TEXT_MAX
    size = 2 * 4 * TEXT_MAX + 1 + JOB_BYTES
    market.change_bounds(Bounds(job_bytes=3 * size))
    user, other = await market.person(), await market.person()
    for _ in range(3):
        await put_up(market, user, description=text, requirements=text)
    assert await refused(put_up(market, user)) == (Code.TOO_MUCH_JOB_TEXT, None)
    await put_up(market, other, description=text, requirements=text)


async def test_a_buyer_that_cancels_and_puts_up_again_fills_the_disk_no_faster(
    market: Market,
) -> None:
    market.change_bounds(Bounds(job_bytes=3 * (JOB_BYTES + 1)))
    user = await market.person()
    for _ in range(3):
        await market.jobs.cancel(user, await put_up(market, user))
    assert await refused(put_up(market, user)) == (Code.TOO_MUCH_JOB_TEXT, None)
    market.clock.now += DAY
    open_still = await put_up(market, user)
    market.clock.now += DAY
    for _ in range(2):
        await put_up(market, user)
    assert await refused(put_up(market, user)) == (Code.TOO_MUCH_JOB_TEXT, None)
    await market.jobs.cancel(user, open_still)
    await put_up(market, user)


async def test_recent_jobs_count_where_none_is_nearly_free(market: Market) -> None:
    market.change_bounds(Bounds(job_bytes=2 * (JOB_BYTES + 1), free_below=0))
    user = await market.person()
    for _ in range(2):
        await market.jobs.cancel(user, await put_up(market, user))
    assert await refused(put_up(market, user)) == (Code.TOO_MUCH_JOB_TEXT, None)


async def test_jobs_that_were_done_and_paid_for_take_no_room(market: Market) -> None:
    market.change_bounds(Bounds(job_bytes=2 * (JOB_BYTES + 1), free_below=10_000))
    user, worker = await market.person(credit="1"), await market.person()
    device = await make(market, worker)
    for price, most in ((10_000, 5), (9_999, 2)):
        for _ in range(most):
            job_id = await put_up(market, user, price)
            await market.jobs.accept(device, job_id)
            await market.jobs.complete(device, job_id, "")
    assert await refused(put_up(market, user, 10_000)) == (Code.TOO_MUCH_JOB_TEXT, None)


async def test_a_buyer_with_too_many_jobs_asks_the_store_a_bounded_number_of_times(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    market.change_bounds(Bounds(free_jobs=1))
    user, other = await market.person(), await market.person()
    await put_up(market, user)
    asked = counted(market.store, "write", monkeypatch)
    refusals = [(await refused(put_up(market, user)))[0] for _ in range(jobs_module.REFUSALS_MAX)]
    assert set(refusals) == {Code.TOO_MANY_FREE_JOBS}
    assert len(asked) == jobs_module.REFUSALS_MAX
    for _ in range(10):
        assert (await refused(put_up(market, user)))[0] is Code.TOO_MANY_ATTEMPTS
    assert len(asked) == jobs_module.REFUSALS_MAX
    await put_up(market, other)
    market.clock.now += jobs_module.REFUSALS_SECONDS
    assert (await refused(put_up(market, user)))[0] is Code.TOO_MANY_FREE_JOBS


async def test_a_job_that_no_device_takes_is_cancelled_and_releases_its_price(
    market: Market,
) -> None:
    user, worker = await market.person(credit="30"), await market.person()
    waiting, taken = [await put_up(market, user, 10 * MICRO) for _ in range(2)]
    await market.jobs.accept(await make(market, worker), taken)
    market.clock.now += WAITING_SECONDS - 1
    late = await put_up(market, user, 10 * MICRO)
    assert await market.job_sweeper.expire() == 0
    market.clock.now += 1
    assert await market.job_sweeper.expire() == 1
    assert await market.job_sweeper.expire() == 0
    job = await stored_job(market, waiting)
    assert (job.status, job.finished_at) == (JobStatus.CANCELLED, market.clock.now)
    assert job.failure_reason == UNWANTED
    assert await available(market, user, Currency.CREDIT) == 10 * MICRO
    statuses = [(await stored_job(market, each)).status for each in (taken, late)]
    assert statuses == [JobStatus.RUNNING, JobStatus.WAITING]


async def test_a_job_that_cannot_be_cancelled_holds_up_no_other(
    market: Market, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sweeper = market.sweeper(JobSweeps(expire=1))
    user = await market.person(credit="30")
    damaged = await put_up(market, user, MICRO)
    market.clock.now += 1
    others = [await put_up(market, user, MICRO) for _ in range(2)]
    leave = Plain.leave

    async def leave_unless_damaged(plain: Plain, *rest: Any) -> Any:
        if plain.job.id == damaged:
            raise LookupError("its rows are damaged")
        return await leave(plain, *rest)

    market.clock.now += WAITING_SECONDS
    with monkeypatch.context() as patched:
        patched.setattr(Plain, "leave", leave_unless_damaged)
        assert [await sweeper.expire() for _ in range(4)] == [0, 1, 1, 0]
    assert f"job {damaged} cannot be cancelled" in caplog.text
    assert {(await stored_job(market, each)).status for each in others} == {JobStatus.CANCELLED}
    market.clock.now += PUT_OFF_SECONDS
    assert await sweeper.expire() == 1


@pytest.mark.both_engines
async def test_of_expiring_and_accepting_at_once_the_books_agree(market: Market) -> None:
    user, worker = await market.person(credit="10"), await market.person()
    for _ in range(10):
        job_id = await put_up(market, user, MICRO)
        device = await make(market, worker)
        market.clock.now += WAITING_SECONDS
        await outcomes_of([market.job_sweeper.expire(), market.jobs.accept(device, job_id)])
        assert (await stored_job(market, job_id)).status in (JobStatus.CANCELLED, JobStatus.RUNNING)


async def test_a_users_many_jobs_do_not_keep_others_from_expiring(market: Market) -> None:
    sweeper = market.sweeper(JobSweeps(expire=2))
    flood, user = await market.person(), await market.person(credit="1")
    for _ in range(5):
        await put_up(market, flood)
    market.clock.now += 1
    job_id = await put_up(market, user, MICRO)
    market.clock.now += WAITING_SECONDS
    assert await sweeper.expire() == 2
    assert (await stored_job(market, job_id)).status == JobStatus.CANCELLED
    assert [await sweeper.expire() for _ in range(3)] == [2, 2, 0]


async def test_a_users_many_silent_jobs_do_not_keep_others_from_being_taken_back(
    market: Market,
) -> None:
    market.job_sweeper._overdue.end_max_attempts = 2
    flood, user = await market.person(), await market.person(credit="1")
    market.change_bounds(replace(market.bounds(), new_device_slots=5))
    silent = await make(market, flood)
    for _ in range(5):
        await market.jobs.accept(silent, await put_up(market, flood))
    market.clock.now += 1
    job_id = await put_up(market, user, MICRO)
    await market.jobs.accept(await make(market, user), job_id)
    assert await market.silence(SILENCE - SWEEP_SECONDS) == 0
    market.clock.now += 2 * SWEEP_SECONDS
    assert await market.job_sweeper.take_back() == 2
    assert (await stored_job(market, job_id)).status == JobStatus.WAITING


# --- devices -------------------------------------------------------------------------------------


async def test_the_worker_tokens_of_a_user_are_bounded(market: Market) -> None:
    market.change_bounds(Bounds(devices=3))
    user, other = await market.person(), await market.person()
    refusals = await outcomes_of([make(market, user) for _ in range(10)])
    assert sorted(refusals, key=str) == [Code.TOO_MANY_DEVICES] * 7 + [None] * 3
    await make(market, other)
    [first, *_] = await market.devices.page(user, before="", limit=10)
    await market.devices.revoke(user, first.id)
    await make(market, user)
    assert await refused(make(market, user)) == (Code.TOO_MANY_DEVICES, None)
