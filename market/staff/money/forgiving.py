"""Debts that the staff forgives: the house pays them from its revenue.

A debt is the spent part of a payment that was taken back, or earnings that were taken back after
their payout. Its account buys nothing until it is paid or forgiven.
"""

from functools import partial

from market.base.errors import Code, MarketError
from market.base.user_fields import check_reference
from market.events.context import Context
from market.money import debts, ledger
from market.money.ledger import Movement
from market.money.money import Currency, as_decimal
from market.staff.base.acts import USER, Act, Changes, act, reason
from market.staff.base.roles import Action, Author
from market.staff.finding.users import find
from market.staff.money import approvals
from market.staff.money.approvals import Amount, Limits, Outcome, Posting
from market.staff.money.second_person_limit import do_or_ask
from storage.engines.store import Transaction


async def forgive(
    context: Context,
    author: Author,
    name: str,
    limits: Limits,
    *,
    amount: int,
    reference: str,
    why: str,
    currency: Currency = Currency.USD,
) -> Outcome:
    """Forgive a part of a user's debts, the oldest first, or ask a second person.

    Args:
        context: the store, identifiers and the time.
        author: the member of the staff.
        name: the user.
        limits: the amounts that one person may move.
        amount: micro-units, above zero.
        reference: names this act; a repetition changes nothing.
        why: the reason, for the staff.
        currency: the currency of the debts.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`,
            `debt_too_small`, `reference_reused`.
    """
    if amount <= 0:
        raise MarketError(Code.INVALID_FIELD, "A forgiven amount is above zero.", field="amount")
    check_reference(reference)
    user = await find(context, author, name)
    new = Amount(
        Action.DEBT_FORGIVE,
        f"forgive:{reference}:{currency}",
        user.id,
        currency,
        amount,
        {"user": user.id, "amount": amount, "reference": reference},
    )

    async def change(tx: Transaction) -> tuple[Outcome, Changes]:
        check = partial(_require_owed, tx, new)
        return await do_or_ask(tx, context, author, new, limits, check=check, post=post)

    made = Act(author, new.action, USER, user.id, user.id, reason(why))
    return await context.store.write(act, context, made, change)


async def post(
    tx: Transaction, context: Context, new: Amount, posting: Posting
) -> tuple[Outcome, Changes]:
    """Forgive debts within an act, if the user owes the amount now.

    Raises:
        MarketError: `debt_too_small`.
    """
    house = ledger.revenue(new.currency)
    # With the account of `bounds.lock_user`, in one call: the end of a job locks the house first.
    await ledger.lock(
        tx,
        [
            Movement(house, ledger.losses(new.currency), 1),
            Movement(house, ledger.available(new.user_id, Currency.CREDIT), 1),
            *debts.accounts(new.user_id, new.currency),
        ],
    )
    owed = await _require_owed(tx, new)
    act_id = context.identifiers.new()
    paid = await debts.pay(
        tx,
        new.user_id,
        new.amount,
        cause=act_id,
        new_id=context.identifiers.new,
        now=context.now(),
        currency=new.currency,
        payer=house,
    )
    assert paid == new.amount  # noqa: S101 - as much is owed
    outcome = await approvals.record(
        tx, context, posting.author, new, act_id=act_id, approval_id=posting.approval_id
    )
    return outcome, {"debt": (owed, owed - paid)}


async def _require_owed(tx: Transaction, new: Amount) -> int:
    owed = await debts.owed(tx, new.user_id, new.currency)
    word = "USD" if new.currency is Currency.USD else "credits"
    if new.amount > owed:
        raise MarketError(
            Code.DEBT_TOO_SMALL,
            f"The user owes {as_decimal(owed)} {word}; no more can be forgiven.",
        )
    return owed
