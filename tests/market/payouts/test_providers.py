"""Rounds of a provider's batches, on both engines: crashes, repetitions, outcomes."""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest
from support.market.market import PAYOUT_METHODS, Market
from support.market.payout_bank import Bank
from support.market.payouts import approved, earned_part, send, state_of
from support.market.staff_money import LIMITS

from market.base.states import PayoutStatus
from market.erasure import erasing
from market.money.audit import audit_ledger
from market.money.money import MICRO
from market.payments.provider import ProviderError
from market.payouts.details import Details
from market.payouts.files import Line, Outcome
from market.payouts.providers import (
    CLAIM_SECONDS,
    WATCH_AGAIN_SECONDS,
    WATCH_SECONDS,
    Order,
    Progress,
    ProviderRounds,
    Refusal,
)
from market.payouts.terms import DAY_SECONDS, FailReason, MethodKind
from market.staff.base.roles import Machine
from market.staff.money import paying
from storage.engines.errors import ConstraintError
from storage.payouts import batches
from storage.payouts import payouts as queries
from storage.payouts.payouts import PayoutRow


async def to_paypal(market: Market, count: int = 1) -> list[PayoutRow]:
    """Return approved payouts of 10 USD to accounts at PayPal."""
    rows = []
    for _ in range(count):
        user = await market.person()
        details = Details(email="ada@example.com")
        await market.payouts.add_method(user, MethodKind.PAYPAL, details)
        rows.append(await approved(market, user))
    return rows


class Rounds:
    """Rounds with enough time between them."""

    def __init__(self, market: Market, bank: Bank) -> None:
        self._market = market
        self._rounds = ProviderRounds(market.context, PAYOUT_METHODS, bank)

    async def run(self) -> int:
        self._market.clock.now += CLAIM_SECONDS
        return await self._rounds.run()


def rounds(market: Market, bank: Bank) -> Rounds:
    return Rounds(market, bank)


async def until_sent(market: Market, bank: Bank) -> int:
    """Run rounds until no batch is refused; return the number of payouts that failed."""
    failed, calls = await rounds(market, bank).run(), 0
    while calls != bank.calls:
        calls = bank.calls
        failed += await rounds(market, bank).run()
    return failed


@pytest.mark.both_engines
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


@pytest.mark.both_engines
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
    bank.error = ProviderError("it wants fewer calls", has_no_effect=True)
    assert await rounds(market, bank).run() == 0
    assert await state_of(market, rows[0].id) == "sent"
    bank.error = ProviderError("the account has no money", is_final=True)
    assert await rounds(market, bank).run() == 2
    for row in rows:
        assert await state_of(market, row.id) == "failed"
        assert await earned_part(market, row.user_id) == 1_800 * MICRO


async def test_a_user_who_is_erased_again_holds_no_other_payout_up(market: Market) -> None:
    """A restored database erases users again, whose payouts were open in the backup."""
    bank, (lost, kept, tried) = Bank(), await to_paypal(market, 3)

    async def erase_again(user: str) -> None:
        assert await market.store.write(erasing.erase_again, market.context, user)

    await erase_again(lost.user_id)
    bank.forgets_answers = True
    for _ in range(2):
        await rounds(market, bank).run()
    assert await state_of(market, lost.id) == "failed"
    assert (bank.sent, len(bank.batches)) == (20 * MICRO, 1)
    await erase_again(tried.user_id)
    for _ in range(2):
        await rounds(market, bank).run()
    [doubt] = await paying.doubtful(market.context, Machine("root"), limit=9)
    assert {row.id for row in doubt.rows} == {kept.id, tried.id}
    assert bank.sent == 20 * MICRO
    report = await audit_ledger(market.store)
    assert report.passed, report


async def test_payouts_in_a_file_are_not_the_providers(market: Market) -> None:
    bank, [row] = Bank(), await to_paypal(market)
    await send(market, row)
    assert await rounds(market, bank).run() == 0
    assert bank.calls == 0


@pytest.mark.both_engines
async def test_one_refused_address_leaves_the_rest_of_its_batch_paid_once(market: Market) -> None:
    for names_refused in (True, False):
        bank, rows = Bank(), await to_paypal(market, 5)
        bank.refused, bank.names_refused = {rows[1].id}, names_refused
        assert await until_sent(market, bank) == 1
        states = [await state_of(market, row.id) for row in rows]
        assert states == ["sent", "failed", "sent", "sent", "sent"]
        sent = [order.payout_id for orders in bank.batches.values() for order in orders]
        assert sorted(sent) == [row.id for row in rows if row.id != rows[1].id]
        failed = await market.store.read(queries.find, rows[1].id)
        assert failed is not None
        named = FailReason.METHOD_INVALID if names_refused else FailReason.REFUSED
        assert failed.reason == named
        assert await earned_part(market, rows[1].user_id) == 1_800 * MICRO
        for row in rows:
            bank.progress[row.id] = Progress(is_paid=True)
        booked = [await rounds(market, bank).run() for _ in range(2)]
        assert booked == [4, 0]
        assert await state_of(market, rows[1].id) == "failed"
    report = await audit_ledger(market.store)
    assert report.passed, report


@pytest.mark.both_engines
async def test_two_rounds_at_the_same_time_divide_a_batch_once(market: Market) -> None:
    bank, rows = Bank(), await to_paypal(market, 2)
    bank.refused = {rows[0].id}
    market.clock.now += CLAIM_SECONDS
    made = [ProviderRounds(market.context, PAYOUT_METHODS, bank) for _ in range(2)]
    assert sorted(await asyncio.gather(*(each.run() for each in made))) == [0, 1]
    assert await until_sent(market, bank) == 0
    assert bank.sent == 10 * MICRO


@pytest.mark.both_engines
async def test_rounds_at_the_same_time_send_each_payout_in_one_batch(market: Market) -> None:
    """A round that finds payouts which another one is sending waits, and takes the rest."""
    bank, rows = Bank(), await to_paypal(market, 4)
    made = [ProviderRounds(market.context, PAYOUT_METHODS, bank) for _ in range(6)]
    assert await asyncio.gather(*(each.run() for each in made)) == [0] * 6
    assert sorted(each.payout_id for batch in bank.batches.values() for each in batch) == sorted(
        row.id for row in rows
    )
    assert bank.sent == 40 * MICRO


@pytest.mark.both_engines
async def test_a_payout_changes_its_batch_only_for_a_part_of_a_refused_one(market: Market) -> None:
    bank, [row] = Bank(), await to_paypal(market)
    await rounds(market, bank).run()
    await send(market, await approved(market, await market.person()))
    found = await market.store.read(queries.find, row.id)
    assert found is not None
    assert found.batch_id is not None
    csv = await market.store.read(batches.newest, before="", limit=1)
    with pytest.raises(ConstraintError):
        await market.store.write(
            queries.move_to_part, row.id, batch_id=found.batch_id, part_id=csv[0].id
        )


async def test_a_refusal_after_a_lost_answer_is_left_to_the_staff(market: Market) -> None:
    bank, rows = Bank(), await to_paypal(market, 2)
    bank.forgets_answers = True
    await rounds(market, bank).run()
    # Without money, because the first attempt has spent it.
    bank.error = ProviderError("the account has no money", is_final=True)
    assert await rounds(market, bank).run() == 0
    assert [await state_of(market, row.id) for row in rows] == ["sent", "sent"]
    bank.error, calls = None, bank.calls
    assert await rounds(market, bank).run() == 0
    assert bank.calls == calls
    [doubt] = await paying.doubtful(market.context, Machine("root"), limit=9)
    assert [row.id for row in doubt.rows] == [row.id for row in rows]
    lines = [
        Line(2, rows[0].id, rows[0].net, Outcome.PAID, None),
        Line(3, rows[1].id, rows[1].net, Outcome.FAILED, FailReason.NOT_SENT),
    ]
    done = await paying.book(market.context, Machine("root"), lines, LIMITS)
    assert [each.result for each in done] == ["paid", "failed"]
    assert await paying.doubtful(market.context, Machine("root"), limit=9) == []
    report = await audit_ledger(market.store)
    assert report.passed, report


async def test_a_batch_is_not_sent_again_when_its_provider_has_forgotten_it(
    market: Market,
) -> None:
    bank, [row] = Bank(), await to_paypal(market)
    bank.forgets_answers = True
    await rounds(market, bank).run()
    [batch_id] = bank.batches
    market.clock.now += bank.remembers_seconds - 2 * CLAIM_SECONDS
    await rounds(market, bank).run()
    assert bank.calls == 2
    market.clock.now += CLAIM_SECONDS
    bank.batches.clear()  # 30 days are over
    bank.forgets_answers = False
    assert await rounds(market, bank).run() == 0
    assert (bank.calls, bank.sent) == (2, 0)
    [doubt] = await paying.doubtful(market.context, Machine("root"), limit=9)
    assert doubt.batch.id == batch_id
    assert await state_of(market, row.id) == PayoutStatus.SENT


async def test_a_batch_that_was_certainly_not_sent_waits_for_any_time(market: Market) -> None:
    bank, [row] = Bank(), await to_paypal(market)
    bank.error = ProviderError("a wrong key", has_no_effect=True)
    await rounds(market, bank).run()
    market.clock.now += 2 * bank.remembers_seconds
    bank.error = None
    await rounds(market, bank).run()
    bank.progress[row.id] = Progress(is_paid=True)
    assert await rounds(market, bank).run() == 1


async def test_a_batch_that_waits_does_not_keep_a_new_one(market: Market) -> None:
    bank = Bank()
    one_at_a_time = ProviderRounds(market.context, PAYOUT_METHODS, bank, batches_max=1)
    for count in (1, 2, 3):
        await to_paypal(market)
        market.clock.now += CLAIM_SECONDS
        await one_at_a_time.run()
        assert bank.sent == count * 10 * MICRO


async def settled(market: Market, bank: Bank, count: int = 1) -> list[PayoutRow]:
    """Return payouts of a batch that the provider has paid, and that is settled."""
    rows = await to_paypal(market, count)
    await rounds(market, bank).run()
    for row in rows:
        bank.progress[row.id] = Progress(is_paid=True)
    assert await rounds(market, bank).run() == count
    return rows


async def test_money_that_comes_back_after_its_batch_was_settled_is_seen(market: Market) -> None:
    bank = Bank()
    first, second = await settled(market, bank, 2)
    looks = bank.looks
    assert await rounds(market, bank).run() == 0
    assert bank.looks == looks  # not each minute
    bank.progress[first.id] = Progress(failed=FailReason.RETURNED)
    market.clock.now += DAY_SECONDS
    assert [await rounds(market, bank).run() for _ in range(2)] == [1, 0]
    assert [await state_of(market, row.id) for row in (first, second)] == ["failed", "paid"]
    assert await earned_part(market, first.user_id) == 1_800 * MICRO
    bank.progress[second.id] = Progress(failed=FailReason.UNCLAIMED)
    market.clock.now += DAY_SECONDS * 2
    assert await rounds(market, bank).run() == 1
    report = await audit_ledger(market.store)
    assert report.passed, report
    looks = bank.looks
    market.clock.now += WATCH_SECONDS
    await rounds(market, bank).run()
    assert bank.looks == looks  # nothing can come back any more


async def test_a_settled_batch_is_looked_at_for_half_a_year_and_ever_rarer(market: Market) -> None:
    bank = Bank()
    await settled(market, bank)
    looks = bank.looks
    for _ in range(400):
        market.clock.now += DAY_SECONDS
        await rounds(market, bank).run()
    assert 10 <= bank.looks - looks <= 20


@pytest.mark.both_engines
async def test_a_look_without_an_answer_and_a_crash_lose_no_money_that_came_back(
    market: Market,
) -> None:
    bank = Bank()
    [row] = await settled(market, bank)
    bank.progress[row.id] = Progress(failed=FailReason.RETURNED)
    market.clock.now += DAY_SECONDS
    for error in (ProviderError("no answer in time"), RuntimeError("a crash")):
        bank.look_error = error
        with contextlib.suppress(RuntimeError):
            await rounds(market, bank).run()
        assert await state_of(market, row.id) == "paid"
        market.clock.now += WATCH_AGAIN_SECONDS
    bank.look_error = None
    made = [ProviderRounds(market.context, PAYOUT_METHODS, bank) for _ in range(2)]
    assert sorted(await asyncio.gather(*(each.run() for each in made))) == [0, 1]
    assert await earned_part(market, row.user_id) == 1_800 * MICRO
    report = await audit_ledger(market.store)
    assert report.passed, report


@pytest.mark.both_engines
async def test_an_attempt_without_effect_forgets_none_of_another_round(market: Market) -> None:
    """The first round is slow, and a second one sends the batch meanwhile; its answer is lost."""
    bank, [row] = Bank(), await to_paypal(market)
    slow = _Slow(market, bank)
    await Rounds(market, slow).run()
    assert bank.sent == 10 * MICRO
    bank.error = ProviderError("the account has no money", is_final=True)
    assert await rounds(market, bank).run() == 0
    assert await state_of(market, row.id) == "sent"
    [doubt] = await paying.doubtful(market.context, Machine("root"), limit=9)
    assert [each.id for each in doubt.rows] == [row.id]


class _Slow(Bank):
    """A provider whose first call ends without effect, after the round of another daemon."""

    def __init__(self, market: Market, bank: Bank) -> None:
        super().__init__()
        self._market = market
        self._bank = bank

    async def send(self, batch_id: str, orders: Sequence[Order]) -> str | Refusal:
        self._bank.forgets_answers = True
        await rounds(self._market, self._bank).run()
        self._bank.forgets_answers = False
        raise ProviderError("it gave no token", has_no_effect=True)
