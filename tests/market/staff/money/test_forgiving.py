"""Debts that the staff forgives: the house pays them, and the account buys again."""

import asyncio

import pytest
from support.market.books import available, balance, refusal
from support.market.market import Market
from support.market.payment_rows import owe
from support.market.staff_money import ASKER, LIMITS, NOTHING, SECOND

from market.base.errors import Code
from market.money import debts, ledger
from market.money.audit import audit_ledger
from market.money.money import GB, MICRO, Currency
from market.staff.money import forgiving, second_person
from market.staff.money.money_audit import audit_money

USD = MICRO


def forgive(market: Market, user: str, whole: int, reference: str, **more: object):  # type: ignore[no-untyped-def]
    values = {"limits": LIMITS, "author": ASKER, **more}
    return forgiving.forgive(
        market.context,
        values["author"],
        user,
        values["limits"],
        amount=whole * USD,
        reference=reference,
        why="a fraud",
    )


@pytest.mark.both_engines
async def test_a_debt_is_forgiven_once_in_double_entry(market: Market) -> None:
    user = await market.person()
    await owe(market, user, 8)
    revenue = await balance(market, ledger.revenue(Currency.USD))
    outcomes = await asyncio.gather(*(forgive(market, user, 3, "letter-1") for _ in range(5)))
    assert len({each.id for each in outcomes}) == 1
    assert await market.store.read(debts.owed, user) == 5 * USD
    assert await balance(market, ledger.revenue(Currency.USD)) == revenue - 3 * USD
    assert await balance(market, ledger.losses()) == -5 * USD
    assert await refusal(forgive(market, user, 6, "letter-2")) is Code.DEBT_TOO_SMALL
    assert await refusal(forgive(market, user, 0, "letter-2")) is Code.INVALID_FIELD
    assert await refusal(forgive(market, user, 4, "letter-1")) is Code.REFERENCE_REUSED
    waits = await forgive(market, user, 5, "letter-3", limits=NOTHING)
    assert await refusal(second_person.approve(market.context, ASKER, waits.id)) is (
        Code.NOT_PERMITTED
    )
    await second_person.approve(market.context, SECOND, waits.id)
    assert await market.store.read(debts.owed, user) == 0
    await market.deposit("person1@example.com", 2 * USD)
    assert await available(market, user) == 2 * USD
    assert await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=USD)
    checks = (*(await audit_ledger(market.store)).checks, *await audit_money(market.store))
    assert not [each for each in checks if each.differences]
