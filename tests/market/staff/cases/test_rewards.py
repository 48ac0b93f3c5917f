"""A reward for a photo is taken back by double entry, at most once."""

import pytest
from support.market.books import available, refusal
from support.market.cases import cases_of, decide
from support.market.events import said
from support.market.market import Market
from support.market.rewards import rewarded
from support.market.staff import ROOT
from support.market.staff_money import ASKER, CREDIT, NOTHING, SECOND, corrected

from market.base.errors import Code
from market.money.money import MICRO
from market.staff.audit import audit_all
from market.staff.cases.base import Decision, Kind
from market.staff.money.approvals import State
from market.staff.money.second_person import approve

UPHELD, VOIDED = Decision.UPHELD, Decision.VOIDED


@pytest.mark.both_engines
async def test_a_reward_is_shown_with_the_others_and_taken_back(market: Market) -> None:
    user, other = await market.person(), await market.person()
    first, second = await rewarded(market.context, user, 5), await rewarded(market.context, user, 7)
    foreign = await rewarded(market.context, other, 3)
    cases = cases_of(market)
    everything = await cases.listed(ROOT, Kind.REWARD, limit=5)
    assert [each.case.id for each in everything] == [foreign, second, first]
    of_user = await cases.listed(ROOT, Kind.REWARD, user=user, limit=5)
    assert [each.case.id for each in of_user] == [second, first]
    shown = await cases.shown(ROOT, Kind.REWARD, second)
    facts = {each.name: each.value for each in shown.evidence.facts}
    assert (facts["amount in credits"], facts["credits of the user on that day"]) == (
        "7.00",
        "12.00",
    )
    assert [each.detail for each in shown.evidence.history] == ["5.00"]
    for state in (State.DONE, State.DONE_BEFORE):
        outcome = await decide(market, Kind.REWARD, second, VOIDED)
        assert (outcome.state, outcome.amount) == (state, -7 * MICRO)
    assert await available(market, user, CREDIT) == 5 * MICRO
    [event] = await said(market, user, "case.decided")
    assert (event["kind"], event["decision"]) == ("reward", "voided")
    shown = await cases.shown(ROOT, Kind.REWARD, first)
    assert [each.detail for each in shown.evidence.history] == ["voided"]
    assert (await audit_all(market.store)).passed


async def test_a_spent_reward_is_not_taken_back(market: Market) -> None:
    user = await market.person()
    case_id = await rewarded(market.context, user, 5)
    await corrected(market, ROOT, user, -1, currency=CREDIT)
    refused = await refusal(decide(market, Kind.REWARD, case_id, VOIDED))
    assert refused is Code.INSUFFICIENT_FUNDS
    asked = await refusal(decide(market, Kind.REWARD, case_id, VOIDED, ASKER, NOTHING))
    assert asked is Code.INSUFFICIENT_FUNDS
    assert (await decide(market, Kind.REWARD, case_id, UPHELD)).state is State.DONE
    assert await available(market, user, CREDIT) == 4 * MICRO


async def test_a_large_reward_waits_for_a_second_person(market: Market) -> None:
    user = await market.person()
    case_id = await rewarded(market.context, user, 5)
    asked = await decide(market, Kind.REWARD, case_id, VOIDED, ASKER, NOTHING)
    again = await decide(market, Kind.REWARD, case_id, VOIDED, SECOND, NOTHING)
    assert (asked.state, again.id) == (State.WAITS, asked.id)
    await approve(market.context, SECOND, asked.id, posters=cases_of(market).posters)
    assert await available(market, user, CREDIT) == 0
    assert (await audit_all(market.store)).passed
