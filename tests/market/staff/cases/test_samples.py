"""A failed sample that is void gives back reputation, reviews and the price."""

import hashlib
from dataclasses import dataclass

import pytest
from support.market.books import available, payable, refusal
from support.market.cases import cases_of, decide, verify
from support.market.events import said
from support.market.jobs import device_of
from support.market.market import Market
from support.market.staff import ROOT
from support.market.staff_money import ASKER, CREDIT, NOTHING, SECOND

from market.base.errors import Code
from market.jobs import reviews
from market.staff.audit import audit_all
from market.staff.cases.base import Decision, Kind
from market.staff.money.approvals import State
from market.staff.money.second_person import approve
from market.trust.reputation import NEW, WHOLE, Loss, Reputation
from storage.devices.devices import DeviceRow
from storage.trust.samples import SampleRow
from tests.market.dispatch.test_samples import (  # noqa: F401 - fixtures
    after_each_job,
    reputation_of,
    sampling,
    take,
    work,
)

UPHELD, VOIDED = Decision.UPHELD, Decision.VOIDED
DAY = 86_400


@dataclass
class Failed:
    """A device with work in review that has handed in a wrong result."""

    owner: str
    device: DeviceRow
    before: Reputation
    frozen: str
    sample: SampleRow


async def failed(market: Market) -> Failed:
    """Have a device do a right sample and a job, and fail at the next sample."""
    await sampling(market)
    owner, buyer = await market.person(), await market.person(credit="100")
    await verify(market, owner)
    device = await device_of(market, owner)
    first = await take(market, device)
    await market.jobs.complete(device, first.job_id, first.answer)
    job_id = await work(market, buyer, device)
    before = await reputation_of(market, device)
    sample = await take(market, device)
    market.clock.now += 60
    await market.jobs.complete(device, sample.job_id, "0")
    return Failed(owner, device, before, job_id, sample)


@pytest.mark.both_engines
async def test_a_void_sample_gives_back_all_that_it_took(market: Market) -> None:
    made = await failed(market)
    case_id = made.sample.job_id
    shown = await cases_of(market).shown(ROOT, Kind.SAMPLE, case_id)
    facts = {each.name: each.value for each in shown.evidence.facts}
    assert facts["sha256 of its result"] == hashlib.sha256(b"0").hexdigest()
    assert facts["sha256 of the right result"] == (
        hashlib.sha256(made.sample.answer.encode()).hexdigest()
    )
    assert (facts["correctness"], facts["correctness taken"]) == (0.5, 0.5)
    assert (facts["samples"], facts["samples_right".replace("_", " ")]) == (2, 1)
    assert [each.what for each in shown.evidence.history] == ["sample: right"]
    market.clock.now += DAY
    [frozen] = await reviews.disputes(market.context)
    assert frozen.job_id == made.frozen
    had = await available(market, made.owner, CREDIT)
    payable_before = await payable(market, made.owner)
    for state in (State.DONE, State.DONE_BEFORE):
        outcome = await decide(market, Kind.SAMPLE, case_id, VOIDED)
        assert (outcome.state, outcome.amount) == (state, made.sample.price)
    assert await reputation_of(market, made.device) == made.before
    assert await reviews.disputes(market.context) == []
    assert await available(market, made.owner, CREDIT) == had + made.sample.price
    assert await payable(market, made.owner) == payable_before + made.sample.price
    # The review goes on for the rest of its time.
    await market.reviews.dispute(frozen.buyer_id, made.frozen, "an empty file")
    [event] = await said(market, made.owner, "case.decided")
    assert (event["kind"], event["decision"]) == ("sample", "voided")
    assert (await audit_all(market.store)).passed


async def test_an_upheld_sample_changes_nothing(market: Market) -> None:
    made = await failed(market)
    after = await reputation_of(market, made.device)
    await decide(market, Kind.SAMPLE, made.sample.job_id, UPHELD)
    assert await reputation_of(market, made.device) == after
    assert [row.job_id for row in await reviews.disputes(market.context)] == [made.frozen]
    assert await available(market, made.owner, CREDIT) == 0


async def test_a_price_above_the_limit_waits_for_a_second_person(market: Market) -> None:
    made = await failed(market)
    case_id = made.sample.job_id
    asked = await decide(market, Kind.SAMPLE, case_id, VOIDED, ASKER, NOTHING)
    assert asked.state is State.WAITS
    assert (await reputation_of(market, made.device)).correctness < WHOLE
    posters = cases_of(market).posters
    own = approve(market.context, ASKER, asked.id, posters=posters)
    assert await refusal(own) is Code.NOT_PERMITTED
    await approve(market.context, SECOND, asked.id, posters=posters)
    assert await reputation_of(market, made.device) == made.before
    [event] = await said(market, made.owner, "case.decided")
    assert event["reason"] == "the site had a new page"
    assert (await audit_all(market.store)).passed


async def test_a_request_is_void_once_the_case_is_decided(market: Market) -> None:
    made = await failed(market)
    case_id = made.sample.job_id
    asked = await decide(market, Kind.SAMPLE, case_id, VOIDED, ASKER, NOTHING)
    await decide(market, Kind.SAMPLE, case_id, UPHELD)
    late = approve(market.context, SECOND, asked.id, posters=cases_of(market).posters)
    assert await refusal(late) is Code.CASE_DECIDED
    assert await available(market, made.owner, CREDIT) == 0


def test_a_lost_part_comes_back_up_to_the_whole() -> None:
    wrong = NEW.after_check(is_right=True).after_check(is_right=False)
    loss = NEW.after_check(is_right=True).loss_to(wrong)
    assert loss == Loss(WHOLE // 2, 1, 2)
    again = wrong.after_check(is_right=True)
    assert again.without(loss) == Reputation(correctness=WHOLE, checks=2, streak=2)
    worse = again.after_check(is_right=False)
    restored = worse.without(loss)
    assert (restored.checks, restored.streak) == (3, 0)
    assert restored.correctness == worse.correctness + WHOLE // 2
