"""Automatic top-ups with a provider in memory: charged once, within bounds, ended by refusals."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.base.clock import Clock
from support.market.books import available, refusal
from support.market.leaving import tools
from support.market.market import Market
from support.market.payouts import confirm
from support.market.staff import ROOT
from support.payments.bank import Bank

from market.accounts.scopes import Maker
from market.accounts.suspensions import Part
from market.base.errors import Code
from market.erasure import erasing
from market.money.audit import audit_ledger
from market.money.money import GB, MICRO
from market.payments.booking import FIND_SECONDS
from market.payments.provider import NewCharge, NewSetup, OpenedSetup, ProviderError
from market.payments.top_ups import NewTopUp, TopUps, month_after, month_of
from market.staff.stopping import suspending
from storage.engines.store import Store, Transaction
from storage.payments import cards as card_queries
from storage.payments.payments import PaymentRow

USD = MICRO
HEADERS = {"signature": "right"}
DAY = 86_400
PLAN = NewTopUp(5 * USD, 20 * USD, 60 * USD)


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture
async def market(store: Store, clock: Clock, bank: Bank) -> AsyncIterator[Market]:
    """A marketplace with a provider; its ledger must agree after the test."""
    made = Market(store, clock, providers={"bank": bank})
    yield made
    made.passwords.close()
    report = await audit_ledger(store)
    assert report.passed, report


async def saved(market: Market, bank: Bank, card: str = "card-4242") -> str:
    """Register a user with a saved card, whose account is not new; return the user."""
    user = await market.person()
    market.clock.now += 40 * DAY
    await confirm(market, user)
    await save(market, bank, user, card)
    return user


async def save(market: Market, bank: Bank, user: str, card: str) -> None:
    market.clock.now += 3
    await market.payments.cards.save(user)
    row = await market.store.read(card_queries.find, user)
    assert row is not None
    bank.cards.fill_in(row.setup_id or "", card)
    market.clock.now += 3
    await market.payments.cards.receive("bank", row.setup_ref or "")


async def topped_up(market: Market, bank: Bank, plan: NewTopUp = PLAN) -> str:
    """Return a user whose wallet was topped up once."""
    user = await saved(market, bank)
    await market.top_ups.set_on(user, plan, Maker())
    assert await market.top_ups.sweep() == 1
    assert await available(market, user) == plan.amount
    return user


async def payments(market: Market, user: str) -> list[PaymentRow]:
    return [each.row for each in await market.payments.page(user, before="", limit=50)]


async def state(market: Market, user: str) -> str:
    row = (await market.top_ups.find(user)).row
    assert row is not None
    return row.state


async def letters(market: Market) -> list[str]:
    def names(tx: Transaction) -> object:
        return tx.all(str, "SELECT item_key FROM outbox ORDER BY item_key")

    return list(await market.store.read(names))  # type: ignore[arg-type]


@pytest.mark.both_engines
async def test_twenty_sweepers_at_once_charge_once(
    market: Market, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    """They wait for each other: a second payment that the schema refused would be in the log."""
    user = await saved(market, bank)
    await market.top_ups.set_on(user, PLAN, Maker())
    await asyncio.gather(*(market.top_ups.sweep() for _ in range(20)), market.payments.sweep())
    market.clock.now += 3
    await asyncio.gather(*(market.top_ups.sweep() for _ in range(20)), market.payments.sweep())
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
    assert await available(market, user) == 20 * USD
    assert len(bank.payments) == 1
    (row,) = await payments(market, user)
    assert row.is_automatic
    receipt = await market.payments.receipt(user, row.id)
    assert (receipt.receipt.number, receipt.payment.amount) == (1, 20 * USD)
    refunded = await market.payments.refund(user, row.id, 3 * USD)
    assert refunded.refunded == 3 * USD


@pytest.mark.both_engines
async def test_a_crash_or_a_lost_answer_charges_once(market: Market, bank: Bank) -> None:
    user = await saved(market, bank)
    await market.top_ups.set_on(user, PLAN, Maker())

    def lost(moment: str) -> None:
        if moment in broken:
            raise ProviderError("no answer")

    broken = {"charge"}
    bank.fail = lost
    assert await market.top_ups.sweep() == 1
    broken = {"charged"}
    for _ in range(3):
        market.clock.now += 700
        assert await market.top_ups.sweep() == 0  # one is open
        await market.payments.sweep()
    broken = set()
    market.clock.now += 2_000
    await market.payments.sweep()
    assert await available(market, user) == 20 * USD
    assert (len(bank.payments), len(await payments(market, user))) == (1, 1)


@pytest.mark.both_engines
async def test_another_name_of_the_site_changes_no_request_of_a_charge(
    market: Market, bank: Bank
) -> None:
    """The answer to the first request is lost. A payment of an old version has no title."""
    for is_old in (False, True):
        user = await saved(market, bank)
        await market.top_ups.set_on(user, PLAN, Maker())

        def lost(moment: str) -> None:
            if moment == "charged":
                raise ProviderError("no answer")

        bank.fail = lost
        assert await market.top_ups.sweep() == 1
        bank.fail = lambda moment: None
        terms = market.payments.terms
        market.payments.terms = replace(terms, site_name=f"{terms.site_name} again")
        if is_old:
            await market.store.write(lambda tx: tx.run("UPDATE payments SET title = ''"))
        market.clock.now += 3_600
        await market.payments.sweep()
        (row,) = await payments(market, user)
        assert row.status == "paid"
        assert await available(market, user) == 20 * USD
        assert bank.cards.conflicts == int(is_old)


async def test_the_ceiling_of_a_month_holds_until_the_next(market: Market, bank: Bank) -> None:
    user = await topped_up(market, bank)
    spent = 0
    for _ in range(6):
        size = await available(market, user)
        if size:
            await market.bandwidth.buy(user, quota_bytes=size * GB // USD, price_per_gb=USD)
            spent += size
        market.clock.now += 700
        await market.top_ups.sweep()
    assert sum(row.amount for row in await payments(market, user)) == 60 * USD
    assert "top-up:" + user in await letters(market)
    view = await market.top_ups.find(user)
    assert (view.month_spent, await available(market, user)) == (60 * USD, 0)
    market.clock.now = month_after(market.clock.now)
    assert await market.top_ups.sweep() == 1
    assert (await market.top_ups.find(user)).month_spent == 20 * USD


async def test_no_second_payment_begins_while_the_first_has_no_end(
    market: Market, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    """The schema refuses a second one as well, which would be an error in the log."""
    user = await saved(market, bank)
    await market.top_ups.set_on(user, PLAN, Maker())

    def away(moment: str) -> None:
        if moment == "charge":
            raise ProviderError("no answer")

    bank.fail = away
    assert await market.top_ups.sweep() == 1
    for _ in range(3):
        market.clock.now += 700
        assert await market.top_ups.sweep() == 0
    assert not [each for each in caplog.records if each.levelname == "ERROR"]
    bank.fail = lambda moment: None
    market.clock.now += 4 * 3_600
    await market.payments.sweep()
    assert await available(market, user) == 20 * USD
    (row,) = await payments(market, user)
    assert row.status == "paid"


async def test_a_ceiling_that_the_operator_lowers_holds_for_older_top_ups(
    market: Market, bank: Bank
) -> None:
    user = await topped_up(market, bank)
    await market.bandwidth.buy(user, quota_bytes=20 * GB, price_per_gb=USD)
    market.clock.now += 700
    market.payments.terms = replace(market.payments.terms, top_up_month=30 * USD)
    lowered = TopUps(market.context, market.payments, market.letters)
    assert await lowered.sweep() == 0
    assert "top-up:" + user in await letters(market)
    assert await market.top_ups.sweep() == 0, "it waits for the next month"


async def test_refusals_back_off_and_end_the_top_up(market: Market, bank: Bank) -> None:
    user = await saved(market, bank)
    bank.cards.failure = "refused"
    await market.top_ups.set_on(user, PLAN, Maker())
    for wait, refusals in ((0, 1), (6 * 3_600, 2), (24 * 3_600, 3)):
        if wait:
            market.clock.now += wait - 1
            assert await market.top_ups.sweep() == 0
        market.clock.now += 1
        assert await market.top_ups.sweep() == 1
        assert (await market.top_ups.find(user)).row.refusals == refusals  # type: ignore[union-attr]
    assert await state(market, user) == "disabled"
    bank.cards.failure = ""
    market.clock.now += 10 * DAY
    assert await market.top_ups.sweep() == 0
    assert {row.status for row in await payments(market, user)} == {"failed"}
    await market.top_ups.set_on(user, PLAN, Maker())
    assert await market.top_ups.sweep() == 1
    assert await available(market, user) == 20 * USD


async def test_a_card_that_needs_its_owner_pauses(market: Market, bank: Bank) -> None:
    user = await saved(market, bank)
    bank.cards.failure = "authentication"
    await market.top_ups.set_on(user, PLAN, Maker())
    assert await market.top_ups.sweep() == 1
    market.clock.now += 10 * DAY
    assert await market.top_ups.sweep() == 0
    assert await state(market, user) == "paused"
    assert "top-up:" + user in await letters(market)
    # The owner pays by hand, and switches it on again.
    bank.cards.failure = ""
    payment = await market.payments.create(user, 20 * USD)
    bank.pay(payment.id)
    await market.payments.find(user, payment.id)
    await market.top_ups.set_on(user, PLAN, Maker())
    assert await market.top_ups.sweep() == 0
    assert await state(market, user) == "on"


@pytest.mark.both_engines
async def test_a_removed_card_pays_nothing_and_is_removed_at_the_provider(
    market: Market, bank: Bank
) -> None:
    user = await topped_up(market, bank)
    await market.bandwidth.buy(user, quota_bytes=20 * GB, price_per_gb=USD)
    broken = {"forget"}

    def lost(moment: str) -> None:
        if moment in broken:
            raise ProviderError("no answer")

    bank.fail = lost
    await market.payments.cards.remove(user)
    await market.payments.cards.remove(user)
    assert bank.cards.attached == {"card-4242"}
    market.clock.now += 700
    assert await market.top_ups.sweep() == 0
    assert await state(market, user) == "off"
    assert await refusal(market.top_ups.set_on(user, PLAN, Maker())) is Code.CARD_MISSING
    broken = set()
    await market.payments.cards.sweep()
    assert bank.cards.attached == set()
    assert await market.payments.cards.sweep() == 0


async def test_another_card_replaces_the_first_and_an_erased_user_has_none(
    market: Market, bank: Bank
) -> None:
    user = await saved(market, bank)
    await save(market, bank, user, "card-1111")
    await market.payments.cards.sweep()
    assert bank.cards.attached == {"card-1111"}
    assert (await market.top_ups.find(user)).card == "visa …1111"
    await market.top_ups.set_on(user, PLAN, Maker())
    await market.top_ups.end(user)
    assert await market.top_ups.sweep() == 0
    await erase(market, user)
    await market.payments.cards.sweep()
    assert bank.cards.attached == set()
    assert (await market.top_ups.find(user)).card == ""


async def erase(market: Market, user: str) -> None:
    async def unit(tx: Transaction) -> None:
        await erasing.erase(tx, market.context, tools(market), user, waives=True)

    await market.store.write(unit)


async def test_a_page_that_is_open_at_an_erasure_leaves_no_card(market: Market, bank: Bank) -> None:
    for is_late in (False, True):
        user = await saved(market, bank)
        market.clock.now += 3
        await market.payments.cards.save(user)
        row = await market.store.read(card_queries.find, user)
        assert row is not None
        await erase(market, user)
        if is_late:
            bank.cards.fill_in(row.setup_id or "", "card-late")
            await market.payments.cards.receive("bank", row.setup_ref or "")
            assert "card-late" in bank.cards.attached
        down, away = {"expire", "forget", "forget customer"}, ProviderError("no answer")

        def lost(moment: str, down: set[str] = down, away: Exception = away) -> None:
            if moment in down:
                raise away

        bank.fail = lost
        await market.payments.cards.sweep()
        assert bank.cards.attached
        down.clear()
        market.clock.now += 700
        await market.payments.cards.sweep()
        assert (bank.cards.attached, bank.cards.customers) == (set(), {})
        assert bank.cards.setups[row.setup_ref or ""].state == ("saved" if is_late else "over")
        assert await market.payments.cards.sweep() == 0


async def test_an_erasure_while_a_page_is_prepared_leaves_no_page(
    market: Market, bank: Bank
) -> None:
    user = await market.person()
    real = bank.cards.prepare

    async def slow(setup: NewSetup) -> OpenedSetup:
        opened = await real(setup)
        await erase(market, user)
        return opened

    bank.cards.prepare = slow  # type: ignore[method-assign]
    assert await refusal(market.payments.cards.save(user)) is Code.PAYMENT_PROVIDER_AWAY
    await market.payments.cards.sweep()
    assert bank.cards.customers == {}
    assert {seen.state for seen in bank.cards.setups.values()} == {"over"}


async def test_a_card_of_another_page_or_mode_is_not_saved(market: Market, bank: Bank) -> None:
    user = await market.person()
    for number, change in enumerate(({"setup_id": "x"}, {"has_mode": False})):
        market.clock.now += 3
        url = await market.payments.cards.save(user)
        assert await market.payments.cards.save(user) == url  # the same page while it is open
        row = await market.store.read(card_queries.find, user)
        assert row is not None
        bank.cards.fill_in(row.setup_id or "", f"card-{number}")
        ref = row.setup_ref or ""
        for name, value in change.items():
            setups = bank.cards.setups
            setups[ref] = type(setups[ref])(**{**_fields(setups[ref]), name: value})
        market.clock.now += 3
        assert (await market.top_ups.find(user)).card == ""
        await market.payments.cards.sweep()
    assert bank.cards.attached == set()


def _fields(seen: object) -> dict[str, object]:
    return {name: getattr(seen, name) for name in seen.__struct_fields__}  # type: ignore[attr-defined]


async def test_amounts_and_pages_have_bounds(market: Market, bank: Bank) -> None:
    user = await saved(market, bank)
    for threshold, amount, month in (
        (0, 20, 60),
        (-5, 20, 60),
        (1_001, 20, 60),
        (5, 4, 60),
        (5, 1_001, 2_000),
        (5, 20, 19),
        (5, 20, 201),
        (5, 20, 10**18),
    ):
        new = NewTopUp(threshold * USD, amount * USD, month * USD)
        assert await refusal(market.top_ups.set_on(user, new, Maker())) is Code.INVALID_FIELD
    odd = NewTopUp(5 * USD + 1, 20 * USD, 60 * USD)
    assert await refusal(market.top_ups.set_on(user, odd, Maker())) is Code.INVALID_FIELD
    market.clock.now += 2 * DAY
    for number in range(5):
        await save(market, bank, user, f"card-{number}")
    assert await refusal(market.payments.cards.save(user)) is Code.TOO_MANY_CARD_PAGES


async def test_a_dispute_and_a_new_account_hold_the_top_up_back(market: Market, bank: Bank) -> None:
    user = await topped_up(market, bank, NewTopUp(5 * USD, 20 * USD, 200 * USD))
    (row,) = await payments(market, user)
    ref = bank.dispute(row.id, 20 * USD)
    market.clock.now += 700
    await market.payments.fulfil(row.id)
    assert await market.top_ups.sweep() == 0
    assert await refusal(market.top_ups.set_on(user, PLAN, Maker())) is Code.ACCOUNT_RESTRICTED
    bank.decide(row.id, ref, "done")
    market.clock.now += 4_000
    await market.payments.fulfil(row.id)
    market.clock.now += 4_000
    assert await market.top_ups.sweep() == 1
    young = await market.person()
    await save(market, bank, young, "card-young")
    await market.top_ups.set_on(young, NewTopUp(5 * USD, 101 * USD, 200 * USD), Maker())
    assert await market.top_ups.sweep() == 0  # above the ceiling of a new account


async def _switch_off(market: Market, user: str) -> None:
    await market.top_ups.end(user)


async def _remove_card(market: Market, user: str) -> None:
    await market.store.write(market.payments.cards._remove, user)  # the provider has it still


async def _suspend(market: Market, user: str) -> None:
    parts, shown = (Part.PURCHASES,), "Write to us."
    await suspending.suspend(
        market.context, market.letters, ROOT, user, parts=parts, ends_at=None, shown=shown, why="x"
    )


@cases("change", [_switch_off, _remove_card, _suspend])
async def test_no_card_is_charged_after_its_owner_or_the_staff_ended_it(
    market: Market, bank: Bank, change: Callable[[Market, str], Awaitable[None]]
) -> None:
    """A payment that began while the provider was away is not taken hours later."""
    for moment in ("charge", "charged"):
        user = await saved(market, bank)
        await market.top_ups.set_on(user, PLAN, Maker())

        def lost(now: str, at: str = moment) -> None:
            if now == at:
                raise ProviderError("no answer")

        bank.fail = lost
        assert await market.top_ups.sweep() == 1
        await change(market, user)
        bank.fail = lambda moment: None
        market.clock.now += 3_600
        await market.payments.sweep()
        (row,) = await payments(market, user)
        # One that the card has paid, with an answer that was lost, is credited.
        is_taken = moment == "charged"
        assert row.status == ("paid" if is_taken else "expired")
        assert (f"bank-{row.id}" in bank.payments) is is_taken
        assert await available(market, user) == (20 * USD if is_taken else 0)


async def test_sweeps_share_the_wallets_and_stop_while_the_provider_is_away(
    market: Market, bank: Bank
) -> None:
    users = [await saved(market, bank, f"card-{number}") for number in range(5)]
    for user in users:
        await market.top_ups.set_on(user, PLAN, Maker())
    top_ups = TopUps(market.context, market.payments, market.letters, compared_max=2)

    def away(moment: str) -> None:
        if moment == "charge":
            raise ProviderError("no answer")

    bank.fail = away
    assert await top_ups.sweep() == 1  # the second wallet of the page waits
    bank.fail = lambda moment: None
    assert [await top_ups.sweep() for _ in range(4)] == [2, 1, 1, 0]
    market.clock.now += 3_600
    await market.payments.sweep()
    assert [await available(market, user) for user in users] == [20 * USD] * 5


@cases(
    "now, begin, after",
    [
        (1_767_225_600, 1_767_225_600, 1_769_904_000),  # 2026-01-01T00:00:00Z
        (1_769_903_999, 1_767_225_600, 1_769_904_000),
        (1_798_761_599, 1_796_083_200, 1_798_761_600),  # the last second of 2026
    ],
)
def test_months_are_those_of_the_calendar(now: int, begin: int, after: int) -> None:
    assert (month_of(now), month_after(now)) == (begin, after)


@pytest.mark.both_engines
async def test_a_charge_that_arrives_after_the_payment_expired_is_credited_once(
    market: Market, bank: Bank
) -> None:
    """The request waits in the network, the user ends the top-up, and the notice is lost."""
    user = await saved(market, bank)
    await market.top_ups.set_on(user, PLAN, Maker())
    requests: list[NewCharge] = []
    real = bank.cards.charge

    async def slow(charge: NewCharge) -> str:
        requests.append(charge)
        raise ProviderError("no answer")

    bank.cards.charge = slow  # type: ignore[method-assign]
    assert await market.top_ups.sweep() == 1
    await market.top_ups.end(user)
    market.clock.now += 700
    await market.payments.sweep()
    (row,) = await payments(market, user)
    assert (row.status, len(requests)) == ("expired", 1)
    bank.cards.charge = real  # type: ignore[method-assign]
    await real(requests[0])
    for _ in range(30):
        market.clock.now += 3_600
        await market.payments.sweep()
    (row,) = await payments(market, user)
    assert (row.status, row.provider_id) == ("paid", f"bank-{requests[0].id}")
    assert await available(market, user) == 20 * USD
    await market.payments.receive("bank", HEADERS, bank.notice(row.id))  # the notice, very late
    market.clock.now += 3
    await market.payments.sweep()
    assert (await available(market, user), len(bank.payments)) == (20 * USD, 1)


async def test_an_unwanted_payment_expires_although_the_provider_refuses_the_look(
    market: Market, bank: Bank
) -> None:
    """A deleted customer, for example: the payment would stay open and block an erasure."""
    user = await saved(market, bank)
    await market.top_ups.set_on(user, PLAN, Maker())

    def lost(moment: str) -> None:
        if moment == "charge":
            raise ProviderError("no answer")

    async def refused(charge: NewCharge) -> str | None:
        raise ProviderError(f"no such customer: {charge.customer_id}", is_final=True)

    bank.fail = lost
    assert await market.top_ups.sweep() == 1
    await market.top_ups.end(user)
    bank.cards.find_charge = refused  # type: ignore[method-assign]
    market.clock.now += 3_600
    await market.payments.sweep()
    (row,) = await payments(market, user)
    assert row.status == "expired"


async def test_an_expired_automatic_payment_is_looked_for_for_a_day_and_not_requested(
    market: Market, bank: Bank
) -> None:
    user = await saved(market, bank)
    await market.top_ups.set_on(user, PLAN, Maker())
    looks: list[str] = []

    def lost(moment: str) -> None:
        looks.append(moment)
        if moment == "charge":
            raise ProviderError("no answer")

    bank.fail = lost
    assert await market.top_ups.sweep() == 1
    await market.top_ups.end(user)
    market.clock.now += 700
    await market.payments.sweep()
    (row,) = await payments(market, user)
    assert (row.status, looks) == ("expired", ["charge", "find charge"])
    await market.top_ups.set_on(user, PLAN, Maker())  # with the same card
    looks.clear()
    while market.clock.now - row.created_at <= FIND_SECONDS:
        market.clock.now += 3_600
        await market.payments.sweep()
    market.clock.now += DAY
    await market.payments.sweep()  # the last look, planned within the day
    assert set(looks) == {"find charge"}
    looks.clear()
    market.clock.now += 40 * DAY
    await market.payments.sweep()
    assert looks == []
