"""Money of users that the staff moves: refunds of deposits, and corrections.

Both are transfers of the ledger, as deposits are (`deposits`). A refund returns the unspent rest of
a deposit at most; the operator pays it back by hand, or the payment provider does. Spending takes
the oldest money first, so the newest deposits are unspent. A correction adds or takes money, for an
account of the house, and never takes more than is available. One that takes earnings back may leave
a debt instead, after their payout: later earnings pay it. A reference names each of them, and makes
a repetition harmless.
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal

from msgspec import Struct

from market.accounts.accounts import deposit_key
from market.accounts.wallet import Change, change_of
from market.base.errors import Code, MarketError
from market.base.user_fields import check_reference
from market.events.catalogue import WalletCorrected, WalletDeposited, WalletRefunded
from market.events.catalogue import amount as shown
from market.events.context import Context
from market.events.recording import record as record_event
from market.money import debts, ledger, lots
from market.money.ledger import Movement, Transfer, TransferKind
from market.money.money import MICRO, UNITS_MAX, Currency, as_decimal
from market.payments import booking
from market.payments.terms import CENT
from market.staff.base import masks
from market.staff.base.acts import ERASED, USER, Act, Changes, act, permit, reason
from market.staff.base.roles import Action, Author
from market.staff.finding.users import find, named, resolve
from market.staff.money import approvals
from market.staff.money.approvals import Amount, Limits, Outcome, Posting
from market.staff.money.second_person_limit import do_or_ask
from storage.accounts import closures
from storage.accounts.users import UserRow
from storage.engines.store import Transaction
from storage.money import debts as debt_queries
from storage.money import ledger as ledger_queries
from storage.money import lots as lot_queries
from storage.money.lots import DepositRow
from storage.payouts import payouts as payout_queries

REFUND, CORRECTION = "refund", "correction"
DEBT = "debt"  # the field of a request that leaves a debt
AWARD = "award"  # the field of a request that pays for work
AMOUNT_MAX = UNITS_MAX * MICRO

_KINDS: Mapping[Action, TransferKind] = {
    Action.MONEY_DEPOSIT: TransferKind.DEPOSIT,
    Action.MONEY_REFUND: TransferKind.DEPOSIT_REFUND,
    Action.MONEY_CORRECT: TransferKind.CORRECTION,
    Action.CASE_DECIDE: TransferKind.CORRECTION,
}


class History(Struct, frozen=True):
    """A user's balances and debts, and the newest changes of their wallet."""

    user: UserRow
    available: dict[Currency, int]
    held: dict[Currency, int]
    owed: dict[Currency, int]
    changes: list[Change]


async def refund(
    context: Context,
    author: Author,
    name: str,
    limits: Limits,
    *,
    amount: int,
    currency: Currency,
    deposit: str,
    reference: str,
    why: str,
) -> Outcome:
    """Return a part of a deposit to the user outside of the service, or ask a second person.

    Args:
        context: the store, identifiers and the time.
        author: the member of the staff.
        name: the user.
        limits: the amounts that one person may move.
        amount: micro-units, above zero.
        currency: the currency of the deposit.
        deposit: the reference of the deposit.
        reference: names this refund; a repetition changes nothing.
        why: the reason, for the staff.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`,
            `deposit_not_found`, `refund_too_large`, `reference_reused`.
    """
    if amount <= 0:
        raise MarketError(Code.INVALID_FIELD, "A refund is above zero.", field="amount")
    if booking.payment_of(deposit) is not None and amount % CENT:
        raise MarketError(
            Code.INVALID_FIELD, "A payment is refunded in whole cents.", field="amount"
        )
    check_reference(reference)
    user = await find(context, author, name)
    new = Amount(
        Action.MONEY_REFUND,
        f"{REFUND}:{reference}:{currency}",
        user.id,
        currency,
        -amount,
        {
            "user": user.id,
            "currency": currency,
            "amount": -amount,
            "reference": reference,
            "deposit": deposit,
        },
    )
    return await _move(context, author, new, limits, why)


async def correct(
    context: Context,
    author: Author,
    name: str,
    limits: Limits,
    *,
    amount: int,
    currency: Currency,
    reference: str,
    why: str,
    leaves_debt: bool = False,
) -> Outcome:
    """Add money to a user's wallet, or take some, or ask a second person.

    Args:
        context: the store, identifiers and the time.
        author: the member of the staff.
        name: the user.
        limits: the amounts that one person may move.
        amount: micro-units, negative to take money; not zero.
        currency: the currency of the amount.
        reference: names this correction; a repetition changes nothing.
        why: the reason, for the staff.
        leaves_debt: takes earnings back: the part that is not there any more becomes a debt.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`,
            `insufficient_funds`, `amount_too_large`, `reference_reused`.
    """
    if not amount:
        raise MarketError(Code.INVALID_FIELD, "A correction is not zero.", field="amount")
    if leaves_debt and amount > 0:
        message = "Only a correction that takes earnings back leaves a debt."
        raise MarketError(Code.INVALID_FIELD, message, field="amount")
    check_reference(reference)
    user = await find(context, author, name)
    new = Amount(
        Action.MONEY_CORRECT,
        f"{CORRECTION}:{reference}:{currency}",
        user.id,
        currency,
        amount,
        {
            "user": user.id,
            "currency": currency,
            "amount": amount,
            "reference": reference,
            **({DEBT: 1} if leaves_debt else {}),
        },
    )
    return await _move(context, author, new, limits, why)


async def history(
    context: Context, author: Author, name: str, *, before: str = "", limit: int
) -> History:
    """Return a user's balances, and the changes of their wallet before one, the newest first.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`.
    """
    name = await named(context, author, name)
    return await context.store.read(_history, author, name, before, limit, context.now())


async def post(
    tx: Transaction, context: Context, new: Amount, posting: Posting
) -> tuple[Outcome, Changes]:
    """Post a deposit, a refund or a correction within an act, if its conditions hold now.

    A decision about a case is a correction, if it moves money.

    Raises:
        MarketError: `deposit_not_found`, `refund_too_large`, `insufficient_funds`,
            `amount_too_large`, `reference_reused`.
    """
    account = ledger.available(new.user_id, new.currency)
    payment_id = _payment_of(new)
    if payment_id is not None:
        await booking.lock_payment(tx, payment_id)
    pays_debts = new.action is Action.MONEY_DEPOSIT
    await lock(tx, new, pays_debts=pays_debts)
    balances = await ledger_queries.balances(tx, account)
    before = balances.balance
    returned = await _check(tx, new, before)
    movements = _movements(new, balances.earned)
    transfer = Transfer(
        context.identifiers.new(),
        new.business_key,
        _kind(new),
        str(new.payload["reference"]),
        new.currency,
        movements,
        context.now(),
    )
    is_new = await ledger.post(tx, transfer)
    assert is_new  # noqa: S101 - its amount is recorded in the same transaction, once
    owed = sum(each.amount for each in movements if each.debit == ledger.losses(new.currency))
    if owed:
        await debt_queries.insert_of_earnings(
            tx, transfer.id, new.user_id, new.currency, owed, transfer.created_at
        )
    outcome = await approvals.record(
        tx,
        context,
        posting.author,
        new,
        act_id=transfer.id,
        approval_id=posting.approval_id,
        deposit_id=returned.id if returned else None,
    )
    if payment_id is not None:
        await booking.begin_by_staff(tx, context, payment_id, -new.amount)
    if pays_debts:
        new_id, now = context.identifiers.new, context.now()
        await debts.pay(
            tx,
            new.user_id,
            new.amount,
            cause=transfer.id,
            new_id=new_id,
            now=now,
            currency=new.currency,
        )
    await _notify(tx, context, new, transfer, owed)
    changes: Changes = {
        "transfer": (None, transfer.id),
        f"available_{new.currency}": (before, before + new.amount + owed),
        **({f"debt_{new.currency}": (None, owed)} if owed else {}),
    }
    return outcome, changes


async def lock(tx: Transaction, new: Amount, *, pays_debts: bool = False) -> None:
    """Lock the accounts that an amount moves between."""
    account, house = _user_and_house(new)
    moved = [Movement(account, house, 1)]
    if pays_debts or new.payload.get(DEBT):
        moved += debts.accounts(new.user_id, new.currency)
    await ledger.lock(tx, moved)


def _kind(new: Amount) -> TransferKind:
    """Return the kind of the transfer of an amount."""
    return TransferKind.AWARD if new.payload.get(AWARD) else _KINDS[new.action]


def _user_and_house(new: Amount) -> tuple[str, str]:
    """Return the accounts of an amount: the user's, and that of the house."""
    is_correction = _KINDS[new.action] is TransferKind.CORRECTION
    house = ledger.corrections(new.currency) if is_correction else ledger.deposits(new.currency)
    return ledger.available(new.user_id, new.currency), house


def _movements(new: Amount, earned: int) -> tuple[Movement, ...]:
    """Return the movements of an amount, for a user with `earned` money available."""
    account, house = _user_and_house(new)
    if new.amount > 0:
        return (Movement(house, account, new.amount, new.amount if new.payload.get(AWARD) else 0),)
    if new.payload.get(DEBT):
        # Only earned money: with a reward in its place, the reward would have left as the payout.
        taken = min(-new.amount, earned)
        return (
            Movement(account, house, taken, -taken),
            Movement(ledger.losses(new.currency), house, -new.amount - taken),
        )
    # A correction takes earned money first: it may take back a wrong earning. A case takes back a
    # reward, which was not earned.
    is_correction = new.action is Action.MONEY_CORRECT
    return (Movement(account, house, -new.amount, new.amount if is_correction else 0),)


def _payment_of(new: Amount) -> str | None:
    """Return the payment of a refund; None if the deposit came by another way."""
    if new.action is not Action.MONEY_REFUND:
        return None
    return booking.payment_of(str(new.payload["deposit"]))


async def _move(context: Context, author: Author, new: Amount, limits: Limits, why: str) -> Outcome:
    text = reason(why)

    change = partial(once, context, author, new, limits)
    made = Act(author, new.action, USER, new.user_id, new.user_id, text)
    return await context.store.write(act, context, made, change)


async def once(
    context: Context, author: Author, new: Amount, limits: Limits, tx: Transaction
) -> tuple[Outcome, Changes]:
    """Move an amount or ask a second person, unless this was done before."""
    check = partial(require_possible, tx, new)
    return await do_or_ask(tx, context, author, new, limits, check=check, post=post)


async def require_possible(tx: Transaction, new: Amount) -> None:
    """Refuse an amount that could not be posted now; raises as `post`."""
    account = ledger.available(new.user_id, new.currency)
    await _check(tx, new, await ledger_queries.balance(tx, account) or 0)


async def _check(tx: Transaction, new: Amount, available: int) -> DepositRow | None:
    """Check the conditions of an amount; return the deposit that a refund returns."""
    if await closures.is_erased(tx, new.user_id):
        raise MarketError(Code.ACCOUNT_CLOSED, ERASED)
    if max(abs(new.amount), available + new.amount) > AMOUNT_MAX:
        raise MarketError(Code.AMOUNT_TOO_LARGE)
    if new.action is Action.MONEY_DEPOSIT and await ledger.posted(tx, new.business_key):
        raise MarketError(Code.REFERENCE_REUSED)
    if new.payload.get(DEBT):
        await _check_earned(tx, new)
        return None
    if new.action is not Action.MONEY_REFUND:
        if available + new.amount < 0:
            raise MarketError(
                Code.INSUFFICIENT_FUNDS,
                f"The user has {as_decimal(available)} {new.currency} available; a correction "
                "takes no more.",
            )
        return None
    account = ledger.available(new.user_id, new.currency)
    key = deposit_key(str(new.payload["deposit"]), new.currency)
    deposit = await lot_queries.find_deposit(tx, key, account)
    if deposit is None:
        raise MarketError(Code.DEPOSIT_NOT_FOUND)
    rest = await lots.unspent(tx, new.user_id, new.currency, deposit, available)
    if -new.amount > rest:
        raise MarketError(
            Code.REFUND_TOO_LARGE,
            f"{as_decimal(rest)} {new.currency} of this deposit are neither spent nor returned; a "
            "refund returns no more.",
        )
    return deposit


async def _check_earned(tx: Transaction, new: Amount) -> None:
    """Check that a user has earned as much as is taken back, with earlier corrections."""
    row = await payout_queries.earned(tx, new.user_id, new.currency)
    earned = 0 if row is None else row.total
    taken = await debt_queries.taken_back(tx, new.user_id, new.currency)
    if taken - new.amount > earned:
        raise MarketError(
            Code.INSUFFICIENT_FUNDS,
            f"The user has earned {as_decimal(earned)} {new.currency} in all, and "
            f"{as_decimal(taken)} of it were taken back before; no more is taken back.",
        )


async def _notify(
    tx: Transaction, context: Context, new: Amount, transfer: Transfer, owed: int
) -> None:
    """Record the event for the user."""
    currency: Literal["usd", "credit"] = "usd" if new.currency is Currency.USD else "credit"
    event: WalletDeposited | WalletRefunded | WalletCorrected
    if new.action is Action.MONEY_DEPOSIT:
        event = WalletDeposited(shown(new.amount), currency, transfer.reference)
    elif new.action is Action.MONEY_REFUND:
        paid = str(new.payload["deposit"])
        event = WalletRefunded(shown(-new.amount), currency, transfer.reference, paid)
    else:
        taken = shown(new.amount + owed)
        event = WalletCorrected(taken, currency, transfer.reference, shown(owed))
    await record_event(tx, context, new.user_id, event, subject_id=transfer.id)


async def _history(
    tx: Transaction, author: Author, name: str, before: str, limit: int, now: int
) -> History:
    await permit(tx, author, Action.MONEY_HISTORY)
    user = await resolve(tx, name)
    account, held = partial(ledger.available, user.id), partial(ledger.held, user.id)
    rows = await ledger_queries.moved(
        tx, usd=account(Currency.USD), credit=account(Currency.CREDIT), before=before, limit=limit
    )
    if not await masks.revealed(tx, author, (user.id,), now=now):
        user = user._replace(email=masks.masked_email(user.email))
    return History(
        user=user,
        available={each: await ledger_queries.balance(tx, account(each)) or 0 for each in Currency},
        held={each: await ledger_queries.balance(tx, held(each)) or 0 for each in Currency},
        owed=await debts.owed_in_all(tx, user.id),
        changes=[change_of(row) for row in rows],
    )
