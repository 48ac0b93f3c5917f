"""Effects of attempts and checks on reputations, in their own transactions; both engines."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from support.base.waiting import until
from support.market.books import stored_job
from support.market.jobs import device_of, running, specified, wanted
from support.market.market import Market
from support.market.reviews import decide_review
from support.market.work import ask, given, posted

from market.accounts.bounds import Bounds
from market.attempts.attempts import Ending, FailureKind
from market.base.errors import Code, MarketError
from market.base.states import ReviewStatus
from market.deploys.deploys import NewDeploy
from market.dispatch.asks import DispatchPace
from market.jobs.hindrances import Hindrance
from market.jobs.matching import Needs
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from market.trust import trust
from market.trust.reputation import NEW, Reputation
from proxyctl.protocol.jobspec import Resources
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.trust import trust as queries

HOST = Ending(FailureKind.HOST)


async def reputation_of(market: Market, device: DeviceRow) -> Reputation:
    found = await market.store.read(trust.of_devices, [device.id])
    return found[device.id]


async def fail(market: Market, buyer: str, worker: str, ending: Ending) -> DeviceRow:
    """Let a new device of a worker fail at a new job, and return the device."""
    job_id, device = await running(market, buyer, worker)
    await market.jobs.fail(device, job_id, "it broke", ending=ending)
    return device


async def test_the_work_of_a_device_is_counted_with_its_end(market: Market) -> None:
    buyer, worker = await market.person(credit="1000"), await market.person()
    job_id, device = await running(market, buyer, worker)
    assert await reputation_of(market, device) == NEW
    await market.jobs.complete(device, job_id, "done")
    await market.jobs.complete(device, job_id, "done")  # said again
    once = NEW.after_attempt(is_good=True)
    assert await reputation_of(market, device) == once
    # A failure of the work itself, and a cancellation by the buyer, are no fault of the device.
    for kind in (FailureKind.JOB, FailureKind.TIMEOUT, FailureKind.OOM, FailureKind.INPUT):
        failed = await fail(market, buyer, worker, Ending(kind))
        assert (await reputation_of(market, failed)).attempts == 0
    cancelled, idle = await running(market, buyer, worker)
    await market.jobs.cancel(buyer, cancelled)
    assert (await reputation_of(market, idle)).attempts == 0
    broken = await fail(market, buyer, worker, HOST)
    assert await reputation_of(market, broken) == NEW.after_attempt(is_good=False)
    assert await reputation_of(market, device) == once
    assert (await audit_ledger(market.store)).passed


async def test_a_device_that_vanishes_is_counted(market: Market) -> None:
    buyer, worker = await market.person(credit="1000"), await market.person()
    job_id, device = await running(market, buyer, worker)
    await market.job_sweeper.take_back_attempt(job_id, 1, "gone")
    assert await reputation_of(market, device) == NEW.after_attempt(is_good=False)


async def test_a_new_token_of_the_same_owner_forgets_nothing(market: Market) -> None:
    worker, other = await market.person(), await market.person()
    for _ in range(8):
        await fail(market, await market.person(credit="1000"), worker, HOST)
    again = await reputation_of(market, await device_of(market, worker))
    assert again.attempts == 0
    assert again.score < NEW.score * 2 // 3
    assert await reputation_of(market, await device_of(market, other)) == NEW


async def test_a_job_that_pays_nothing_or_is_the_owners_own_does_not_count(market: Market) -> None:
    buyer, worker = await market.person(credit="1000"), await market.person(credit="1000")
    job_id, device = await running(market, buyer, worker, price=Bounds().free_below - 1)
    await market.jobs.complete(device, job_id, "done")
    assert await reputation_of(market, device) == NEW
    job_id, device = await running(market, worker, worker)
    await market.jobs.complete(device, job_id, "done")
    assert await reputation_of(market, device) == NEW


async def test_one_buyer_moves_one_owner_a_few_times_a_day(market: Market) -> None:
    buyer, worker = await market.person(credit="1000"), await market.person()
    rival = await market.person(credit="1000")
    most = trust.COUNTED_PER_BUYER_DAY
    device = await device_of(market, worker)

    async def complete(user: str) -> None:
        job_id = await specified(market, user)
        await market.jobs.accept(device, job_id)
        await market.jobs.complete(device, job_id, "done")

    for _ in range(most + 2):
        await complete(buyer)
    assert (await reputation_of(market, device)).attempts == most
    await complete(rival)
    assert (await reputation_of(market, device)).attempts == most + 1
    market.clock.jump(trust.DAY_SECONDS)
    await complete(buyer)
    assert (await reputation_of(market, device)).attempts == most + 2


@pytest.mark.parametrize("has_payload", [False, True])
async def test_of_jobs_without_a_review_one_a_day_counts_for_each_buyer(
    market: Market, has_payload: bool
) -> None:
    """A user that buys from themselves and confirms would have a reputation within a second."""
    buyers = [await market.person(credit="1000") for _ in range(2)]
    device = await device_of(market, await market.person())
    for buyer in buyers * 4:
        if has_payload:
            job_id = await specified(market, buyer, review_hours=0)
        else:
            job_id = await market.jobs.create(buyer, wanted())
        await market.jobs.accept(device, job_id)
        await market.jobs.complete(device, job_id, "done")
    assert (await reputation_of(market, device)).attempts == len(buyers)
    market.clock.jump(trust.DAY_SECONDS)
    job_id = await specified(market, buyers[0], review_hours=0)
    await market.jobs.accept(device, job_id)
    await market.jobs.complete(device, job_id, "done")
    assert (await reputation_of(market, device)).attempts == len(buyers) + 1


@pytest.mark.both_engines
async def test_many_at_once_are_all_counted(market: Market) -> None:
    worker, device_count = await market.person(), 6
    devices = [await device_of(market, worker) for _ in range(device_count)]

    async def check(device: DeviceRow, is_right: bool) -> None:
        await market.store.write(trust.checked, device.id, is_right=is_right)

    await asyncio.gather(*(check(device, True) for device in devices for _ in range(5)))
    for device in devices:
        found = await reputation_of(market, device)
        assert (found.checks, found.streak) == (5, 5)
    await check(devices[0], False)
    assert (await reputation_of(market, devices[0])).streak == 0
    # An owner that was caught with one device is not trusted with any other.
    assert (await reputation_of(market, devices[1])).correctness < NEW.correctness


async def test_reputations_are_locked_before_the_account_of_the_house(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    user, owner = await market.person("10", "100"), await market.person()
    write, locked = market.store.write, []

    class Spy:
        """A transaction that notes in which order it locks tables."""

        def __init__(self, tx: Transaction) -> None:
            self._tx = tx
            locked.append([])

        def __getattr__(self, name: str) -> Any:
            return getattr(self._tx, name)

        async def lock(self, table: str, ids: Sequence[str]) -> None:
            if table in ("reputations", "accounts") and table not in locked[-1]:
                locked[-1].append(table)
            await self._tx.lock(table, ids)

    async def spied(unit: Any, *args: Any, **kwargs: Any) -> Any:
        async def noting(tx: Transaction) -> Any:
            return await unit(Spy(tx), *args, **kwargs)

        return await write(noting)

    job_id, device = await running(market, user, owner)
    deploy = NewDeploy("d", "Docker", "A100", 1, 2, 2, Currency.USD, image="web:1")
    deploy_id = (await market.deploys.create(user, deploy)).id
    replicas = (await market.deploys.find(user, deploy_id)).job_ids
    serving = [await device_of(market, owner) for _ in replicas]
    for each, replica in zip(serving, replicas, strict=True):
        await market.jobs.accept(each, replica)
        await market.attempt_reports.started(each, replica, None)
    market.clock.now += 600
    monkeypatch.setattr(market.store, "write", spied)
    await market.jobs.complete(device, job_id, "done")
    await market.jobs.complete(serving[0], replicas[0], "done")
    await market.jobs.fail(serving[1], replicas[1], "it broke", ending=HOST)
    monkeypatch.undo()
    # Else two that end at once wait for each other, and the house with them.
    assert [each for each in locked if each] == [["reputations", "accounts"]] * 3


async def test_a_report_that_is_refused_counts_for_nothing(market: Market) -> None:
    buyer, worker = await market.person(credit="1000"), await market.person()
    job_id, device = await running(market, buyer, worker)
    results = await asyncio.gather(
        *(market.jobs.fail(device, job_id, "it broke", ending=HOST) for _ in range(5)),
        return_exceptions=True,
    )
    assert sum(result is None for result in results) == 1
    assert (await stored_job(market, job_id)).status == "waiting"
    assert (await reputation_of(market, device)).attempts == 1


async def reputed(market: Market, worker: str, good: int) -> DeviceRow:
    """Return a new device with `good` completed attempts."""
    device = await device_of(market, worker)
    row = trust._row(device.id, "device", NEW)
    for _ in range(good):
        row = trust._row(device.id, "device", Reputation(*row[2:]).after_attempt(is_good=True))

    async def write(tx: Transaction) -> None:
        await queries.add(tx, [row])

    await market.store.write(write)
    return device


async def test_a_job_goes_to_a_device_with_the_reputation_that_its_buyer_asks(
    market: Market,
) -> None:
    buyer = await market.person(credit="1000")
    new = await device_of(market, await market.person())
    proven = await reputed(market, await market.person(), 40)
    job_id = await posted(market, buyer, min_reputation=950_000)
    await market.dispatch.pairing.reader.catch_up()
    for device in (new, proven):
        offers = await market.dispatch.offers(device, 10)
        assert [each.row.job_id for each in offers.jobs] == [job_id] * (device is proven)
    assert await given(market, new) == []
    with pytest.raises(MarketError) as caught:
        await market.jobs.accept(new, job_id)
    assert caught.value.code is Code.REPUTATION_TOO_LOW
    assert (await stored_job(market, job_id)).status == "waiting"
    assert await given(market, proven) == [job_id]


async def test_a_job_finds_the_device_that_waits_and_has_the_reputation(market: Market) -> None:
    buyer = await market.person(credit="1000")
    new = await device_of(market, await market.person())
    proven = await reputed(market, await market.person(), 40)
    waits = [
        asyncio.create_task(market.dispatch.next(device, ask(wait_seconds=30)))
        for device in (new, proven)
    ]
    await until(lambda: market.dispatch.held == 2 and len(market.dispatch.pairing.waiting) == 2)
    job_id = await posted(market, buyer, min_reputation=950_000)
    await market.dispatch.pairing.reader.catch_up()
    told = await waits[1]
    assert [job.row.job_id for job in told.jobs] == [job_id]
    market.dispatch.drain()
    assert not (await waits[0]).jobs


@pytest.mark.both_engines
async def test_a_device_that_has_fallen_since_it_was_looked_up_does_not_get_the_job(
    market: Market,
) -> None:
    buyer = await market.person(credit="1000")
    device = await reputed(market, await market.person(), 40)
    wait = asyncio.create_task(market.dispatch.next(device, ask(wait_seconds=30)))
    await until(lambda: len(market.dispatch.pairing.waiting) == 1)
    await market.store.write(trust.checked, device.id, is_right=False)
    job_id = await posted(market, buyer, min_reputation=950_000)
    await market.dispatch.pairing.reader.catch_up()
    await market.dispatch.claims.settle()
    market.dispatch.drain()
    assert not (await wait).jobs
    assert (await stored_job(market, job_id)).status == "waiting"


async def test_a_result_that_the_operator_takes_back_was_wrong(market: Market) -> None:
    buyer, worker = await market.person(credit="1000"), await market.person()
    device = await device_of(market, worker)
    for decision in (ReviewStatus.UPHELD, ReviewStatus.REVERSED):
        job_id = await posted(market, buyer, price=10 * MICRO)
        await market.jobs.accept(device, job_id)
        await market.jobs.complete(device, job_id, "done", attempt=1)
        await market.reviews.dispute(buyer, job_id, "it is garbage")
        await decide_review(market.context, job_id, decision)
        found = await reputation_of(market, device)
        assert found.checks == (decision is ReviewStatus.REVERSED)
    assert found.correctness == NEW.correctness // 2
    assert (await audit_ledger(market.store)).passed


async def test_a_comparison_with_many_devices_is_kept_for_a_moment(market: Market) -> None:
    """A client that lists jobs again and again would otherwise delay all others."""
    needs = Needs(Resources(cores=1_000), "script")
    await given(market, await device_of(market, await market.person()))
    assert market.dispatch.devices.lacks(needs) is not market.dispatch.devices.lacks(needs)
    market.dispatch.pace = DispatchPace(kept_from_devices=1, kept_max=1)
    found = market.dispatch.devices.lacks(needs)
    assert market.dispatch.devices.lacks(needs) is found
    other = market.dispatch.devices.lacks(needs, 1)  # in the place of the first
    assert market.dispatch.devices.lacks(needs, 1) is other
    assert market.dispatch.devices.lacks(needs) is not found
    market.dispatch.pace = DispatchPace(kept_from_devices=1, kept_max=1, kept_seconds=0.0)
    market.dispatch.devices.lacks(needs, 1)
    found = market.dispatch.devices.lacks(needs)
    assert market.dispatch.devices.lacks(needs) is not found


async def test_it_is_known_whether_any_device_has_the_reputation(market: Market) -> None:
    needs = Needs(Resources(), "script", min_reputation=950_000)
    found = market.dispatch.devices.lacks(needs)
    assert found is not None
    assert found.devices == 0  # none has asked
    await given(market, await device_of(market, await market.person()))
    found = market.dispatch.devices.lacks(needs)
    assert found is not None
    assert (found.counts, found.close) == ({Hindrance.REPUTATION: 1}, 1)
    assert not market.dispatch.devices.lacks(needs._replace(min_reputation=500_000))
    await given(market, await reputed(market, await market.person(), 40))
    assert not market.dispatch.devices.lacks(needs)
