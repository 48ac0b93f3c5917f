"""Earned money: its sources, its uses, and the money that never becomes it, on both engines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases
from support.market.books import available, refusal
from support.market.jobs import device_of, running, wanted
from support.market.market import Market
from support.market.payouts import (
    add_method,
    confirm,
    earn,
    earn_usd,
    earned_part,
    earner,
    earnings,
    request,
    reward,
)

from market.base.errors import Code, MarketError
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from market.payouts.payouts import Request
from market.payouts.rules import quote, worth_of
from market.payouts.terms import CENT, PayoutTerms
from storage.engines.store import Transaction

CREDIT = Currency.CREDIT


async def test_pay_for_work_is_earned_and_deposits_and_rewards_are_not(market: Market) -> None:
    user = await market.person("5", "30")
    code = (await market.referrals.standing(await market.person())).code
    await market.referrals.apply(user, code)
    await reward(market, user, 40)
    assert await earned_part(market, user) == 0
    await earn(market, user, 100)
    assert await earned_part(market, user) == 90 * MICRO
    assert await available(market, user, CREDIT) == (30 + 25 + 40 + 90) * MICRO


async def test_a_photo_never_becomes_cash(market: Market) -> None:
    """Not by itself, not beside earnings, and not by a purchase that is cancelled."""
    user = await market.person()
    await confirm(market, user)
    await reward(market, user, 5_000)
    method = await add_method(market, user)
    market.clock.now += 7 * 86_400
    whole = Request(CREDIT, 5_000 * MICRO, method.id)
    assert await refusal(market.payouts.request(user, whole)) is Code.PAYOUT_TOO_LARGE
    await earn(market, user, 1_000)
    market.clock.now += 7 * 86_400
    for _ in range(3):
        job = await market.jobs.create(user, wanted(price=5_500 * MICRO))
        assert await earned_part(market, user) == 400 * MICRO
        await market.jobs.cancel(user, job)
    assert await refusal(market.payouts.request(user, whole)) is Code.PAYOUT_TOO_LARGE
    await request(market, user, method, 900)
    assert await available(market, user, CREDIT) == 5_000 * MICRO
    more = Request(CREDIT, 600 * MICRO, method.id)
    assert await refusal(market.payouts.request(user, more)) is Code.PAYOUT_TOO_LARGE


async def test_a_purchase_takes_other_money_first_and_a_release_returns_earned_money(
    market: Market,
) -> None:
    user = await market.person(credit="30")
    await earn(market, user, 100)
    first = await market.jobs.create(user, wanted(price=20 * MICRO))
    assert await earned_part(market, user) == 90 * MICRO
    second = await market.jobs.create(user, wanted(price=50 * MICRO))
    assert await earned_part(market, user) == 50 * MICRO
    assert (await earnings(market, user)).held == 40 * MICRO
    await market.jobs.cancel(user, second)
    assert await earned_part(market, user) == 90 * MICRO
    await market.jobs.cancel(user, first)
    assert await earned_part(market, user) == 90 * MICRO


async def test_what_a_purchase_used_never_comes_back_by_a_deposit(market: Market) -> None:
    user = await market.person(credit="0")
    await earn(market, user, 100)
    job_id, device = await running(market, user, await market.person(), price=90 * MICRO)
    await market.jobs.complete(device, job_id, "done")
    await market.deposit("person1@example.com", 500 * MICRO, currency=CREDIT)
    assert await earned_part(market, user) == 0
    assert (await earnings(market, user)).spent == 90 * MICRO


async def test_the_pay_of_the_buyers_own_device_is_not_earned(market: Market) -> None:
    user = await market.person(credit="100")
    await earn(market, user, 50, buyer=user)
    assert await available(market, user, CREDIT) == 95 * MICRO
    assert await earned_part(market, user) == 0


async def test_shares_of_exits_are_earned_but_for_the_owners_own_sessions(market: Market) -> None:
    owner = await market.person("10")
    await earn_usd(market, owner, buyer=owner)
    assert await earned_part(market, owner, Currency.USD) == 0
    await earn_usd(market, owner)
    assert await earned_part(market, owner, Currency.USD) == 600_000


@pytest.mark.both_engines
async def test_the_terms_of_earnings_add_up_at_every_step(market: Market) -> None:
    user, method = await earner(market)
    row = await request(market, user, method)
    found = await earnings(market, user)
    assert (found.earned, found.in_payout) == (1_800 * MICRO, 1_000 * MICRO)
    assert (found.available, found.spent) == (800 * MICRO, 0)
    await market.jobs.create(user, wanted(price=100 * MICRO))
    found = await earnings(market, user)
    assert (found.available, found.held, found.spent) == (700 * MICRO, 100 * MICRO, 0)
    await market.payouts.cancel(user, row.id)
    assert (await earnings(market, user)).in_payout == 0


async def test_no_more_than_the_earned_part_is_paid_out(market: Market) -> None:
    user = await market.person(credit="5000")
    await confirm(market, user)
    await earn(market, user, 1_000)
    method = await add_method(market, user)
    market.clock.now += 7 * 86_400
    asked = Request(CREDIT, 901 * MICRO, method.id)
    assert await refusal(market.payouts.request(user, asked)) is Code.PAYOUT_TOO_LARGE
    row = await request(market, user, method, 900)
    assert row.usd == 9 * MICRO
    again = Request(CREDIT, 600 * MICRO, method.id)
    assert await refusal(market.payouts.request(user, again)) is Code.PAYOUT_TOO_LARGE


@pytest.mark.both_engines
@cases(
    "statement",
    [
        "UPDATE accounts SET earned = 7 WHERE id = 'user:' || :user || ':available:credit'",
        "UPDATE earned_totals SET total = total + 1 WHERE user_id = :user",
        "UPDATE earned_lines SET is_back = 1 WHERE account LIKE 'user:' || :user || '%'",
    ],
)
async def test_the_audit_finds_changed_earnings(market: Market, statement: str) -> None:
    user = await market.person()
    await earn(market, user, 10)

    async def change(tx: Transaction) -> None:
        assert await tx.run(statement, user=user) == 1

    await market.store.write(change)
    report = await audit_ledger(market.store)
    broken = [check.promise for check in report.checks if check.differences]
    assert "earned money is what was earned, less what was taken of it" in broken

    async def restore(tx: Transaction) -> None:
        await tx.run("UPDATE accounts SET earned = 9000000 WHERE earned > 0")
        await tx.run("UPDATE earned_totals SET total = 9000000")
        await tx.run("UPDATE earned_lines SET is_back = 0")

    await market.store.write(restore)


@pytest.mark.both_engines
async def test_the_database_refuses_more_earned_money_than_there_is(market: Market) -> None:
    user = await market.person(credit="1")
    await device_of(market, user)

    async def change(tx: Transaction) -> None:
        await tx.run("UPDATE accounts SET earned = balance + 1 WHERE user_id IS NOT NULL")

    with pytest.raises(Exception, match="accounts_earned_within"):
        await market.store.write(change)


@given(
    rate=st.integers(1, 3 * MICRO),
    amount=st.integers(1, 10**13),
    fee=st.sampled_from([0, CENT, MICRO // 2]),
)
def test_a_payout_of_credits_is_worth_what_is_sent(rate: int, amount: int, fee: int) -> None:
    """No cent for less credits than it costs, and not a micro-credit more than that."""
    terms = PayoutTerms(credit_rate=rate, minimum=5 * MICRO, fee=fee)
    worth = worth_of(terms, CREDIT, amount)
    if worth < 5 * MICRO:
        with pytest.raises(MarketError):
            quote(terms, CREDIT, amount)
        return
    price = quote(terms, CREDIT, amount)
    assert (price.usd, price.usd % CENT) == (worth - worth % CENT, 0)
    assert price.amount <= amount
    assert (price.amount - 1) * rate < price.usd * MICRO <= price.amount * rate
    assert 0 <= price.fee_amount < price.amount
    assert price.fee_amount * rate <= fee * MICRO
