"""An appeal is possible once, for the side that did not get everything, within 14 days."""

import asyncio

import pytest
from support.market.books import refusal
from support.market.jobs import device_of, on, specified
from support.market.leaving import tools
from support.market.market import Market
from support.market.reviews import decide_review

from market.base.errors import Code, MarketError
from market.base.states import ReviewStatus
from market.erasure import erasing
from market.files.evidence import APPEAL_SECONDS
from market.jobs.appeals import DUE_SECONDS
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.files.evidence import is_evidence
from storage.jobs.appeals import AppealRow

UPHELD, REVERSED = ReviewStatus.UPHELD, ReviewStatus.REVERSED


async def decided(market: Market, buyer: str, worker: str, state: ReviewStatus) -> str:
    """Have a job done for 10 credits, disputed, and decided."""
    job_id, _ = await decided_on_device(market, buyer, worker, state)
    return job_id


async def decided_on_device(
    market: Market, buyer: str, worker: str, state: ReviewStatus
) -> tuple[str, DeviceRow]:
    """Have a job decided as `decided` does. Return it with its device."""
    job_id = await specified(market, buyer)
    device = await on(market, job_id, worker)
    await market.jobs.complete(device, job_id, "the result")
    await market.reviews.dispute(buyer, job_id, "an empty file")
    await decide_review(market.context, job_id, state)
    return job_id, device


@pytest.mark.both_engines
async def test_the_side_that_lost_appeals_once(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await decided(market, buyer, worker, UPHELD)
    made = await asyncio.gather(
        *(market.appeals.appeal(buyer, job_id, "a reason") for _ in range(3))
    )
    assert len({each.id for each in made}) == 1
    assert made[0].due_at == market.clock.now + DUE_SECONDS
    [listed] = await market.appeals.listed(buyer, limit=5)
    assert (listed.job_id, listed.reason, listed.decision) == (job_id, made[0].reason, None)
    won = market.appeals.appeal(worker, job_id, "more")
    assert await refusal(won) is Code.NOT_REVIEWABLE
    assert await market.appeals.listed(worker, limit=5) == []


@pytest.mark.both_engines
async def test_of_two_appeals_with_different_reasons_one_is_refused(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await decided_on_device(market, buyer, worker, REVERSED)
    made = await asyncio.gather(
        market.appeals.appeal(worker, job_id, "one"),
        market.appeals.appeal_of_device(device, job_id, "two"),
        return_exceptions=True,
    )
    [kept] = [each for each in made if isinstance(each, AppealRow)]
    [refused] = [each for each in made if isinstance(each, MarketError)]
    assert refused.code is Code.ALREADY_APPEALED
    [listed] = await market.appeals.listed(worker, limit=5)
    assert (listed.id, listed.reason) == (kept.id, kept.reason)
    assert (await market.appeals.appeal(worker, job_id, kept.reason)).id == kept.id
    late = market.appeals.appeal(worker, job_id, "three")
    assert await refusal(late) is Code.ALREADY_APPEALED


@pytest.mark.both_engines
async def test_the_evidence_stays_while_an_appeal_waits(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    appealed = await decided(market, buyer, worker, UPHELD)
    final = await decided(market, buyer, worker, UPHELD)
    await market.appeals.appeal(buyer, appealed, "the log shows it")

    async def kept(tx: Transaction) -> list[str]:
        sql = f"SELECT j.id FROM jobs AS j WHERE {is_evidence('j.id')}"
        return await tx.all(str, sql, decided_after=market.clock.now + 1)

    assert await market.store.read(kept) == [appealed]
    assert final != appealed


async def test_a_worker_appeals_against_a_reversal(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await decided(market, buyer, worker, REVERSED)
    assert await refusal(market.appeals.appeal(buyer, job_id, "x")) is Code.NOT_REVIEWABLE
    assert (await market.appeals.appeal(worker, job_id, "it printed an error")).user_id == worker


async def test_a_device_appeals_about_its_own_work_alone(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await decided_on_device(market, buyer, worker, REVERSED)
    for owner in (worker, await market.person()):
        other = await device_of(market, owner)
        appealed = market.appeals.appeal_of_device(other, job_id, "x")
        assert await refusal(appealed) is Code.JOB_NOT_FOUND
    made = await market.appeals.appeal_of_device(device, job_id, "it printed an error")
    assert (made.user_id, made.job_id) == (worker, job_id)


async def test_no_appeal_of_an_erased_user_is_kept(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await decided_on_device(market, buyer, worker, REVERSED)
    await market.store.write(erasing.erase, market.context, tools(market), worker, waives=False)
    # Another daemon may not know yet that the token was revoked, and the login ended.
    for appealed in (
        market.appeals.appeal_of_device(device, job_id, "Ada was here"),
        market.appeals.appeal(worker, job_id, "Ada was here"),
    ):
        assert await refusal(appealed) is Code.JOB_NOT_FOUND
    assert await market.appeals.listed(worker, limit=5) == []


@pytest.mark.parametrize("is_own_device", [False, True])
async def test_a_device_uses_up_no_appeal_of_a_buyer(market: Market, is_own_device: bool) -> None:
    buyer = await market.person(credit="10")
    worker = buyer if is_own_device else await market.person()
    job_id, device = await decided_on_device(market, buyer, worker, UPHELD)
    of_buyer = device if is_own_device else await device_of(market, buyer)
    refused = market.appeals.appeal_of_device(of_buyer, job_id, "nothing")
    assert await refusal(refused) is Code.JOB_NOT_FOUND
    assert (await market.appeals.appeal(buyer, job_id, "an empty file")).user_id == buyer


async def test_strangers_late_sides_and_open_disputes_are_refused(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id = await decided(market, buyer, worker, UPHELD)
    stranger = await market.person()
    assert await refusal(market.appeals.appeal(stranger, job_id, "x")) is Code.JOB_NOT_FOUND
    assert await refusal(market.appeals.appeal(buyer, "none", "x")) is Code.JOB_NOT_FOUND
    for text in ("", "x" * 2_001):
        assert await refusal(market.appeals.appeal(buyer, job_id, text)) is Code.INVALID_FIELD
    market.clock.now += APPEAL_SECONDS + 1
    assert await refusal(market.appeals.appeal(buyer, job_id, "x")) is Code.NOT_REVIEWABLE
    open_job = await specified(market, buyer)
    assert await refusal(market.appeals.appeal(buyer, open_job, "x")) is Code.NOT_REVIEWABLE
    await market.jobs.complete(await on(market, open_job, worker), open_job, "the result")
    await market.reviews.dispute(buyer, open_job, "an empty file")
    assert await refusal(market.appeals.appeal(buyer, open_job, "x")) is Code.NOT_REVIEWABLE
    await market.reviews.confirm(buyer, open_job)
    assert await refusal(market.appeals.appeal(buyer, open_job, "x")) is Code.NOT_REVIEWABLE
