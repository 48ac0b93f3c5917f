"""Doubtful payments that the staff credits or gives up, with the provider's facts in between."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.base.clock import Clock
from support.market.books import available, refusal
from support.market.market import Market
from support.market.staff_money import ASKER, LIMITS, NOTHING, SECOND
from support.payments.bank import Bank

from market.base.errors import Code, MarketError
from market.money.audit import audit_ledger
from market.money.money import MICRO, Currency
from market.payments.provider import ProviderError
from market.staff.money import doubts, second_person
from market.staff.money.money_audit import audit_money
from storage.engines.store import Store

USD = MICRO
COINS = dict.fromkeys(Currency, 10_000 * USD)  # the limits of a single person


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


@pytest.mark.both_engines
async def test_an_accepted_payment_with_other_facts_is_accepted_again(
    market: Market, bank: Bank
) -> None:
    user, payment_id = await doubtful(market, bank)
    limits = dict.fromkeys(LIMITS, 100 * USD)
    for amount in (5, 21):  # the first facts come back at the end
        await doubts.credit(market.context, ASKER, payment_id, limits, why="arrived")
        bank.set(payment_id, amount=amount * USD)
        for _ in range(2):
            await look(market, payment_id)
        row = (await market.payments.find(user, payment_id)).row
        assert (row.status, row.accepted) == ("doubtful", None)
        assert row.doubt == f"the amount is {amount}.00"
    asked = [
        doubts.credit(market.context, ASKER, payment_id, limits, amount=21 * USD, why="arrived")
        for _ in range(3)
    ]
    assert len({each.id for each in await asyncio.gather(*asked)}) == 1
    await look(market, payment_id)
    assert await available(market, user) == 22 * USD


async def test_a_request_about_other_facts_is_void(market: Market, bank: Bank) -> None:
    user, payment_id = await doubtful(market, bank)
    waits = await doubts.credit(market.context, ASKER, payment_id, NOTHING, why="arrived")
    for amount in (5, 21):
        bank.set(payment_id, amount=amount * USD)
        await look(market, payment_id)
    approve = second_person.approve(market.context, SECOND, waits.id)
    assert await refusal(approve) is Code.PAYMENT_NOT_DOUBTFUL
    await doubts.give_up(market.context, ASKER, payment_id, "too many facts")
    await look(market, payment_id)
    assert await available(market, user) == USD


async def test_refunds_of_a_payment_in_another_currency_end(market: Market, bank: Bank) -> None:
    """20 EUR are accepted as 23 USD."""
    user, payment_id = await doubtful(market, bank, currency="eur")
    await doubts.credit(market.context, ASKER, payment_id, LIMITS, amount=23 * USD, why="arrived")
    await look(market, payment_id)
    assert await available(market, user) == 24 * USD
    market.clock.now += 3
    view = await market.payments.refund(user, payment_id, 5 * USD)
    assert (view.refunded, view.status) == (5 * USD, "paid")
    assert [each.amount for each in bank.of(payment_id).returns] == [4_340_000]
    bank.refund_outside(payment_id, 2 * USD)
    await look(market, payment_id)
    view = await market.payments.find(user, payment_id)
    assert view.refunded == 7_300_000
    ref = bank.dispute(payment_id, 20 * USD - 6_340_000)
    await look(market, payment_id)
    bank.decide(payment_id, ref, "done")
    for _ in range(2):
        await look(market, payment_id)
    assert await available(market, user) <= USD + MICRO // 100
    returns = (await market.payments.find(user, payment_id)).returns
    assert {each.status for each in returns} == {"done"}


async def test_a_refund_in_another_currency_survives_a_lost_answer_and_a_refusal(
    market: Market, bank: Bank
) -> None:
    user, payment_id = await doubtful(market, bank, currency="jpy", amount=3_000 * USD // 100)
    await doubts.credit(market.context, ASKER, payment_id, LIMITS, amount=19 * USD, why="arrived")
    await look(market, payment_id)

    def lost(moment: str) -> None:
        if moment == "refunded":
            raise ProviderError("no answer")

    bank.fail = lost
    market.clock.now += 3
    await market.payments.refund(user, payment_id, USD)
    bank.fail = lambda moment: None
    await look(market, payment_id)
    view = await market.payments.find(user, payment_id)
    assert (view.refunded, len(bank.of(payment_id).returns)) == (USD, 1)
    bank.refused = True
    market.clock.now += 3
    await market.payments.refund(user, payment_id, 2 * USD)
    await look(market, payment_id)
    assert await available(market, user) == 19 * USD


async def test_many_small_refunds_in_coins_return_no_more_than_their_share(
    market: Market, bank: Bank
) -> None:
    """0.002 BTC are accepted as 100 USD, so 0.01 USD are a fifth of a micro-unit of BTC."""
    user = await market.person(usd="1")
    payment = await market.payments.create(user, 100 * USD)
    bank.pay(payment.id)
    bank.set(payment.id, currency="btc", amount=2_000, step=1)
    await market.payments.find(user, payment.id)
    await doubts.credit(market.context, ASKER, payment.id, COINS, why="arrived")
    await look(market, payment.id)
    for amount in (10_000, 10_000, 40_000, 50_000, 99_900_000):
        market.clock.now += 3
        await market.payments.refund(user, payment.id, amount)
        await look(market, payment.id)
    assert [each.amount for each in bank.of(payment.id).returns] == [1, 1_998]
    # A refund of less than the least amount is refused, and its money stays in the wallet.
    assert await available(market, user) == USD + 50_000


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


@pytest.mark.both_engines
async def test_of_an_acceptance_and_giving_up_at_once_one_wins(market: Market, bank: Bank) -> None:
    user, paid = await market.person(), 0
    for _ in range(6):
        payment = await market.payments.create(user, 20 * USD)
        bank.pay(payment.id)
        bank.set(payment.id, amount=21 * USD)
        await market.payments.find(user, payment.id)
        outcomes = await asyncio.gather(
            doubts.credit(market.context, ASKER, payment.id, LIMITS, amount=USD, why="arrived"),
            doubts.give_up(market.context, SECOND, payment.id, "unknown"),
            return_exceptions=True,
        )
        (lost,) = [each for each in outcomes if isinstance(each, MarketError)]
        assert lost.code is Code.PAYMENT_NOT_DOUBTFUL
        await look(market, payment.id)
        is_credited = outcomes.index(lost) == 1
        paid += USD * is_credited
        found = await market.payments.find(user, payment.id)
        assert found.status == ("paid" if is_credited else "failed")
        market.clock.now += 86_400
    assert await available(market, user) == paid


@pytest.mark.both_engines
async def test_giving_up_beside_a_look_that_credits_is_done_or_refused(
    market: Market, bank: Bank
) -> None:
    for _ in range(6):
        user, payment_id = await doubtful(market, bank)
        bank.set(payment_id, amount=20 * USD)
        market.clock.now += 3
        outcomes = await asyncio.gather(
            market.payments.fulfil(payment_id),
            doubts.give_up(market.context, ASKER, payment_id, "unknown"),
            return_exceptions=True,
        )
        refused = [each for each in outcomes if isinstance(each, Exception)]
        assert [getattr(each, "code", each) for each in refused] in (
            [],
            [Code.PAYMENT_NOT_DOUBTFUL],
        )
        await look(market, payment_id)  # the facts agree, so it is credited in any case
        assert await available(market, user) == 21 * USD
