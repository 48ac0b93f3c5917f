"""Rounds of a provider's batches, on both engines: crashes, repetitions, outcomes."""

from collections.abc import Mapping, Sequence

import pytest
from support.market.market import PAYOUT_METHODS, Market
from support.market.payouts import approved, earned_part, send, state_of

from market.money.audit import audit_ledger
from market.money.money import MICRO
from market.payments.provider import ProviderError
from market.payouts.details import Details
from market.payouts.providers import Order, Progress, ProviderRounds
from market.payouts.terms import FailReason, MethodKind
from storage.payouts.payouts import PayoutRow

pytestmark = pytest.mark.both_engines


class Bank:
    """A provider that sends each batch once, and fails on request."""

    name = "paypal"
    kind = MethodKind.PAYPAL

    def __init__(self) -> None:
        self.batches: dict[str, Sequence[Order]] = {}
        self.progress: dict[str, Progress] = {}
        self.error: ProviderError | None = None
        self.forgets_answers = False
        self.calls = 0
        self.closed = 0

    async def send(self, batch_id: str, orders: Sequence[Order]) -> str:
        self.calls += 1
        if self.error is not None:
            raise self.error
        known = self.batches.setdefault(batch_id, tuple(orders))
        assert known == tuple(orders)
        if self.forgets_answers:
            raise ProviderError("no answer in time")
        return f"outside-{batch_id}"

    async def look(self, outside_id: str) -> Mapping[str, Progress]:
        return {
            order.payout_id: self.progress.get(order.payout_id, Progress())
            for order in self.batches[outside_id.removeprefix("outside-")]
        }

    async def close(self) -> None:
        self.closed += 1

    @property
    def sent(self) -> int:
        return sum(order.net for orders in self.batches.values() for order in orders)


async def to_paypal(market: Market, count: int = 1) -> list[PayoutRow]:
    """Return approved payouts of 10 USD to accounts at PayPal."""
    rows = []
    for _ in range(count):
        user = await market.person()
        details = Details(email="ada@example.com")
        await market.payouts.add_method(user, MethodKind.PAYPAL, details)
        rows.append(await approved(market, user))
    return rows


def rounds(market: Market, bank: Bank) -> ProviderRounds:
    return ProviderRounds(market.context, PAYOUT_METHODS, bank)


async def test_payouts_are_sent_and_booked_once(market: Market) -> None:
    bank, (first, second, third) = Bank(), await to_paypal(market, 3)
    by_bank = await approved(market, await market.person())
    assert await rounds(market, bank).run() == 0
    assert bank.sent == 30 * MICRO
    bank.progress[first.id] = Progress(is_paid=True)
    bank.progress[second.id] = Progress(failed=FailReason.UNCLAIMED)
    assert [await rounds(market, bank).run() for _ in range(2)] == [2, 0]
    states = [await state_of(market, each.id) for each in (first, second, third, by_bank)]
    assert states == ["paid", "failed", "sent", "approved"]
    assert await earned_part(market, second.user_id) == 1_800 * MICRO
    bank.progress[third.id] = Progress(is_paid=True)
    assert [await rounds(market, bank).run() for _ in range(2)] == [1, 0]
    assert (bank.calls, bank.closed) == (1, 5)


async def test_a_lost_answer_sends_the_same_batch_again_and_pays_once(market: Market) -> None:
    bank, [row] = Bank(), await to_paypal(market)
    bank.forgets_answers = True
    for _ in range(2):
        assert await rounds(market, bank).run() == 0
    bank.forgets_answers = False
    bank.progress[row.id] = Progress(is_paid=True)
    assert await rounds(market, bank).run() == 1
    assert (len(bank.batches), bank.sent) == (1, 10 * MICRO)
    report = await audit_ledger(market.store)
    assert report.passed, report


async def test_a_batch_that_is_refused_for_good_gives_all_money_back(market: Market) -> None:
    bank, rows = Bank(), await to_paypal(market, 2)
    bank.error = ProviderError("it is down")
    assert await rounds(market, bank).run() == 0
    assert await state_of(market, rows[0].id) == "sent"
    bank.error = ProviderError("the account has no money", is_final=True)
    assert await rounds(market, bank).run() == 2
    for row in rows:
        assert await state_of(market, row.id) == "failed"
        assert await earned_part(market, row.user_id) == 1_800 * MICRO


async def test_payouts_in_a_file_are_not_the_providers(market: Market) -> None:
    bank, [row] = Bank(), await to_paypal(market)
    await send(market, row)
    assert await rounds(market, bank).run() == 0
    assert bank.calls == 0
