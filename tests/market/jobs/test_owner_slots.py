"""An owner without a reputation holds few jobs, with any number of registered devices."""

import asyncio

import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.market.jobs import code_of, device_of, specified, wanted
from support.market.market import Market
from support.market.work import ask, attempts_of, given, offer, posted

from market.accounts.bounds import Bounds
from market.attempts.attempts import PROVEN_JOBS
from market.base.errors import Code
from market.jobs import owner_slots
from market.trust.reputation import NEW_RELIABILITY
from proxyctl.protocol.jobspec import Capacity
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.trust import trust as trust_queries
from storage.trust.trust import ReputationRow

FEW = Bounds(new_owner_slots=3, new_device_slots=2)


async def devices(market: Market, owner: str, count: int) -> list[DeviceRow]:
    return [await device_of(market, owner) for _ in range(count)]


async def known(market: Market, owner: str, attempts: int, reliability: int) -> None:
    """Give an owner a reputation."""
    row = ReputationRow(owner, "owner", reliability, 1_000_000, attempts, 0, 0)

    async def add(tx: Transaction) -> None:
        await trust_queries.add(tx, [row])

    await market.store.write(add)


@cases(
    ("attempts", "reliability", "slots"),
    [
        (0, NEW_RELIABILITY, 3),
        (PROVEN_JOBS - 1, 900_000, 3),
        (PROVEN_JOBS, 900_000, 6),
        (3 * PROVEN_JOBS, NEW_RELIABILITY, 24),
        (3 * PROVEN_JOBS, NEW_RELIABILITY - 1, 3),
        (10**9, 900_000, 3 << owner_slots.DOUBLINGS_MAX),
    ],
)
def test_slots_grow_with_the_attempts_that_count(
    attempts: int, reliability: int, slots: int
) -> None:
    assert owner_slots.of(attempts, reliability, FEW) == slots


@pytest.mark.both_engines
async def test_twenty_tokens_of_one_account_take_no_more_than_its_slots(market: Market) -> None:
    """Twelve accept at once, so claims of different devices must not both take the last slot."""
    market.change_bounds(FEW)
    buyer, owner = await market.person(credit="100"), await market.person()
    jobs = [await market.jobs.create(buyer, wanted(price=0)) for _ in range(20)]
    made = await devices(market, owner, 20)
    accepting = [market.jobs.accept(device, job) for device, job in zip(made, jobs, strict=True)]
    codes = [code_of(each) for each in await asyncio.gather(*accepting, return_exceptions=True)]
    assert (codes.count(None), codes.count(Code.DEVICE_FULL)) == (3, 17)
    other = await device_of(market, await market.person())
    left = next(job for job, code in zip(jobs, codes, strict=True) if code is not None)
    assert (await market.jobs.accept(other, left)).status == "running"
    # A slot that is free again may be used by another device.
    taken = next(index for index, code in enumerate(codes) if code is None)
    await market.jobs.fail(made[taken], jobs[taken], "broken")
    free = [job for job, code in zip(jobs, codes, strict=True) if code is not None and job != left]
    assert (await market.jobs.accept(made[-1], free[0])).status == "running"


async def test_an_owner_with_a_reputation_has_more(market: Market) -> None:
    market.change_bounds(FEW)
    buyer, owner = await market.person(credit="100"), await market.person()
    await known(market, owner, PROVEN_JOBS, 900_000)
    for number, device in enumerate(await devices(market, owner, 7)):
        job = await market.jobs.create(buyer, wanted(price=0))
        outcome = await asyncio.gather(market.jobs.accept(device, job), return_exceptions=True)
        assert code_of(outcome[0]) == (None if number < 6 else Code.DEVICE_FULL)


@pytest.mark.both_engines
async def test_devices_that_ask_for_work_get_no_more_either_and_others_get_the_rest(
    market: Market,
) -> None:
    market.change_bounds(FEW)
    reading = asyncio.get_running_loop().create_task(market.dispatch.run())
    try:
        buyer, owner = await market.person(credit="100"), await market.person()
        greedy = await devices(market, owner, 6)
        for _ in range(8):
            await posted(market, buyer)
        many = offer(Capacity(slots=4, cores=4))
        while len(market.dispatch.jobs) < 8:
            await asyncio.sleep(0)
        told = [await market.dispatch.next(each, ask(many)) for each in greedy]
        assert sum(len(each.jobs) for each in told) == 3
        honest = await device_of(market, await market.person())
        assert len(await given(market, honest, ask(many))) == 2  # slots of a new device
        waiting = [
            market.dispatch.next(each, ask(many, *attempts_of(had), wait_seconds=30.0))
            for each, had in zip(greedy, told, strict=True)
        ]
        held = [asyncio.get_running_loop().create_task(each) for each in waiting]
        while market.dispatch.held < len(greedy):
            await asyncio.sleep(0)
        await posted(market, buyer)
        while len(market.dispatch.jobs) < 4:
            await asyncio.sleep(0)
        market.dispatch.drain()
        assert [list(each.jobs) for each in await asyncio.gather(*held)] == [[]] * len(greedy)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_without_the_bound_only_devices_count(market: Market) -> None:
    market.change_bounds(replace(FEW, new_owner_slots=0))
    buyer, owner = await market.person(credit="100"), await market.person()
    for device in await devices(market, owner, 5):
        await market.jobs.accept(device, await specified(market, buyer, price=0))
