"""Booking of the facts that a provider reports, in any order and number.

Each unit locks the payment, and moves its state by a guarded update. So a payment is credited once
and each of its refunds and disputes is booked once.
"""

import logging
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from market.accounts.accounts import OF_PAYMENT, deposit_key
from market.accounts.letters import Letters
from market.base.errors import Code, MarketError
from market.base.states import PaymentStatus, ReturnStatus
from market.events.catalogue import (
    PaymentBegun,
    PaymentDoubtful,
    PaymentEvent,
    PaymentExpired,
    PaymentFailed,
    PaymentPaid,
    WalletDeposited,
)
from market.events.catalogue import amount as shown
from market.events.context import Context
from market.events.recording import record
from market.money import debts, ledger
from market.money.ledger import Movement, Transfer, TransferKind
from market.money.money import Currency, as_decimal
from market.payments import mail, returning, top_up_outcomes
from market.payments.exchange import Exchange
from market.payments.provider import Seen, SeenReturn
from market.payments.returning import Begun
from market.payments.terms import DAY_SECONDS, PaymentTerms
from storage.accounts import closures
from storage.engines.store import Transaction
from storage.payments import credit_notes as note_queries
from storage.payments import particulars as particulars_queries
from storage.payments import payments as queries
from storage.payments import returns as return_queries
from storage.payments.credit_notes import CreditNoteRow
from storage.payments.payments import PaymentRow, ReceiptRow
from storage.payments.returns import ReturnRow

LOOK_MIN_SECONDS = 60
OPEN_LOOK_MAX_SECONDS = 6 * 3_600
# The request of an automatic payment may reach the provider late, and the notice about it may be
# lost. So an expired one is looked for until this age, at least four hours after the last request.
FIND_SECONDS = DAY_SECONDS
# A bank decides about a dispute within months of the payment.
LAST_LOOK_SECONDS = 200 * DAY_SECONDS
# Ends the reference of the part of a return that had no room beside a refund that failed later.
REST = ":rest"

_EVENTS: dict[str, type[PaymentEvent]] = {
    PaymentStatus.OPEN: PaymentBegun,
    PaymentStatus.EXPIRED: PaymentExpired,
    PaymentStatus.FAILED: PaymentFailed,
    PaymentStatus.DOUBTFUL: PaymentDoubtful,
}
_BY_OTHERS = (returning.OUTSIDE, returning.DISPUTE)

_logger = logging.getLogger("payments")


class Booking(Struct, frozen=True):
    """The means to book: the context, the operator's terms, and the e-mails to users."""

    context: Context
    terms: PaymentTerms
    letters: Letters


def reference_of(payment_id: str) -> str:
    """Return the reference of the deposit of a payment."""
    return f"{OF_PAYMENT}{payment_id}"


def payment_of(deposit: str) -> str | None:
    """Return the payment of a deposit, by its reference; None for a deposit by hand."""
    return deposit.removeprefix(OF_PAYMENT) if deposit.startswith(OF_PAYMENT) else None


def next_look(row: PaymentRow, returns: Sequence[ReturnRow], now: int) -> int | None:
    """Return the time of the next look at a payment; None when nothing can happen any more.

    The older a payment is, the rarer are the looks: hooks report changes much sooner.
    """
    age = max(0, now - row.created_at)
    may_arrive = row.status == PaymentStatus.OPEN or (
        row.status == PaymentStatus.EXPIRED and row.is_automatic and age <= FIND_SECONDS
    )
    if not may_arrive and row.status in (PaymentStatus.EXPIRED, PaymentStatus.FAILED):
        return None
    if may_arrive or any(each.status == ReturnStatus.PENDING for each in returns):
        return now + min(max(LOOK_MIN_SECONDS, age // 4), OPEN_LOOK_MAX_SECONDS)
    if age > LAST_LOOK_SECONDS:
        return None
    return now + max(DAY_SECONDS, age)


async def book(
    tx: Transaction, booking: Booking, payment_id: str, seen: Seen, *, planned: int | None
) -> list[ReturnRow]:
    """Book the facts about a payment, and return the refunds that the provider does not know yet.

    Args:
        tx: the transaction.
        booking: the means.
        payment_id: the payment.
        seen: the facts.
        planned: the time of the next look that this look has planned.
    """
    await queries.lock(tx, payment_id)
    row = await queries.find(tx, payment_id)
    assert row is not None  # noqa: S101 - payments are never deleted
    await returning.lock(tx, row.user_id)
    if row.status != PaymentStatus.PAID:
        row = await _book_state(tx, booking, row, seen)
    rows: list[ReturnRow] = []
    if row.status == PaymentStatus.PAID:
        exchange, rows = Exchange.of(row, seen), await return_queries.of_payment(tx, payment_id)
        for each in seen.returns:
            facts = exchange.credited(each, _stored(rows, each))
            rows = await _book_return(tx, booking, row, facts, rows)
    await queries.plan(
        tx,
        payment_id,
        planned=planned,
        next_look_at=next_look(row, rows, booking.context.now()),
    )
    own = (returning.REFUND, returning.STAFF)
    return [
        each
        for each in rows
        if each.status == ReturnStatus.PENDING and each.kind in own and each.provider_ref is None
    ]


async def book_refund(
    tx: Transaction, booking: Booking, payment_id: str, return_id: str, seen: SeenReturn | None
) -> None:
    """Book the answer of a provider to a refund; None for a refusal."""
    await queries.lock(tx, payment_id)
    row = await queries.find(tx, payment_id)
    assert row is not None  # noqa: S101 - payments are never deleted
    await returning.lock(tx, row.user_id)
    rows = await return_queries.of_payment(tx, payment_id)
    if seen is not None:
        await _book_return(tx, booking, row, seen, rows)
        return
    for each in rows:
        is_unknown = each.provider_ref is None and each.status == ReturnStatus.PENDING
        if each.id == return_id and is_unknown:
            await returning.give_back(tx, booking.context, each)


async def lock_payment(tx: Transaction, payment_id: str) -> None:
    """Lock a payment and the accounts of its returns, before a refund by the staff is posted."""
    await queries.lock(tx, payment_id)
    row = await queries.find(tx, payment_id)
    if row is not None:
        await returning.lock(tx, row.user_id)


async def begin_by_staff(tx: Transaction, context: Context, payment_id: str, amount: int) -> None:
    """Have the provider send money back that has left the account by an act of the staff.

    If the provider refuses it, the money comes back to the account.

    Raises:
        MarketError: `refund_too_large`, when less of the payment is left at the provider;
            `payment_not_refundable`, after too many refunds.
    """
    row = await queries.find(tx, payment_id)
    assert row is not None  # noqa: S101 - its deposit was found
    rows = await return_queries.of_payment(tx, payment_id)
    returning.require_room(rows)
    left = row.amount - _gone(rows)
    if amount > left:
        raise MarketError(
            Code.REFUND_TOO_LARGE,
            f"{as_decimal(left)} USD of this payment were neither refunded nor disputed; a refund "
            "returns no more.",
        )
    await returning.begin(tx, context, row, Begun(returning.STAFF, amount))
    await queries.hasten(tx, payment_id, context.now())


async def notify(tx: Transaction, context: Context, row: PaymentRow) -> None:
    """Record that a payment has a new state that moves no money; an erased user gets no events."""
    if not await closures.is_erased(tx, row.user_id):
        event = _EVENTS[row.status](row.id, shown(row.amount), row.provider)
        await record(tx, context, row.user_id, event, subject_id=row.id)


async def move(
    tx: Transaction,
    context: Context,
    row: PaymentRow,
    after: PaymentStatus,
    *,
    doubt: str = "",
    deposit_id: str | None = None,
    charge_id: str | None = None,
) -> PaymentRow:
    """Move a payment to another state, and return it: every change of a state is made here.

    The caller has locked the payment, and read it after that. The user is notified of a state that
    moves no money.

    Raises:
        ValueError: there is no such transition.
    """
    before, now = PaymentStatus(row.status), context.now()
    before.require_before(after)
    is_moved = await queries.move(
        tx,
        row.id,
        before=before,
        after=after,
        now=now,
        deposit_id=deposit_id,
        charge_id=charge_id,
        doubt=doubt,
    )
    assert is_moved  # noqa: S101 - the payment is locked
    moved = row._replace(
        status=after,
        closed_at=now,
        deposit_id=deposit_id,
        charge_id=charge_id or row.charge_id,
        doubt=doubt,
    )
    if after in _EVENTS:
        await notify(tx, context, moved)
    return moved


def doubt(row: PaymentRow, seen: Seen) -> str:
    """Return the difference between a payment and the facts; "" without one."""
    facts = (
        (seen.payment_id == row.id, "the provider names another payment"),
        (seen.has_mode, "the payment is of another mode, test or live"),
        (seen.currency == Currency.USD, f"the currency is {seen.currency[:8]!r}"),
        (seen.amount == row.amount, f"the amount is {as_decimal(seen.amount)}"),
    )
    return "; ".join(words for agrees, words in facts if not agrees)


async def _book_state(tx: Transaction, booking: Booking, row: PaymentRow, seen: Seen) -> PaymentRow:
    """Move a payment that is not paid to the state of the facts, and return it."""
    before = PaymentStatus(row.status)
    if seen.state == "open" or (seen.state != "paid" and before is not PaymentStatus.OPEN):
        return row
    if seen.state != "paid":
        moved = await move(tx, booking.context, row, PaymentStatus(seen.state))
        if row.is_automatic:
            await top_up_outcomes.fail(tx, booking.context, booking.letters, row, seen.failure)
        return moved
    difference = doubt(row, seen)
    if not difference and await closures.is_erased(tx, row.user_id):
        difference = "the account was erased"
    if difference and before is PaymentStatus.FAILED and row.doubt == difference:
        return row  # the operator has given it up
    if difference and row.accepted is not None and row.doubt == difference:
        await queries.set_amount(tx, row.id, row.accepted)
        row, difference = row._replace(amount=row.accepted), ""
    if difference:
        return await _doubt(tx, booking, row, difference)
    return await _credit(tx, booking, row, seen)


async def _doubt(tx: Transaction, booking: Booking, row: PaymentRow, difference: str) -> PaymentRow:
    """Leave a payment to the staff; one that is doubtful for another reason is so again."""
    doubtful = PaymentStatus.DOUBTFUL
    if row.status != doubtful:
        await move(tx, booking.context, row, doubtful, doubt=difference)
        _logger.error("payment %s: not credited: %s", row.id, difference)
        if row.is_automatic:
            await top_up_outcomes.fail(tx, booking.context, booking.letters, row, "doubtful")
    elif row.doubt != difference:
        _logger.error("payment %s: doubtful by other facts: %s", row.id, difference)
        await queries.doubt_again(tx, row.id, before=row.doubt, after=difference)
    return row._replace(status=doubtful)


async def _credit(tx: Transaction, booking: Booking, row: PaymentRow, seen: Seen) -> PaymentRow:
    """Pay the money of a payment into the wallet, pay debts, and issue the receipt."""
    context, terms = booking.context, booking.terms
    now, transfer_id = context.now(), context.identifiers.new()
    reference = reference_of(row.id)
    account = ledger.available(row.user_id, Currency.USD)
    transfer = Transfer(
        transfer_id,
        deposit_key(reference, Currency.USD),
        TransferKind.DEPOSIT,
        reference,
        Currency.USD,
        (Movement(ledger.deposits(Currency.USD), account, row.amount),),
        now,
    )
    if not await ledger.post(tx, transfer):
        raise LookupError(f"{transfer.business_key} was posted before")
    row = await move(
        tx,
        context,
        row,
        PaymentStatus.PAID,
        deposit_id=transfer_id,
        charge_id=seen.charge_id or None,
    )
    if row.is_automatic:
        await top_up_outcomes.succeed(tx, row)
    for event in (
        WalletDeposited(shown(row.amount), "usd", reference),
        PaymentPaid(row.id, shown(row.amount), row.provider),
    ):
        await record(tx, context, row.user_id, event, subject_id=row.id)
    new_id = context.identifiers.new
    await debts.pay(tx, row.user_id, row.amount, cause=row.id, new_id=new_id, now=now)
    receipt = await _issue(tx, terms, row, now)
    await booking.letters.put(
        tx,
        row.user_id,
        f"payment {row.id}",
        lambda to, url: mail.paid(to, url, row, receipt),
    )
    return row


async def _issue(tx: Transaction, terms: PaymentTerms, row: PaymentRow, now: int) -> ReceiptRow:
    """Issue the document of a payment: an invoice, if its user has set particulars."""
    buyer = await particulars_queries.find(tx, row.user_id)
    receipt = ReceiptRow(
        number=await queries.next_number(tx),
        payment_id=row.id,
        issued_at=now,
        seller=terms.seller,
        tax_name=terms.tax_name,
        tax_basis_points=terms.tax_basis_points,
    )
    if buyer is not None:
        receipt = receipt._replace(
            buyer_name=buyer.name,
            buyer_address=buyer.address,
            buyer_country=buyer.country,
            buyer_tax_number=buyer.tax_number,
        )
    await queries.insert_receipt(tx, receipt)
    return receipt


def _gone(rows: Sequence[ReturnRow]) -> int:
    """Return the micro-USD of a payment that went back, or wait to go back."""
    return sum(each.amount for each in rows if each.status != ReturnStatus.VOID)


async def _book_return(
    tx: Transaction,
    booking: Booking,
    payment: PaymentRow,
    seen: SeenReturn,
    rows: list[ReturnRow],
) -> list[ReturnRow]:
    """Book a refund or a dispute, from the state that is stored to the state of the facts.

    A return beside a pending refund may be stored with a smaller amount. If the refund fails, the
    rest becomes a second return. `rows` are the returns of the payment; those afterwards are
    returned, and read again only after a change.
    """
    row = await _book_part(tx, booking, payment, seen, rows)
    if row is None:
        return rows
    if row not in rows:
        rows = await return_queries.of_payment(tx, payment.id)
    if row.kind not in _BY_OTHERS or row.amount >= seen.amount:
        return rows
    rest = replace(seen, ref=seen.ref + REST, own_id="", amount=seen.amount - row.amount)
    return await _book_return(tx, booking, payment, rest, rows)


async def _book_part(
    tx: Transaction,
    booking: Booking,
    payment: PaymentRow,
    seen: SeenReturn,
    rows: list[ReturnRow],
) -> ReturnRow | None:
    """Book a return as far as its payment has room for it; return its row after that.

    The row is in `rows` if nothing was changed.
    """
    row = _stored(rows, seen)
    if row is None:
        if seen.state == "void":
            return None
        amount = min(seen.amount, payment.amount - _gone(rows))
        if amount < seen.amount and not seen.ref.endswith(REST):
            _logger.error("payment %s: %s is larger than its rest", payment.id, seen.ref)
        if amount <= 0:
            return None
        kind = returning.DISPUTE if seen.kind == "dispute" else returning.OUTSIDE
        row = await returning.begin(tx, booking.context, payment, Begun(kind, amount, seen.ref))
        await _mail(tx, booking, row, ReturnStatus.PENDING)
    elif row.provider_ref is None:
        if seen.amount != row.amount:
            _logger.error("payment %s: refund %s has another amount", payment.id, seen.ref)
            return row
        await return_queries.set_ref(tx, row.id, seen.ref)
        row = row._replace(provider_ref=seen.ref)
    after = ReturnStatus(seen.state)
    if row.status in (after, ReturnStatus.VOID):
        return row
    if row.status == ReturnStatus.DONE and after is ReturnStatus.PENDING:
        return row  # an older report
    number = None
    if after is ReturnStatus.DONE:
        await returning.finish(tx, booking.context, row)
        number = await _note(tx, booking, row)
    else:
        await returning.give_back(tx, booking.context, row)
        await note_queries.cancel(tx, row.id, booking.context.now())
    await _mail(tx, booking, row, after, number)
    return row._replace(status=after)


async def _note(tx: Transaction, booking: Booking, row: ReturnRow) -> int | None:
    """Issue the credit note of a refund that was made, and return its number.

    A dispute has none: the bank took the money, and the sale stands.
    """
    receipt = await queries.find_receipt(tx, row.payment_id)
    if row.kind == returning.DISPUTE or receipt is None:
        return None
    number = await note_queries.next_number(tx)
    now = booking.context.now()
    note = CreditNoteRow(number, row.id, receipt.number, row.amount, now, None)
    await note_queries.insert(tx, note)
    return number


def _stored(rows: Sequence[ReturnRow], seen: SeenReturn) -> ReturnRow | None:
    """Return the stored row of a return that the provider reports.

    A refund that it refused before, and made nevertheless, is a new one: the first was given back.
    """
    for row in rows:
        was_refused = row.status == ReturnStatus.VOID and row.provider_ref is None
        is_own = bool(seen.own_id) and row.id == seen.own_id and not was_refused
        if row.provider_ref == seen.ref or is_own:
            return row
    return None


async def _mail(
    tx: Transaction,
    booking: Booking,
    row: ReturnRow,
    after: ReturnStatus,
    note: int | None = None,
) -> None:
    """Put the e-mail about a return into the queue, with the number of its credit note."""
    await booking.letters.put(
        tx,
        row.user_id,
        f"payment return {row.id} {after}",
        lambda to, url: mail.returned(to, url, row, after, note),
    )
