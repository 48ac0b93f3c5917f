"""Money of payments that goes back: refunds and disputes, in the ledger.

A refund holds its amount until the provider confirms it. A dispute holds the rest of its amount,
as far as the user has it. If the money goes, the hold is captured for the deposits of the house.
The house loses the part that was spent before, and the user owes it. If the money stays, the hold
is released. Money that comes back for a user who is erased stays with the house, in its account of
unclaimed money.
"""

from collections.abc import Sequence
from typing import NamedTuple

from market.base.errors import Code, MarketError
from market.base.states import ReturnStatus
from market.events.catalogue import (
    EventData,
    PaymentDisputed,
    PaymentDisputeDecided,
    PaymentRefundBegun,
    PaymentRefunded,
    PaymentRefundFailed,
)
from market.events.catalogue import amount as shown
from market.events.context import Context
from market.events.recording import record
from market.money import debts, ledger
from market.money.ledger import Movement, Transfer, TransferIds, TransferKind
from market.money.money import Currency
from market.money.unclaimed import Return, put_aside
from storage.accounts import closures
from storage.engines.store import Transaction
from storage.money import debts as debt_queries
from storage.money import ledger as ledger_queries
from storage.money.ledger import HoldRow
from storage.payments import returns as queries
from storage.payments.payments import PaymentRow
from storage.payments.returns import ReturnRow

REFUND, STAFF, OUTSIDE, DISPUTE = "refund", "staff", "outside", "dispute"
# Refunds of one payment. The list of a provider ends at a hundred refunds, and operators make some
# in its dashboard.
REFUNDS_MAX = 50
# The money of a refund by the staff has left the account before; all others are held.
_POSTED_BEFORE = frozenset((STAFF,))


class Begun(NamedTuple):
    """A return that begins: its kind, its micro-USD, and the provider's identifier, if known."""

    kind: str
    amount: int
    provider_ref: str | None = None


def hold_of(row: ReturnRow) -> str:
    """Return the identifier of the hold of a return, which also names it in the wallet."""
    return f"{row.kind}:{row.id}"


async def lock(tx: Transaction, user_id: str) -> None:
    """Lock the accounts of a user and of the house that returns use.

    With the account of `bounds.lock_user`, in one call: other units lock the house before it.
    """
    available, held = (
        ledger.available(user_id, Currency.USD),
        ledger.held(user_id, Currency.USD),
    )
    house, unclaimed = ledger.deposits(Currency.USD), ledger.unclaimed(Currency.USD)
    moves = (
        Movement(available, held, 1),
        Movement(house, unclaimed, 1),
        Movement(house, ledger.available(user_id, Currency.CREDIT), 1),
    )
    await ledger.lock(tx, [*moves, *debts.accounts(user_id)])


def require_room(rows: Sequence[ReturnRow]) -> None:
    """Refuse a further refund of a payment that has had many.

    Raises:
        MarketError: `payment_not_refundable`.
    """
    if sum(row.kind in (REFUND, STAFF) for row in rows) >= REFUNDS_MAX:
        raise MarketError(
            Code.PAYMENT_NOT_REFUNDABLE, f"A payment has at most {REFUNDS_MAX} refunds."
        )


async def begin(tx: Transaction, context: Context, payment: PaymentRow, begun: Begun) -> ReturnRow:
    """Begin a return of a paid payment, and hold its money as far as the user still has it.

    The caller has locked the payment and the accounts (`lock`).
    """
    assert payment.deposit_id is not None  # noqa: S101 - only paid payments have returns
    now, is_held = context.now(), begun.kind not in _POSTED_BEFORE
    account = ledger.available(payment.user_id, Currency.USD)
    left = await ledger_queries.balance(tx, account) or 0
    held = min(left, begun.amount) if is_held else 0
    row = ReturnRow(
        context.identifiers.new(),
        payment.id,
        payment.deposit_id,
        payment.user_id,
        begun.kind,
        ReturnStatus.PENDING,
        begun.amount,
        held,
        held,
        begun.provider_ref,
        now,
        None,
    )
    await queries.insert(tx, row)
    if held:
        await ledger.hold(
            tx,
            HoldRow(hold_of(row), row.user_id, Currency.USD, held, None),
            transfer_id=context.identifiers.new(),
            now=now,
        )
    if row.kind == DISPUTE:
        disputed = PaymentDisputed(payment.id, shown(row.amount), shown(held))
        await _record(tx, context, row, disputed)
    elif row.kind != OUTSIDE:
        await _record(tx, context, row, PaymentRefundBegun(payment.id, shown(row.amount)))
    return row


async def finish(tx: Transaction, context: Context, row: ReturnRow) -> bool:
    """Complete a pending return: its money has left; False if it was completed before."""
    ReturnStatus(row.status).require_before(ReturnStatus.DONE)
    now, new_id = context.now(), context.identifiers.new
    if not await queries.move(
        tx, row.id, before=ReturnStatus.PENDING, after=ReturnStatus.DONE, taken=row.taken, now=now
    ):
        return False
    house = ledger.deposits(Currency.USD)
    if row.held:
        await ledger.capture(
            tx,
            hold_of(row),
            [ledger.Payment(house, row.held)],
            transfer_ids=TransferIds(new_id(), new_id()),
            now=now,
        )
    lost = row.amount - row.held
    if lost and row.kind not in _POSTED_BEFORE:
        await _post(
            tx,
            context,
            row,
            "loss",
            TransferKind.CHARGEBACK,
            Movement(ledger.losses(), house, lost),
        )
        await debt_queries.insert(tx, row.id, row.user_id, lost, now)
        await _pay_debts(tx, context, row, "loss")
    await _notify(tx, context, row, is_gone=True)
    return True


async def give_back(tx: Transaction, context: Context, row: ReturnRow) -> bool:
    """End a return whose money stays, or came back; False if it was ended before."""
    ReturnStatus(row.status).require_before(ReturnStatus.VOID)
    now, new_id = context.now(), context.identifiers.new
    was_posted = row.kind in _POSTED_BEFORE
    if not await queries.move(
        tx,
        row.id,
        before=row.status,
        after=ReturnStatus.VOID,
        taken=-row.amount if was_posted else 0,
        now=now,
    ):
        return False
    if was_posted or row.status == ReturnStatus.DONE:
        house, account = (
            ledger.deposits(Currency.USD),
            ledger.available(row.user_id, Currency.USD),
        )
        await _post(
            tx, context, row, "back", TransferKind.RELEASE, Movement(house, account, row.amount)
        )
        paid = await _pay_debts(tx, context, row, "back")
        await _put_aside(tx, context, row, max(0, row.amount - paid))
    elif row.held:
        await ledger.capture(
            tx, hold_of(row), [], transfer_ids=TransferIds(new_id(), new_id()), now=now
        )
    await _notify(tx, context, row, is_gone=False)
    return True


async def _pay_debts(tx: Transaction, context: Context, row: ReturnRow, why: str) -> int:
    """Pay debts from the money that the user has now, and return the micro-USD."""
    account = ledger.available(row.user_id, Currency.USD)
    return await debts.pay(
        tx,
        row.user_id,
        await ledger_queries.balance(tx, account) or 0,
        cause=f"{row.id}:{why}",
        new_id=context.identifiers.new,
        now=context.now(),
    )


async def _put_aside(tx: Transaction, context: Context, row: ReturnRow, amount: int) -> None:
    """Move micro-USD that came back to the house, if its user is erased; see `put_aside`."""
    key = f"{hold_of(row)}:unclaimed"
    back = Return(row.user_id, Currency.USD, amount, key, hold_of(row))
    await put_aside(tx, back, transfer_id=context.identifiers.new(), now=context.now())


async def _post(
    tx: Transaction,
    context: Context,
    row: ReturnRow,
    step: str,
    kind: TransferKind,
    movement: Movement,
) -> None:
    """Post a transfer of a return, which is new: a guarded update permits each step once."""
    transfer = Transfer(
        context.identifiers.new(),
        f"{hold_of(row)}:{step}",
        kind,
        hold_of(row),
        Currency.USD,
        (movement,),
        context.now(),
    )
    if not await ledger.post(tx, transfer):
        raise LookupError(f"{transfer.business_key} was posted before")


async def _notify(tx: Transaction, context: Context, row: ReturnRow, *, is_gone: bool) -> None:
    """Record the event of a return that has ended."""
    event: EventData
    if row.kind == DISPUTE:
        event = PaymentDisputeDecided(
            row.payment_id, shown(row.amount), "lost" if is_gone else "won"
        )
    elif is_gone:
        event = PaymentRefunded(row.payment_id, shown(row.amount))
    else:
        event = PaymentRefundFailed(row.payment_id, shown(row.amount))
    await _record(tx, context, row, event)


async def _record(tx: Transaction, context: Context, row: ReturnRow, event: EventData) -> None:
    """Record an event about the payment of a return; an erased user gets none."""
    if not await closures.is_erased(tx, row.user_id):
        await record(tx, context, row.user_id, event, subject_id=row.payment_id)
