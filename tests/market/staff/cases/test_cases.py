"""Cases are decided once, by another than their user, with a reason for the user."""

import pytest
from support.market.books import refusal
from support.market.cases import WHY, cases_of, decide, failed_canary, letters_about, verify
from support.market.events import said
from support.market.market import Market
from support.market.staff import ROOT, acting, member

from market.base.errors import Code
from market.staff.audit import audit_all
from market.staff.base.roles import Role
from market.staff.cases.base import Decision, Kind
from market.staff.members import accounts
from market.staff.money.approvals import State

UPHELD, VOIDED = Decision.UPHELD, Decision.VOIDED


@pytest.mark.both_engines
async def test_a_case_is_listed_shown_and_decided_once(market: Market) -> None:
    device, case_id = await failed_canary(market)
    await verify(market, device.owner)
    cases = cases_of(market)
    [listed] = await cases.listed(ROOT, Kind.CANARY, limit=5)
    assert (listed.case.user_id, listed.case.device_id) == (device.owner, device.id)
    assert listed.decision is None
    for state in (State.DONE, State.DONE_BEFORE):
        outcome = await decide(market, Kind.CANARY, case_id.upper(), UPHELD)
        assert (outcome.state, outcome.amount) == (state, 0)
    assert await refusal(decide(market, Kind.CANARY, case_id, VOIDED)) is Code.CASE_DECIDED
    shown = await cases.shown(ROOT, Kind.CANARY, case_id)
    assert shown.judged.decision is not None
    assert shown.judged.decision.decision == "upheld"
    [event] = await said(market, device.owner, "case.decided")
    assert event == {
        "case_id": case_id,
        "kind": "canary",
        "decision": "upheld",
        "reason": WHY,
    }
    assert await letters_about(market, case_id) == 1
    assert (await audit_all(market.store)).passed


async def test_an_address_that_is_not_confirmed_gets_no_letter(market: Market) -> None:
    device, case_id = await failed_canary(market)
    await decide(market, Kind.CANARY, case_id, UPHELD)
    assert await letters_about(market, case_id) == 0
    assert len(await said(market, device.owner, "case.decided")) == 1


async def test_pages_go_from_the_newest_case_to_older_ones(market: Market) -> None:
    made = [(await failed_canary(market))[1] for _ in range(3)]
    cases = cases_of(market)
    first = await cases.listed(ROOT, Kind.CANARY, limit=2)
    assert [each.case.id for each in first] == [made[2], made[1]]
    rest = await cases.listed(ROOT, Kind.CANARY, before=made[1], limit=2)
    assert [each.case.id for each in rest] == [made[0]]


async def test_unknown_cases_and_wrong_questions_are_refused(market: Market) -> None:
    cases = cases_of(market)
    for kind in Kind:
        assert await refusal(cases.shown(ROOT, kind, "none")) is Code.CASE_NOT_FOUND
        assert await refusal(decide(market, kind, "none", UPHELD)) is Code.CASE_NOT_FOUND
    user = await market.person()
    listed = cases.listed(ROOT, Kind.CANARY, user=user, limit=1)
    assert await refusal(listed) is Code.INVALID_FIELD


async def test_nobody_judges_a_case_of_an_own_account(market: Market) -> None:
    device, case_id = await failed_canary(market)
    judge = await member(market, Role.FINANCE)
    await accounts.declare(market.context, acting(judge), judge.id, device.owner, "mine")
    own = decide(market, Kind.CANARY, case_id, VOIDED, acting(judge))
    assert await refusal(own) is Code.NOT_PERMITTED
    other = acting(await member(market, Role.FINANCE, "other"))
    assert (await decide(market, Kind.CANARY, case_id, VOIDED, other)).state is State.DONE


async def test_support_neither_sees_nor_decides(market: Market) -> None:
    _, case_id = await failed_canary(market)
    support = acting(await member(market, Role.SUPPORT))
    cases = cases_of(market)
    for attempt in (
        cases.listed(support, Kind.CANARY, limit=1),
        cases.shown(support, Kind.CANARY, case_id),
        decide(market, Kind.CANARY, case_id, UPHELD, support),
    ):
        assert await refusal(attempt) is Code.NOT_PERMITTED
