"""Payouts by the staff, on both engines: decisions, files, imports, and their repetition."""

import asyncio
from decimal import Decimal

import msgspec
import pytest
from msgspec.structs import replace
from support.market.books import balance, refusal
from support.market.events import types_of
from support.market.jobs import code_of
from support.market.leaving import tools
from support.market.market import PAYOUT_METHODS, Market
from support.market.payouts import (
    approved,
    earned_part,
    earner,
    plain_payout,
    request,
    state_of,
)
from support.market.staff import FACTORS, PASSWORD, ROOT, acting, member
from support.market.staff_money import ASKER, LIMITS, SECOND, corrected

from market.accounts.suspensions import Part
from market.base.errors import Code, MarketError
from market.erasure import erasing
from market.money import ledger
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from market.payouts import steps
from market.payouts.details import Details
from market.payouts.files import Debtor, Format, Line, Outcome
from market.payouts.terms import FailReason, MethodKind, RejectReason
from market.staff.base.roles import Role
from market.staff.finding import history
from market.staff.members import accounts
from market.staff.money import paying, second_person
from market.staff.money.approvals import State
from market.staff.money.money_audit import audit_money
from market.staff.stopping import suspending
from storage.accounts import users


async def exported(market: Market, form: Format = Format.CSV) -> paying.Exported:
    return await paying.export(market.context, ROOT, PAYOUT_METHODS, form)


@pytest.mark.both_engines
async def test_a_payout_is_approved_sent_and_booked(market: Market) -> None:
    user, method = await earner(market)
    row = await request(market, user, method)
    for state in (State.DONE, State.DONE_BEFORE):
        outcome = await paying.approve(market.context, ROOT, row.id, LIMITS, "looked at it")
        assert outcome.state is state
    done = await exported(market)
    assert done.batch is not None
    assert "Ada Lovelace,DE89370400440532013000" in done.content
    again = await paying.export_again(market.context, ROOT, PAYOUT_METHODS, done.batch.id)
    assert again.content == done.content
    assert (await exported(market)).batch is None
    line = Line(2, row.id, row.net, Outcome.PAID, None)
    results = [
        (await paying.book(market.context, ROOT, [line], LIMITS))[0].result for _ in range(2)
    ]
    assert results == ["paid", "paid before"]
    assert await balance(market, ledger.payouts()) == 10 * MICRO
    assert (await types_of(market, user))[-1] == "payout.paid"


async def test_an_import_reports_each_line_and_moves_no_wrong_money(market: Market) -> None:
    row, other = [await approved(market, await market.person()) for _ in range(2)]
    waiting = await plain_payout(market, await market.person())
    await exported(market)
    lines = [
        Line(2, "01a1", 1, Outcome.PAID, None),
        Line(3, row.id, row.net + 1, Outcome.PAID, None),
        Line(4, waiting.id, waiting.net, Outcome.PAID, None),
        Line(5, other.id, other.net, Outcome.FAILED, FailReason.REFUSED),
        Line(6, row.id, row.net, Outcome.PAID, None),
        Line(7, row.id, row.net, Outcome.FAILED, FailReason.RETURNED),
        Line(8, row.id, row.net, Outcome.PAID, None),
    ]
    results = [each.result for each in await paying.book(market.context, ROOT, lines, LIMITS)]
    assert results == [
        "refused: there is no such payout",
        "refused: the payout has another amount",
        "refused: The payout is requested.",
        "failed",
        "paid",
        "failed",
        "refused: The payout is failed.",
    ]
    assert await earned_part(market, other.user_id) == 1_800 * MICRO
    assert await balance(market, ledger.payouts()) == 0


async def test_a_large_payout_needs_a_second_person(market: Market) -> None:
    row = await plain_payout(market, await market.person(), 6_000)
    asked = await paying.approve(market.context, ASKER, row.id, LIMITS)
    assert asked.state is State.WAITS
    assert await state_of(market, row.id) == "requested"
    own = second_person.approve(market.context, ASKER, asked.id)
    assert await refusal(own) is Code.NOT_PERMITTED
    await second_person.approve(market.context, SECOND, asked.id)
    assert await state_of(market, row.id) == "approved"
    assert all(not check.differences for check in await audit_money(market.store))


async def paid(market: Market, user: str, credit: int) -> Line:
    """Pay a payout, and return the line of an import that says that it came back."""
    row = await approved(market, user, credit)
    await exported(market)
    await paying.book(market.context, ROOT, [Line(2, row.id, row.net, Outcome.PAID, None)], LIMITS)
    return Line(2, row.id, row.net, Outcome.FAILED, FailReason.RETURNED)


async def test_a_large_payout_comes_back_by_two_persons_only(market: Market) -> None:
    line = await paid(market, await market.person(), 6_000)
    asked = [(await paying.book(market.context, ASKER, [line], LIMITS))[0].result for _ in range(2)]
    assert asked[0] == asked[1]
    assert asked[0].startswith("waits for a second person: approval ")
    assert await state_of(market, line.payout_id) == "paid"
    other = msgspec.structs.replace(line, reason=FailReason.UNCLAIMED)
    [refused] = await paying.book(market.context, ASKER, [other], LIMITS)
    assert refused.is_refused
    approval = asked[0].split()[-1]
    own = second_person.approve(market.context, ASKER, approval)
    assert await refusal(own) is Code.NOT_PERMITTED
    await second_person.approve(market.context, SECOND, approval)
    assert await state_of(market, line.payout_id) == "failed"
    [again] = await paying.book(market.context, ASKER, [line], LIMITS)
    assert again.result == "failed before"
    assert await balance(market, ledger.payouts()) == 0
    assert all(not check.differences for check in await audit_money(market.store))
    assert (await audit_ledger(market.store)).passed


async def test_a_paid_payout_comes_back_only_for_a_reason_of_returns(market: Market) -> None:
    line = await paid(market, await market.person(), 1_000)
    for reason in set(FailReason) - {FailReason.RETURNED, FailReason.UNCLAIMED}:
        other = msgspec.structs.replace(line, reason=reason)
        [refused] = await paying.book(market.context, ROOT, [other], LIMITS)
        words = f"A paid payout comes back as returned or unclaimed, not as {reason}."
        assert refused.result == f"refused: {words}"
        assert await state_of(market, line.payout_id) == "paid"
    assert await balance(market, ledger.payouts()) == 10 * MICRO


async def test_a_failed_payout_keeps_its_reason(market: Market) -> None:
    line = await paid(market, await market.person(), 1_000)
    other = msgspec.structs.replace(line, reason=FailReason.REFUSED)
    done = await paying.book(market.context, ROOT, [line, line, other], LIMITS)
    assert [each.result for each in done] == [
        "failed",
        "failed before",
        "refused: the payout failed before, as returned",
    ]


async def test_slices_of_returned_payouts_pass_no_limit(market: Market) -> None:
    lines = [await paid(market, await market.person(), 3_000) for _ in range(2)]
    results = await paying.book(market.context, ASKER, lines, LIMITS)
    assert (results[0].result, results[1].waits) == ("failed", True)


@pytest.mark.both_engines
async def test_a_return_that_its_provider_has_reported_meanwhile_is_void(market: Market) -> None:
    line = await paid(market, await market.person(), 6_000)
    [asked] = await paying.book(market.context, ASKER, [line], LIMITS)
    await market.store.write(steps.fail, market.context, line.payout_id, FailReason.RETURNED)
    approve = second_person.approve(market.context, SECOND, asked.result.split()[-1])
    assert await refusal(approve) is Code.PAYOUT_STATE
    assert await balance(market, ledger.payouts()) == 0
    assert (await audit_ledger(market.store)).passed


async def test_a_request_for_a_cancelled_payout_is_void(market: Market) -> None:
    user = await market.person()
    row = await plain_payout(market, user, 6_000)
    asked = await paying.approve(market.context, ASKER, row.id, LIMITS)
    await market.payouts.cancel(user, row.id)
    refused = await refusal(second_person.approve(market.context, SECOND, asked.id))
    assert refused is Code.PAYOUT_STATE
    assert await state_of(market, row.id) == "cancelled"


async def test_a_suspended_user_is_not_approved(market: Market) -> None:
    user = await market.person()
    row = await plain_payout(market, user)
    await suspending.suspend(
        market.context,
        market.letters,
        ROOT,
        user,
        parts=(Part.PURCHASES,),
        ends_at=None,
        shown="Write to us.",
        why="fraud",
    )
    refused = await refusal(paying.approve(market.context, ROOT, row.id, LIMITS))
    assert refused is Code.PAYOUT_NOT_PERMITTED
    await paying.reject(market.context, ROOT, row.id, RejectReason.EARNINGS_IN_DOUBT, "fraud")
    assert await earned_part(market, user) == 1_800 * MICRO


async def test_nobody_decides_about_an_account_with_the_own_address(market: Market) -> None:
    user = await market.person()
    row = await plain_payout(market, user)
    found = await market.store.read(users.find, user)
    assert found is not None
    created = await accounts.create(
        market.context,
        market.passwords,
        FACTORS,
        ROOT,
        email=found.email.upper(),
        password=PASSWORD,
        role=Role.FINANCE,
        why="hired",
    )
    author = acting(created)
    for attempt in (
        paying.approve(market.context, author, row.id, LIMITS),
        paying.reject(market.context, author, row.id, RejectReason.TERMS_BROKEN),
        paying.verify(market.context, author, user, "me"),
    ):
        assert await refusal(attempt) is Code.NOT_PERMITTED
    line = await paid(market, user, 1_000)
    [returned] = await paying.book(market.context, author, [line], LIMITS)
    assert returned.result.startswith("refused: This is an account of your own")


@pytest.mark.both_engines
async def test_two_exports_at_the_same_time_send_each_payout_once(market: Market) -> None:
    rows = [await approved(market, await market.person()) for _ in range(3)]
    outcomes = await asyncio.gather(*(exported(market) for _ in range(3)), return_exceptions=True)
    assert [code_of(each) for each in outcomes] == [None] * 3
    batches = [each for each in outcomes if isinstance(each, paying.Exported) and each.batch]
    sent = [row.id for row in rows for each in batches if row.id in each.content]
    assert sorted(sent) == sorted(row.id for row in rows)


async def test_an_export_of_nothing_leaves_no_row_in_the_log(market: Market) -> None:
    assert await exported(market) == paying.Exported(None, "")
    assert await history.read(market.context, ROOT, action="payout.export", limit=9) == []
    support = acting(await member(market, Role.SUPPORT))
    attempt = paying.export(market.context, support, PAYOUT_METHODS, Format.CSV)
    assert await refusal(attempt) is Code.NOT_PERMITTED


async def test_a_payout_of_a_user_who_is_erased_again_holds_no_export_up(market: Market) -> None:
    """A restored database erases users again, whose payouts were open in the backup."""
    lost, kept = [await approved(market, await market.person()) for _ in range(2)]
    assert await market.store.write(erasing.erase_again, market.context, lost.user_id)
    content = (await exported(market)).content
    assert (lost.id in content, kept.id in content) == (False, True)
    assert (await exported(market)).batch is None
    await paying.reject(market.context, ROOT, lost.id, RejectReason.TERMS_BROKEN, "erased")
    assert await balance(market, ledger.unclaimed(Currency.CREDIT)) == lost.amount


async def test_only_bank_accounts_are_in_a_message_for_a_bank(market: Market) -> None:
    user = await market.person()
    text = Details(text="=cmd|' /C calc'!A0")
    await market.payouts.add_method(user, MethodKind.MANUAL, text)
    market.clock.now += market.payouts.terms.method_wait_seconds
    by_hand, bank = await approved(market, user), await approved(market, await market.person())
    debtor = Debtor("Proxyd Ltd", "DE89370400440532013000")
    pain = await paying.export(market.context, ROOT, PAYOUT_METHODS, Format.PAIN_9, debtor)
    assert bank.id in pain.content
    assert by_hand.id not in pain.content
    table = (await exported(market)).content
    assert f"{by_hand.id},manual,,,,,'=cmd|' /C calc'!A0,10.00" in table


async def test_a_show_has_the_sources_of_the_earnings(market: Market) -> None:
    user = await market.person()
    row = await plain_payout(market, user)
    found = await paying.show(market.context, ROOT, row.id, PAYOUT_METHODS)
    assert found.details.holder == "Ada Lovelace"
    [source] = found.sources
    assert (source.buyer.payments, source.buyer.earned) == (1, 1_800 * MICRO)
    assert (source.has_deposited, source.signs.is_circular) == (True, False)
    assert found.earnings[Currency.CREDIT].in_payout == 1_000 * MICRO


async def test_a_correction_takes_earned_money_first(market: Market) -> None:
    user = await market.person(credit="1000")
    row = await plain_payout(market, user)
    await corrected(market, ROOT, user, -500, currency=Currency.CREDIT)
    assert await earned_part(market, user) == 300 * MICRO
    await market.payouts.cancel(user, row.id)
    assert await earned_part(market, user) == 1_300 * MICRO


@pytest.mark.both_engines
async def test_above_the_yearly_amount_the_identity_has_to_be_checked(market: Market) -> None:
    user, method = await earner(market, 100_000)
    # An amount that is not there is the first thing to say, also above the yearly amount.
    assert await refusal(request(market, user, method, 200_000)) is Code.PAYOUT_TOO_LARGE
    asked = request(market, user, method, 60_001 + 99)
    assert await refusal(asked) is Code.PAYOUT_NOT_PERMITTED
    assert await paying.verify(market.context, ROOT, user, "saw the passport")
    assert not await paying.verify(market.context, ROOT, user, "saw it again")
    await request(market, user, method, 60_100)
    assert await paying.verify(market.context, ROOT, user, "a mistake", is_checked=False)


async def test_an_erasure_takes_only_the_own_line_out_of_a_file(market: Market) -> None:
    payer = Debtor("Proxyd", "DE89370400440532013000")
    for form, rate in ((Format.CSV, None), (Format.PAIN_9, Decimal(1))):
        debtor = replace(payer, eur_rate=rate)
        rows = [await approved(market, await market.person()) for _ in range(2)]
        done = await paying.export(market.context, ROOT, PAYOUT_METHODS, form, debtor)
        assert done.batch is not None
        await market.store.write(steps.pay, market.context, rows[0].id)
        user = rows[0].user_id
        await market.store.write(erasing.erase, market.context, tools(market), user, waives=True)
        again = await paying.export_again(market.context, ROOT, PAYOUT_METHODS, done.batch.id)
        names = [row.id.replace("-", "") if form is Format.PAIN_9 else row.id for row in rows]
        assert [name in done.content for name in names] == [True, True]
        assert [name in again.content for name in names] == [False, True]
        if form is Format.PAIN_9:
            assert again.content.count("<NbOfTxs>1</NbOfTxs><CtrlSum>10.00</CtrlSum>") == 2
        user = rows[1].user_id
        await market.store.write(steps.pay, market.context, rows[1].id)
        await market.store.write(erasing.erase, market.context, tools(market), user, waives=True)
        with pytest.raises(MarketError) as caught:
            await paying.export_again(market.context, ROOT, PAYOUT_METHODS, done.batch.id)
        assert caught.value.code is Code.PAYOUT_BATCH_NOT_FOUND
