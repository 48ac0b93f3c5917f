"""Reviews: the buyer may look at the result before the worker is paid; on both engines."""

import asyncio
from functools import partial
from typing import Any

import pytest
from support.base.clock import Clock
from support.market import books
from support.market.books import refusal, stored_job
from support.market.jobs import code_of, device_of, history, on, specified
from support.market.market import Market
from support.market.reviews import decide_review

from market.attempts.attempts import Ending, FailureKind
from market.base.errors import Code
from market.base.states import JobStatus, ReviewStatus
from market.deploys.deploys import NewDeploy
from market.jobs import reviews
from market.jobs.overdue import GRACE_SECONDS, Ended
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from storage.engines.store import Store, Transaction
from storage.jobs import reviews as queries
from storage.jobs.reviews import ReviewRow

CREDIT, USD = Currency.CREDIT, Currency.USD
HOUR = 3_600
DAY = 24 * HOUR

available = partial(books.available, currency=CREDIT)
held = partial(books.held, currency=CREDIT)
revenue = partial(books.revenue, currency=CREDIT)


async def kept(market: Market, currency: Currency = CREDIT) -> int:
    return await books.balance(market, f"house:review:{currency}")


async def review_of(market: Market, job_id: str) -> ReviewRow:
    [review] = await market.store.read(queries.of_job, job_id)
    return review


async def audited(market: Market) -> bool:
    report = await audit_ledger(market.store)
    assert report.passed, report
    return True


async def done(market: Market, buyer: str, worker: str, **changes: Any) -> str:
    """Have a job with a payload done for 10 credits, and return its identifier."""
    job_id = await specified(market, buyer, **changes)
    device = await on(market, job_id, worker)
    await market.jobs.complete(device, job_id, "the result")
    return job_id


async def decided(market: Market, job_id: str, state: ReviewStatus) -> ReviewRow:
    [review] = await decide_review(market.context, job_id, state)
    return review


@pytest.mark.both_engines
async def test_a_finished_job_waits_for_its_buyer(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await done(market, buyer, worker)
    job = await stored_job(market, job_id)
    assert (job.status, job.earned, job.result) == (
        JobStatus.COMPLETED,
        9 * MICRO,
        "the result",
    )
    assert (await available(market, buyer), await held(market, buyer)) == (0, 0)
    assert (await available(market, worker), await held(market, worker)) == (0, 9 * MICRO)
    assert (await revenue(market), await kept(market)) == (0, MICRO)
    owned = await market.jobs.find(buyer, job_id)
    assert owned.paid == 10 * MICRO
    assert owned.review is not None
    assert (owned.review.state, owned.review.attempt) == (ReviewStatus.HELD, 1)
    assert owned.review.review_until == market.clock.now + DAY
    assert await market.reviews.earned_in_review(worker) == 9 * MICRO
    assert await market.reviews.earned_in_review(buyer) == 0
    assert await audited(market)


async def test_a_buyer_that_confirms_has_the_worker_paid_once(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await done(market, buyer, worker)
    for _ in range(2):
        await market.reviews.confirm(buyer, job_id)
        assert (await available(market, worker), await held(market, worker)) == (9 * MICRO, 0)
        assert (await revenue(market), await kept(market)) == (MICRO, 0)
    assert await refusal(market.reviews.dispute(buyer, job_id, "late")) is Code.NOT_REVIEWABLE
    assert await refusal(decided(market, job_id, ReviewStatus.REVERSED)) is Code.NOT_REVIEWABLE
    market.clock.now += 2 * DAY
    assert await market.reviews.expire() == 0
    assert (await review_of(market, job_id)).state == ReviewStatus.CONFIRMED
    assert await available(market, worker) == 9 * MICRO
    assert await audited(market)


async def test_a_silent_buyer_pays_when_the_time_is_over(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    first = await done(market, buyer, worker)
    market.clock.now += HOUR
    second = await done(market, buyer, worker)
    market.clock.now += DAY - HOUR - 1
    assert await market.reviews.expire() == 0
    market.clock.now += 1
    assert await market.reviews.expire() == 1
    assert await available(market, worker) == 9 * MICRO
    assert (await review_of(market, first)).state == ReviewStatus.EXPIRED
    assert (await review_of(market, second)).state == ReviewStatus.HELD
    assert await refusal(market.reviews.dispute(buyer, first, "late")) is Code.NOT_REVIEWABLE
    market.clock.now += HOUR
    # It is too late although no sweep has run yet.
    assert await refusal(market.reviews.dispute(buyer, second, "late")) is Code.NOT_REVIEWABLE
    assert await market.reviews.expire() == 1
    assert await available(market, worker) == 18 * MICRO
    assert await audited(market)


async def test_a_dispute_freezes_the_money_until_the_operator_decides(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    upheld, reversed_ = [await done(market, buyer, worker) for _ in range(2)]
    for job_id in (upheld, reversed_):
        await market.reviews.dispute(buyer, job_id, "an empty file")
        await market.reviews.dispute(buyer, job_id, "an empty file")
        again = market.reviews.dispute(buyer, job_id, "again")
        assert await refusal(again) is Code.ALREADY_DISPUTED
    market.clock.now += 30 * DAY
    assert await market.reviews.expire() == 0
    listed = await reviews.disputes(market.context)
    assert [(row.job_id, row.reason) for row in listed] == [
        (upheld, "an empty file"),
        (reversed_, "an empty file"),
    ]
    assert await audited(market)
    for _ in range(2):
        await decided(market, upheld, ReviewStatus.UPHELD)
        await decided(market, reversed_, ReviewStatus.REVERSED)
    assert await reviews.disputes(market.context) == []
    # The buyer has all of the price back, the fee as well.
    assert (await available(market, buyer), await held(market, buyer)) == (10 * MICRO, 0)
    assert (await available(market, worker), await held(market, worker)) == (9 * MICRO, 0)
    assert (await revenue(market), await kept(market)) == (MICRO, 0)
    assert (await market.jobs.find(buyer, reversed_)).paid == 0
    assert (await market.jobs.find(buyer, upheld)).paid == 10 * MICRO
    page = await market.jobs.page_of_user(buyer, status=None, before="", limit=10)
    assert {job.id: job.paid for job in page} == {upheld: 10 * MICRO, reversed_: 0}
    assert (await stored_job(market, reversed_)).earned == 0
    assert await refusal(decided(market, upheld, ReviewStatus.REVERSED)) is Code.NOT_REVIEWABLE
    assert await refusal(decided(market, reversed_, ReviewStatus.UPHELD)) is Code.NOT_REVIEWABLE
    assert await audited(market)


async def test_a_buyer_may_give_a_dispute_up(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await done(market, buyer, worker)
    await market.reviews.dispute(buyer, job_id, "an empty file")
    await market.reviews.confirm(buyer, job_id)
    assert await available(market, worker) == 9 * MICRO
    assert await reviews.disputes(market.context) == []
    assert await audited(market)


async def test_only_the_buyer_of_a_job_in_review_decides(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id = await done(market, buyer, worker)
    calls = [
        market.reviews.confirm,
        lambda user, job: market.reviews.dispute(user, job, "mine"),
    ]
    runs = await specified(market, buyer)
    await on(market, runs, worker)
    for call in calls:
        assert await refusal(call(worker, job_id)) is Code.JOB_NOT_FOUND
        assert await refusal(call(buyer, market.identifiers.new())) is Code.JOB_NOT_FOUND
        assert await refusal(call(buyer, runs)) is Code.NOT_REVIEWABLE
    for reason in ("", "x" * 2_001):
        assert await refusal(market.reviews.dispute(buyer, job_id, reason)) is Code.INVALID_FIELD
    for state in (ReviewStatus.UPHELD, ReviewStatus.REVERSED):
        nothing = market.identifiers.new()
        assert await refusal(decided(market, nothing, state)) is Code.JOB_NOT_FOUND
        assert await refusal(decided(market, job_id, state)) is Code.NOT_REVIEWABLE
    assert (await review_of(market, job_id)).state == ReviewStatus.HELD


@pytest.mark.both_engines
async def test_work_without_a_review_is_paid_at_once(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id = await done(market, buyer, worker, review_hours=0)
    assert await available(market, worker) == 9 * MICRO
    assert (await market.jobs.find(buyer, job_id)).review is None
    assert await refusal(market.reviews.dispute(buyer, job_id, "no")) is Code.NOT_REVIEWABLE
    longer = await done(market, buyer, worker, review_hours=48)
    assert (await review_of(market, longer)).review_until == market.clock.now + 2 * DAY
    assert await audited(market)


async def test_a_free_job_is_reviewed_and_pays_nothing(market: Market) -> None:
    buyer, worker = await market.person(), await market.person()
    for state in (ReviewStatus.REVERSED, ReviewStatus.UPHELD):
        job_id = await done(market, buyer, worker, price=0)
        await market.reviews.dispute(buyer, job_id, "an empty file")
        await decided(market, job_id, state)
    assert await available(market, worker) == 0
    assert await audited(market)


@pytest.mark.parametrize("price", [1, 9, 10, 3_333_333])
async def test_the_sums_are_right_to_the_last_millionth(market: Market, price: int) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    paid, back = [await done(market, buyer, worker, price=price) for _ in range(2)]
    await market.reviews.confirm(buyer, paid)
    await market.reviews.dispute(buyer, back, "an empty file")
    await decided(market, back, ReviewStatus.REVERSED)
    assert await available(market, buyer) == 10 * MICRO - price
    assert await available(market, worker) + await revenue(market) == price
    assert await revenue(market) == price // 10
    assert await audited(market)


async def test_a_worker_that_is_its_own_buyer_loses_the_fee_or_nothing(market: Market) -> None:
    user = await market.person(credit="20")
    paid, back = [await done(market, user, user) for _ in range(2)]
    await market.reviews.confirm(user, paid)
    await market.reviews.dispute(user, back, "an empty file")
    await decided(market, back, ReviewStatus.REVERSED)
    assert (await available(market, user), await held(market, user)) == (19 * MICRO, 0)
    assert await audited(market)


async def replica(market: Market, user: str) -> str:
    """Deploy a replica with a payload, for 1 USD, which is 100 credits."""
    new = NewDeploy(
        job_name="x",
        job_type="Script",
        gpu_model="T4",
        gpu_count=1,
        duration_hrs=1,
        replicas=1,
        currency=USD,
    )
    deploy = await market.deploys.create(user, new)
    found = await market.deploys.find(user, deploy.id)
    job_id = found.replicas[0].job_id

    async def insert(tx: Transaction) -> None:
        await tx.run("INSERT INTO job_specs (job_id, payload) VALUES (:id, '{}')", id=job_id)

    await market.store.write(insert)
    return job_id


@pytest.mark.both_engines
@pytest.mark.parametrize("state", [ReviewStatus.UPHELD, ReviewStatus.REVERSED])
async def test_an_amount_that_was_paid_in_dollars_goes_back_in_dollars(
    market: Market, state: ReviewStatus
) -> None:
    buyer, worker = await market.person(usd="5"), await market.person()
    job_id = await replica(market, buyer)
    device = await on(market, job_id, worker)
    await market.jobs.complete(device, job_id, "")
    assert await books.available(market, buyer) == 4 * MICRO
    assert (await books.held(market, buyer), await kept(market, USD)) == (0, MICRO)
    assert (await books.revenue(market), await revenue(market)) == (0, -90 * MICRO)
    assert (await available(market, worker), await held(market, worker)) == (0, 90 * MICRO)
    assert await audited(market)
    await market.reviews.dispute(buyer, job_id, "an empty file")
    await decided(market, job_id, state)
    assert (await held(market, worker), await kept(market, USD)) == (0, 0)
    if state == ReviewStatus.REVERSED:
        assert await books.available(market, buyer) == 5 * MICRO
        assert (await books.revenue(market), await revenue(market)) == (0, 0)
        assert await available(market, worker) == 0
    else:
        assert await books.available(market, buyer) == 4 * MICRO
        assert (await books.revenue(market), await revenue(market)) == (MICRO, -90 * MICRO)
        assert await available(market, worker) == 90 * MICRO
    assert await audited(market)


@pytest.mark.both_engines
async def test_of_all_concurrent_decisions_one_wins(market: Market) -> None:
    buyer, worker = await market.person(credit="100"), await market.person()
    jobs = [await done(market, buyer, worker) for _ in range(10)]
    for job_id in jobs[::2]:
        await market.reviews.dispute(buyer, job_id, "an empty file")
    market.clock.now += DAY
    outcomes = await asyncio.gather(
        market.reviews.expire(),
        *(market.reviews.confirm(buyer, job_id) for job_id in jobs for _ in range(3)),
        *(decided(market, job_id, ReviewStatus.REVERSED) for job_id in jobs for _ in range(3)),
        *(decided(market, job_id, ReviewStatus.UPHELD) for job_id in jobs for _ in range(3)),
        market.reviews.expire(),
        return_exceptions=True,
    )
    assert {code_of(each) for each in outcomes} <= {None, Code.NOT_REVIEWABLE}
    states = [(await review_of(market, job_id)).state for job_id in jobs]
    assert not {ReviewStatus.HELD, ReviewStatus.DISPUTED} & set(states)
    back = states.count(ReviewStatus.REVERSED)
    assert await available(market, buyer) == back * 10 * MICRO
    assert await available(market, worker) == (10 - back) * 9 * MICRO
    assert (await held(market, worker), await kept(market)) == (0, 0)
    assert await audited(market)


async def test_reporting_a_job_in_review_again_moves_nothing(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer)
    device = await on(market, job_id, worker)
    await asyncio.gather(*(market.jobs.complete(device, job_id, "") for _ in range(10)))
    await market.reviews.confirm(buyer, job_id)
    await market.jobs.complete(device, job_id, "again")
    assert await available(market, worker) == 9 * MICRO
    assert [each.outcome for each in await history(market, job_id)] == ["completed"]
    assert await audited(market)


async def test_a_wallet_has_one_line_for_each_step_of_a_review(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    paid, back = [await done(market, buyer, worker) for _ in range(2)]
    assert await market.wallet.page(worker, before="", limit=10) == []
    await market.reviews.confirm(buyer, paid)
    await market.reviews.dispute(buyer, back, "an empty file")
    await decided(market, back, ReviewStatus.REVERSED)

    async def lines(user: str) -> list[tuple[str, int, str]]:
        changes = await market.wallet.page(user, before="", limit=10)
        return [(each.kind, each.amount, each.reference) for each in changes]

    assert await lines(worker) == [("earning", 9 * MICRO, f"job:{paid}")]
    assert await lines(buyer) == [
        ("refund", 10 * MICRO, f"job:{back}"),
        ("hold", -10 * MICRO, f"job:{back}"),
        ("hold", -10 * MICRO, f"job:{paid}"),
        ("deposit", 20 * MICRO, (await lines(buyer))[-1][2]),
    ]


HARM = {
    "the house's money in review": "UPDATE accounts SET balance = balance + 1 "
    "WHERE kind = 'review' AND currency = 'credit'",
    "was paid for": "UPDATE holds SET amount = amount + 1 WHERE id LIKE 'review:%'",
    "that was decided": "UPDATE job_reviews SET state = 'upheld', resolved_at = 1",
    "open work": "UPDATE job_reviews SET state = 'expired', resolved_at = 1",
}


@pytest.mark.both_engines
@pytest.mark.parametrize("promise", HARM)
async def test_the_audit_finds_mistakes_of_reviews(
    store: Store, clock: Clock, promise: str
) -> None:
    market = Market(store, clock)  # the fixture's own books must pass their audit at its end
    buyer, worker = await market.person(credit="10"), await market.person()
    await done(market, buyer, worker)
    assert await audited(market)

    async def do(tx: Transaction) -> None:
        assert await tx.run(HARM[promise]) == 1

    await market.store.write(do)
    report = await audit_ledger(market.store)
    market.passwords.close()
    assert [check for check in report.checks if promise in check.promise and check.differences]


@pytest.mark.both_engines
async def test_a_decided_review_cannot_be_changed(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await done(market, buyer, worker)
    await market.reviews.confirm(buyer, job_id)
    for sql in (
        "UPDATE job_reviews SET state = 'reversed'",
        "UPDATE job_reviews SET state = 'held', resolved_at = NULL",
        "DELETE FROM job_reviews",
    ):

        async def do(tx: Transaction, sql: str = sql) -> None:
            await tx.run(sql)

        with pytest.raises(Exception, match="ledger_is_append_only"):
            await market.store.write(do)


async def test_a_device_without_work_left_may_be_revoked_while_its_owner_waits(
    market: Market,
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer)
    device = await device_of(market, worker)
    await market.jobs.accept(device, job_id)
    await market.jobs.complete(device, job_id, "")
    await market.devices.revoke(worker, device.id)
    await market.job_sweeper.take_back_from(device.id)
    await market.reviews.confirm(buyer, job_id)
    assert await available(market, worker) == 9 * MICRO


async def test_a_sweep_that_comes_too_late_for_a_review_leaves_it(market: Market) -> None:
    """Between the look and the act its buyer may have disputed it, or confirmed it."""
    buyer, worker = await market.person(credit="20"), await market.person()
    confirmed, disputed = [await done(market, buyer, worker) for _ in range(2)]
    await market.reviews.confirm(buyer, confirmed)
    await market.reviews.dispute(buyer, disputed, "an empty file")
    market.clock.now += 2 * DAY
    for job_id, state in (
        (confirmed, ReviewStatus.CONFIRMED),
        (disputed, ReviewStatus.DISPUTED),
        (market.identifiers.new(), None),
    ):
        chosen = reviews.decision(
            market.identifiers.new, ReviewStatus.EXPIRED, market.clock.seconds()
        )
        await market.store.write(reviews._expire, market.context, chosen, job_id)
        if state is not None:
            assert (await review_of(market, job_id)).state == state
    assert await audited(market)


WORK_ENDED = Ending(FailureKind.JOB, exit_code=1)


async def test_work_that_fails_by_itself_is_paid_for_its_time(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await specified(market, buyer)
    device = await on(market, job_id, worker)
    market.clock.now += HOUR // 2  # of two
    await market.jobs.fail(device, job_id, "it ended with the status 1", ending=WORK_ENDED)
    job = await stored_job(market, job_id)
    assert (job.status, job.earned) == (JobStatus.FAILED, 2_250_000)
    assert (await available(market, buyer), await held(market, buyer)) == (7_500_000, 0)
    assert (await available(market, worker), await held(market, worker)) == (0, 2_250_000)
    assert await audited(market)
    owned = await market.jobs.find(buyer, job_id)
    assert (owned.paid, owned.review is not None) == (2_500_000, True)
    await market.reviews.dispute(buyer, job_id, "it did not even start it")
    await decided(market, job_id, ReviewStatus.REVERSED)
    assert await available(market, buyer) == 10 * MICRO
    assert (await stored_job(market, job_id)).earned == 0
    assert await audited(market)


async def test_no_more_time_is_paid_than_the_work_may_take(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    for is_cancelled in (False, True):
        without = {"grace_s": 0}
        job_id = await specified(market, buyer, timeout_seconds=HOUR // 2, payload=without)
        device = await on(market, job_id, worker)
        market.clock.now += HOUR // 2 + GRACE_SECONDS  # told late that it was over
        if is_cancelled:
            await market.jobs.cancel(buyer, job_id)
        else:
            ending = Ending(FailureKind.TIMEOUT)
            await market.jobs.fail(device, job_id, "it ran for too long", ending=ending)
        assert (await stored_job(market, job_id)).earned == 2_250_000
    assert await audited(market)


@pytest.mark.parametrize("restart", ["never", "on_failure"])
async def test_the_grace_of_work_is_paid_as_its_time_is(market: Market, restart: str) -> None:
    """A job of a second that goes on for all its grace does not cost the price of a second."""
    buyer, worker = await market.person(credit="10"), await market.person()
    payload = {"grace_s": 600, "restart": restart}
    job_id = await specified(market, buyer, timeout_seconds=1, payload=payload)
    device = await on(market, job_id, worker)
    market.clock.now += 720  # the report is late
    ending = Ending(FailureKind.TIMEOUT)
    await market.jobs.fail(device, job_id, "it ran for longer than 1 s", ending=ending)
    paid = 10 * MICRO * 601 // (2 * HOUR)
    assert (await market.jobs.find(buyer, job_id)).paid == paid
    assert await audited(market)


async def test_no_failure_is_paid_that_is_the_devices_or_before_work_began(market: Market) -> None:
    buyer, worker = await market.person(credit="30"), await market.person()
    for kind, began in ((FailureKind.HOST, True), (FailureKind.JOB, False)):
        job_id = await specified(market, buyer)
        device = await device_of(market, worker)
        await market.jobs.accept(device, job_id)
        if began:
            await market.attempt_reports.started(device, job_id, 1)
        market.clock.now += HOUR
        await market.jobs.fail(device, job_id, "no", ending=Ending(kind))
        assert (await stored_job(market, job_id)).earned == 0
        assert await held(market, worker) == 0
    # Nor is an attempt that the service itself has ended: its device said nothing of it.
    job_id = await specified(market, buyer, timeout_seconds=60)
    await on(market, job_id, worker)
    ended, outcomes = Ended(job_id, 1, "too long", is_timeout=True), market.jobs.outcomes
    await market.store.write(outcomes.take_back, outcomes.moment(), ended)
    job = await stored_job(market, job_id)
    assert (job.status, job.earned) == (JobStatus.FAILED, 0)
    assert await audited(market)
