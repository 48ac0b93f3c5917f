"""Debts that a sweep pays: for earnings, by later earnings, and for payments, by any USD."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.base.clock import Clock
from support.market.books import available, balance, refusal
from support.market.events import types_of
from support.market.jobs import wanted
from support.market.market import Market
from support.market.payouts import (
    approved,
    earn,
    earn_usd,
    earned_part,
    earner,
    earnings,
    plain_payout,
    request,
    send,
)
from support.market.staff import ROOT
from support.market.staff_money import ASKER, SECOND

from market.base.errors import Code
from market.money import debts, ledger
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from market.payouts import steps
from market.staff.money import deposits, forgiving, money, paying, second_person
from market.staff.money.approvals import State
from market.staff.money.money_audit import audit_money
from storage.engines.store import Store

CREDIT, LIMITS = Currency.CREDIT, dict.fromkeys(Currency, 10**12)


@pytest.fixture
async def market(store: Store, clock: Clock) -> AsyncIterator[Market]:
    """A marketplace whose books must agree after the test."""
    made = Market(store, clock)
    yield made
    made.passwords.close()
    checks = (*(await audit_ledger(store)).checks, *await audit_money(store))
    assert not [each for each in checks if each.differences]


async def paid_out(market: Market, user: str, credit: int = 1_000) -> None:
    """Earn credits, and pay a part of 1,800 out; 800 stay."""
    row = await approved(market, user, credit)
    await send(market, row)
    await market.store.write(steps.pay, market.context, row.id)


async def taken_back(market: Market, user: str, credit: int, reference: str = "job-7") -> State:
    outcome = await money.correct(
        market.context,
        ROOT,
        user,
        LIMITS,
        amount=-credit * MICRO,
        currency=CREDIT,
        reference=reference,
        why="a copied result",
        leaves_debt=True,
    )
    return outcome.state


async def owed(market: Market, user: str) -> int:
    return await market.store.read(debts.owed, user, CREDIT)


async def test_later_earnings_pay_what_was_paid_out_before(market: Market) -> None:
    user = await market.person(credit="100")
    await paid_out(market, user)
    assert [await taken_back(market, user, 1_500) for _ in range(2)] == [
        State.DONE,
        State.DONE_BEFORE,
    ]
    assert (await earned_part(market, user), await owed(market, user)) == (0, 700 * MICRO)
    assert await balance(market, ledger.losses(CREDIT)) == -700 * MICRO
    assert "wallet.corrected" in await types_of(market, user)
    bought = market.jobs.create(user, wanted(price=MICRO))
    assert await refusal(bought) is Code.ACCOUNT_RESTRICTED
    assert await market.debt_sweeper.sweep() == 0
    await earn(market, user, 500)
    assert (await earnings(market, user)).owed == 700 * MICRO
    assert (await market.wallet.owed(user))[CREDIT] == 700 * MICRO
    shown = await money.history(market.context, ROOT, user, limit=1)
    assert shown.owed == {Currency.USD: 0, CREDIT: 700 * MICRO}
    made = [market.debt_sweeper.sweep() for _ in range(3)]
    assert await asyncio.gather(*made)
    assert (await earned_part(market, user), await owed(market, user)) == (0, 250 * MICRO)
    await earn(market, user, 1_000)
    assert await refusal(market.jobs.create(user, wanted(price=MICRO))) is Code.ACCOUNT_RESTRICTED
    await market.debt_sweeper.sweep()
    assert (await earned_part(market, user), await owed(market, user)) == (650 * MICRO, 0)
    assert await balance(market, ledger.losses(CREDIT)) == 0
    found = await earnings(market, user)
    assert (found.owed, found.paid, found.available) == (0, 1_000 * MICRO, 650 * MICRO)
    assert found.spent == 1_500 * MICRO
    await market.jobs.create(user, wanted(price=MICRO))


@pytest.mark.both_engines
async def test_no_payout_leaves_before_the_debt_is_paid(market: Market) -> None:
    user, method = await earner(market)
    first = await request(market, user, method, 600)
    await paying.approve(market.context, ROOT, first.id, LIMITS)
    await taken_back(market, user, 1_700)
    assert await owed(market, user) == 500 * MICRO
    assert await market.store.write(steps.lock_approved, ("bank",), 9) == []
    assert await refusal(request(market, user, method, 500)) is Code.PAYOUT_TOO_LARGE
    await earn(market, user, 1_000)
    assert await refusal(request(market, user, method, 500)) is Code.PAYOUT_NOT_PERMITTED
    waiting = await plain_payout(market, user)
    refused = paying.approve(market.context, ROOT, waiting.id, LIMITS)
    assert await refusal(refused) is Code.PAYOUT_NOT_PERMITTED
    await market.payouts.cancel(user, waiting.id)
    await market.debt_sweeper.sweep()
    assert await owed(market, user) == 0
    assert [row.id for row in await market.store.write(steps.lock_approved, ("bank",), 9)] == [
        first.id
    ]


async def test_a_reward_never_pays_for_a_payout(market: Market) -> None:
    """Otherwise earnings that were none would leave as cash, and the reward would pay for them."""
    user = await market.person(credit="5000")
    await paid_out(market, user)
    await taken_back(market, user, 1_800)
    assert await owed(market, user) == 1_000 * MICRO
    assert await available(market, user, CREDIT) == 5_000 * MICRO
    assert await market.debt_sweeper.sweep() == 0
    assert await owed(market, user) == 1_000 * MICRO


async def test_no_more_is_taken_back_than_was_earned(market: Market) -> None:
    user = await market.person(credit="5000")
    assert await refusal(taken_back(market, user, 1)) is Code.INSUFFICIENT_FUNDS
    await paid_out(market, user)
    assert await refusal(taken_back(market, user, 1_801)) is Code.INSUFFICIENT_FUNDS
    assert await refusal(taken_back(market, user, -5)) is Code.INVALID_FIELD
    assert await owed(market, user) == 0
    await taken_back(market, user, 1_000)
    assert await refusal(taken_back(market, user, 801, "job-8")) is Code.INSUFFICIENT_FUNDS
    await taken_back(market, user, 800, "job-8")
    assert await owed(market, user) == 1_000 * MICRO


async def test_a_debt_above_the_limit_needs_a_second_person(market: Market) -> None:
    user = await market.person()
    await paid_out(market, user)
    asked = await money.correct(
        market.context,
        ASKER,
        user,
        dict.fromkeys(Currency, MICRO),
        amount=-1_500 * MICRO,
        currency=CREDIT,
        reference="job-8",
        why="a copied result",
        leaves_debt=True,
    )
    assert (asked.state, await owed(market, user)) == (State.WAITS, 0)
    await second_person.approve(market.context, SECOND, asked.id)
    assert await owed(market, user) == 700 * MICRO


async def test_a_deposit_pays_and_the_staff_forgives(market: Market) -> None:
    user = await market.person()
    await paid_out(market, user)
    await taken_back(market, user, 1_800)
    amounts = {CREDIT: 300 * MICRO}
    await deposits.deposit(market.context, ROOT, user, LIMITS, amounts=amounts, reference="paid-in")
    assert await owed(market, user) == 700 * MICRO
    outcome = await forgiving.forgive(
        market.context,
        ROOT,
        user,
        LIMITS,
        amount=700 * MICRO,
        reference="forgiven",
        why="shown mercy",
        currency=CREDIT,
    )
    assert (outcome.state, await owed(market, user)) == (State.DONE, 0)


async def test_debts_of_both_currencies_are_apart(market: Market) -> None:
    user = await market.person()
    await earn_usd(market, user)
    await paid_out(market, user)
    await taken_back(market, user, 1_800)
    await market.debt_sweeper.sweep()
    assert await earned_part(market, user, Currency.USD) == 600_000
    assert await owed(market, user) == 1_000 * MICRO
