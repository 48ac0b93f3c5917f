"""Pairs of jobs and devices are written many at once, each guarded by itself."""

import asyncio

import pytest
from msgspec.structs import replace
from support.market.jobs import device_of, history
from support.market.market import Market
from support.market.work import posted

from market.accounts.bounds import Bounds
from market.dispatch.claims import BATCH_MAX_PAIRS, ClaimOutcome, Claims, Pair, Refused
from market.jobs.matching import Needs, WaitingJob
from proxyctl.protocol.jobspec import Resources
from storage.devices.devices import DeviceRow
from storage.dispatch.claims import GivenRow
from storage.engines.errors import UnavailableError

NEEDS = Needs(Resources(), "script")


def waiting(job_id: str, attempts: int = 0) -> WaitingJob:
    return WaitingJob(job_id, NEEDS, price=1, created_at=0, attempts=attempts)


async def outcomes(
    claims: Claims, *pairs: tuple[WaitingJob, DeviceRow], wanted: bool = True
) -> list[ClaimOutcome]:
    """Put pairs, and return the outcome of each."""
    found: dict[int, ClaimOutcome] = {}
    for number, (job, device) in enumerate(pairs):

        def told(_: WaitingJob, outcome: ClaimOutcome, number: int = number) -> None:
            found[number] = outcome

        claims.put(Pair(job, device.id, lambda: wanted, told))
    await claims.settle()
    return [found[number] for number in range(len(pairs))]


@pytest.fixture
def claims(market: Market) -> Claims:
    return Claims(market.context, market.bounds)


async def people(market: Market) -> tuple[str, DeviceRow]:
    return await market.person(credit="10000"), await device_of(market, await market.person())


@pytest.mark.both_engines
async def test_a_job_goes_to_one_of_two_daemons(market: Market, claims: Claims) -> None:
    buyer, device = await people(market)
    job = await posted(market, buyer)
    other = Claims(market.context, Bounds)
    [first], [second] = await asyncio.gather(
        outcomes(claims, (waiting(job), device)), outcomes(other, (waiting(job), device))
    )
    assert sorted(isinstance(each, GivenRow) for each in (first, second)) == [False, True]
    assert Refused.TAKEN in (first, second)
    assert len(await history(market, job)) == 1


async def test_a_job_that_was_tried_meanwhile_is_not_given(market: Market, claims: Claims) -> None:
    buyer, device = await people(market)
    job = await posted(market, buyer)
    assert await outcomes(claims, (waiting(job, attempts=1), device)) == [Refused.TAKEN]
    await market.jobs.cancel(buyer, job)
    assert await outcomes(claims, (waiting(job), device)) == [Refused.TAKEN]


async def test_each_pair_of_a_batch_has_its_own_outcome(market: Market, claims: Claims) -> None:
    market.change_bounds(Bounds(device_slots=2))
    buyer, device = await people(market)
    owner = await market.person()
    revoked = await device_of(market, owner)
    await market.devices.revoke(owner, revoked.id)
    jobs = [await posted(market, buyer) for _ in range(5)]
    await market.jobs.cancel(buyer, jobs[0])
    made = await outcomes(
        claims,
        (waiting(jobs[1]), device),
        (waiting(jobs[2]), revoked),
        (waiting(jobs[3]), device),
        (waiting(jobs[4]), device),
    )
    assert [getattr(each, "job_id", each) for each in made] == [
        jobs[1],
        Refused.REVOKED,
        jobs[3],
        Refused.FULL,
    ]
    assert claims.claimed == 2


async def test_an_offer_without_a_waiting_device_is_not_written(
    market: Market, claims: Claims
) -> None:
    buyer, device = await people(market)
    job = await posted(market, buyer)
    assert await outcomes(claims, (waiting(job), device), wanted=False) == [Refused.UNWANTED]
    assert await history(market, job) == []


async def test_more_pairs_than_a_batch_are_all_written(market: Market, claims: Claims) -> None:
    market.change_bounds(Bounds(device_slots=0, new_device_slots=0, new_owner_slots=0))
    buyer, device = await people(market)
    jobs = [await posted(market, buyer) for _ in range(BATCH_MAX_PAIRS + 5)]
    made = await outcomes(claims, *((waiting(job), device) for job in jobs))
    assert [getattr(each, "job_id", each) for each in made] == jobs


class AwayStore:
    """A database that does not answer."""

    async def write(self, *_: object) -> None:
        raise UnavailableError("away")


async def test_a_store_that_is_away_is_the_outcome_of_every_pair(market: Market) -> None:
    _, device = await people(market)
    away = Claims(replace(market.context, store=AwayStore()), Bounds)
    made = await outcomes(away, (waiting("a"), device))
    assert [str(each) for each in made] == ["away"]


class BrokenStore:
    """Database that fails with an unexpected error."""

    async def write(self, *_: object) -> None:
        raise ZeroDivisionError("broken")


async def test_any_failure_is_an_outcome_and_no_caller_waits_for_ever(market: Market) -> None:
    _, device = await people(market)
    broken = Claims(replace(market.context, store=BrokenStore()), Bounds)
    for job in ("a", "b"):
        made = await outcomes(broken, (waiting(job), device))
        assert [str(each) for each in made] == ["broken"]
