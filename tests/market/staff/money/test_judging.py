"""Disputes judged by the staff: evidence, one final decision, and both sides' reason."""

import asyncio

import pytest
from support.market import books
from support.market.books import balance, refusal, stored_job
from support.market.events import said
from support.market.jobs import on, specified
from support.market.market import Market
from support.market.staff import ROOT, acting, member
from support.market.staff_money import ASKER, CREDIT, LIMITS, NOTHING, SECOND

from market.base.errors import Code, MarketError
from market.deploys.deploys import NewDeploy
from market.erasure.acts import OwnActs
from market.money.money import MICRO, Currency
from market.staff.audit import audit_all
from market.staff.base.roles import Author, Machine, Role
from market.staff.members import accounts
from market.staff.money import approvals, judging
from market.staff.money.approvals import Limits, State
from market.staff.money.judging import Decided, Evidence, Verdict
from market.staff.money.second_person import approve, refuse

UPHOLD, REVERSE = Verdict(0), Verdict(100)


async def disputed(market: Market, buyer: str, worker: str) -> str:
    """Have a job with a payload done for 10 credits, and dispute it."""
    job_id = await specified(market, buyer)
    await market.jobs.complete(await on(market, job_id, worker), job_id, "the result")
    await market.reviews.dispute(buyer, job_id, "an empty file")
    return job_id


async def decide(
    market: Market,
    job_id: str,
    verdict: Verdict,
    author: Author = ROOT,
    limits: Limits = LIMITS,
) -> Decided:
    return await judging.decide(market.context, author, job_id, verdict, limits, "read the log")


async def look(market: Market, job_id: str, author: Author = ROOT) -> Evidence:
    return await judging.evidence(market.context, author, job_id)


async def credits_of(market: Market, *users: str) -> list[int]:
    return [await books.available(market, each, CREDIT) for each in users]


@pytest.mark.parametrize(
    ("percent", "back", "earned", "fee"),
    [
        (0, 0, 9_000_000, 1_000_000),
        (100, 10_000_000, 0, 0),
        (40, 4_000_000, 5_400_000, 600_000),
        (33, 3_300_000, 6_030_000, 670_000),
    ],
)
async def test_a_decision_pays_each_side_its_part(
    market: Market, percent: int, back: int, earned: int, fee: int
) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await disputed(market, buyer, worker)
    for state in (State.DONE, State.DONE_BEFORE):
        done = await decide(market, job_id, Verdict(percent))
        assert done.outcome.state is state
    assert await credits_of(market, buyer, worker) == [back, earned]
    assert await books.revenue(market, CREDIT) == fee
    assert await balance(market, "house:review:credit") == 0
    assert (await stored_job(market, job_id)).earned == earned
    owned = await market.jobs.find(buyer, job_id)
    assert owned.paid == 10 * MICRO - back
    word = {0: "upheld", 100: "reversed"}.get(percent, "split")
    event = {
        "job_id": job_id,
        "decision": word,
        "buyer_percent": percent,
        "reason": "read the log",
    }
    for person in (buyer, worker):
        assert await said(market, person, "job.decided") == [event]
        assert await reasons(market, person) == {("job.decide", "read the log")}
    other = UPHOLD if percent else REVERSE
    with pytest.raises(MarketError, match="decision is final") as refused:
        await decide(market, job_id, other)
    assert refused.value.code is Code.NOT_REVIEWABLE
    assert (await audit_all(market.store)).passed


async def test_the_evidence_has_both_sides_and_their_history(market: Market) -> None:
    buyer, worker = await market.person(credit="30"), await market.person()
    first = await disputed(market, buyer, worker)
    await decide(market, first, REVERSE)
    second = await disputed(market, buyer, worker)
    found = await look(market, second)
    assert (found.job.id, found.job.result) == (second, "the result")
    assert '"command"' in (found.payload or "")
    [review] = found.reviews
    assert (review.reason, review.state) == ("an empty file", "disputed")
    [attempt] = found.attempts
    assert attempt.outcome == "completed"
    [device] = found.devices
    assert (device.device_id, device.owner_id) == (attempt.device_id, worker)
    assert device.history.completed == 1
    assert (device.disputes.disputed, device.disputes.reversed) == (2, 1)
    assert (found.buyer_disputes.disputed, found.buyer_disputes.reversed) == (2, 1)


async def test_support_sees_disputed_jobs_only(market: Market) -> None:
    buyer, worker = await market.person(credit="30"), await market.person()
    support = acting(await member(market, Role.SUPPORT))
    job_id = await specified(market, buyer)
    assert await refusal(look(market, job_id, support)) is Code.NOT_PERMITTED
    assert (await look(market, job_id)).reviews == []
    job_id = await disputed(market, buyer, worker)
    assert await look(market, job_id, support)
    assert await refusal(decide(market, job_id, UPHOLD, support)) is Code.NOT_PERMITTED


@pytest.mark.both_engines
async def test_a_member_reads_no_dispute_of_an_own_account(market: Market) -> None:
    sides = [await market.person(credit="10"), await market.person()]
    job_id = await disputed(market, sides[0], sides[1])
    other = await disputed(market, await market.person(credit="10"), await market.person())
    asked = (await decide(market, job_id, Verdict(50), ASKER, NOTHING)).outcome
    for index, side in enumerate(sides):
        made = await member(market, Role.FINANCE, f"side{index}")
        await accounts.declare(market.context, acting(made), made.id, side, "mine")
        listed = await judging.disputes(market.context, acting(made), limit=9)
        shown = {each.job_id: each.reason for each in listed}
        assert shown == {job_id: None, other: "an empty file"}
        for act in (
            look(market, job_id, acting(made)),
            decide(market, job_id, REVERSE, acting(made)),
            refuse(market.context, acting(made), asked.id, "no"),
            approve(market.context, acting(made), asked.id),
        ):
            assert await refusal(act) is Code.NOT_PERMITTED
        assert await look(market, other, acting(made))
    for reader in (ROOT, acting(await member(market, Role.FINANCE))):
        listed = await judging.disputes(market.context, reader, limit=9)
        assert [each.reason for each in listed] == ["an empty file"] * 2
        assert await look(market, job_id, reader)


@pytest.mark.both_engines
async def test_a_large_decision_waits_for_a_second_person(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await disputed(market, buyer, worker)
    asked = (await decide(market, job_id, Verdict(50), ASKER, NOTHING)).outcome
    assert (asked.state, asked.amount) == (State.WAITS, 10 * MICRO)
    again = (await decide(market, job_id, Verdict(50), ASKER, NOTHING)).outcome
    assert again.id == asked.id
    other = decide(market, job_id, REVERSE, SECOND, NOTHING)
    assert await refusal(other) is Code.NOT_REVIEWABLE
    assert await credits_of(market, buyer, worker) == [0, 0]
    assert await reasons(market, buyer) == set()
    outcomes = await asyncio.gather(
        *(approve(market.context, Machine(f"second{each}"), asked.id) for each in range(5)),
        return_exceptions=True,
    )
    assert sum(not isinstance(each, BaseException) for each in outcomes) == 1
    assert await credits_of(market, buyer, worker) == [5 * MICRO, 4_500_000]
    [event] = await said(market, worker, "job.decided")
    assert (event["decision"], event["reason"]) == ("split", "read the log")
    for person in (buyer, worker):
        assert await reasons(market, person) == {("approval.approve", "read the log")}
    assert await reasons(market, await market.person()) == set()
    assert (await audit_all(market.store)).passed


async def test_only_workers_whose_pay_is_disputed_read_the_reason(market: Market) -> None:
    buyer, workers = await market.person("3"), [await market.person(), await market.person()]
    service = NewDeploy(
        job_name="a service",
        job_type="Docker",
        gpu_model="A100",
        gpu_count=1,
        duration_hrs=2,
        replicas=1,
        currency=Currency.USD,
        image="web:1",
    )
    deploy_id = (await market.deploys.create(buyer, service)).id
    [job_id] = (await market.deploys.find(buyer, deploy_id)).job_ids
    for worker in workers:  # the pay of the first one is over when the second one's is disputed
        device = await on(market, job_id, worker)
        market.clock.now += 900
        await market.jobs.fail(device, job_id, "crashed")
        market.clock.now += 24 * 3_600 - 1
    assert await market.reviews.expire() == 1
    await market.reviews.dispute(buyer, job_id, "slow")
    asked = (await decide(market, job_id, UPHOLD, ASKER, NOTHING)).outcome
    assert asked.state is State.WAITS
    await approve(market.context, SECOND, asked.id)
    first, second = workers
    assert await reasons(market, first) == set()
    for person in (buyer, second):
        assert await reasons(market, person) == {("approval.approve", "read the log")}
    assert (await audit_all(market.store)).passed


async def test_the_reason_of_a_refused_decision_tells_nobody(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await disputed(market, buyer, worker)
    asked = (await decide(market, job_id, Verdict(50), ASKER, NOTHING)).outcome
    await refuse(market.context, SECOND, asked.id, "the log says something else")
    for person in (buyer, worker):
        assert await reasons(market, person) == set()
    await decide(market, job_id, UPHOLD)
    await decide(market, job_id, UPHOLD)  # the same again changes nothing
    assert await reasons(market, buyer) == {("job.decide", "read the log")}
    acts = await OwnActs(market.context).page(buyer, limit=9)
    assert [each.reason for each in acts if each.row.action == "job.decide"].count("") == 2
    assert (await audit_all(market.store)).passed


async def reasons(market: Market, user: str) -> set[tuple[str, str]]:
    """Return the acts about a user that the user reads a reason of, with the reason."""
    acts = await OwnActs(market.context).page(user, limit=9)
    return {(each.row.action, each.reason) for each in acts if each.reason}


async def test_a_withdrawn_dispute_is_not_decided_by_an_approval(market: Market) -> None:
    buyer, worker = await market.person(credit="20"), await market.person()
    job_id = await disputed(market, buyer, worker)
    asked = (await decide(market, job_id, REVERSE, ASKER, NOTHING)).outcome
    await market.reviews.confirm(buyer, job_id)
    assert await refusal(approve(market.context, SECOND, asked.id)) is Code.NOT_REVIEWABLE
    await refuse(market.context, SECOND, asked.id, "withdrawn by the buyer")
    assert await approvals.listed(market.context, SECOND, limit=5) == []
    assert await credits_of(market, buyer, worker) == [10 * MICRO, 9 * MICRO]


@pytest.mark.both_engines
async def test_decisions_at_the_same_time_have_one_winner(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await disputed(market, buyer, worker)
    outcomes = await asyncio.gather(
        *(decide(market, job_id, verdict) for verdict in (UPHOLD, REVERSE, Verdict(50)) * 2),
        return_exceptions=True,
    )
    done = [each for each in outcomes if isinstance(each, Decided)]
    assert [each.outcome.state for each in done].count(State.DONE) == 1
    assert len(done) == 2
    assert (await audit_all(market.store)).passed


async def test_another_part_is_another_decision(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await disputed(market, buyer, worker)
    await decide(market, job_id, Verdict(40))
    for other in (Verdict(41), UPHOLD, REVERSE):
        assert await refusal(decide(market, job_id, other)) is Code.NOT_REVIEWABLE
    assert (await decide(market, job_id, Verdict(40))).outcome.state is State.DONE_BEFORE
    assert await credits_of(market, buyer, worker) == [4_000_000, 5_400_000]


async def test_a_job_that_is_not_disputed_is_not_decided(market: Market) -> None:
    buyer = await market.person(credit="10")
    job_id = await specified(market, buyer)
    assert await refusal(decide(market, job_id, UPHOLD)) is Code.NOT_REVIEWABLE
    assert await refusal(decide(market, "none", UPHOLD)) is Code.JOB_NOT_FOUND
    assert await refusal(look(market, "none")) is Code.JOB_NOT_FOUND
    for percent in (-1, 101):
        assert await refusal(decide(market, job_id, Verdict(percent))) is Code.INVALID_FIELD
