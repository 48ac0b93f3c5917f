"""A worker answers a dispute until the decision; the staff reads it, and the last answer counts."""

import asyncio

import pytest
from support.market.books import refusal
from support.market.cases import cases_of, letters_named, verify
from support.market.events import said
from support.market.jobs import on, specified
from support.market.leaving import tools
from support.market.market import Market
from support.market.reviews import decide_review
from support.market.staff import ROOT

from market.base.errors import Code
from market.base.states import ReviewStatus
from market.erasure import erasing
from market.jobs.reviews import LETTER_PAUSE_SECONDS
from market.staff.cases.base import Kind
from market.staff.money import judging
from storage.devices.devices import DeviceRow


async def disputed(market: Market, buyer: str, worker: str) -> tuple[str, DeviceRow]:
    """Have a job done for 10 credits, and dispute it. Return it with its device."""
    job_id = await specified(market, buyer)
    device = await on(market, job_id, worker)
    await market.jobs.complete(device, job_id, "the result")
    await market.reviews.dispute(buyer, job_id, "an empty file")
    return job_id, device


async def read_by_staff(market: Market, job_id: str) -> list[tuple[str, str, int]]:
    """Return the answers that the staff reads."""
    found = await judging.evidence(market.context, ROOT, job_id)
    return [(each.user_id, each.answer, each.answered_at) for each in found.answers]


@pytest.mark.both_engines
async def test_the_last_answer_before_the_decision_counts(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, _ = await disputed(market, buyer, worker)
    assert await read_by_staff(market, job_id) == []
    await market.answers.answer(worker, job_id, "it printed an error")
    market.clock.now += 60
    row = await market.answers.answer(worker, job_id, "the disk was full")
    kept = [(worker, "the disk was full", market.clock.now)]
    assert row.answered_at == market.clock.now
    assert await read_by_staff(market, job_id) == kept
    await decide_review(market.context, job_id, ReviewStatus.REVERSED)
    late = market.answers.answer(worker, job_id, "too late")
    assert await refusal(late) is Code.NOT_REVIEWABLE
    assert await read_by_staff(market, job_id) == kept
    appeal = await market.appeals.appeal(worker, job_id, "the log shows it")
    page = await cases_of(market).shown(ROOT, Kind.APPEAL, appeal.id)
    assert "the disk was full" in [each.detail for each in page.evidence.history]


async def test_only_a_worker_of_a_disputed_job_answers(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    stranger = await market.person()
    job_id, _ = await disputed(market, buyer, worker)
    for user, job, code in (
        (buyer, job_id, Code.NOT_REVIEWABLE),
        (stranger, job_id, Code.JOB_NOT_FOUND),
        (worker, "none", Code.JOB_NOT_FOUND),
    ):
        assert await refusal(market.answers.answer(user, job, "x")) is code
    for text in ("", "x" * 2_001, "\u202egnp.exe", "a\x1b[2J"):
        assert await refusal(market.answers.answer(worker, job_id, text)) is Code.INVALID_FIELD
    await market.answers.answer(worker, job_id, "two\nlines")
    await market.answers.answer(worker, job_id, "x" * 2_000)
    held = await specified(market, buyer)
    await market.jobs.complete(await on(market, held, worker), held, "the result")
    early = market.answers.answer(worker, held, "nothing is wrong")
    assert await refusal(early) is Code.NOT_REVIEWABLE
    await market.reviews.confirm(buyer, job_id)
    withdrawn = market.answers.answer(worker, job_id, "x")
    assert await refusal(withdrawn) is Code.NOT_REVIEWABLE


async def test_the_workers_of_a_disputed_job_are_told_once(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    await verify(market, worker)
    job_id, _ = await disputed(market, buyer, worker)
    await market.reviews.dispute(buyer, job_id, "an empty file")
    assert await said(market, worker, "job.disputed") == [{"job_id": job_id}]
    assert await said(market, buyer, "job.disputed") == []
    assert await letters_named(market, f"job disputed:{job_id}:{worker}") == 1
    assert "empty" not in str(await said(market, worker, "job.disputed"))


@pytest.mark.both_engines
async def test_many_disputes_of_an_hour_are_one_letter(market: Market) -> None:
    buyer, worker = await market.person(credit="40"), await market.person()
    await verify(market, worker)
    jobs = list[str]()
    for pause in (0, 60, LETTER_PAUSE_SECONDS - 61, LETTER_PAUSE_SECONDS):
        market.clock.now += pause
        jobs.append((await disputed(market, buyer, worker))[0])
    letters = [await letters_named(market, f"job disputed:{each}:{worker}") for each in jobs]
    assert letters == [1, 0, 0, 1]
    assert len(await said(market, worker, "job.disputed")) == len(jobs)


async def test_a_buyer_is_not_told_about_a_dispute_of_an_own_device(market: Market) -> None:
    buyer = await market.person(credit="10")
    job_id, _ = await disputed(market, buyer, buyer)
    assert await said(market, buyer, "job.disputed") == []
    assert (await market.answers.answer(buyer, job_id, "my own fault")).user_id == buyer


@pytest.mark.both_engines
async def test_an_owner_sees_the_dispute_and_the_answer_at_the_device(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, device = await disputed(market, buyer, worker)

    async def seen() -> tuple[int, str | None] | None:
        [job] = await market.device_work.jobs(worker, device.id, before="", limit=5)
        return job.dispute and (job.dispute.disputed_at, job.dispute.answer)

    at = market.clock.now
    assert await seen() == (at, None)
    market.clock.now += 5
    await market.answers.answer(worker, job_id, "the disk was full")
    assert await seen() == (at, "the disk was full")
    await decide_review(market.context, job_id, ReviewStatus.UPHELD)
    assert await seen() is None


@pytest.mark.both_engines
async def test_a_decision_and_an_answer_at_once_are_in_an_order(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id, _ = await disputed(market, buyer, worker)
    _, answered = await asyncio.gather(
        decide_review(market.context, job_id, ReviewStatus.UPHELD),
        market.answers.answer(worker, job_id, "x"),
        return_exceptions=True,
    )
    was_kept = not isinstance(answered, BaseException)
    assert len(await read_by_staff(market, job_id)) == int(was_kept)


@pytest.mark.both_engines
async def test_an_erased_worker_leaves_no_answer_and_no_letter(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    await verify(market, worker)
    job_id, _ = await disputed(market, buyer, worker)
    await market.answers.answer(worker, job_id, "Ada was here")
    await decide_review(market.context, job_id, ReviewStatus.REVERSED)
    await market.store.write(erasing.erase, market.context, tools(market), worker, waives=False)
    assert await read_by_staff(market, job_id) == []
    assert await letters_named(market, f"job disputed:{job_id}:{worker}") == 0
