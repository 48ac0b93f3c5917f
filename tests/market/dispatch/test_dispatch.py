"""A device asks and gets suitable jobs, exactly once, immediately or once there are some."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import cycle
from typing import Any

import msgspec
import pytest
from support.base.brief import brief
from support.base.cases import cases
from support.base.waiting import until
from support.database.statements import counted
from support.market.books import refusal
from support.market.jobs import code_of, device_of, history, wanted
from support.market.market import Market
from support.market.work import SMALL, ask, attempts_of, given, offer, posted

from market.accounts.bounds import Bounds
from market.base.bus import BETWEEN_DAEMONS, DEVICES, WAITING, Bus
from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.dispatch.asks import Agent, DispatchPace, DispatchTerms
from market.dispatch.devices import apart
from market.jobs.specs import UNREADABLE
from market.money.audit import audit_ledger
from market.money.money import MICRO
from proxyctl.protocol.jobspec import Capacity
from storage.devices import devices as device_queries
from storage.devices.devices import DeviceRow
from storage.engines.errors import UnknownOutcomeError
from storage.engines.open import open_store
from storage.engines.store import Transaction

LONG = 30.0
OTHER_KEY = Sealing(b"o" * 40, b"job secrets")


@pytest.fixture(autouse=True)
async def running(market: Market) -> AsyncIterator[None]:
    async with dispatching(market):
        yield


@asynccontextmanager
async def dispatching(market: Market) -> AsyncIterator[None]:
    task = asyncio.create_task(market.dispatch.run())
    try:
        yield
    finally:
        await market.dispatch.claims.settle()
        task.cancel()


async def buyer_of(market: Market) -> str:
    return await market.person(credit="100000")


async def device_for(market: Market) -> DeviceRow:
    return await device_of(market, await market.person())


async def waiting_jobs(market: Market, count: int) -> None:
    await until(lambda: len(market.dispatch.jobs) == count, f"{count} jobs wait in memory")


async def held(market: Market, count: int = 1) -> None:
    await until(lambda: market.dispatch.held == count)


def later(market: Market, device: DeviceRow, **changes: object) -> "asyncio.Task[Any]":
    """Have a device ask and wait."""
    asked = ask(wait_seconds=LONG, **changes)  # type: ignore[arg-type]
    return asyncio.create_task(market.dispatch.next(device, asked))


async def test_a_device_that_asks_gets_the_job_that_waits(market: Market) -> None:
    device, job = await device_for(market), await posted(market, await buyer_of(market))
    await waiting_jobs(market, 1)
    told = await market.dispatch.next(device, ask())
    assert attempts_of(told) == {(job, 1)}
    assert told.jobs[0].payload == b'{"script":"print(\'hello\')"}'
    assert told.jobs[0].row.timeout_seconds == 3_600
    [attempt] = await history(market, job)
    assert (attempt.device_id, attempt.ended_at) == (device.id, None)


@pytest.mark.both_engines
async def test_a_device_that_waits_gets_the_next_job_at_once(market: Market) -> None:
    device, buyer = await device_for(market), await buyer_of(market)
    asking = later(market, device)
    await held(market)
    job = await posted(market, buyer)
    assert attempts_of(await asking) == {(job, 1)}
    assert market.dispatch.held == 0


async def test_a_device_that_waits_for_nothing_is_answered_in_time(market: Market) -> None:
    device = await device_for(market)
    told = await market.dispatch.next(device, ask(wait_seconds=0.05))
    assert (list(told.jobs), list(told.actions)) == ([], [])


@pytest.mark.both_engines
async def test_a_job_that_comes_while_the_wait_is_answered_is_not_lost(market: Market) -> None:
    device, buyer = await device_for(market), await buyer_of(market)
    market.dispatch.terms = msgspec.structs.replace(market.dispatch.terms, sign_seconds=0.01)
    said, is_posted = asyncio.Event(), asyncio.Event()

    async def say_held() -> None:
        said.set()
        await is_posted.wait()

    asking = asyncio.create_task(market.dispatch.next(device, ask(wait_seconds=LONG), say_held))
    await said.wait()
    job = await posted(market, buyer)
    await until(lambda: market.dispatch.claims.claimed == 1, "the job is claimed")
    is_posted.set()
    assert attempts_of(await asking) == {(job, 1)}


async def test_a_wait_ends_with_a_device_that_cannot_be_notified(market: Market) -> None:
    device = await device_for(market)
    market.dispatch.terms = msgspec.structs.replace(market.dispatch.terms, sign_seconds=0.01)

    async def say_held() -> None:
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await market.dispatch.next(device, ask(wait_seconds=LONG), say_held)
    assert market.dispatch.held == 0


async def test_jobs_without_payload_and_misunderstood_ones_are_given_to_no_device(
    market: Market,
) -> None:
    device, buyer = await device_for(market), await buyer_of(market)
    await market.jobs.create(buyer, wanted())
    await posted(market, buyer, is_manual=True)
    suitable = await posted(market, buyer)
    await waiting_jobs(market, 1)
    assert await given(market, device) == [suitable]
    assert await given(market, device, ask(None, (suitable, 1))) == []


async def test_a_job_that_a_device_cannot_do_or_does_not_want_is_not_given_to_it(
    market: Market,
) -> None:
    device, buyer = await device_for(market), await buyer_of(market)
    await posted(market, buyer, resources={"ram_gb": 9})
    await posted(market, buyer, payload={"image": "debian"})
    await posted(market, buyer, payload={"script": "x", "network": "egress"})
    await posted(market, buyer, job_type="training")
    await posted(market, buyer, price=MICRO - 1)  # a hundredth of a USD is 10,000 micro-USD
    await waiting_jobs(market, 5)
    modest = offer(least_usd=10_000, job_types=frozenset(("script", "docker")))
    assert await given(market, device, ask(modest)) == []
    assert len(market.dispatch.jobs) == 5
    exact = await posted(market, buyer, price=MICRO)
    await waiting_jobs(market, 6)
    assert await given(market, device, ask(modest)) == [exact]


async def test_the_best_paid_comes_first_and_slots_are_filled(market: Market) -> None:
    device, buyer = await device_for(market), await buyer_of(market)
    cheap = await posted(market, buyer, resources={"cores": 2})
    dear = await posted(market, buyer, price=2 * MICRO, resources={"cores": 2})
    await posted(market, buyer, resources={"cores": 2})
    await waiting_jobs(market, 3)
    four = offer(Capacity(slots=4, cores=4, ram_gb=8, disk_gb=50))
    assert await given(market, device, ask(four)) == [dear, cheap]  # cores for two


async def test_an_answer_that_the_client_did_not_get_is_sent_again(market: Market) -> None:
    device, job = await device_for(market), await posted(market, await buyer_of(market))
    await waiting_jobs(market, 1)
    assert await given(market, device) == [job]
    assert await given(market, device) == [job]  # it does not name it
    assert await given(market, device, ask(None, (job, 1))) == []
    assert len(await history(market, job)) == 1


@pytest.mark.both_engines
async def test_a_client_that_leaves_while_its_claim_is_under_way_loses_nothing(
    market: Market,
) -> None:
    device, job = await device_for(market), await posted(market, await buyer_of(market))
    await waiting_jobs(market, 1)
    asking = asyncio.create_task(market.dispatch.next(device, ask()))
    await until(lambda: len(market.dispatch.jobs) == 0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await market.dispatch.claims.settle()
    # Whether it was given to the device by then or not, the device gets it.
    assert await given(market, device, ask(wait_seconds=LONG)) == [job]
    assert len(await history(market, job)) == 1


async def test_a_second_request_takes_the_place_of_the_first(market: Market) -> None:
    device, buyer = await device_for(market), await buyer_of(market)
    first = later(market, device)
    await held(market)
    second = later(market, device)
    assert attempts_of(await first) == set()
    job = await posted(market, buyer)
    assert attempts_of(await second) == {(job, 1)}


async def test_of_two_agents_with_one_token_the_later_one_gets_the_jobs(market: Market) -> None:
    device, buyer = await device_for(market), await buyer_of(market)
    older, newer = Agent("one", since=100), Agent("other", since=200)
    first = later(market, device, agent=older)
    await held(market)
    second = later(market, device, agent=newer)
    assert (await first).is_replaced
    again = await market.dispatch.next(device, ask(agent=older, wait_seconds=LONG))
    assert again.is_replaced  # at once, and the other one waits on
    job = await posted(market, buyer)
    told = await second
    assert (attempts_of(told), told.is_replaced) == ({(job, 1)}, False)


async def test_a_job_given_to_one_agent_is_not_given_to_another(market: Market) -> None:
    device, job = await device_for(market), await posted(market, await buyer_of(market))
    await waiting_jobs(market, 1)
    older, newer = Agent("one", since=100), Agent("other", since=200)
    assert await given(market, device, ask(agent=older)) == [job]
    assert await given(market, device, ask(agent=newer)) == []
    # The answer was lost, and the agent was started again.
    assert await given(market, device, ask(agent=Agent("one", since=300))) == [job]


async def test_an_agent_takes_the_place_of_one_that_is_gone(market: Market) -> None:
    device = await device_for(market)
    older, newer = Agent("one", since=100), Agent("other", since=200)
    await given(market, device, ask(agent=newer))
    assert (await market.dispatch.next(device, ask(agent=older))).is_replaced
    market.dispatch.pace = DispatchPace(away_seconds=-1.0)
    assert not (await market.dispatch.next(device, ask(agent=older))).is_replaced


async def test_a_device_that_failed_at_a_job_does_not_get_it_again_and_others_do(
    market: Market,
) -> None:
    owner = await market.person()
    first, own = await device_of(market, owner), await device_of(market, owner)
    other = await device_for(market)
    job = await posted(market, await buyer_of(market))
    await waiting_jobs(market, 1)
    assert await given(market, first) == [job]
    await market.jobs.fail(first, job, "broken")
    market.context.bus.publish(WAITING, [job])
    await waiting_jobs(market, 1)
    assert await given(market, first) == []
    assert await given(market, own) == []
    told = await market.dispatch.next(other, ask())
    assert attempts_of(told) == {(job, 2)}


async def test_a_device_gets_no_more_than_its_slots(market: Market) -> None:
    market.change_bounds(Bounds(device_slots=3, new_device_slots=2))
    device, buyer = await device_for(market), await buyer_of(market)
    for _ in range(4):
        await posted(market, buyer)
    await waiting_jobs(market, 4)
    many = offer(Capacity(slots=4, cores=4))
    told = await market.dispatch.next(device, ask(many))
    assert len(told.jobs) == 2
    assert await given(market, device, ask(many, *attempts_of(told))) == []
    assert len(market.dispatch.jobs) == 2


async def test_a_revoked_device_gets_nothing(market: Market) -> None:
    owner = await market.person()
    device = await device_of(market, owner)
    asking = later(market, device)
    await held(market)
    await market.devices.revoke(owner, device.id)
    await posted(market, await buyer_of(market))
    outcome = await asyncio.gather(asking, return_exceptions=True)
    assert code_of(outcome[0]) is Code.WORKER_UNAUTHORIZED
    await waiting_jobs(market, 1)
    market.context.bus.publish(DEVICES, [device.id])
    outcome = await asyncio.gather(market.dispatch.next(device, ask()), return_exceptions=True)
    assert code_of(outcome[0]) is Code.WORKER_UNAUTHORIZED


async def test_an_ended_attempt_is_sent_to_stop_until_the_device_confirms(
    market: Market,
) -> None:
    device, buyer = await device_for(market), await buyer_of(market)
    job = await posted(market, buyer)
    await waiting_jobs(market, 1)
    told = await market.dispatch.next(device, ask())
    asking = asyncio.create_task(
        market.dispatch.next(device, ask(None, (job, 1), wait_seconds=LONG, seen=told.seen))
    )
    await held(market)
    await market.jobs.cancel(buyer, job)
    market.context.bus.publish(DEVICES, [device.id])
    told = await asking
    assert [(each.job_id, each.attempt, each.action) for each in told.actions] == [(job, 1, "stop")]
    lost = await market.dispatch.next(device, ask(None, (job, 1), seen=told.seen - 1))
    assert lost.actions == told.actions
    heard = await market.dispatch.next(device, ask(None, (job, 1), seen=lost.seen))
    assert list(heard.actions) == []
    assert heard.seen > lost.seen > told.seen


async def test_a_job_that_a_device_has_seen_and_does_not_take_is_not_given_to_it_again(
    market: Market,
) -> None:
    device = await device_for(market)
    job = await posted(market, await buyer_of(market))
    await waiting_jobs(market, 1)
    told = await market.dispatch.next(device, ask())
    assert attempts_of(told) == {(job, 1)}
    lost = await market.dispatch.next(device, ask())
    assert attempts_of(lost) == {(job, 1)}
    for _ in range(2):
        assert await given(market, device, ask(seen=lost.seen)) == []
    # It may have begun anew, and have forgotten.
    assert await given(market, device, ask()) == [job]


async def test_a_device_that_was_full_gets_the_next_job_when_it_has_done_one(
    market: Market,
) -> None:
    market.dispatch.pace = DispatchPace(full_seconds=0.01)
    market.change_bounds(Bounds(device_slots=1))
    device, buyer = await device_for(market), await buyer_of(market)
    first, second = [await posted(market, buyer) for _ in range(2)]
    await waiting_jobs(market, 2)
    [job] = await given(market, device, ask(offer(replace(SMALL, slots=1))))
    asking = asyncio.create_task(
        market.dispatch.next(device, ask(None, (job, 1), wait_seconds=LONG))
    )
    await until(lambda: market.dispatch.held == 1 and not market.dispatch.pairing.claimed)
    await market.jobs.complete(device, job, "")
    told = await asking
    assert attempts_of(told) == {({first, second}.difference({job}).pop(), 1)}


async def test_two_attempts_that_are_to_be_stopped_are_sent_once_each(market: Market) -> None:
    device, buyer = await device_for(market), await buyer_of(market)
    both = offer(replace(SMALL, slots=2))
    jobs = [await posted(market, buyer) for _ in range(2)]
    await waiting_jobs(market, 2)
    taken = await market.dispatch.next(device, ask(both))
    # The device takes its time, and holds both until they have ended.
    attempts = sorted(attempts_of(taken))
    assert {job for job, _ in attempts} == set(jobs)
    seen = taken.seen
    for job, attempt in attempts:
        await market.jobs.cancel(buyer, job)
        told = await market.dispatch.next(device, ask(both, *attempts, seen=seen))
        assert [(each.job_id, each.attempt) for each in told.actions] == [(job, attempt)]
        seen = told.seen
    for _ in range(3):
        told = await market.dispatch.next(device, ask(both, *attempts, seen=seen))
        assert list(told.actions) == []
        seen = told.seen


@pytest.mark.both_engines
async def test_a_daemon_that_ends_answers_all_at_once(market: Market) -> None:
    asking = [later(market, await device_for(market)) for _ in range(3)]
    await held(market, 3)
    market.dispatch.drain()
    for told in await asyncio.gather(*asking):
        assert list(told.jobs) == []
    told = await market.dispatch.next(await device_for(market), ask(wait_seconds=LONG))
    assert list(told.jobs) == []


async def test_jobs_that_no_device_can_do_keep_no_other_from_a_device_that_waits(
    market: Market,
) -> None:
    market.dispatch.jobs.shapes_per_buyer = 2
    buyer = await buyer_of(market)
    for cores in range(3):
        await posted(market, buyer, resources={"cores": 100 + cores})
    other = await posted(market, await buyer_of(market), resources={"cores": 102})
    await waiting_jobs(market, 3)
    assert other in market.dispatch.jobs
    asking = later(market, await device_for(market))
    await held(market)
    job = await posted(market, buyer, resources={"cores": 1})
    assert attempts_of(await asking) == {(job, 1)}


@pytest.mark.both_engines
async def test_one_owner_leaves_room_for_the_devices_of_others(market: Market) -> None:
    market.dispatch.terms = DispatchTerms(held_max=5)
    greedy = await market.person()
    asking = [later(market, await device_of(market, greedy)) for _ in range(3)]
    await held(market, 3)
    refused = later(market, await device_of(market, greedy))
    [outcome] = await asyncio.gather(refused, return_exceptions=True)
    assert code_of(outcome) is Code.TOO_BUSY
    asking.append(later(market, await device_for(market)))
    await held(market, 4)
    for each in asking:
        each.cancel()
    await held(market, 0)
    later(market, await device_of(market, greedy)).cancel()


async def test_a_device_that_asks_again_needs_no_more_room(market: Market) -> None:
    market.dispatch.terms = DispatchTerms(held_max=1)
    device = await device_for(market)
    first = later(market, device)
    await held(market)
    second = later(market, device)
    assert list((await first).jobs) == []
    assert not second.done()
    second.cancel()
    await held(market, 0)


@pytest.mark.both_engines
async def test_a_device_that_waits_is_notified_at_once_of_its_revoked_token(
    market: Market,
) -> None:
    owner = await market.person()
    device = await device_of(market, owner)
    asking = later(market, device)
    await held(market)
    await market.devices.revoke(owner, device.id)
    await market.job_sweeper.take_back_from(device.id)
    with pytest.raises(MarketError) as caught:
        await asking
    assert caught.value.code is Code.WORKER_UNAUTHORIZED


async def test_the_waiting_requests_are_bounded(market: Market) -> None:
    market.dispatch.terms = DispatchTerms(held_max=1)
    first = later(market, await device_for(market))
    await held(market)
    device = await device_for(market)
    outcome = await asyncio.gather(later(market, device), return_exceptions=True)
    assert code_of(outcome[0]) is Code.TOO_BUSY
    first.cancel()


@pytest.mark.both_engines
@pytest.mark.parametrize("count", brief([100, 1_000]))
async def test_many_devices_ask_at_once_for_one_job(market: Market, count: int) -> None:
    owner = await market.person()
    device = await device_of(market, owner)
    devices = [
        await market.store.write(_another, device, number, market) for number in range(count)
    ]
    job = await posted(market, await buyer_of(market))
    await waiting_jobs(market, 1)
    told = await asyncio.gather(*(market.dispatch.next(each, ask()) for each in devices))
    assert sum(len(each.jobs) for each in told) == 1
    assert len(await history(market, job)) == 1


async def _another(tx: Transaction, device: DeviceRow, number: int, market: Market) -> DeviceRow:
    row = device._replace(id=market.identifiers.new(), token_hash=f"{number:064}")
    await device_queries.insert(tx, row)
    return row


@pytest.mark.both_engines
async def test_every_job_is_given_once_among_any_devices_and_sums_are_right(market: Market) -> None:
    market.change_bounds(
        Bounds(device_slots=20, new_device_slots=20, new_owner_slots=0, jobs=0, free_jobs=0)
    )
    buyer, owner = await buyer_of(market), await market.person()
    device = await device_of(market, owner)
    devices = [await market.store.write(_another, device, each, market) for each in range(30)]
    jobs = {await posted(market, buyer) for _ in range(300)}
    await waiting_jobs(market, len(jobs))
    found: list[tuple[str, int]] = []

    async def take(row: DeviceRow) -> None:
        own: set[tuple[str, int]] = set()
        while got := attempts_of(await market.dispatch.next(row, ask(None, *own))) - own:
            own |= got
        found.extend(own)

    await asyncio.gather(*map(take, devices))
    assert sorted(job for job, _ in found) == sorted(jobs)
    assert {attempt for _, attempt in found} == {1}
    assert market.dispatch.claims.claimed == len(jobs)


@pytest.mark.both_engines
@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
async def test_daemons_on_one_database_give_each_job_once_and_notify_each_other(
    market: Market, store_url: str
) -> None:
    other_store = await open_store(store_url)
    other = Market(other_store, market.clock)
    here, there = Bus(BETWEEN_DAEMONS), other.context.bus
    buyer, device = await buyer_of(market), await device_for(market)
    link = other_store.link(15.0)
    assert link is not None
    await link.connect(there.hear, lambda: None)
    sending = asyncio.create_task(here.run(market.store))
    try:
        async with dispatching(other):
            asking = later(other, device)
            await held(other)
            job = await posted(market, buyer)
            here.publish(WAITING, [job])
            assert attempts_of(await asking) == {(job, 1)}
            jobs = {await posted(market, buyer) for _ in range(20)}
            there.catch_up()
            for each in (market, other):  # the first one may be known here as one that waits
                await until(lambda each=each: jobs <= set(each.dispatch.jobs))
            owner = await market.person()
            rows = [await device_of(market, owner) for _ in range(20)]
            # Each asks one daemon: another daemon would return the jobs again that it was just
            # assigned.
            told = await asyncio.gather(
                *(each.dispatch.next(row, ask()) for row, each in zip(rows, cycle((market, other))))
            )
            given_away = [job.row.job_id for each in told for job in each.jobs]
            assert len(given_away) == len(set(given_away))
            assert set(given_away) <= jobs
    finally:
        sending.cancel()
        await link.close()
        other.passwords.close()
        await other_store.close()


@pytest.mark.both_engines
async def test_devices_that_come_together_are_looked_up_together(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the daemon all devices connect at the same time."""
    user = await market.person()
    devices = [await device_of(market, user) for _ in range(60)]
    statements = counted(market.store, "read", monkeypatch)
    told = await asyncio.gather(
        *(
            market.dispatch.next(device, ask(None, (f"job {at}", 1)))
            for at, device in enumerate(devices)
        )
    )
    assert [[each.job_id for each in one.actions] for one in told] == [
        [f"job {at}"] for at in range(len(devices))
    ]
    assert len(statements) <= 5, statements
    assert max(statements) <= 5, statements


async def cancelled_as_unreadable(market: Market, buyer: str, job_id: str) -> bool:
    owned = await market.jobs.find(buyer, job_id)
    return (owned.job.status, owned.job.failure_reason, owned.paid) == ("cancelled", UNREADABLE, 0)


async def test_a_waiting_job_with_unreadable_secrets_is_cancelled(
    market: Market,
) -> None:
    buyer = await buyer_of(market)
    secret = {"script": "x", "secrets": {"A": "b"}}
    job, other = await posted(market, buyer, payload=secret), await posted(market, buyer)
    await waiting_jobs(market, 2)
    market.specs._sealing = OTHER_KEY
    market.context.bus.catch_up()
    market.context.bus.publish(WAITING, [job])
    await until(lambda: cancelled_as_unreadable(market, buyer, job), "its buyer is told")
    await waiting_jobs(market, 1)
    assert await given(market, await device_for(market)) == [other]
    assert (await audit_ledger(market.store)).passed


async def test_a_job_with_unreadable_secrets_holds_up_no_device(market: Market) -> None:
    buyer, device = await buyer_of(market), await device_for(market)
    job = await posted(market, buyer, payload={"script": "x", "secrets": {"A": "b"}})
    await waiting_jobs(market, 1)
    assert await given(market, device) == [job]  # and the answer is lost
    market.specs._sealing = OTHER_KEY
    asking = later(market, device)
    await until(lambda: cancelled_as_unreadable(market, buyer, job), "its buyer is told")
    next_job = await posted(market, buyer)
    assert attempts_of(await asking) == {(next_job, 1)}
    [attempt] = await history(market, job)
    assert attempt.outcome == "cancelled"
    assert (await audit_ledger(market.store)).passed


async def test_a_daemon_with_another_key_than_the_others_ends_none_of_their_jobs(
    market: Market,
) -> None:
    """A device with such a job is not delayed either; a daemon that can read it sends it there."""
    buyer, device = await buyer_of(market), await device_for(market)
    secret = {"script": "x", "secrets": {"A": "b"}}
    held = await posted(market, buyer, payload=secret)
    await waiting_jobs(market, 1)
    assert await given(market, device) == [held]  # and the answer is lost
    waits = await posted(market, buyer, payload=secret)
    await waiting_jobs(market, 1)
    ours, market.specs._sealing = market.specs._sealing, OTHER_KEY
    market.context.bus.carried = BETWEEN_DAEMONS
    market.context.bus.catch_up()
    market.context.bus.publish(WAITING, [waits])
    await waiting_jobs(market, 0)
    assert await refusal(market.jobs.work(device, held)) is Code.PAYLOAD_INVALID
    other = await posted(market, buyer)
    await waiting_jobs(market, 1)
    assert await given(market, device) == [other]
    states = [(await market.jobs.find(buyer, each)).job.status for each in (held, waits)]
    assert states == ["running", "waiting"]
    market.specs._sealing = ours
    market.context.bus.publish(DEVICES, [device.id])
    assert held in await given(market, device)


@cases(
    ("networks", "expected"),
    [
        ({}, 0),
        ({"a": {"1"}, "b": {"1"}}, 1),  # two owners behind one address
        ({"a": {"1", "2"}, "b": {"1"}}, 2),
        ({"a": {"1", "2"}, "b": {"2"}, "c": {"1"}}, 2),
        ({"a": {""}, "b": {""}, "c": {"1"}}, 3),
        ({"a": {""}, "b": {""}, "c": {""}, "d": {"1"}, "e": {"2"}, "f": {"3"}}, 5),
    ],
)
def test_owners_are_counted_that_have_a_network_each(
    networks: dict[str, set[str]], expected: int
) -> None:
    assert apart(networks, 5) == expected


@contextmanager
def lost_answers(market: Market, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have units committed without an answer; the block must raise for that."""
    write = market.store.write

    async def write_without_answer(*args: Any, **kwargs: Any) -> None:
        await write(*args, **kwargs)
        raise UnknownOutcomeError("the answer to a commit was lost")

    with monkeypatch.context() as patched:
        patched.setattr(market.store, "write", write_without_answer)
        with pytest.raises(UnknownOutcomeError):
            yield


async def test_a_device_gets_a_job_though_the_answer_to_its_creation_was_lost(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    buyer, device = await buyer_of(market), await device_for(market)
    asking = later(market, device)
    await held(market)
    with lost_answers(market, monkeypatch):
        await posted(market, buyer)
    async with asyncio.timeout(5):
        assert len((await asking).jobs) == 1


@pytest.mark.parametrize("end", ["fail", "take back"])
async def test_a_device_gets_a_job_though_the_answer_to_the_end_of_an_attempt_was_lost(
    market: Market, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    buyer, first, second = (
        await buyer_of(market),
        await device_for(market),
        await device_for(market),
    )
    job_id = await posted(market, buyer)
    await waiting_jobs(market, 1)
    assert await given(market, first) == [job_id]
    asking = later(market, second)
    await held(market)
    with lost_answers(market, monkeypatch):
        if end == "fail":
            await market.jobs.fail(first, job_id, "it broke")
        else:
            await market.job_sweeper.take_back_attempt(job_id, 1, "it is lost")
    async with asyncio.timeout(5):
        assert [each.row.job_id for each in (await asking).jobs] == [job_id]
