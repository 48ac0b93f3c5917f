"""Payments, their refunds and their disputes, with a provider in memory that fails on request."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.base.clock import Clock
from support.database.plans import watched
from support.market.books import available, balance, held, refusal
from support.market.leaving import tools
from support.market.market import SECRET, Market
from support.market.payouts import earner, request
from support.market.staff_money import corrected
from support.payments.bank import Bank

from market.accounts.accounts import deposit_key
from market.base.errors import Code, MarketError
from market.deploys.deploys import NewDeploy
from market.deploys.templates import Template
from market.erasure import erasing
from market.events.idempotency import KEEP_SECONDS, KeyedRequest, Receipt, Replayed, Seal
from market.money import debts, ledger
from market.money.audit import audit_ledger
from market.money.money import GB, MICRO, Currency
from market.payments.booking import reference_of
from market.payments.payments import PaymentView
from market.payments.provider import ProviderError
from market.payments.terms import CENT
from market.payouts import steps
from market.staff.audit import audit_all
from market.staff.base.roles import Machine, Member, Role, Via
from market.staff.money import deposits, doubts
from market.staff.money import payments as staff_payments
from storage.accounts import closures
from storage.engines.store import Store, Transaction
from storage.payouts import payouts as payout_queries

USD = MICRO
HEADERS = {"signature": "right"}
SEAL = Seal(SECRET)


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


async def paid(market: Market, bank: Bank, user: str, amount: int = 20 * USD) -> str:
    payment = await market.payments.create(user, amount)
    bank.pay(payment.id)
    await market.payments.find(user, payment.id)
    return payment.id


def keyed(market: Market, user: str, says: str = "twenty") -> Receipt[PaymentView]:
    """Return a receipt of a request with a key: its reply is the payment and its page."""
    request = KeyedRequest(user, "a", says, SEAL, market.clock.now)
    return Receipt(request, lambda made: f"{made.id} {made.row.url}".encode())


async def begun(market: Market, user: str, receipt: Receipt[PaymentView]) -> str:
    """Request a payment with a key, and return the reply: the first one or its repetition."""
    try:
        return receipt.reply(await market.payments.create(user, 20 * USD, "", receipt)).decode()
    except Replayed as replayed:
        return replayed.answer.decode()


async def look(market: Market, payment_id: str) -> None:
    """Look at a payment, after the pause between two looks."""
    market.clock.now += 3
    await market.payments.fulfil(payment_id)


async def view(market: Market, user: str, payment_id: str) -> PaymentView:
    market.clock.now += 3
    return await market.payments.find(user, payment_id)


async def by_staff(market: Market, user: str, amount: int, reference: str) -> None:
    """Pay money in as the staff does."""
    limits, amounts = {Currency.USD: 50 * USD}, {Currency.USD: amount}
    await deposits.deposit(
        market.context, Machine("root"), user, limits, amounts=amounts, reference=reference
    )


async def spend(market: Market, user: str, gigabytes: int) -> None:
    """Buy a session and use all of it."""
    bought = await market.bandwidth.buy(user, quota_bytes=gigabytes * GB, price_per_gb=USD)
    assert bought


@pytest.mark.both_engines
async def test_hook_user_and_sweeper_credit_once_in_any_order(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment = await market.payments.create(user, 20 * USD)
    bank.pay(payment.id)
    notice = bank.notice(payment.id)
    await asyncio.gather(
        *(market.payments.receive("bank", HEADERS, notice) for _ in range(20)),
        *(market.payments.find(user, payment.id) for _ in range(5)),
        market.payments.sweep(),
    )
    assert await available(market, user) == 20 * USD
    market.clock.now += 3600
    await market.payments.sweep()
    await market.payments.receive("bank", HEADERS, notice)
    assert await available(market, user) == 20 * USD
    receipt = await market.payments.receipt(user, payment.id)
    assert receipt.receipt.number == 1


async def test_two_looks_at_a_payment_without_a_page_end_it_once(
    market: Market, bank: Bank
) -> None:
    user = await market.person()

    def fail(moment: str) -> None:
        raise ProviderError("no answer")

    bank.fail = fail
    assert await refusal(market.payments.create(user, 20 * USD)) is Code.PAYMENT_PROVIDER_AWAY
    (row,) = await market.payments.page(user, before="", limit=1)
    market.clock.now += 2_000
    # The second look comes too soon, so it is planned again.
    for _ in range(2):
        await market.payments.fulfil(row.id)
    assert (await view(market, user, row.id)).status == "expired"
    assert await market.payments.sweep() == 1
    assert await market.payments.sweep() == 0


async def test_a_payment_arrives_although_every_notice_is_lost(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment = await market.payments.create(user, 20 * USD)
    assert await market.payments.sweep() == 0
    bank.pay(payment.id)
    market.clock.now += 120
    assert await market.payments.sweep() == 1
    assert await available(market, user) == 20 * USD


@pytest.mark.both_engines
async def test_a_crash_after_the_request_leaves_a_payment_that_can_be_paid(
    market: Market, bank: Bank
) -> None:
    user = await market.person()

    def lost(moment: str) -> None:
        if moment == "created":
            raise ProviderError("no answer")

    bank.fail = lost
    assert await refusal(market.payments.create(user, 20 * USD)) is Code.PAYMENT_PROVIDER_AWAY
    bank.fail = lambda moment: None
    (payment,) = await market.payments.page(user, before="", limit=10)
    bank.pay(payment.id)
    await market.payments.receive("bank", HEADERS, bank.notice(payment.id))
    assert await available(market, user) == 20 * USD
    # Without a notice the sweeper creates it again, which returns the same one.
    bank.fail = lost
    assert await refusal(market.payments.create(user, 10 * USD)) is Code.PAYMENT_PROVIDER_AWAY
    bank.fail = lambda moment: None
    newest = (await market.payments.page(user, before="", limit=1))[0]
    market.clock.now += 120
    await market.payments.sweep()
    bank.pay(newest.id)
    await look(market, newest.id)
    assert await available(market, user) == 30 * USD


@pytest.mark.both_engines
async def test_requests_with_one_key_at_once_begin_one_payment(market: Market, bank: Bank) -> None:
    user, other = await market.person(), await market.person()
    replies = await asyncio.gather(
        *(begun(market, user, keyed(market, user)) for _ in range(5)),
        begun(market, other, keyed(market, other)),
    )
    (payment,) = await market.payments.page(user, before="", limit=10)
    assert set(replies[:5]) == {f"{payment.id} {payment.row.url}"}
    assert payment.row.url
    assert len(bank.payments) == 2, "one of each user"
    (of_other,) = await market.payments.page(other, before="", limit=10)
    assert replies[5] == f"{of_other.id} {of_other.row.url}"


@pytest.mark.both_engines
@cases("lost", ["create", "created"])
async def test_a_repetition_goes_on_with_the_payment_of_a_provider_that_was_away(
    market: Market, bank: Bank, lost: str
) -> None:
    user = await market.person()

    def away(moment: str) -> None:
        if moment == lost:
            raise ProviderError("no answer")

    bank.fail = away
    for _ in range(2):
        receipt = keyed(market, user)
        away_now = market.payments.create(user, 60 * USD, "", receipt)
        assert await refusal(away_now) is Code.PAYMENT_PROVIDER_AWAY
        market.clock.now += 11
    another = market.payments.create(user, 60 * USD, "", keyed(market, user, "another"))
    assert await refusal(another) is Code.IDEMPOTENCY_KEY_REUSED
    bank.fail = lambda moment: None
    made = await market.payments.create(user, 60 * USD, "", keyed(market, user))
    (only,) = await market.payments.page(user, before="", limit=10)
    assert only.row == made.row
    assert made.row.url == f"https://bank.example/bank-{made.id}"
    with pytest.raises(Replayed):
        await market.payments.create(user, 60 * USD, "", keyed(market, user))


@pytest.mark.both_engines
async def test_a_repetition_after_a_crash_answers_with_the_page_that_was_opened(
    market: Market, bank: Bank
) -> None:
    """A daemon dies before it keeps the reply, with or without a look of the sweeper since."""

    def crash(moment: str) -> None:
        raise asyncio.CancelledError

    for is_swept in (False, True):
        user = await market.person()
        bank.fail = crash
        with pytest.raises(asyncio.CancelledError):
            await market.payments.create(user, 20 * USD, "", keyed(market, user))
        bank.fail = lambda moment: None
        if is_swept:
            market.clock.now += 120
            await market.payments.sweep()
        reply = await begun(market, user, keyed(market, user))
        (payment,) = await market.payments.page(user, before="", limit=10)
        assert reply == f"{payment.id} {payment.row.url}"
        assert payment.row.url == f"https://bank.example/bank-{payment.id}"


@cases("by", ["refused", "swept", "late"])
async def test_a_payment_that_ended_without_a_page_leaves_its_key_to_another(
    market: Market, bank: Bank, by: str
) -> None:
    user = await market.person()

    def refuse(moment: str) -> None:
        raise ProviderError("no", is_final=by == "refused")

    bank.fail = refuse
    first = market.payments.create(user, 20 * USD, "", keyed(market, user))
    assert await refusal(first) is Code.PAYMENT_PROVIDER_AWAY
    bank.fail = lambda moment: None
    if by != "refused":
        market.clock.now += 2_000
    if by == "swept":
        await market.payments.sweep()
    reply = await begun(market, user, keyed(market, user))
    newest, ended = await market.payments.page(user, before="", limit=10)
    assert reply == f"{newest.id} {newest.row.url}"
    assert (newest.status, ended.status, ended.row.url) == ("open", "expired", "")


async def test_a_key_of_a_payment_is_free_after_a_day(market: Market, bank: Bank) -> None:
    user = await market.person()
    first = await begun(market, user, keyed(market, user))
    market.clock.now += KEEP_SECONDS - 1
    assert await begun(market, user, keyed(market, user)) == first
    market.clock.now += 1
    assert await begun(market, user, keyed(market, user, "another")) != first


async def test_other_facts_than_expected_credit_nothing(market: Market, bank: Bank) -> None:
    for change in (
        {"amount": 21 * USD},
        {"amount": 19 * USD},
        {"currency": "eur"},
        {"payment_id": "x"},
        {"has_mode": False},
    ):
        user = await market.person()
        payment = await market.payments.create(user, 20 * USD)
        bank.pay(payment.id)
        before = {name: getattr(bank.of(payment.id), name) for name in change}
        bank.set(payment.id, **change)
        assert (await view(market, user, payment.id)).status == "doubtful"
        assert await available(market, user) == 0
        bank.set(payment.id, **before)
        await look(market, payment.id)
        assert await available(market, user) == 20 * USD


async def test_a_refund_returns_the_unspent_part_only(market: Market, bank: Bank) -> None:
    user = await market.person()
    older = await paid(market, bank, user)
    newer = await paid(market, bank, user, 10 * USD)
    await spend(market, user, 15)
    assert (await view(market, user, older)).refundable == 5 * USD
    assert (await view(market, user, newer)).refundable == 10 * USD
    too_much = market.payments.refund(user, older, 6 * USD)
    assert await refusal(too_much) is Code.REFUND_TOO_LARGE
    done = await market.payments.refund(user, newer, 10 * USD)
    assert (done.status, done.refunded) == ("refunded", 10 * USD)
    assert (await view(market, user, older)).refundable == 5 * USD
    refused = market.payments.refund(user, newer, USD)
    assert await refusal(refused) is Code.PAYMENT_NOT_REFUNDABLE
    await market.payments.refund(user, older, 5 * USD)
    assert await available(market, user) == 0
    house = await balance(market, ledger.deposits(Currency.USD))
    assert house == -15 * USD


@pytest.mark.both_engines
async def test_a_refund_survives_a_crash_and_a_refusal(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)

    def lost(moment: str) -> None:
        if moment == "refunded":
            raise ProviderError("no answer")

    bank.fail = lost
    waiting = await market.payments.refund(user, payment_id, 5 * USD)
    assert (waiting.status, await held(market, user)) == ("refunding", 5 * USD)
    bank.fail = lambda moment: None
    await look(market, payment_id)
    assert (await held(market, user), len(bank.of(payment_id).returns)) == (0, 1)
    bank.refused = True
    back = await market.payments.refund(user, payment_id, 5 * USD)
    assert (back.refunded, await available(market, user)) == (5 * USD, 15 * USD)
    # The card refuses the money days after the refund.
    (refund,) = bank.of(payment_id).returns
    bank.decide(payment_id, refund.ref, "void")
    await look(market, payment_id)
    assert await available(market, user) == 20 * USD
    assert (await view(market, user, payment_id)).refundable == 20 * USD


async def test_a_lost_dispute_is_a_debt_that_any_deposit_pays(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    await spend(market, user, 8)
    ref = bank.dispute(payment_id, 20 * USD)
    await look(market, payment_id)
    assert (await available(market, user), await held(market, user)) == (0, 20 * USD)
    buying = market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=USD)
    assert await refusal(buying) is Code.ACCOUNT_RESTRICTED
    assert await refusal(market.payments.create(user, 20 * USD)) is Code.ACCOUNT_RESTRICTED
    refund = market.payments.refund(user, payment_id, USD)
    assert await refusal(refund) is Code.ACCOUNT_RESTRICTED
    bank.decide(payment_id, ref, "done")
    await look(market, payment_id)
    assert await balance(market, ledger.losses()) == -8 * USD
    assert (await market.payments.offer(user)).debt == 8 * USD
    await by_staff(market, user, 3 * USD, "three")
    assert (await available(market, user), await balance(market, ledger.losses())) == (0, -5 * USD)
    await paid(market, bank, user, 6 * USD)
    assert (await available(market, user), await balance(market, ledger.losses())) == (USD, 0)
    # The bank changes its mind: the money comes back, and is no debt any more.
    bank.decide(payment_id, ref, "void")
    await look(market, payment_id)
    assert await available(market, user) == 21 * USD


@pytest.mark.both_engines
async def test_money_that_a_deploy_gives_back_pays_a_debt_once(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    new = NewDeploy(
        job_name="a service",
        job_type="Docker",
        gpu_model="A100",
        gpu_count=1,
        duration_hrs=10,
        replicas=1,
        currency=Currency.USD,
        image="web:1",
        template=Template(),
    )
    deploy = await market.deploys.create(user, new)
    assert await held(market, user) == 15 * USD
    ref = bank.dispute(payment_id, 20 * USD)
    bank.decide(payment_id, ref, "done")
    await look(market, payment_id)
    assert (await market.payments.offer(user)).debt == 15 * USD
    assert await market.debt_sweeper.sweep() == 0
    await market.deploys.cancel(user, deploy.id)
    assert await available(market, user) == 15 * USD
    await asyncio.gather(*(market.debt_sweeper.sweep() for _ in range(3)))
    assert (await available(market, user), await balance(market, ledger.losses())) == (0, 0)
    assert (await market.payments.offer(user)).debt == 0
    await by_staff(market, user, 3 * USD, "three")
    assert await market.debt_sweeper.sweep() == 0
    assert await available(market, user) == 3 * USD
    await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=USD)


async def test_money_that_comes_back_pays_its_debt_first(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    await spend(market, user, 8)
    ref = bank.dispute(payment_id, 20 * USD)
    for state in ("done", "void"):
        bank.decide(payment_id, ref, state)
        await look(market, payment_id)
    assert await balance(market, ledger.losses()) == 0
    assert await available(market, user) == 12 * USD
    assert await market.store.read(debts.owed, user) == 0


async def test_a_report_after_the_end_of_a_return_changes_nothing(
    market: Market, bank: Bank
) -> None:
    """The states of a provider may come in any order, and the end is the end."""
    user = await market.person()
    payment_id = await paid(market, bank, user)
    ref = bank.dispute(payment_id, 20 * USD)
    for state in ("pending", "void", "pending", "done", "void"):
        bank.decide(payment_id, ref, state)
        await look(market, payment_id)
    assert (await available(market, user), await held(market, user)) == (20 * USD, 0)
    assert (await view(market, user, payment_id)).status == "paid"


async def test_a_won_dispute_releases_the_money(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    ref = bank.dispute(payment_id, 20 * USD)
    await look(market, payment_id)
    assert (await view(market, user, payment_id)).status == "disputed"
    bank.decide(payment_id, ref, "void")
    await look(market, payment_id)
    shown = await view(market, user, payment_id)
    assert (shown.status, shown.refundable) == ("paid", 20 * USD)


async def test_a_refund_at_the_provider_is_booked(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    await spend(market, user, 15)
    bank.refund_outside(payment_id, 8 * USD)
    await look(market, payment_id)
    assert await available(market, user) == 0
    assert await balance(market, ledger.losses()) == -3 * USD


@pytest.mark.both_engines
async def test_a_page_of_payments_reads_all_their_returns_at_once(
    market: Market, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person()
    made = [await paid(market, bank, user) for _ in range(4)]
    for payment_id, amount in ((made[0], 3 * USD), (made[2], 5 * USD), (made[2], 7 * USD)):
        await market.payments.refund(user, payment_id, amount)
    seen = watched(market.store, monkeypatch)
    few = await market.payments.page(user, before="", limit=1)
    asked = len(seen.taken())
    page = await market.payments.page(user, before="", limit=50)
    assert len(seen.taken()) == asked == 2
    assert [each.id for each in few] == made[3:]
    assert [(each.id, [back.amount for back in each.returns]) for each in reversed(page)] == [
        (made[0], [3 * USD]),
        (made[1], []),
        (made[2], [5 * USD, 7 * USD]),
        (made[3], []),
    ]
    assert await market.payments.page(user, before=made[0], limit=50) == []


@pytest.mark.parametrize(
    ("percent", "cents", "tax"),
    # By hand: 6.00 * 20 / 120 = 1.00, 5.20 * 20 / 120 = 0.8667, 5.01 * 20 / 120 = 0.835.
    [(20, 600, 100), (20, 520, 87), (20, 501, 84), (20, 500, 83), (19, 12, 2), (0, 520, 0)],
)
async def test_the_tax_in_an_amount_is_rounded_to_the_nearest_cent(
    market: Market, bank: Bank, percent: int, cents: int, tax: int
) -> None:
    user = await market.person()
    receipt = await market.payments.receipt(user, await paid(market, bank, user))
    shown = replace(receipt, receipt=receipt.receipt._replace(tax_basis_points=percent * 100))
    assert shown.tax_in(cents * CENT) == tax * CENT


@pytest.mark.both_engines
async def test_the_staff_finds_payments_of_a_user_by_their_state(
    market: Market, bank: Bank
) -> None:
    user, other = await market.person(), await market.person()
    old = await paid(market, bank, user)
    for each in (user, user, other):
        await market.payments.create(each, 20 * USD)
    found = await staff_payments.listed(
        market.context, Machine("root"), user, status="paid", before="", limit=1
    )
    assert [row.id for row in found] == [old]


@pytest.mark.both_engines
async def test_a_look_without_news_reads_the_returns_once_for_all_reports(
    market: Market, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    for amount in (8, 2, 1):
        bank.refund_outside(payment_id, amount * USD)
    await look(market, payment_id)
    found = watched(market.store, monkeypatch)
    await look(market, payment_id)
    reads = [each for each in found.taken() if "FROM payment_returns" in each.sql]
    assert len(reads) == 2, "for the time of the next look, and for the booking"
    assert await available(market, user) == 9 * USD


async def test_old_payments_and_new_accounts_have_bounds(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user, 95 * USD)
    over = market.payments.create(user, 5 * USD + 10_000)
    assert await refusal(over) is Code.PAYMENT_CEILING
    market.clock.now += 31 * 86_400
    await market.payments.create(user, 1_000 * USD)
    market.clock.now += 31 * 86_400
    late = market.payments.refund(user, payment_id, USD)
    assert await refusal(late) is Code.PAYMENT_NOT_REFUNDABLE
    for _ in range(50):
        await market.payments.create(user, 5 * USD)
    assert await refusal(market.payments.create(user, 5 * USD)) is Code.TOO_MANY_PAYMENTS


async def test_a_provider_that_is_away_holds_up_nothing(market: Market, bank: Bank) -> None:
    user = await market.person()
    payments = [await market.payments.create(user, 5 * USD) for _ in range(3)]
    for each in payments:
        bank.pay(each.id)

    def away(moment: str) -> None:
        raise ProviderError("away")

    bank.fail, bank.calls = away, 0
    market.clock.now += 120
    await market.payments.sweep()
    assert bank.calls == 1
    bank.fail = lambda moment: None
    market.clock.now += 120
    await market.payments.sweep()
    assert await available(market, user) == 15 * USD


async def test_nobody_takes_the_reference_of_a_payment(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment = await market.payments.create(user, 5 * USD)
    reference = reference_of(payment.id)
    taking = by_staff(market, user, USD, reference)
    assert await refusal(taking) is Code.INVALID_FIELD
    assert deposit_key(reference, Currency.USD).endswith(f"{payment.id}:usd")


@pytest.mark.both_engines
async def test_the_audit_finds_a_payment_without_its_money(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)

    async def change(tx: Transaction, amount: int) -> None:
        await tx.run("UPDATE payments SET amount = :amount", amount=amount)

    await market.store.write(change, 21 * USD)
    assert not (await audit_ledger(market.store)).passed
    await market.store.write(change, 20 * USD)
    with pytest.raises(MarketError):
        await market.payments.receive("bank", {}, bank.notice(payment_id))


@pytest.mark.both_engines
async def test_the_staff_refunds_through_the_provider(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    limits = {Currency.USD: 50 * USD}

    async def refund(amount: int, reference: str) -> None:
        await staff_payments.refund(
            market.context,
            Machine("root"),
            payment_id,
            limits,
            amount=amount,
            reference=reference,
            why="asked",
        )

    await refund(5 * USD, "one")
    await refund(5 * USD, "one")
    assert await available(market, user) == 15 * USD
    market.clock.now += 3
    assert await market.payments.sweep() == 1
    assert (await view(market, user, payment_id)).refunded == 5 * USD
    bank.refused = True
    await refund(15 * USD, "two")
    assert await available(market, user) == 0
    await look(market, payment_id)
    assert await available(market, user) == 15 * USD
    shown = await staff_payments.shown(market.context, Machine("root"), payment_id)
    assert [each.status for each in shown.returns] == ["done", "void"]
    assert await refusal(refund(15 * USD + 10_000, "three")) is Code.REFUND_TOO_LARGE
    assert await refusal(refund(15 * USD + 1, "four")) is Code.INVALID_FIELD
    bank.refused = False
    await refund(15 * USD, "five")
    await look(market, payment_id)
    assert (await view(market, user, payment_id)).status == "refunded"
    await audit_passes(market)
    support = Member("x", Role.SUPPORT, Via.API)
    looking = staff_payments.look(market.context, support, payment_id, "why")
    assert await refusal(looking) is Code.NOT_PERMITTED
    rows = await staff_payments.listed(
        market.context, Machine("root"), "", status="paid", before="", limit=9
    )
    assert [row.id for row in rows] == [payment_id]


async def audit_passes(market: Market) -> None:
    report = await audit_all(market.store)
    assert report.passed, [each for each in report.checks if each.differences]


async def test_a_provider_that_was_removed_refunds_nothing(
    market: Market, bank: Bank, store: Store
) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    without = Market(store, market.clock)
    refund = without.payments.refund(user, payment_id, USD)
    assert await refusal(refund) is Code.PAYMENTS_NOT_OFFERED
    await without.payments.fulfil(payment_id)
    without.passwords.close()
    assert await available(market, user) == 20 * USD


async def test_a_clock_that_was_ahead_holds_up_no_look(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment = await market.payments.create(user, 20 * USD)
    market.clock.now += 86_400
    await market.payments.find(user, payment.id)
    market.clock.now -= 86_400
    bank.pay(payment.id)
    await market.payments.find(user, payment.id)
    assert await available(market, user) == 20 * USD


async def test_a_notice_just_after_a_look_is_not_forgotten(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment = await market.payments.create(user, 20 * USD)
    await market.payments.find(user, payment.id)
    bank.pay(payment.id)
    await market.payments.receive("bank", HEADERS, bank.notice(payment.id))
    assert await available(market, user) == 0
    market.clock.now += 3
    assert await market.payments.sweep() == 1
    assert await available(market, user) == 20 * USD


async def test_a_process_that_ends_after_a_notice_leaves_the_look_to_the_sweeper(
    market: Market, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person()
    payment = await market.payments.create(user, 20 * USD)
    bank.pay(payment.id)
    market.clock.now += 3

    async def ended(payment_id: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(market.payments, "fulfil", ended)
        with pytest.raises(KeyboardInterrupt):
            await market.payments.receive("bank", HEADERS, bank.notice(payment.id))
    assert await market.payments.sweep() == 1
    assert await available(market, user) == 20 * USD


async def test_a_refund_without_an_answer_is_requested_again_within_a_minute(
    market: Market, bank: Bank
) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)

    def away(moment: str) -> None:
        if moment == "refund":
            raise ProviderError("no answer")

    bank.fail = away
    await market.payments.refund(user, payment_id, 5 * USD)
    bank.fail = lambda moment: None
    market.clock.now += 60
    assert await market.payments.sweep() == 1
    assert await held(market, user) == 0
    assert [each.amount for each in bank.of(payment_id).returns] == [5 * USD]


async def test_a_part_of_a_cent_is_not_refundable(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    await market.bandwidth.buy(user, quota_bytes=GB // 200, price_per_gb=USD)
    assert await available(market, user) == 20 * USD - CENT // 2
    assert (await view(market, user, payment_id)).refundable == 20 * USD - CENT


async def test_a_dispute_and_a_debt_stop_payouts_at_each_step(market: Market, bank: Bank) -> None:
    user, method = await earner(market, 4_000)
    row = await request(market, user, method)
    approved = await request(market, user, method)
    await market.store.write(steps.approve, market.context, approved.id)

    async def sendable() -> list[str]:
        rows = await market.store.read(payout_queries.to_send, ("bank",), limit=9)
        return [each.id for each in rows]

    async def is_stopped() -> bool:
        asked = await refusal(request(market, user, method))
        decided = await refusal(market.store.write(steps.approve, market.context, row.id))
        refused = Code.PAYOUT_NOT_PERMITTED
        return (asked, decided, await sendable()) == (refused, refused, [])

    assert await sendable() == [approved.id]
    payment_id = await paid(market, bank, user)
    await spend(market, user, 8)
    ref = bank.dispute(payment_id, 20 * USD)
    await look(market, payment_id)
    assert await is_stopped()
    bank.decide(payment_id, ref, "done")
    await look(market, payment_id)
    assert await is_stopped()
    await paid(market, bank, user, 8 * USD)
    assert await sendable() == [approved.id]
    await market.store.write(steps.approve, market.context, row.id)
    await request(market, user, method)


async def test_money_for_an_erased_account_waits_for_the_operator(
    market: Market, bank: Bank
) -> None:
    user = await market.person()
    payment = await market.payments.create(user, 20 * USD)
    bank.set(payment.id, state="expired")
    await look(market, payment.id)
    await market.store.write(erasing.erase, market.context, tools(market), user, waives=False)
    bank.set(payment.id, state="paid", charge_id="late")
    await look(market, payment.id)
    shown = await staff_payments.shown(market.context, Machine("root"), payment.id)
    assert (shown.row.status, shown.row.doubt) == ("doubtful", "the account was erased")
    assert await available(market, user) == 0


async def refused_later(market: Market, bank: Bank, payment_id: str) -> None:
    """Have the card refuse a refund that was made."""
    (refund,) = bank.of(payment_id).returns
    bank.decide(payment_id, refund.ref, "void")
    await look(market, payment_id)


@pytest.mark.both_engines
async def test_a_refund_that_comes_back_after_the_closing_is_not_given_up(
    market: Market, bank: Bank
) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    await market.payments.refund(user, payment_id, 20 * USD)
    market.clock.now += 60
    now = market.clock.now
    await market.store.write(closures.close, user, waives=True, now=now, due_at=now + 1)
    await refused_later(market, bank, payment_id)
    erased = market.store.write(erasing.erase, market.context, tools(market), user, waives=False)
    assert await refusal(erased) is Code.ACCOUNT_NOT_EMPTY
    assert await available(market, user) == 20 * USD


@pytest.mark.both_engines
async def test_a_refund_that_comes_back_after_an_erasure_goes_to_the_house(
    market: Market, bank: Bank
) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    await market.payments.refund(user, payment_id, 20 * USD)
    await market.store.write(erasing.erase, market.context, tools(market), user, waives=False)
    before = await told(market, user)
    for _ in range(2):
        await refused_later(market, bank, payment_id)
    assert await available(market, user) == 0
    assert await balance(market, ledger.unclaimed(Currency.USD)) == 20 * USD
    assert await told(market, user) == before
    await audit_passes(market)


async def test_a_refund_that_happened_after_its_refusal_is_booked(
    market: Market, bank: Bank
) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)

    def refused(moment: str) -> None:
        if moment == "refunded":
            raise ProviderError("refused, although it is done", is_final=True)

    bank.fail = refused
    await market.payments.refund(user, payment_id, 5 * USD)
    assert await available(market, user) == 20 * USD
    bank.fail = lambda moment: None
    await look(market, payment_id)
    assert await available(market, user) == 15 * USD
    await look(market, payment_id)
    assert (await view(market, user, payment_id)).refunded == 5 * USD


async def test_a_refund_that_fails_leaves_its_part_to_a_dispute(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)

    def away(moment: str) -> None:
        if moment == "refund":
            raise ProviderError("away")

    bank.fail = away
    await market.payments.refund(user, payment_id, 10 * USD)
    ref = bank.dispute(payment_id, 20 * USD)
    bank.fail, bank.refused = lambda moment: None, True
    await look(market, payment_id)
    await look(market, payment_id)
    assert (await available(market, user), await held(market, user)) == (0, 20 * USD)
    bank.decide(payment_id, ref, "done")
    await look(market, payment_id)
    assert (await available(market, user), await held(market, user)) == (0, 0)
    assert await balance(market, ledger.deposits(Currency.USD)) == 0


async def test_the_staff_refunds_nothing_that_a_bank_took_back(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    bought = await market.bandwidth.buy(user, quota_bytes=15 * GB, price_per_gb=USD)
    ref = bank.dispute(payment_id, 20 * USD)
    await look(market, payment_id)
    bank.decide(payment_id, ref, "done")
    await look(market, payment_id)
    await market.bandwidth.end(user, bought.session_id)
    await corrected(market, Machine("root"), user, 15)
    assert await available(market, user) == 15 * USD
    refunding = staff_payments.refund(
        market.context,
        Machine("root"),
        payment_id,
        {Currency.USD: 50 * USD},
        amount=15 * USD,
        reference="one",
        why="asked",
    )
    assert await refusal(refunding) is Code.REFUND_TOO_LARGE


async def test_one_payment_with_a_strange_answer_holds_up_no_other(
    market: Market, bank: Bank
) -> None:
    user = await market.person()
    payments = [await market.payments.create(user, 5 * USD) for _ in range(3)]
    for each in payments:
        bank.pay(each.id)

    def strange(moment: str) -> None:
        if moment == "look" and bank.calls == 1:
            raise ProviderError("another form", is_of_payment=True)

    bank.fail, bank.calls = strange, 0
    market.clock.now += 120
    await market.payments.sweep()
    assert await available(market, user) == 10 * USD


async def test_a_refund_has_a_credit_note_that_a_card_can_cancel(
    market: Market, bank: Bank
) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    bank.refund_state = "pending"
    await market.payments.refund(user, payment_id, 5 * USD)
    assert not (await market.payments.receipt(user, payment_id)).notes
    (refund,) = bank.of(payment_id).returns
    bank.decide(payment_id, refund.ref, "done")
    for _ in range(3):
        await look(market, payment_id)
    (note,) = (await market.payments.receipt(user, payment_id)).notes
    assert (note.number, note.receipt_number, note.amount) == (1, 1, 5 * USD)
    bank.decide(payment_id, refund.ref, "void")
    await look(market, payment_id)
    bank.refund_outside(payment_id, 3 * USD)
    await look(market, payment_id)
    first, second = (await market.payments.receipt(user, payment_id)).notes
    assert (first.cancelled_at is None, second.number, second.amount) == (False, 2, 3 * USD)


async def test_a_payment_has_a_bounded_number_of_refunds(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    for _ in range(50):
        await market.payments.refund(user, payment_id, 10_000)
    more = market.payments.refund(user, payment_id, 10_000)
    assert await refusal(more) is Code.PAYMENT_NOT_REFUNDABLE
    limits = {Currency.USD: 50 * USD}
    by_staff = staff_payments.refund(
        market.context,
        Machine("root"),
        payment_id,
        limits,
        amount=10_000,
        reference="r",
        why="asked",
    )
    assert await refusal(by_staff) is Code.PAYMENT_NOT_REFUNDABLE


async def test_money_that_a_session_gives_back_pays_a_debt_first(
    market: Market, bank: Bank
) -> None:
    user = await market.person()
    payment_id = await paid(market, bank, user)
    bought = await market.bandwidth.buy(user, quota_bytes=15 * GB, price_per_gb=USD)
    ref = bank.dispute(payment_id, 20 * USD)
    await look(market, payment_id)
    bank.decide(payment_id, ref, "done")
    await look(market, payment_id)
    assert await market.store.read(debts.owed, user) == 15 * USD
    await asyncio.gather(*(market.bandwidth.end(user, bought.session_id) for _ in range(3)))
    assert await market.store.read(debts.owed, user) == 0
    assert await available(market, user) == 0
    assert await held(market, user) == 0


async def told(market: Market, user: str) -> list[str]:
    """Return the types of a user's events about payments, the oldest first."""

    async def read(tx: Transaction) -> list[str]:
        sql = """
            SELECT type FROM events WHERE user_id = :user AND type LIKE 'payment.%' ORDER BY id
        """
        return await tx.all(str, sql, user=user)

    return [each.removeprefix("payment.") for each in await market.store.read(read)]


@pytest.mark.both_engines
async def test_each_state_of_a_payment_is_an_event_once(market: Market, bank: Bank) -> None:
    user = await market.person()
    expired = (await market.payments.create(user, 5 * USD)).id
    bank.set(expired, state="expired")
    failed = (await market.payments.create(user, 5 * USD)).id
    bank.set(failed, state="failed")
    for payment_id in (expired, failed):
        await asyncio.gather(*(look(market, payment_id) for _ in range(3)))
    assert await told(market, user) == ["begun", "begun", "expired", "failed"]
    other = await market.person()
    payment_id = (await market.payments.create(other, 20 * USD)).id
    bank.pay(payment_id)
    bank.set(payment_id, amount=21 * USD)
    for _ in range(2):
        await look(market, payment_id)
    await doubts.give_up(market.context, Machine("root"), payment_id, "sent back by hand")
    bank.set(payment_id, amount=20 * USD)
    await look(market, payment_id)
    bank.refund_state = "pending"
    await market.payments.refund(other, payment_id, 5 * USD)
    before = ["begun", "doubtful", "failed", "paid", "refund_begun"]
    assert await told(market, other) == before
    (refund,) = bank.of(payment_id).returns
    bank.decide(payment_id, refund.ref, "done")
    await look(market, payment_id)
    bank.refund_outside(payment_id, 3 * USD)
    await look(market, payment_id)
    assert await told(market, other) == [*before, "refunded", "refunded"]


async def test_a_page_that_no_provider_opened_expires_with_an_event(
    market: Market, bank: Bank
) -> None:
    user = await market.person()

    def refused(moment: str) -> None:
        raise ProviderError("no", is_final=True)

    bank.fail = refused
    assert await refusal(market.payments.create(user, 20 * USD)) is Code.PAYMENT_PROVIDER_AWAY
    assert await told(market, user) == ["begun", "expired"]


async def test_an_erased_user_gets_no_event(market: Market, bank: Bank) -> None:
    user = await market.person()
    payment_id = (await market.payments.create(user, 20 * USD)).id
    bank.set(payment_id, state="expired")
    await look(market, payment_id)
    await market.store.write(erasing.erase, market.context, tools(market), user, waives=False)
    bank.set(payment_id, state="paid", charge_id="late")
    await look(market, payment_id)
    shown = await staff_payments.shown(market.context, Machine("root"), payment_id)
    assert shown.row.status == "doubtful"
    assert await told(market, user) == []
