"""The steps of a payout: each changes its state and moves its money in one transaction.

A payout begins with a hold of earned money, `payout:{id}`. A guarded update decides each step, so
of an approval and a cancellation at the same time one wins. Repeated steps change nothing: the
state has changed, and each transfer has its business key. A payout that ends without arriving
releases its hold. One that arrives captures it: USD go to the house's account of payouts and to
its fees. Credits go to the house's exchange, which gives the USD at the rate of the request. A
payout that comes back after it was paid returns the whole amount, also the fee, as earned money.
If its user is erased meanwhile, the house keeps the money in its account of unclaimed money.
"""

from collections.abc import Sequence
from typing import Literal

from market.base.errors import Code, MarketError
from market.base.states import PayoutStatus
from market.events.catalogue import (
    PayoutApproved,
    PayoutCancelled,
    PayoutEvent,
    PayoutFailed,
    PayoutPaid,
    PayoutRejected,
    PayoutRequested,
    PayoutSent,
    amount,
    timestamp,
)
from market.events.context import Context
from market.events.recording import record
from market.money import ledger
from market.money.ledger import Movement, Payment, Transfer, TransferIds, TransferKind
from market.money.money import Currency
from market.money.unclaimed import Return, put_aside
from market.payouts.rules import Quote, require_again
from market.payouts.terms import FailReason, PayoutTerms, RejectReason
from storage.engines.store import Transaction
from storage.money import ledger as ledger_queries
from storage.money.ledger import HoldRow
from storage.payouts import payouts as queries
from storage.payouts.payouts import PayoutRow

_EVENTS: dict[PayoutStatus, type[PayoutEvent]] = {
    PayoutStatus.CANCELLED: PayoutCancelled,
    PayoutStatus.APPROVED: PayoutApproved,
    PayoutStatus.SENT: PayoutSent,
    PayoutStatus.PAID: PayoutPaid,
}


def hold_of(payout_id: str) -> str:
    """Return the hold of a payout's money."""
    return f"payout:{payout_id}"


def drafted(
    context: Context, user_id: str, method_id: str, price: Quote, terms: PayoutTerms
) -> PayoutRow:
    """Return the row of a new payout."""
    now = context.now()
    return PayoutRow(
        id=context.identifiers.new(),
        user_id=user_id,
        method_id=method_id,
        currency=price.currency,
        amount=price.amount,
        rate=price.rate,
        usd=price.usd,
        fee=price.fee,
        fee_amount=price.fee_amount,
        state=PayoutStatus.REQUESTED,
        reason=None,
        requested_at=now,
        decide_by=now + terms.review_seconds,
    )


async def lock_wallet(tx: Transaction, row: PayoutRow) -> None:
    """Lock the accounts that a new payout moves money between."""
    currency = Currency(row.currency)
    accounts = (ledger.available(row.user_id, currency), ledger.held(row.user_id, currency))
    await tx.lock("accounts", sorted(accounts))


async def require_earned(tx: Transaction, row: PayoutRow) -> None:
    """Check that a new payout is at most the available earned money.

    Raises:
        MarketError: `payout_too_large`.
    """
    account = ledger.available(row.user_id, Currency(row.currency))
    if (await ledger_queries.balances(tx, account)).earned < row.amount:
        raise MarketError(Code.PAYOUT_TOO_LARGE, field="amount")


async def begin(tx: Transaction, context: Context, row: PayoutRow) -> None:
    """Request a payout: hold its amount of earned money.

    The caller has locked the user and checked the rules.

    Raises:
        MarketError: `payout_too_large`, when less earned money is available.
    """
    await lock_wallet(tx, row)
    await queries.insert(tx, row)
    await require_earned(tx, row)
    hold = HoldRow(hold_of(row.id), row.user_id, row.currency, row.amount, None, row.amount)
    await ledger.hold(tx, hold, transfer_id=context.identifiers.new(), now=row.requested_at)
    event = PayoutRequested(*_facts(row), timestamp(row.decide_by))
    await record(tx, context, row.user_id, event, subject_id=row.id)


async def cancel(tx: Transaction, context: Context, payout_id: str) -> PayoutRow:
    """Cancel a payout for its user; one that was cancelled before stays so.

    Raises:
        MarketError: `payout_state`, `payout_not_found`.
    """
    before, after = PayoutStatus.REQUESTED, PayoutStatus.CANCELLED
    row = await _move(tx, context, payout_id, (before,), after, is_end=True)
    if row is None:
        return await _repeated(tx, payout_id, after)
    await _release(tx, context, row)
    await _notify(tx, context, row)
    return row


async def approve(tx: Transaction, context: Context, payout_id: str) -> PayoutRow:
    """Approve a payout; one that was approved before stays so.

    Raises:
        MarketError: `payout_state`, `payout_not_found`, `payout_not_permitted`.
    """
    before, after = PayoutStatus.REQUESTED, PayoutStatus.APPROVED
    row = await _move(tx, context, payout_id, (before,), after, is_decision=True)
    if row is None:
        return await _repeated(tx, payout_id, after)
    await require_again(tx, row.user_id)
    await _notify(tx, context, row)
    return row


async def reject(
    tx: Transaction, context: Context, payout_id: str, reason: RejectReason
) -> PayoutRow:
    """Reject a payout that was not sent, for a reason that its user reads.

    Raises:
        MarketError: `payout_state`, `payout_not_found`.
    """
    befores, after = (PayoutStatus.REQUESTED, PayoutStatus.APPROVED), PayoutStatus.REJECTED
    row = await _move(
        tx, context, payout_id, befores, after, reason=reason, is_decision=True, is_end=True
    )
    if row is None:
        return await _repeated(tx, payout_id, after)
    await _release(tx, context, row)
    event = PayoutRejected(*_facts(row), reason)
    await record(tx, context, row.user_id, event, subject_id=row.id)
    return row


async def lock_approved(tx: Transaction, kinds: Sequence[str], most: int) -> list[PayoutRow]:
    """Lock and return the oldest approved payouts of some kinds of methods, at most `most`."""
    found = {row.id for row in await queries.to_send(tx, kinds, limit=most)}
    await tx.lock("payouts", sorted(found))
    # Another transaction may have sent or rejected them before the lock.
    return [row for row in await queries.to_send(tx, kinds, limit=most) if row.id in found]


async def send(tx: Transaction, context: Context, payout_id: str, batch_id: str) -> PayoutRow:
    """Mark a payout as sent in a batch.

    Raises:
        MarketError: `payout_state`, `payout_not_found`.
    """
    before, after = PayoutStatus.APPROVED, PayoutStatus.SENT
    row = await _move(tx, context, payout_id, (before,), after, batch_id=batch_id)
    if row is None:
        raise MarketError(Code.PAYOUT_STATE)
    await _notify(tx, context, row)
    return row


async def pay(tx: Transaction, context: Context, payout_id: str) -> PayoutRow:
    """Record that a payout has arrived; one that was paid before stays so.

    Raises:
        MarketError: `payout_state`, `payout_not_found`.
    """
    before, after = PayoutStatus.SENT, PayoutStatus.PAID
    row = await _move(tx, context, payout_id, (before,), after, is_end=True)
    if row is None:
        return await _repeated(tx, payout_id, after)
    await _lock(tx, row)
    hold_id, new_id, now = hold_of(row.id), context.identifiers.new, context.now()
    sent = [Payment(ledger.payouts(), row.net), Payment(ledger.fees(), row.fee)]
    ids = TransferIds(new_id(), new_id())
    if row.currency == Currency.USD:
        await ledger.capture(tx, hold_id, sent, transfer_ids=ids, now=now)
    else:
        taken = [Payment(ledger.exchange(Currency.CREDIT), row.amount)]
        await ledger.capture(tx, hold_id, taken, transfer_ids=ids, now=now)
        house = ledger.exchange(Currency.USD)
        movements = [Movement(house, each.account, each.amount) for each in sent]
        await _post(tx, context, row, TransferKind.EXCHANGE, Currency.USD, movements)
    await _notify(tx, context, row)
    return row


async def fail(tx: Transaction, context: Context, payout_id: str, reason: FailReason) -> PayoutRow:
    """Record that a payout did not arrive, or came back; its whole amount is available again.

    Raises:
        MarketError: `payout_state`, `payout_not_found`.
    """
    after = PayoutStatus.FAILED
    row = await _move(
        tx, context, payout_id, (PayoutStatus.SENT,), after, reason=reason, is_end=True
    )
    if row is not None:
        await _release(tx, context, row)
    else:
        row = await _move(
            tx,
            context,
            payout_id,
            (PayoutStatus.PAID,),
            after,
            reason=reason,
            is_end=True,
            is_returned=True,
        )
        if row is None:
            return await _repeated(tx, payout_id, after)
        await _give_back(tx, context, row)
        await _put_aside(tx, context, row)
    event = PayoutFailed(*_facts(row), reason)
    await record(tx, context, row.user_id, event, subject_id=row.id)
    return row


async def _give_back(tx: Transaction, context: Context, row: PayoutRow) -> None:
    """Return the money of a payout that was paid and came back."""
    await _lock(tx, row)
    account = ledger.available(row.user_id, Currency(row.currency))
    if row.currency == Currency.USD:
        movements = [
            Movement(ledger.payouts(), account, row.net, row.net),
            Movement(ledger.fees(), account, row.fee, row.fee),
        ]
        await _post(tx, context, row, TransferKind.REFUND, Currency.USD, movements)
        return
    house = ledger.exchange(Currency.USD)
    movements = [
        Movement(ledger.payouts(), house, row.net),
        Movement(ledger.fees(), house, row.fee),
    ]
    await _post(tx, context, row, TransferKind.REVERSAL, Currency.USD, movements)
    source = ledger.exchange(Currency.CREDIT)
    movements = [Movement(source, account, row.amount, row.amount)]
    await _post(tx, context, row, TransferKind.REFUND, Currency.CREDIT, movements)


async def _put_aside(tx: Transaction, context: Context, row: PayoutRow) -> None:
    """Move money that is available again to the house, if its user is erased; see `put_aside`."""
    key = f"{hold_of(row.id)}:{TransferKind.FEE}"
    back = Return(row.user_id, Currency(row.currency), row.amount, key, hold_of(row.id))
    await put_aside(tx, back, transfer_id=context.identifiers.new(), now=context.now())


async def _post(
    tx: Transaction,
    context: Context,
    row: PayoutRow,
    kind: TransferKind,
    currency: Currency,
    movements: Sequence[Movement],
) -> None:
    key, new_id = f"{hold_of(row.id)}:{kind}", context.identifiers.new()
    transfer = Transfer(
        new_id, key, kind, hold_of(row.id), currency, tuple(movements), context.now()
    )
    is_new = await ledger.post(tx, transfer)
    assert is_new  # noqa: S101 - the guarded update of the state happens once


async def _release(tx: Transaction, context: Context, row: PayoutRow) -> None:
    await _lock(tx, row)
    new_id = context.identifiers.new
    ids = TransferIds(new_id(), new_id())
    resolved = await ledger.capture(tx, hold_of(row.id), [], transfer_ids=ids, now=context.now())
    assert resolved is not None  # noqa: S101 - an open payout has an open hold
    await _put_aside(tx, context, row)


async def _lock(tx: Transaction, row: PayoutRow) -> None:
    """Lock every account that the end of a payout may change, in one order."""
    currency = Currency(row.currency)
    accounts = {
        ledger.available(row.user_id, currency),
        ledger.held(row.user_id, currency),
        ledger.payouts(),
        ledger.fees(),
        ledger.unclaimed(currency),
        *(ledger.exchange(each) for each in Currency),
    }
    await tx.lock("accounts", sorted(accounts))


async def _move(
    tx: Transaction,
    context: Context,
    payout_id: str,
    befores: Sequence[PayoutStatus],
    after: PayoutStatus,
    *,
    reason: str | None = None,
    batch_id: str | None = None,
    is_decision: bool = False,
    is_end: bool = False,
    is_returned: bool = False,
) -> PayoutRow | None:
    """Change the state of a payout; None if it is in none of the states `befores`."""
    now = context.now()
    for before in befores:
        before.require_before(after)
        row = await queries.move(
            tx,
            payout_id,
            before=before,
            after=after,
            reason=reason,
            decided_at=now if is_decision else None,
            sent_at=now if batch_id else None,
            ended_at=now if is_end else None,
            batch_id=batch_id,
            is_returned=is_returned,
        )
        if row is not None:
            return row
    return None


async def _repeated(tx: Transaction, payout_id: str, state: PayoutStatus) -> PayoutRow:
    """Return a payout that is in a state already.

    Raises:
        MarketError: `payout_state`, `payout_not_found`.
    """
    row = await queries.find(tx, payout_id)
    if row is None:
        raise MarketError(Code.PAYOUT_NOT_FOUND)
    if row.state != state:
        raise MarketError(Code.PAYOUT_STATE, f"The payout is {row.state}.")
    return row


async def _notify(tx: Transaction, context: Context, row: PayoutRow) -> None:
    event = _EVENTS[PayoutStatus(row.state)](*_facts(row))
    await record(tx, context, row.user_id, event, subject_id=row.id)


def _facts(row: PayoutRow) -> tuple[str, float, Literal["usd", "credit"], float, float]:
    """Return the fields that all events of a payout have."""
    currency: Literal["usd", "credit"] = "usd" if row.currency == Currency.USD else "credit"
    return row.id, amount(row.amount), currency, amount(row.usd), amount(row.fee)
