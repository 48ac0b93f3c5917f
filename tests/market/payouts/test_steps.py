"""The steps of payouts, on both engines: states, money, races and repetitions."""

import asyncio

import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.market.books import available, balance, held, refusal
from support.market.events import said, types_of
from support.market.jobs import code_of
from support.market.leaving import tools
from support.market.market import Market
from support.market.payouts import earn_usd, earned_part, earner, earnings, request, send, state_of

from market.base.errors import Code, MarketError
from market.base.states import TRANSITIONS, PayoutStatus
from market.erasure import erasing
from market.money import ledger
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from market.payouts import steps
from market.payouts.payouts import Request
from market.payouts.terms import FailReason, RejectReason
from storage.engines.errors import ConstraintError
from storage.engines.store import Transaction
from storage.payouts.payouts import PayoutRow

CREDIT = Currency.CREDIT


async def sent(market: Market) -> tuple[str, PayoutRow]:
    """Return a user and a payout of 10 USD that is sent."""
    user, method = await earner(market)
    row = await request(market, user, method)
    await market.store.write(steps.approve, market.context, row.id)
    await send(market, row)
    return user, row


async def test_a_payout_of_credits_moves_through_the_exchange(market: Market) -> None:
    market.payouts.terms = replace(market.payouts.terms, fee=MICRO // 2)
    user, row = await sent(market)
    assert await held(market, user, CREDIT) == 1_000 * MICRO
    for _ in range(2):
        await market.store.write(steps.pay, market.context, row.id)
    assert await balance(market, ledger.payouts()) == 9_500_000
    assert await balance(market, ledger.fees()) == 500_000
    assert await balance(market, ledger.exchange(Currency.USD)) == -10 * MICRO
    assert await balance(market, ledger.exchange(CREDIT)) == 1_000 * MICRO
    found = await earnings(market, user)
    assert (found.paid, found.fees, found.spent) == (950 * MICRO, 50 * MICRO, 0)
    kinds = [kind for kind in await types_of(market, user) if kind.startswith("payout.")]
    assert kinds == ["payout.requested", "payout.approved", "payout.sent", "payout.paid"]
    assert (await said(market, user, "payout.paid"))[0]["fee_usd"] == 0.5


async def test_a_payout_of_usd_goes_from_the_wallet(market: Market) -> None:
    market.payouts.terms = replace(market.payouts.terms, minimum=MICRO // 2, fee=MICRO // 10)
    user, method = await earner(market, 10)
    await earn_usd(market, user)
    row = await market.payouts.request(user, Request(Currency.USD, 605_000, method.id))
    assert (row.amount, row.usd, row.fee, row.net) == (600_000, 600_000, 100_000, 500_000)
    await market.store.write(steps.approve, market.context, row.id)
    await send(market, row)
    await market.store.write(steps.pay, market.context, row.id)
    assert await balance(market, ledger.payouts()) == 500_000
    await market.store.write(steps.fail, market.context, row.id, FailReason.RETURNED)
    assert await earned_part(market, user, Currency.USD) == 600_000
    assert await balance(market, ledger.fees()) == 0


@cases("is_paid", [False, True])
async def test_a_payout_that_fails_or_returns_gives_everything_back(
    market: Market, is_paid: bool
) -> None:
    user, row = await sent(market)
    if is_paid:
        await market.store.write(steps.pay, market.context, row.id)
    for _ in range(2):
        await market.store.write(steps.fail, market.context, row.id, FailReason.RETURNED)
    assert await earned_part(market, user) == await available(market, user, CREDIT)
    assert await available(market, user, CREDIT) == 1_800 * MICRO
    found = await earnings(market, user)
    assert (found.earned, found.paid, found.spent) == (1_800 * MICRO, 0, 0)
    assert (await said(market, user, "payout.failed"))[0]["reason"] == "returned"


@pytest.mark.both_engines
async def test_of_an_approval_and_a_cancellation_one_wins(market: Market) -> None:
    user, method = await earner(market, 7_000)
    for _ in range(3):
        row = await request(market, user, method)
        outcomes = await asyncio.gather(
            market.store.write(steps.approve, market.context, row.id),
            market.payouts.cancel(user, row.id),
            return_exceptions=True,
        )
        codes = [code_of(each) for each in outcomes]
        assert set(codes) == {None, Code.PAYOUT_STATE}
        state = await state_of(market, row.id)
        assert state == ("approved" if codes[0] is None else "cancelled")
        market.clock.now += 86_400


@pytest.mark.both_engines
async def test_requests_at_the_same_time_never_pay_money_twice(market: Market) -> None:
    market.payouts.terms = replace(market.payouts.terms, a_day=100)
    user, method = await earner(market, 2_000)
    asked = Request(CREDIT, 600 * MICRO, method.id)
    outcomes = await asyncio.gather(
        *(market.payouts.request(user, asked) for _ in range(8)), return_exceptions=True
    )
    assert [code_of(each) for each in outcomes].count(None) == 3
    assert await earned_part(market, user) == 0


async def test_a_rejection_has_a_reason_and_releases(market: Market) -> None:
    user, method = await earner(market)
    row = await request(market, user, method)
    await market.store.write(steps.approve, market.context, row.id)
    reason = RejectReason.NAME_MISMATCH
    for _ in range(2):
        await market.store.write(steps.reject, market.context, row.id, reason)
    assert await earned_part(market, user) == 1_800 * MICRO
    [told] = await said(market, user, "payout.rejected")
    assert told["reason"] == "name_mismatch"


async def test_every_step_is_refused_in_every_other_state(market: Market) -> None:
    user, row = await sent(market)
    context = market.context
    assert await refusal(market.payouts.cancel(user, row.id)) is Code.PAYOUT_STATE
    reason = RejectReason.TERMS_BROKEN
    with pytest.raises(MarketError):
        await market.store.write(steps.reject, context, row.id, reason)
    with pytest.raises(MarketError):
        await market.store.write(steps.approve, context, row.id)
    for step in (steps.cancel, steps.approve, steps.pay):
        with pytest.raises(MarketError) as caught:
            await market.store.write(step, context, "nothing")
        assert caught.value.code is Code.PAYOUT_NOT_FOUND
    ends = {state for state, after in TRANSITIONS[PayoutStatus].items() if not after}
    assert ends == {PayoutStatus.CANCELLED, PayoutStatus.REJECTED, PayoutStatus.FAILED}


@pytest.mark.both_engines
@cases(
    "statement",
    [
        "UPDATE payouts SET amount = amount + 1",
        "UPDATE payouts SET user_id = 'other'",
        "UPDATE payouts SET batch_id = 'other'",
        "DELETE FROM payouts",
    ],
)
async def test_the_database_keeps_the_terms_of_a_payout(market: Market, statement: str) -> None:
    await sent(market)

    async def change(tx: Transaction) -> None:
        await tx.run(statement)

    with pytest.raises(ConstraintError) as caught:
        await market.store.write(change)
    assert caught.value.constraint == "payouts_keep_their_terms"


@pytest.mark.both_engines
async def test_the_audit_finds_a_payout_without_its_money(market: Market) -> None:
    _, row = await sent(market)

    async def mark(tx: Transaction, state: str, ended_at: int | None) -> None:
        await tx.run(
            "UPDATE payouts SET state = :state, ended_at = :ended_at WHERE id = :id",
            state=state,
            ended_at=ended_at,
            id=row.id,
        )

    await market.store.write(mark, "paid", 1)
    report = await audit_ledger(market.store)
    broken = " ".join(check.promise for check in report.checks if check.differences)
    assert "one that was paid took it" in broken
    assert "the house sent what the paid payouts say" in broken
    assert "earnings are available" in broken
    await market.store.write(mark, "sent", None)


async def test_money_that_comes_back_after_an_erasure_goes_to_the_house(market: Market) -> None:
    user, row = await sent(market)
    await market.store.write(steps.pay, market.context, row.id)
    await market.store.write(erasing.erase, market.context, tools(market), user, waives=True)
    other, open_row = await sent(market)
    # As after a restore of an older database.
    assert await market.store.write(erasing.erase_again, market.context, other)
    for each in (row, open_row):
        for _ in range(2):
            await market.store.write(steps.fail, market.context, each.id, FailReason.RETURNED)
    assert await available(market, user, CREDIT) == 0
    assert await available(market, other, CREDIT) == 800 * MICRO
    assert await balance(market, ledger.unclaimed(CREDIT)) == 2_000 * MICRO
    report = await audit_ledger(market.store)
    assert report.passed, report
