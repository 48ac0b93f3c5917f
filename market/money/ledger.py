"""The double-entry ledger: balanced transfers, and holds that are resolved exactly once.

Amounts are integers of millionths. An entry is one row with a debit and a credit account, so it
cannot be unbalanced. A trigger carries it to both balances, another trigger refuses to change or
delete it, and a check keeps users' accounts from falling below zero. Each transfer has a unique
business key, so its repetition is harmless; a kind (`TransferKind`); and a reference, under which
its users see it.

A hold moves a price from the buyer's available balance to the held balance. A guarded update
resolves it once: a capture pays out of it and a release gives the rest back, as two transfers of
one transaction.

A part of each available balance is earned money, and only that part can be paid out. It rises by
earnings alone: pay for work, also if the staff awards it, and the shares of exits. All other money,
such as deposits and rewards, is free of it. Money that leaves an available account is the other
money first, and earned money only when that is used up. A hold remembers its earned part; its
captures use the other money first, so a release gives earned money back first.

Why no deposit and no reward can be paid out: a payout takes earned money only, and so does the
return of a payout give it. Let E be a user's earned money, and P their payouts. An earning adds to
E. A purchase lowers E or leaves it, and its release returns at most what the purchase took. A
payout moves from E to P, and its failure moves the same amount back. So E + P never exceeds the
sum of the earnings, in any order of these steps. The schema keeps E between 0 and the balance, each
entry has its change of E, and the audit adds the entries up.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.money.money import Currency
from storage.engines.errors import ConstraintError
from storage.engines.store import Transaction
from storage.money import ledger as queries
from storage.money.ledger import EntryRow, HoldRow

REFUSAL_OF_CONSTRAINT = {
    "accounts_never_negative": Code.INSUFFICIENT_FUNDS,
    "accounts_within_bounds": Code.AMOUNT_TOO_LARGE,
    "entries_whole_and_positive": Code.AMOUNT_TOO_LARGE,
}


def available(user_id: str, currency: Currency) -> str:
    """Return the account of a user's spendable money."""
    return f"user:{user_id}:available:{currency}"


def held(user_id: str, currency: Currency) -> str:
    """Return the account that holds a user's money for work that is not done yet."""
    return f"user:{user_id}:held:{currency}"


def pending(user_id: str) -> str:
    """Return the account of a user's earnings from exits that are not paid out yet, in USD."""
    return f"user:{user_id}:pending:{Currency.USD}"


def deposits(currency: Currency) -> str:
    """Return the house's account that deposits come from, and that their refunds return to.

    Its balance is minus the deposits that were not refunded.
    """
    return f"house:deposits:{currency}"


def revenue(currency: Currency) -> str:
    """Return the house's account that collects its fees and sales."""
    return f"house:revenue:{currency}"


def rewards(currency: Currency) -> str:
    """Return the house's account that pays rewards."""
    return f"house:rewards:{currency}"


def review(currency: Currency) -> str:
    """Return the house's account of its part of jobs that their buyers may still dispute."""
    return f"house:review:{currency}"


def corrections(currency: Currency) -> str:
    """Return the house's account of corrections: its balance is minus their sum."""
    return f"house:corrections:{currency}"


def losses(currency: Currency = Currency.USD) -> str:
    """Return the house's account of money that was taken back after its user had spent it.

    Its balance is minus the debts of users for it.
    """
    return f"house:losses:{currency}"


def fees() -> str:
    """Return the house's account of the fees of payouts, in USD."""
    return f"house:fees:{Currency.USD}"


def payouts() -> str:
    """Return the house's account of money that payouts sent to its users, in USD."""
    return f"house:payouts:{Currency.USD}"


def exchange(currency: Currency) -> str:
    """Return the house's account that takes credits for a payout, and gives USD for them."""
    return f"house:exchange:{currency}"


def unclaimed(currency: Currency) -> str:
    """Return the house's account of money that came back for users who are erased."""
    return f"house:unclaimed:{currency}"


def exit_payable() -> str:
    """Return the house's account of its debt to exits, in USD.

    Its balance is minus the postings for exits of active sessions.
    """
    return f"house:exit_payable:{Currency.USD}"


class TransferKind(StrEnum):
    """Reason of a transfer; the values are stored with each transfer, so they never change."""

    DEPOSIT = "deposit"
    HOLD = "hold"
    CAPTURE = "capture"
    RELEASE = "release"
    PAYOUT = "payout"
    REFERRAL = "referral"
    REWARD = "reward"
    REFUND = "refund"
    EXIT_EARNING = "exit_earning"
    REVERSAL = "reversal"
    FEE = "fee"
    DEPOSIT_REFUND = "deposit_refund"
    CORRECTION = "correction"
    AWARD = "award"
    CHARGEBACK = "chargeback"
    DEBT = "debt"
    EXCHANGE = "exchange"


# Of these the receiver's part counts as earned by work or bandwidth.
EARNING_KINDS = frozenset((TransferKind.CAPTURE, TransferKind.PAYOUT, TransferKind.AWARD))
_AVAILABLE = ":available:"


class TransferIds(NamedTuple):
    """Identifiers for the two transfers that resolve a hold."""

    capture: str
    release: str


class Movement(NamedTuple):
    """`amount` micro-units that leave the account `debit` and reach the account `credit`.

    `earned` above 0 is the part that the receiver has earned. Below 0 is the earned money that
    leaves. `post` lowers it to the account's earned money, and raises it without other money.
    """

    debit: str
    credit: str
    amount: int
    earned: int = 0


class Payment(NamedTuple):
    """`amount` micro-units of a hold for an account; its owner has earned the part `earned`."""

    account: str
    amount: int
    earned: int = 0


class Transfer(Struct, frozen=True):
    """One movement of money, or several that are posted together or not at all.

    `business_key` makes it happen once: `bandwidth:{id}:capture`. `reference` names its subject for
    its users: `bandwidth:{id}`.
    """

    id: str
    business_key: str
    kind: TransferKind
    reference: str
    currency: Currency
    movements: Sequence[Movement]
    created_at: int


class ShortfallError(MarketError):
    """A user's account has less than a transfer takes from it.

    The message names no amount, since the caller may be another than the account's owner.

    Args:
        currency: the currency of the transfer.
        available: the spendable money of the account that pays first; None for another account.
    """

    def __init__(self, currency: Currency, available: int | None) -> None:
        super().__init__(Code.INSUFFICIENT_FUNDS)
        self.currency = currency
        self.available = available


async def open_accounts(tx: Transaction, user_id: str) -> None:
    """Open a user's accounts in every currency, empty."""
    accounts = []
    for currency in Currency:
        accounts.append((available(user_id, currency), user_id, "available", str(currency)))
        accounts.append((held(user_id, currency), user_id, "held", str(currency)))
    await queries.insert_accounts(tx, accounts)


async def lock(tx: Transaction, movements: Sequence[Movement]) -> None:
    """Lock every account of some movements.

    A unit that posts several transfers calls it for all of them before the first, so that two such
    units lock in one order and cannot deadlock.
    """
    accounts = {movement.debit for movement in movements if movement.amount}
    accounts |= {movement.credit for movement in movements if movement.amount}
    await tx.lock("accounts", sorted(accounts))


async def post(tx: Transaction, transfer: Transfer) -> bool:
    """Post a transfer; False, and nothing moved, when its business key was posted before.

    Raises:
        MarketError: `insufficient_funds`, when a user's account would fall below zero;
            `amount_too_large`, when an account would exceed the bounds of the schema.
    """
    return await _post(tx, transfer) is not None


async def _post(tx: Transaction, transfer: Transfer) -> list[Movement] | None:
    """Post a transfer, and return its movements with their earned parts; None if it was posted."""
    if not await queries.insert_transfer(
        tx,
        transfer_id=transfer.id,
        business_key=transfer.business_key,
        kind=transfer.kind,
        reference=transfer.reference,
        created_at=transfer.created_at,
    ):
        return None
    movements = [movement for movement in transfer.movements if movement.amount]
    await lock(tx, movements)
    before = await _spendable(tx, movements)
    movements = _with_earned_parts(movements, before)
    entries = [EntryRow(str(transfer.currency), *movement) for movement in movements]
    try:
        if len(entries) == 1:
            await queries.insert_entry(tx, transfer.id, 0, entries[0])
        elif entries:  # a session may have gone through thousands of exits
            await queries.insert_entries(tx, transfer.id, entries)
    except ConstraintError as error:
        refusal = REFUSAL_OF_CONSTRAINT.get(error.constraint)
        is_ours = any(movement.amount < 0 for movement in movements)  # not the caller's mistake
        if refusal is None or is_ours:
            raise
        if refusal is Code.INSUFFICIENT_FUNDS:
            first = before.get(movements[0].debit)
            has = None if first is None else first.balance
            raise ShortfallError(transfer.currency, has) from error
        raise MarketError(refusal) from error
    if transfer.kind in EARNING_KINDS:
        for movement in movements:
            if movement.earned > 0:
                user_id = movement.credit.split(":")[1]
                await queries.add_earned(
                    tx, user_id, transfer.currency, movement.earned, now=transfer.created_at
                )
    return movements


async def _spendable(
    tx: Transaction, movements: Sequence[Movement]
) -> dict[str, queries.BalanceRow]:
    """Return the balances of the users' available accounts that movements take money from.

    The accounts are locked.
    """
    accounts = {each.debit for each in movements if each.earned <= 0 and _AVAILABLE in each.debit}
    return {account: await queries.balances(tx, account) for account in sorted(accounts)}


def _with_earned_parts(
    movements: Sequence[Movement], before: Mapping[str, queries.BalanceRow]
) -> list[Movement]:
    """Return movements with the earned money that each takes from a user's available account.

    Other money leaves first.
    """
    left, parts = dict(before), []
    for movement in movements:
        account = movement.debit
        if movement.earned <= 0 and account in left:
            now = left[account]
            other = now.balance - now.earned
            part = min(max(-movement.earned, movement.amount - other, 0), now.earned)
            left[account] = queries.BalanceRow(now.balance - movement.amount, now.earned - part)
            parts.append(movement._replace(earned=-part))
        else:
            parts.append(movement)
    return parts


async def posted(tx: Transaction, business_key: str) -> list[Movement]:
    """Return the movements of a transfer; none when it was never posted."""
    entries = await queries.find_entries(tx, business_key)
    return [
        Movement(entry.debit_account, entry.credit_account, entry.amount, entry.earned)
        for entry in entries
    ]


async def hold(
    tx: Transaction, request: HoldRow, *, transfer_id: str, now: int, source: str | None = None
) -> None:
    """Move the price of work that begins now to the user's held account.

    It comes from the user's spendable money, or from another account, `source`. Of spendable money
    at least `request.earned` is earned money; the hold records how much it is.

    Raises:
        ShortfallError: the account has less.
    """
    currency = Currency(request.currency)
    movement = Movement(
        source or available(request.user_id, currency),
        held(request.user_id, currency),
        request.amount,
        0 if source else -request.earned,
    )
    transfer = _of_hold(transfer_id, request, TransferKind.HOLD, (movement,), now)
    movements = await _post(tx, transfer)
    if movements and not source:
        request = request._replace(earned=-movements[0].earned)
    await queries.insert_hold(tx, request, now)


async def capture(
    tx: Transaction,
    hold_id: str,
    payments: Sequence[Payment],
    *,
    transfer_ids: TransferIds,
    now: int,
) -> HoldRow | None:
    """Resolve a hold: make `payments` from its undrawn part, and release the rest to its user.

    Args:
        tx: the transaction.
        hold_id: the hold.
        payments: the amounts, each with its account.
        transfer_ids: identifiers for the two transfers.
        now: UTC seconds.

    Returns:
        The resolved hold; None when it was resolved before, and then nothing moves.
    """
    captured = sum(payment.amount for payment in payments)
    resolved = await queries.resolve_hold(tx, hold_id, captured=captured, resolved_at=now)
    if resolved is None:
        return None
    used = resolved.captured or 0  # with the earlier draws
    assert captured <= used <= resolved.amount  # noqa: S101 - the schema has the same check
    currency = Currency(resolved.currency)
    source = held(resolved.user_id, currency)
    captures = [Movement(source, *payment) for payment in payments]
    left = resolved.amount - used
    rest = Movement(source, available(resolved.user_id, currency), left, min(left, resolved.earned))
    await lock(tx, [*captures, rest])
    capture_id, release_id = transfer_ids
    await post(tx, _of_hold(capture_id, resolved, TransferKind.CAPTURE, captures, now))
    await post(tx, _of_hold(release_id, resolved, TransferKind.RELEASE, (rest,), now))
    return resolved


async def draw(
    tx: Transaction,
    hold_id: str,
    payments: Sequence[Payment],
    *,
    key: str,
    transfer_id: str,
    now: int,
) -> None:
    """Pay a part of a hold, which stays open.

    Args:
        tx: the transaction.
        hold_id: the hold, which is open, and has enough left.
        payments: the amounts, each with its account.
        key: the business key: payments with the same key happen once.
        transfer_id: the identifier of the transfer.
        now: UTC seconds.
    """
    row = await queries.draw_from_hold(tx, hold_id, sum(payment.amount for payment in payments))
    assert row is not None  # noqa: S101 - open work has an open hold
    currency = Currency(row.currency)
    source = held(row.user_id, currency)
    movements = [Movement(source, *payment) for payment in payments]
    kind = TransferKind.CAPTURE
    is_new = await post(tx, Transfer(transfer_id, key, kind, hold_id, currency, movements, now))
    assert is_new  # noqa: S101 - or the hold would be drawn from without it


def _of_hold(
    transfer_id: str, row: HoldRow, kind: TransferKind, movements: Sequence[Movement], now: int
) -> Transfer:
    """Return one of the three transfers of a hold."""
    key, currency = f"{row.id}:{kind}", Currency(row.currency)
    return Transfer(transfer_id, key, kind, row.id, currency, movements, now)
