"""Money that has reached the operator, which the staff pays into a user's wallet.

A deposit is an act like a refund: it counts for the limits, and a large one waits for a second
person.
"""

from collections.abc import Mapping
from functools import partial

from market.accounts.accounts import OF_PAYMENT, deposit_key
from market.base.errors import Code, MarketError
from market.base.user_fields import check_reference
from market.events.context import Context
from market.money import ledger
from market.money.money import Currency
from market.staff.base.acts import REPEATED, USER, Act, Changes, act, reason
from market.staff.base.roles import Action, Author
from market.staff.finding.users import find
from market.staff.money import money
from market.staff.money.approvals import Amount, Limits, Outcome, State
from storage.engines.store import Transaction
from storage.money import lots


async def deposit(
    context: Context,
    author: Author,
    name: str,
    limits: Limits,
    *,
    amounts: Mapping[Currency, int],
    reference: str,
    why: str = "",
) -> list[Outcome]:
    """Pay money into a user's wallet, or ask a second person: an act for each currency.

    Args:
        context: the store, identifiers and the time.
        author: the member of the staff, or a rule of the daemon, which has no limit.
        name: the user.
        limits: the amounts that one person may move.
        amounts: micro-units; a currency with 0 is left out.
        reference: names this deposit; a repetition changes nothing.
        why: the reason, for the staff; "" for none.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`,
            `amount_too_large`, `reference_reused`.
    """
    user = await find(context, author, name)
    return await context.store.write(
        deposit_in, context, author, user.id, limits, amounts, reference, why
    )


async def deposit_in(
    tx: Transaction,
    context: Context,
    author: Author,
    user_id: str,
    limits: Limits,
    amounts: Mapping[Currency, int],
    reference: str,
    why: str = "",
) -> list[Outcome]:
    """Pay money into a user's wallet within a transaction; as `deposit`."""
    given = {currency: amount for currency, amount in amounts.items() if amount}
    if not given or min(given.values()) < 0:
        raise MarketError(Code.INVALID_FIELD, "A deposit is above zero.", field="amount")
    text = reason(why) if why else None
    outcomes = []
    for currency, amount in given.items():
        new = Amount(
            Action.MONEY_DEPOSIT,
            deposit_key(reference, currency),
            user_id,
            currency,
            amount,
            {"user": user_id, "currency": currency, "amount": amount, "reference": reference},
        )
        made = Act(author, new.action, USER, user_id, user_id, text)
        outcomes.append(
            await act(tx, context, made, partial(_deposit, context, author, new, limits))
        )
    return outcomes


async def _deposit(
    context: Context, author: Author, new: Amount, limits: Limits, tx: Transaction
) -> tuple[Outcome, Changes]:
    """Pay in, unless the ledger has a deposit of this name.

    Deposits of earlier versions were no acts. One of them may have a reference that is not
    permitted any more, and can be repeated.
    """
    if await ledger.posted(tx, new.business_key):
        account = ledger.available(new.user_id, new.currency)
        found = await lots.find_deposit(tx, new.business_key, account)
        if found is None or found.amount != new.amount:
            raise MarketError(Code.REFERENCE_REUSED)
        outcome = Outcome(State.DONE_BEFORE, found.id, new.user_id, new.currency, new.amount)
        return outcome, {REPEATED: (None, found.id)}
    reference = str(new.payload["reference"])
    check_reference(reference)
    if reference.startswith(OF_PAYMENT):
        raise MarketError(
            Code.INVALID_FIELD,
            f"References that begin with {OF_PAYMENT} belong to payments.",
            field="reference",
        )
    return await money.once(context, author, new, limits, tx)
