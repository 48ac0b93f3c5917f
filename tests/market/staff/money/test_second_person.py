"""The second person: amounts above the limit wait, and each request ends once."""

import asyncio
import json

import pytest
from support.market.books import available, refusal
from support.market.market import Market
from support.market.staff import acting, member
from support.market.staff_money import (
    ASKER,
    CREDIT,
    LIMITS,
    NOTHING,
    SECOND,
    USD,
    corrected,
    deposited,
    refunded,
)

from market.base.errors import Code, MarketError
from market.money.money import GB, MICRO
from market.staff.audit import audit_all
from market.staff.base.roles import Machine, Member, Role, Via
from market.staff.members import accounts
from market.staff.money import approvals
from market.staff.money.approvals import WAITS_SECONDS, Outcome, State
from market.staff.money.second_person import approve, refuse
from market.staff.money.second_person_limit import WINDOW_SECONDS
from storage.engines.store import Transaction
from storage.staff.base import log


async def waiting(market: Market, user: str, whole: int = 60, reference: str = "c") -> Outcome:
    """Ask for a correction above the limit."""
    outcome = await corrected(market, ASKER, user, whole, reference=reference)
    assert outcome.state is State.WAITS
    return outcome


async def test_the_limit_itself_needs_no_second_person(market: Market) -> None:
    user = await market.person()
    assert (await corrected(market, ASKER, user, 50)).state is State.DONE
    other = await market.person()
    assert (await corrected(market, ASKER, other, 5000, currency=CREDIT)).state is State.DONE
    small = await corrected(market, Machine("third"), await market.person(), 1, limits=NOTHING)
    assert small.state is State.WAITS


async def test_an_act_above_the_limit_waits_and_is_carried_out_by_another(market: Market) -> None:
    user = await market.person()
    asked = await waiting(market, user)
    assert asked.expires_at == market.clock.now + WAITS_SECONDS
    assert await available(market, user) == 0
    [shown] = await approvals.listed(market.context, SECOND, limit=10)
    assert (shown.approval.id, shown.username, shown.reason) == (asked.id, "person1", "asked")
    done = await approve(market.context, SECOND, asked.id.upper(), "seen the invoice")
    assert (done.state, done.amount) == (State.DONE, 60 * MICRO)
    assert await available(market, user) == 60 * MICRO
    assert await approvals.listed(market.context, SECOND, limit=10) == []
    [decided] = await approvals.listed(market.context, SECOND, is_open=False, limit=10)
    assert (decided.approval.decision, decided.approval.decided_by) == ("approved", "unix:second")
    newest, first = await market.store.read(log.shown, user_id=user, limit=10)
    assert (newest.action, newest.unix_user, newest.text) == (
        "approval.approve",
        "second",
        "seen the invoice",
    )
    assert json.loads(newest.changes)["available_usd"] == [0, 60 * MICRO]
    assert json.loads(first.changes) == {"approval": [None, asked.id], "usd": [None, 60 * MICRO]}
    again = await corrected(market, ASKER, user, 60, reference="c")
    assert (again.state, again.id) == (State.DONE_BEFORE, done.id)
    assert (await audit_all(market.store)).passed


async def test_slices_of_one_author_or_for_one_receiver_do_not_pass(market: Market) -> None:
    users = [await market.person() for _ in range(6)]
    for each in users[:5]:
        assert (await corrected(market, ASKER, each, 10)).state is State.DONE
    assert (await corrected(market, ASKER, users[5], 1)).state is State.WAITS
    for number in range(4):
        other = await corrected(market, Machine(f"other{number}"), users[0], 10)
        assert other.state is State.DONE
    assert (await corrected(market, Machine("last"), users[0], 1)).state is State.WAITS
    assert (await corrected(market, Machine("last"), users[0], 1, currency=CREDIT)).state == "done"
    market.clock.now += WINDOW_SECONDS
    assert (await corrected(market, ASKER, users[0], 50)).state is State.DONE


async def test_money_taken_and_given_does_not_cancel_out(market: Market) -> None:
    user = await market.person(usd="100")
    assert (await corrected(market, ASKER, user, 30)).state is State.DONE
    assert (await corrected(market, ASKER, user, -30)).state is State.WAITS


async def test_approved_amounts_leave_the_limit_as_it_is(market: Market) -> None:
    user = await market.person()
    await approve(market.context, SECOND, (await waiting(market, user)).id)
    assert (await corrected(market, ASKER, user, 50)).state is State.DONE


async def test_slices_at_the_same_time_do_not_pass(market: Market) -> None:
    user = await market.person()
    outcomes = await asyncio.gather(*(corrected(market, ASKER, user, 20) for _ in range(5)))
    assert [each.state for each in outcomes].count(State.DONE) == 2


async def test_the_author_never_approves_under_any_name(market: Market) -> None:
    user = await market.person()
    asked = await waiting(market, user)
    finance = acting(await member(market, Role.FINANCE))
    same = Member(finance.staff_id, Role.FINANCE, Via.MACHINE, "asker")
    for author in (ASKER, same):
        assert await refusal(approve(market.context, author, asked.id)) is Code.NOT_PERMITTED
    own = await corrected(market, finance, user, 70)
    assert await refusal(approve(market.context, finance, own.id)) is Code.NOT_PERMITTED
    proved = await corrected(market, same, user, 71)
    assert await refusal(approve(market.context, ASKER, proved.id)) is Code.NOT_PERMITTED
    assert await available(market, user) == 0
    await approve(market.context, finance, asked.id)
    await approve(market.context, SECOND, own.id)
    assert await available(market, user) == 130 * MICRO


@pytest.mark.both_engines
async def test_twenty_approvals_at_the_same_time_post_once(market: Market) -> None:
    user = await market.person()
    asked = await waiting(market, user)
    outcomes = await asyncio.gather(
        *(approve(market.context, Machine(f"second{each}"), asked.id) for each in range(20)),
        return_exceptions=True,
    )
    refusals = [each for each in outcomes if isinstance(each, MarketError)]
    assert len(refusals) == 19
    assert {each.code for each in refusals} == {Code.APPROVAL_OVER}
    assert await available(market, user) == 60 * MICRO
    assert (await audit_all(market.store)).passed


@pytest.mark.both_engines
async def test_an_approval_and_a_refusal_have_one_winner(market: Market) -> None:
    user = await market.person()
    asked = [await waiting(market, user, reference=f"c{each}") for each in range(4)]
    outcomes = await asyncio.gather(
        *(approve(market.context, SECOND, each.id) for each in asked),
        *(refuse(market.context, Machine("third"), each.id, "no") for each in asked),
        return_exceptions=True,
    )
    for at in range(4):
        pair = (outcomes[at], outcomes[at + 4])
        [lost] = [each for each in pair if isinstance(each, MarketError)]
        assert lost.code is Code.APPROVAL_OVER
    approved = sum(isinstance(each, Outcome) for each in outcomes)
    assert await available(market, user) == approved * 60 * MICRO
    assert (await audit_all(market.store)).passed


async def test_a_request_ends_with_its_time_and_can_be_asked_again(market: Market) -> None:
    user = await market.person()
    asked = await waiting(market, user)
    market.clock.now += WAITS_SECONDS - 1
    again = await waiting(market, user)
    assert (again.id, again.expires_at) == (asked.id, asked.expires_at)
    market.clock.now += 1
    for attempt in (
        approve(market.context, SECOND, asked.id),
        refuse(market.context, SECOND, asked.id, "late"),
    ):
        with pytest.raises(MarketError, match="time of the request is over") as refused:
            await attempt
        assert refused.value.code is Code.APPROVAL_OVER
    new = await waiting(market, user)
    assert new.id != asked.id
    await approve(market.context, SECOND, new.id)
    assert await available(market, user) == 60 * MICRO
    rows = await approvals.listed(market.context, SECOND, is_open=False, limit=10)
    assert [each.approval.decision for each in rows] == ["approved", "expired"]


async def test_a_refused_request_moves_nothing_and_may_be_withdrawn(market: Market) -> None:
    user = await market.person()
    refused = await refuse(market.context, SECOND, (await waiting(market, user)).id, "why?")
    assert not refused.is_withdrawn
    withdrawn = await refuse(market.context, ASKER, (await waiting(market, user)).id, "a mistake")
    assert withdrawn.is_withdrawn
    assert await available(market, user) == 0
    assert await refusal(approve(market.context, SECOND, withdrawn.id)) is Code.APPROVAL_OVER
    assert await refusal(approve(market.context, SECOND, "none")) is Code.APPROVAL_NOT_FOUND


async def test_the_conditions_are_checked_again_at_the_approval(market: Market) -> None:
    user = await market.person()
    deposit = await deposited(market, user, 100)
    back = await refunded(market, ASKER, user, 80, deposit=deposit)
    taken = await corrected(market, ASKER, user, -90)
    assert (back.state, taken.state) == (State.WAITS, State.WAITS)
    await market.bandwidth.buy(user, quota_bytes=30 * GB, price_per_gb=MICRO)
    assert await refusal(approve(market.context, SECOND, back.id)) is Code.REFUND_TOO_LARGE
    assert await refusal(approve(market.context, SECOND, taken.id)) is Code.INSUFFICIENT_FUNDS
    assert await available(market, user) == 70 * MICRO
    assert len(await approvals.listed(market.context, SECOND, limit=10)) == 2
    await deposited(market, user, 20)
    await approve(market.context, SECOND, taken.id)
    assert await available(market, user) == 0


async def test_an_act_that_cannot_be_done_is_refused_before_it_waits(market: Market) -> None:
    user = await market.person()
    deposit = await deposited(market, user, 100)
    assert await refusal(corrected(market, ASKER, user, -101)) is Code.INSUFFICIENT_FUNDS
    attempt = refunded(market, ASKER, user, 101, deposit=deposit)
    assert await refusal(attempt) is Code.REFUND_TOO_LARGE
    assert await approvals.listed(market.context, SECOND, limit=10) == []


async def test_a_member_who_asked_and_was_locked_moves_nothing(market: Market) -> None:
    user, created = await market.person(), await member(market, Role.FINANCE)
    asked = await corrected(market, acting(created), user, 60)
    await accounts.lock(market.context, ASKER, created.id, "left")
    assert await refusal(approve(market.context, SECOND, asked.id)) is Code.NOT_PERMITTED
    assert await available(market, user) == 0


async def test_another_act_under_the_reference_of_one_that_waits_is_refused(
    market: Market,
) -> None:
    user = await market.person()
    await waiting(market, user)
    assert await refusal(corrected(market, ASKER, user, 61, reference="c")) is Code.REFERENCE_REUSED
    assert await refusal(corrected(market, ASKER, user, 1, reference="c")) is Code.REFERENCE_REUSED


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_a_request_that_the_owner_of_the_database_changed_is_void(market: Market) -> None:
    user = await market.person()
    asked = await waiting(market, user)

    async def change(tx: Transaction) -> None:
        await tx.run("DROP TRIGGER approvals_decided_once")
        await tx.run("UPDATE approvals SET payload = REPLACE(payload, '60', '99'), amount = 99")

    await market.store.write(change)
    assert await refusal(approve(market.context, SECOND, asked.id)) is Code.APPROVAL_OVER
    assert not (await audit_all(market.store)).passed
    assert await available(market, user) == 0


def test_the_limits_of_the_tests_are_those_of_the_settings() -> None:
    assert LIMITS == {USD: 50 * MICRO, CREDIT: 5000 * MICRO}
