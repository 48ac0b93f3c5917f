"""Payments by providers as the staff sees them: listed, shown, looked at and refunded.

The commands work without the network: they plan a look, and the daemon asks the provider within
seconds.
"""

from collections.abc import Sequence

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.money.money import Currency
from market.payments.booking import reference_of
from market.staff.base.acts import PAYMENT, Act, Changes, act, permit, reason, require_name
from market.staff.base.roles import Action, Author
from market.staff.finding.users import named, resolve
from market.staff.money import money
from market.staff.money.approvals import Limits, Outcome
from storage.accounts import users
from storage.engines.store import Transaction
from storage.payments import payments as queries
from storage.payments import returns as return_queries
from storage.payments.payments import PaymentRow, ReceiptRow
from storage.payments.returns import ReturnRow


class ShownPayment(Struct, frozen=True):
    """A payment with its user, its refunds and disputes, and its receipt."""

    row: PaymentRow
    username: str
    returns: Sequence[ReturnRow] = ()
    receipt: ReceiptRow | None = None


async def listed(
    context: Context, author: Author, name: str, *, status: str, before: str, limit: int
) -> list[PaymentRow]:
    """Return payments before one, the newest first.

    Args:
        context: the store and the time.
        author: the member of the staff.
        name: the user; "" for all users.
        status: only payments in this state; "" for all.
        before: only payments older than this identifier; "" for the newest.
        limit: how many at most.

    Raises:
        MarketError: `not_permitted`, `user_not_found`, `ambiguous`.
    """
    name = await named(context, author, name)
    return await context.store.read(_listed, author, name, status, before, limit)


async def shown(context: Context, author: Author, payment_id: str) -> ShownPayment:
    """Return all about a payment.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `payment_not_found`.
    """
    return await context.store.read(_shown, author, payment_id)


async def look(context: Context, author: Author, payment_id: str, why: str) -> PaymentRow:
    """Have the daemon ask the provider about a payment now, also about one that has ended.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `payment_not_found`.
    """
    row = await context.store.read(find, payment_id)

    async def change(tx: Transaction) -> tuple[PaymentRow, Changes]:
        await queries.hasten(tx, row.id, context.now())
        return row, {}

    made = Act(author, Action.PAYMENT_LOOK, PAYMENT, row.id, row.user_id, reason(why))
    return await context.store.write(act, context, made, change)


async def refund(
    context: Context,
    author: Author,
    payment_id: str,
    limits: Limits,
    *,
    amount: int,
    reference: str,
    why: str,
) -> Outcome:
    """Send unspent money of a payment back through its provider, or ask a second person.

    Args:
        context: the store, identifiers and the time.
        author: the member of the staff.
        payment_id: the payment.
        limits: the amounts that one person may move.
        amount: micro-USD, whole cents.
        reference: names this refund; a repetition changes nothing.
        why: the reason, for the staff.

    Raises:
        MarketError: as `money.refund`; `payment_not_found`.
    """
    row = await context.store.read(find, payment_id)
    return await money.refund(
        context,
        author,
        row.user_id,
        limits,
        amount=amount,
        currency=Currency.USD,
        deposit=reference_of(row.id),
        reference=reference,
        why=why,
    )


async def find(tx: Transaction, payment_id: str) -> PaymentRow:
    """Return a payment.

    Raises:
        MarketError: `invalid_field`, `payment_not_found`.
    """
    require_name(payment_id)
    row = await queries.find(tx, payment_id.lower())
    if row is None:
        raise MarketError(Code.PAYMENT_NOT_FOUND, "There is no such payment.")
    return row


async def _listed(
    tx: Transaction, author: Author, name: str, status: str, before: str, limit: int
) -> list[PaymentRow]:
    await permit(tx, author, Action.PAYMENT_VIEW)
    if name:
        user = await resolve(tx, name)
        return await queries.page(tx, user.id, status=status, before=before, limit=limit)
    return await queries.all_of(tx, status, before=before, limit=limit)


async def _shown(tx: Transaction, author: Author, payment_id: str) -> ShownPayment:
    await permit(tx, author, Action.PAYMENT_VIEW)
    row = await find(tx, payment_id)
    user = await users.find(tx, row.user_id)
    return ShownPayment(
        row,
        "" if user is None else user.username,
        await return_queries.of_payment(tx, row.id),
        await queries.find_receipt(tx, row.id),
    )
