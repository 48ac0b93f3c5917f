"""Events are committed with their causes, or neither is, and are published once they are."""

import asyncio

import pytest
from support.market.events import rows_of, said, types_of
from support.market.jobs import device_of, prove, specified, wanted
from support.market.market import Market
from support.market.work import posted

from market.accounts.bounds import Bounds
from market.attempts.attempts import Ending, FailureKind
from market.bandwidth.leases import Leases, Usage
from market.base.bus import EVENTS
from market.base.errors import MarketError
from market.base.states import SessionStatus
from market.dispatch.claims import Claims, Pair
from market.events import recording as event_log
from market.events.catalogue import DeployCancelled, Ping, timestamp
from market.events.context import Context
from market.events.recording import NewEvent
from market.jobs.matching import Needs, WaitingJob
from market.money.money import GB, MICRO
from proxyctl.protocol.jobspec import Resources
from storage.engines.store import Transaction
from storage.events.events import EventRow

NEEDS = Needs(Resources(), "script")


@pytest.fixture
def published(market: Market) -> list[EventRow]:
    rows: list[EventRow] = []
    market.context.bus.subscribe(EVENTS, rows.extend)
    return rows


async def record(tx: Transaction, context: Context, user_id: str, *, fails: bool = False) -> None:
    await event_log.record(tx, context, user_id, Ping("w"), subject_id="w")
    if fails:
        raise LookupError


async def test_an_event_is_rolled_back_with_its_cause(
    market: Market, published: list[EventRow]
) -> None:
    with pytest.raises(LookupError):
        await market.store.write(record, market.context, "u", fails=True)
    assert await rows_of(market, "u") == []
    assert published == []


async def test_an_event_is_published_once_it_is_committed(
    market: Market, published: list[EventRow]
) -> None:
    await market.store.write(record, market.context, "u")
    [row] = await rows_of(market, "u")
    assert published == [row]
    assert (row.type, row.subject_id, row.data) == ("test.ping", "w", '{"webhook_id":"w"}')
    assert row.created_at == market.clock.seconds()


async def test_many_are_recorded_in_the_order_that_they_are_given_in(market: Market) -> None:
    names = [f"{number}" for number in range(300)]
    news = [NewEvent("u", DeployCancelled(name), name) for name in names]
    rows = await market.store.write(event_log.record_all, market.context, news)
    assert await rows_of(market, "u") == rows
    assert [row.subject_id for row in rows] == names


async def test_nothing_to_record_changes_nothing(market: Market, published: list[EventRow]) -> None:
    assert await market.store.write(event_log.record_all, market.context, []) == []
    assert published == []


# --- sessions --------------------------------------------------------------------------------


async def test_a_session_records_its_purchase_and_its_end(market: Market) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    await market.bandwidth.end(user, bought.session_id)
    await market.bandwidth.end(user, bought.session_id)
    assert [each for each in await types_of(market, user) if each.startswith("session")] == [
        "session.created",
        "session.ended",
    ]
    [created] = await said(market, user, "session.created")
    assert created == {
        "session_id": bought.session_id,
        "quota_bytes": GB,
        "cost_usd": 1,
        "expires_at": "2027-02-14T08:00:00Z",
    }
    [ended] = await rows_of(market, user, "session.ended")
    assert ended.subject_id == bought.session_id


async def test_a_purchase_that_is_refused_says_nothing(market: Market) -> None:
    user = await market.person("10")
    market.change_bounds(Bounds(sessions=1))
    await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    with pytest.raises(MarketError):
        await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    assert len(await rows_of(market, user, "session.created")) == 1


async def test_a_session_that_is_nearly_used_up_says_so_once(market: Market) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    grant = await market.lease(bought)
    assert grant is not None
    assert grant.lease_id is not None
    tenth = GB // 10
    for used in (8 * tenth, 9 * tenth - 1, 9 * tenth, 8 * tenth, 9 * tenth + 5):
        await market.leases.report([Usage(bought.session_id, grant.lease_id, used)])
        is_told = bool(await rows_of(market, user, "session.low"))
        assert is_told == (used >= 9 * tenth or (used == 8 * tenth and is_told))
    [low] = await said(market, user, "session.low")
    assert low == {"session_id": bought.session_id, "quota_bytes": GB, "bytes_left": tenth}


async def test_a_session_that_ends_by_its_last_byte_is_exhausted(market: Market) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    grant = await market.lease(bought)
    assert grant is not None
    assert grant.lease_id is not None
    usage = Usage(bought.session_id, grant.lease_id, GB)
    assert await market.leases.settle(bought.session_id, SessionStatus.EXPIRED, usage)
    [over] = await said(market, user, "session.exhausted")
    assert over == {"session_id": bought.session_id, "bytes_used": GB, "cost_usd": 1}
    assert await rows_of(market, user, "session.expired", "session.low") == []


async def test_a_session_whose_time_is_over_says_so(market: Market) -> None:
    user = await market.person("10")
    await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    market.clock.now += 31 * 86_400
    assert await market.bandwidth.expire() == 1
    [over] = await said(market, user, "session.expired")
    assert (over["bytes_used"], over["cost_usd"]) == (0, 0)


async def test_a_session_that_expires_within_a_day_says_so_once(market: Market) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    assert await market.bandwidth.warn() == 0
    market.clock.now += 29 * 86_400
    assert [await market.bandwidth.warn(), await market.bandwidth.warn()] == [1, 0]
    [told] = await said(market, user, "session.expiring")
    expires_at = timestamp(market.clock.seconds() + 86_400)
    assert told == {"session_id": bought.session_id, "bytes_left": GB, "expires_at": expires_at}


@pytest.mark.both_engines
async def test_the_buyer_of_a_short_session_knows_when_it_ends(market: Market) -> None:
    user = await market.person("10")
    await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    ends_at = market.clock.seconds() + 2 * 86_400

    async def shorten(tx: Transaction) -> None:
        await tx.run("UPDATE bandwidth_sessions SET expires_at = :ends_at", ends_at=ends_at)

    await market.store.write(shorten)
    market.clock.now += 86_400
    assert await market.bandwidth.warn() == 1
    assert await rows_of(market, user, "session.expiring") == []


@pytest.mark.both_engines
async def test_of_two_concurrent_ends_of_a_session_one_notifies(market: Market) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    other = Leases(market.context)
    settled = await asyncio.gather(
        market.leases.settle(bought.session_id, SessionStatus.ENDED, None),
        other.settle(bought.session_id, SessionStatus.EXPIRED, None),
    )
    assert sorted(settled) == [False, True]
    assert len(await rows_of(market, user, "session.ended", "session.expired")) == 1


async def test_a_session_that_cannot_be_settled_says_nothing(market: Market) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    async with market.without_hold(bought):
        with pytest.raises(LookupError):
            await market.bandwidth.end(user, bought.session_id)
    assert await rows_of(market, user, "session.ended") == []


# --- jobs ------------------------------------------------------------------------------------


async def people(market: Market) -> tuple[str, str]:
    return await market.person(credit="1000"), await market.person()


async def jobs_of(market: Market, user: str) -> list[str]:
    return [each for each in await types_of(market, user) if each.startswith("job.")]


async def test_a_job_notifies_its_buyer_of_its_life(market: Market) -> None:
    buyer, worker = await people(market)
    job_id = await market.jobs.create(buyer, wanted())
    device = await device_of(market, worker)
    await market.jobs.accept(device, job_id)
    await market.jobs.accept(device, job_id)
    await market.jobs.complete(device, job_id, "done")
    await market.jobs.complete(device, job_id, "done")
    assert await jobs_of(market, buyer) == ["job.created", "job.accepted", "job.completed"]
    assert await jobs_of(market, worker) == ["job.paid"]
    [created] = await said(market, buyer, "job.created")
    assert created == {
        "job_id": job_id,
        "title": "train",
        "price_credit": 10,
        "deploy_id": None,
    }
    [done] = await rows_of(market, buyer, "job.completed")
    assert done.subject_id == job_id


async def test_a_job_that_waits_again_and_fails_says_why(market: Market) -> None:
    buyer, _ = await people(market)
    job_id = await market.jobs.create(buyer, wanted())
    for _ in range(3):
        worker = await market.person()
        await prove(market, worker)
        device = await device_of(market, worker)
        await market.jobs.accept(device, job_id)
        await market.jobs.fail(device, job_id, "no memory")
    assert await jobs_of(market, buyer) == [
        "job.created",
        *("job.accepted", "job.requeued") * 2,
        "job.accepted",
        "job.failed",
    ]
    assert [each["attempt"] for each in await said(market, buyer, "job.requeued")] == [1, 2]
    [failed] = await said(market, buyer, "job.failed")
    assert (failed["attempt"], failed["reason"]) == (3, "no memory")


@pytest.mark.both_engines
async def test_a_job_that_is_run_once_has_failed_at_once(market: Market) -> None:
    buyer, worker = await people(market)
    job_id = await specified(market, buyer)
    device = await device_of(market, worker)
    await market.jobs.accept(device, job_id)
    ending = Ending(FailureKind.JOB, exit_code=1)
    await market.jobs.fail(device, job_id, "exit 1", attempt=1, ending=ending)
    assert (await jobs_of(market, buyer))[-1] == "job.failed"


async def test_a_job_that_is_cancelled_or_not_taken_says_so(market: Market) -> None:
    buyer, _ = await people(market)
    job_id = await market.jobs.create(buyer, wanted())
    await market.jobs.cancel(buyer, job_id)
    await market.jobs.create(buyer, wanted())
    market.clock.now += 31 * 86_400
    assert await market.job_sweeper.expire() == 1
    [cancelled, expired] = await said(market, buyer, "job.cancelled")
    assert cancelled["reason"] is None
    assert expired["reason"]


async def test_jobs_that_are_given_to_devices_together_are_recorded_each_once(
    market: Market,
) -> None:
    buyer, worker = await people(market)
    job_ids = {await posted(market, buyer) for _ in range(3)}
    device = await device_of(market, worker)
    claims = Claims(market.context, lambda: Bounds(device_slots=9))
    for _ in range(2):
        for job_id in job_ids:
            job = WaitingJob(job_id, NEEDS, price=1, created_at=0, attempts=0)
            claims.put(Pair(job, device.id, lambda: True, lambda *_: None))
        await claims.settle()
    assert claims.claimed == len(job_ids)
    accepted = await rows_of(market, buyer, "job.accepted")
    assert {row.subject_id for row in accepted} == job_ids
    assert len(accepted) == 3


@pytest.mark.both_engines
async def test_a_job_that_two_accept_is_recorded_once(market: Market) -> None:
    buyer, worker = await people(market)
    job_id = await market.jobs.create(buyer, wanted())
    devices = [await device_of(market, worker) for _ in range(5)]
    await asyncio.gather(
        *(market.jobs.accept(device, job_id) for device in devices), return_exceptions=True
    )
    assert len(await rows_of(market, buyer, "job.accepted")) == 1


async def test_a_job_that_no_buyer_can_pay_for_records_no_event(market: Market) -> None:
    buyer = await market.person()
    with pytest.raises(MarketError):
        await market.jobs.create(buyer, wanted(price=MICRO))
    assert await rows_of(market, buyer) == []
