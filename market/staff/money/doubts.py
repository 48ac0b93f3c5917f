"""Doubtful payments, which the staff decides: the provider reported other facts than expected.

The staff accepts an amount of the payment, and the next look at the provider credits it if the
facts are still the same. If they are not, the payment is doubtful again, by the new facts. Or the
staff gives the payment up, and nothing is credited.
"""

from functools import partial

from market.base.errors import Code, MarketError
from market.base.states import PaymentStatus
from market.events.context import Context
from market.money.money import Currency, as_decimal
from market.payments import booking
from market.payments.terms import CENT
from market.staff.base.acts import PAYMENT, Act, Changes, act, reason
from market.staff.base.roles import Action, Author
from market.staff.money import approvals
from market.staff.money.approvals import Amount, Limits, Outcome, Posting
from market.staff.money.money import AMOUNT_MAX
from market.staff.money.payments import find
from market.staff.money.second_person_limit import do_or_ask
from storage.accounts import closures
from storage.engines.store import Transaction
from storage.payments import payments as queries
from storage.payments.payments import PaymentRow


async def credit(
    context: Context,
    author: Author,
    payment_id: str,
    limits: Limits,
    *,
    amount: int | None = None,
    why: str,
) -> Outcome:
    """Accept a doubtful payment, or ask a second person; again it changes nothing.

    Args:
        context: the store, identifiers and the time.
        author: the member of the staff.
        payment_id: the payment.
        limits: the amounts that one person may move.
        amount: micro-USD, whole cents, which is credited; None for the amount of the payment.
        why: the reason, for the staff.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `payment_not_found`,
            `payment_not_doubtful`, `reference_reused`.
    """
    row = await context.store.read(find, payment_id)
    accepted = row.amount if amount is None else amount
    if not 0 < accepted <= AMOUNT_MAX or accepted % CENT:
        raise MarketError(
            Code.INVALID_FIELD, "A credited amount has whole cents above zero.", field="amount"
        )
    new = Amount(
        Action.PAYMENT_CREDIT,
        f"payment:{row.id}:credit" + (f":{row.doubts}" if row.doubts else ""),
        row.user_id,
        Currency.USD,
        accepted,
        {"payment": row.id, "amount": accepted, "doubt": row.doubt, "doubts": row.doubts},
    )

    async def change(tx: Transaction) -> tuple[Outcome, Changes]:
        check = partial(_require_doubtful, tx, new)
        return await do_or_ask(tx, context, author, new, limits, check=check, post=post)

    made = Act(author, new.action, PAYMENT, row.id, row.user_id, reason(why))
    return await context.store.write(act, context, made, change)


async def post(
    tx: Transaction, context: Context, new: Amount, posting: Posting
) -> tuple[Outcome, Changes]:
    """Accept a doubtful payment within an act, if it has the same doubt now.

    Raises:
        MarketError: `payment_not_doubtful`.
    """
    row = await _require_doubtful(tx, new)
    if not await queries.accept(tx, row.id, new.amount):
        raise MarketError(Code.PAYMENT_NOT_DOUBTFUL)
    await queries.hasten(tx, row.id, context.now())
    outcome = await approvals.record(
        tx, context, posting.author, new, act_id=row.id, approval_id=posting.approval_id
    )
    return outcome, {"accepted": (None, new.amount), "amount": (row.amount, new.amount)}


async def give_up(context: Context, author: Author, payment_id: str, why: str) -> PaymentRow:
    """Give a doubtful payment up: it has failed, and nothing is credited.

    A later look credits it only if the provider then reports the expected facts.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `payment_not_found`,
            `payment_not_doubtful`.
    """
    row = await context.store.read(find, payment_id)

    async def change(tx: Transaction) -> tuple[PaymentRow, Changes]:
        await queries.lock(tx, row.id)
        current = await find(tx, row.id)
        if current.status != PaymentStatus.DOUBTFUL or current.accepted is not None:
            state = current.status if current.accepted is None else "accepted before"
            raise MarketError(Code.PAYMENT_NOT_DOUBTFUL, f"The payment is {state}.")
        after = PaymentStatus.FAILED
        given_up = await booking.move(tx, context, current, after, doubt=current.doubt)
        return given_up, {"status": (current.status, after)}

    made = Act(author, Action.PAYMENT_GIVE_UP, PAYMENT, row.id, row.user_id, reason(why))
    return await context.store.write(act, context, made, change)


async def _require_doubtful(tx: Transaction, new: Amount) -> PaymentRow:
    """Return a payment that can be accepted, with the doubt that its author has seen.

    Raises:
        MarketError: `payment_not_doubtful`.
    """
    row = await find(tx, str(new.payload["payment"]))
    if row.status != PaymentStatus.DOUBTFUL or row.accepted is not None:
        has = f" {as_decimal(row.accepted)} USD of it are accepted." if row.accepted else ""
        raise MarketError(Code.PAYMENT_NOT_DOUBTFUL, f"The payment is {row.status}.{has}")
    # A request of an older version has no number, and is about the first doubt.
    if (row.doubt, row.doubts) != (new.payload["doubt"], new.payload.get("doubts", 0)):
        raise MarketError(Code.PAYMENT_NOT_DOUBTFUL, "The provider reports other facts now.")
    if await closures.is_erased(tx, row.user_id):
        raise MarketError(Code.PAYMENT_NOT_DOUBTFUL, "The account was erased; give it up.")
    return row
