"""Appeals: another person judges them, the first decision stays, and the house pays."""

import pytest
from support.database.plans import watched
from support.market.books import available, balance, payable, refusal
from support.market.cases import WHY, cases_of, decide, letters_about, verify
from support.market.events import said
from support.market.market import Market
from support.market.staff import ROOT, acting, member
from support.market.staff_money import ASKER, CREDIT, LIMITS, NOTHING, SECOND, corrected

from market.base.errors import Code
from market.money.money import MICRO, as_decimal
from market.staff.audit import audit_all
from market.staff.base.roles import Author, Machine, Role
from market.staff.cases.base import HISTORY_MAX, Decision, Kind
from market.staff.members import accounts
from market.staff.money import judging
from market.staff.money.approvals import Limits, State
from market.staff.money.judging import Verdict
from market.staff.money.second_person import approve
from market.staff.site.alerts import Alerts
from storage.engines.store import Transaction, insert_row
from storage.jobs import reviews
from tests.market.staff.money.test_judging import disputed

UPHELD, VOIDED = Decision.UPHELD, Decision.VOIDED
THIRD = Machine("third")
SECOND_NAME = f"{SECOND.unix_user}@machine"


async def judged(
    market: Market, percent: int, author: Author = ROOT, limits: Limits = LIMITS
) -> tuple[str, str, str]:
    """Have a dispute about 10 credits decided; return the job and both sides."""
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await disputed(market, buyer, worker)
    verdict = Verdict(percent)
    await judging.decide(market.context, author, job_id, verdict, limits, "read the log")
    return job_id, buyer, worker


@pytest.mark.both_engines
@pytest.mark.parametrize(
    ("first", "percent", "of_buyer", "given"),
    [(0, 100, True, 10_000_000), (40, 60, True, 2_000_000), (40, 100, False, 3_600_000)],
)
async def test_the_house_pays_the_difference(
    market: Market, first: int, percent: int, of_buyer: bool, given: int
) -> None:
    job_id, buyer, worker = await judged(market, first)
    side, other = (buyer, worker) if of_buyer else (worker, buyer)
    await verify(market, side)
    had = [await available(market, each, CREDIT) for each in (side, other)]
    payable_before = await payable(market, side)
    appeal = await market.appeals.appeal(side, job_id, "the log shows it")
    shown = await cases_of(market).shown(SECOND, Kind.APPEAL, appeal.id)
    facts = {each.name: each.value for each in shown.evidence.facts}
    assert (facts["job"], facts["the appellant says"]) == (job_id, "the log shows it")
    assert facts["appellant"] == ("buyer" if of_buyer else "worker")
    claimed, decided, act = shown.evidence.history
    assert (act.what, act.detail) == ("decision by root@machine", "read the log")
    assert (claimed.what, bool(claimed.detail)) == ("attempt 1: disputed by the buyer", True)
    assert decided.what == "attempt 1: upheld"
    assert decided.detail == ("4.00 credit to the buyer" if first else "")
    assert shown.judged.case.due_at == appeal.due_at
    for state in (State.DONE, State.DONE_BEFORE):
        done = await decide(market, Kind.APPEAL, appeal.id, VOIDED, SECOND, percent=percent)
        assert (done.state, done.amount) == (state, given)
    shown = await cases_of(market).shown(SECOND, Kind.APPEAL, appeal.id)
    paid = {each.name: each.value for each in shown.evidence.facts}["paid for the appeal credit"]
    assert paid == as_decimal(given)
    [last] = shown.evidence.history[3:]
    assert (last.what, last.detail) == (f"decision about the appeal by {SECOND_NAME}", WHY)
    now = [await available(market, each, CREDIT) for each in (side, other)]
    assert now == [had[0] + given, had[1]]
    # A worker has earned the amount; a buyer gets money back that is not earned.
    assert await payable(market, side) == payable_before + (0 if of_buyer else given)
    assert await balance(market, "house:corrections:credit") == -given
    [listed] = await market.appeals.listed(side, limit=5)
    assert (listed.decision, listed.given) == ("voided", given)
    [event] = await said(market, side, "case.decided")
    assert (event["kind"], event["decision"]) == ("appeal", "voided")
    assert await letters_about(market, appeal.id) == 1
    assert (await audit_all(market.store)).passed


async def test_an_upheld_decision_moves_nothing(market: Market) -> None:
    job_id, buyer, worker = await judged(market, 0)
    appeal = await market.appeals.appeal(buyer, job_id, "the log shows it")
    await decide(market, Kind.APPEAL, appeal.id, UPHELD, SECOND)
    assert await available(market, buyer, CREDIT) == 0
    assert await available(market, worker, CREDIT) == 9 * MICRO
    [listed] = await market.appeals.listed(buyer, limit=5)
    assert (listed.decision, listed.given) == ("upheld", 0)


async def test_the_history_of_an_appeal_is_bounded(market: Market) -> None:
    job_id, buyer, _ = await judged(market, 0)
    appeal = await market.appeals.appeal(buyer, job_id, "the log shows it")

    async def repeat(tx: Transaction) -> None:
        [row] = await reviews.of_job(tx, job_id)
        for number in range(1, HISTORY_MAX + 10):
            again = row._replace(attempt=row.attempt + number)
            await insert_row(tx, "job_reviews", **again._asdict())

    await market.store.write(repeat)
    shown = await cases_of(market).shown(SECOND, Kind.APPEAL, appeal.id)
    assert len(shown.evidence.history) == HISTORY_MAX


async def test_a_percentage_gives_more_than_before(market: Market) -> None:
    job_id, buyer, _ = await judged(market, 40)
    appeal = await market.appeals.appeal(buyer, job_id, "the log shows it")
    for percent in (0, 39, 40, 101):
        less = decide(market, Kind.APPEAL, appeal.id, VOIDED, SECOND, percent=percent)
        assert await refusal(less) is Code.INVALID_FIELD, percent


async def test_the_first_judges_and_both_sides_judge_no_appeal(market: Market) -> None:
    job_id, buyer, worker = await judged(market, 0, ASKER)
    appeal = await market.appeals.appeal(buyer, job_id, "the log shows it")
    first = decide(market, Kind.APPEAL, appeal.id, VOIDED, ASKER)
    assert await refusal(first) is Code.NOT_PERMITTED
    judge = await member(market, Role.FINANCE)
    await accounts.declare(market.context, acting(judge), judge.id, worker, "mine")
    read = cases_of(market).shown(acting(judge), Kind.APPEAL, appeal.id)
    assert await refusal(read) is Code.NOT_PERMITTED
    party = decide(market, Kind.APPEAL, appeal.id, UPHELD, acting(judge))
    assert await refusal(party) is Code.NOT_PERMITTED
    asked = await decide(market, Kind.APPEAL, appeal.id, VOIDED, SECOND, NOTHING)
    less = decide(market, Kind.APPEAL, appeal.id, VOIDED, SECOND, NOTHING, percent=60)
    assert await refusal(less) is Code.CASE_DECIDED
    posters = cases_of(market).posters
    side = approve(market.context, acting(judge), asked.id, posters=posters)
    assert await refusal(side) is Code.NOT_PERMITTED
    again = approve(market.context, ASKER, asked.id, posters=posters)
    assert await refusal(again) is Code.NOT_PERMITTED
    await approve(market.context, THIRD, asked.id, posters=posters)
    shown = await cases_of(market).shown(THIRD, Kind.APPEAL, appeal.id)
    assert [(each.what, each.detail) for each in shown.evidence.history[-2:]] == [
        (f"request to decide about the appeal by {SECOND_NAME}", WHY),
        (f"approval about the appeal by {THIRD.unix_user}@machine", ""),
    ]
    assert await available(market, buyer, CREDIT) == 10 * MICRO
    assert (await audit_all(market.store)).passed


async def test_the_second_person_of_a_decision_judges_no_appeal(market: Market) -> None:
    buyer, worker = await market.person(credit="10"), await market.person()
    job_id = await disputed(market, buyer, worker)
    asked = await judging.decide(market.context, ASKER, job_id, Verdict(0), NOTHING, "read the log")
    await approve(market.context, SECOND, asked.outcome.id)
    appeal = await market.appeals.appeal(buyer, job_id, "the log shows it")
    shown = await cases_of(market).shown(THIRD, Kind.APPEAL, appeal.id)
    acts = [(each.what, each.detail) for each in shown.evidence.history[2:]]
    asker, second = (f"{each.unix_user}@machine" for each in (ASKER, SECOND))
    assert acts == [
        (f"request to decide by {asker}", "read the log"),
        (f"approval by {second}", ""),
    ]
    for author in (ASKER, SECOND):
        early = decide(market, Kind.APPEAL, appeal.id, UPHELD, author)
        assert await refusal(early) is Code.NOT_PERMITTED
    assert (await decide(market, Kind.APPEAL, appeal.id, UPHELD, THIRD)).state is State.DONE


async def test_a_correction_of_a_judge_prevents_no_decision(market: Market) -> None:
    """References of corrections are chosen freely, also by the first judge."""
    job_id, buyer, _ = await judged(market, 0, ASKER)
    appeal = await market.appeals.appeal(buyer, job_id, "the log shows it")
    name = f"appeal:{appeal.id}"
    await corrected(market, ASKER, buyer, 1, currency=CREDIT, reference=name)
    done = await decide(market, Kind.APPEAL, appeal.id, VOIDED, SECOND)
    assert (done.state, done.amount) == (State.DONE, 10 * MICRO)
    assert await available(market, buyer, CREDIT) == 11 * MICRO
    assert (await audit_all(market.store)).passed


@pytest.mark.both_engines
async def test_a_page_of_appeals_costs_the_same_statements_with_one_and_with_three(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, found = [], watched(market.store, monkeypatch)
    for _ in range(3):
        job_id, buyer, _ = await judged(market, 0)
        await market.appeals.appeal(buyer, job_id, "the log shows it")
        found.taken()
        cases = cases_of(market)
        await cases.listed(ROOT, Kind.APPEAL, limit=5)
        await cases.first_due(ROOT, Kind.APPEAL, limit=5)
        counts.append(len(found.taken()))
    assert counts[0] == counts[2]


@pytest.mark.both_engines
async def test_an_open_appeal_is_listed_counted_and_overdue_until_its_decision(
    market: Market,
) -> None:
    job_id, buyer, worker = await judged(market, 40)
    late = await market.appeals.appeal(buyer, job_id, "the log shows it")
    market.clock.now += 60
    later = await market.appeals.appeal(worker, job_id, "the log shows the opposite")
    cases, alerts = cases_of(market), Alerts(market.context, market.emails, ["a@b.c"], "x", 6)
    for left in ([late.id, later.id], [later.id], []):
        found = await cases.first_due(ROOT, Kind.APPEAL, limit=5)
        assert [each.case.id for each in found] == left
        of_worker = await cases.first_due(ROOT, Kind.APPEAL, user=worker, limit=5)
        assert [each.case.id for each in of_worker] == [each for each in left if each == later.id]
        assert (await alerts.look([])).work.appeals == len(left)
        if left:
            await decide(market, Kind.APPEAL, left[0], UPHELD, SECOND)
    assert [each.case.id for each in await cases.listed(ROOT, Kind.APPEAL, limit=5)] == [
        later.id,
        late.id,
    ]
    other = cases.first_due(ROOT, Kind.SAMPLE, limit=5)
    assert await refusal(other) is Code.INVALID_FIELD
