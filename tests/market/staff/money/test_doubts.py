"""Doubtful payments that the staff credits or gives up, with the provider's facts in between."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.base.clock import Clock
from support.market.books import available, refusal
from support.market.market import Market
from support.market.staff_money import ASKER, LIMITS, NOTHING, SECOND
from support.payments.bank import Bank

from market.base.errors import Code
from market.money.audit import audit_ledger
from market.money.money import MICRO
from market.staff.money import doubts, second_person
from market.staff.money.money_audit import audit_money
from storage.engines.store import Store

USD = MICRO


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
async def market(store: Store, clock: Clock, bank: Bank) -> AsyncIterator[Market]:
    made = Market(store, clock, providers={"bank": bank})
    yield made
    made.passwords.close()
    checks = (*(await audit_ledger(store)).checks, *await audit_money(store))
    assert not [each for each in checks if each.differences]


async def doubtful(market: Market, bank: Bank, **changes: object) -> tuple[str, str]:
    """Return a user, and their payment that arrived with other facts."""
    user = await market.person(usd="1")
    payment = await market.payments.create(user, 20 * USD)
    bank.pay(payment.id)
    bank.set(payment.id, **(changes or {"amount": 21 * USD}))
    found = await market.payments.find(user, payment.id)
    assert found.status == "doubtful"
    return user, payment.id


async def look(market: Market, payment_id: str) -> None:
    market.clock.now += 3
    await market.payments.fulfil(payment_id)


@pytest.mark.both_engines
async def test_an_accepted_amount_is_credited_once_at_the_next_look(
    market: Market, bank: Bank
) -> None:
    user, payment_id = await doubtful(market, bank)
    outcomes = await asyncio.gather(
        *(
            doubts.credit(market.context, ASKER, payment_id, LIMITS, amount=21 * USD, why="arrived")
            for _ in range(4)
        )
    )
    assert len({each.id for each in outcomes}) == 1
    assert await available(market, user) == USD
    for _ in range(3):
        market.clock.now += 3
        await market.payments.sweep()
    assert await available(market, user) == 22 * USD
    receipt = await market.payments.receipt(user, payment_id)
    assert receipt.payment.amount == 21 * USD
    again = doubts.credit(market.context, ASKER, payment_id, LIMITS, amount=USD, why="again")
    assert await refusal(again) is Code.REFERENCE_REUSED
    gone = doubts.give_up(market.context, ASKER, payment_id, "late")
    assert await refusal(gone) is Code.PAYMENT_NOT_DOUBTFUL


async def test_a_large_amount_waits_and_other_facts_void_it(market: Market, bank: Bank) -> None:
    user, payment_id = await doubtful(market, bank)
    waits = await doubts.credit(market.context, ASKER, payment_id, NOTHING, why="arrived")
    await look(market, payment_id)
    assert await available(market, user) == USD
    assert await refusal(second_person.approve(market.context, ASKER, waits.id)) is (
        Code.NOT_PERMITTED
    )
    await second_person.approve(market.context, SECOND, waits.id)
    bank.set(payment_id, amount=5 * USD)  # other facts than the accepted ones
    await look(market, payment_id)
    assert await available(market, user) == USD
    bank.set(payment_id, amount=21 * USD)
    await look(market, payment_id)
    assert await available(market, user) == 21 * USD


async def test_a_payment_that_was_given_up_stays_so_until_the_facts_agree(
    market: Market, bank: Bank
) -> None:
    user, payment_id = await doubtful(market, bank, currency="eur")
    for wrong in (0, -USD, 1, 10**30):
        bad = doubts.credit(market.context, ASKER, payment_id, LIMITS, amount=wrong, why="x")
        assert await refusal(bad) is Code.INVALID_FIELD
    await doubts.give_up(market.context, ASKER, payment_id, "another currency")
    again = doubts.give_up(market.context, ASKER, payment_id, "again")
    assert await refusal(again) is Code.PAYMENT_NOT_DOUBTFUL
    late = doubts.credit(market.context, ASKER, payment_id, LIMITS, why="late")
    assert await refusal(late) is Code.PAYMENT_NOT_DOUBTFUL
    await look(market, payment_id)
    assert (await market.payments.find(user, payment_id)).status == "failed"
    bank.set(payment_id, currency="usd")
    await look(market, payment_id)
    assert await available(market, user) == 21 * USD
