"""Erasure of an account: its texts and rows in one transaction, after which the files go.

`storage.erasure.treatment` decides about each column. The books, the proofs of consents and the log
of the staff stay: they have identifiers, amounts and times. The sweeps of files remove what the
transaction has dropped, so a crash at any point leaves nothing behind.
"""

import hashlib
from collections.abc import Mapping

from msgspec import Struct

from market.accounts.letters import Letters
from market.accounts.mail import account_erased
from market.base.errors import Code, MarketError
from market.base.sealing import Sealing
from market.base.states import ClosureStatus
from market.base.user_fields import email_key
from market.erasure.closing import list_open
from market.events.context import Context
from market.money import ledger
from market.money.ledger import Movement, Transfer, TransferKind
from market.money.money import Currency, as_decimal
from market.site.gate import email_mark
from storage.accounts import closures
from storage.accounts import suspensions as suspension_queries
from storage.accounts import users as user_queries
from storage.accounts.users import UserRow
from storage.engines.store import Transaction
from storage.erasure import erasing as queries
from storage.erasure import open_things
from storage.money import ledger as ledger_queries
from storage.payments import cards as card_queries

BARRED_SECONDS = 2 * 365 * 86_400


class Tools(Struct, frozen=True):
    """Tools of an erasure: the last e-mail, and the mark of a suspended user's address."""

    letters: Letters
    sealing: Sealing


async def erase(
    tx: Transaction,
    context: Context,
    tools: Tools,
    user_id: str,
    *,
    waives: bool,
    most: Mapping[Currency, int] | None = None,
) -> None:
    """Erase an account without money and open work; waived money goes to the house.

    Args:
        tx: the transaction.
        context: identifiers and the time.
        tools: the last e-mail, and marks.
        user_id: the user.
        waives: whether the user gives up the money that is left.
        most: the micro-units that may be given up, by currency; None for no bound.

    Raises:
        MarketError: `account_not_empty`, also for more than `most`; `user_not_found`;
            `account_closed`, when it was erased before.
    """
    closure = await closures.find(tx, user_id)
    gives_up = waives or bool(closure and closure.waives)
    user = await _locked(tx, user_id, gives_up=gives_up)
    closure = await closures.find(tx, user_id)
    if gives_up and closure and closure.state == ClosureStatus.CLOSED and closure.waives:
        # The user has given up the money of that day, and no money that came later.
        waives = waives or not await open_things.has_paid_in(tx, user_id, closure.closed_at)
    found = list_open(await open_things.of_user(tx, user_id, context.now()), waives=waives)
    if found:
        raise MarketError(
            Code.ACCOUNT_NOT_EMPTY, f"{Code.ACCOUNT_NOT_EMPTY.meaning} Open: {'; '.join(found)}."
        )
    await _give_up_money(tx, context, user_id, most)
    if await suspension_queries.of_user(tx, user_id):
        until = context.now() + BARRED_SECONDS
        mark = email_mark(tools.sealing, user.email)
        await queries.bar_email(tx, mark, until=until, now=context.now())
    await _erase(tx, context, user)
    if user.email_verified_at is not None:
        await tools.letters.put_last(tx, f"account erased:{user_id}", user.email, account_erased)


def require_at_most(currency: Currency, amount: int, most: Mapping[Currency, int] | None) -> None:
    """Refuse to give up more money with an account than was requested.

    Args:
        currency: of the money.
        amount: the micro-units that the user has.
        most: the micro-units that may be given up, by currency; None for no bound.

    Raises:
        MarketError: `account_not_empty`.
    """
    if most is not None and amount > most.get(currency, 0):
        raise MarketError(
            Code.ACCOUNT_NOT_EMPTY,
            f"The user has {as_decimal(amount)} {currency} now, more than was to be given up; ask "
            "again.",
        )


async def erase_again(tx: Transaction, context: Context, user_id: str) -> bool:
    """Erase a user of a restored database, after an erasure that its backup does not have.

    Money and open work of that time stay in the books.

    Returns:
        False if the database has no such user, or has erased them.
    """
    if await user_queries.find(tx, user_id) is None:
        return False
    user = await _locked(tx, user_id, gives_up=False)
    if await closures.is_erased(tx, user_id):
        return False
    await _erase(tx, context, user)
    return True


async def _locked(tx: Transaction, user_id: str, *, gives_up: bool) -> UserRow:
    """Lock a user, and before that all rows that other units lock before a user, in their order.

    These are the deploys, the jobs and the reputations; then the accounts, with those of the house
    if it may get money that the user `gives_up`. Money that arrives at the same time is seen here,
    or its transaction sees the erasure.
    """
    await queries.lock_works(tx, user_id)
    accounts = [ledger.available(user_id, currency) for currency in Currency]
    if gives_up:
        accounts += [ledger.revenue(currency) for currency in Currency]
    await tx.lock("accounts", sorted(accounts))
    await user_queries.lock(tx, user_id)
    user = await user_queries.find(tx, user_id)
    if user is None:
        raise MarketError(Code.USER_NOT_FOUND)
    return user


async def _erase(tx: Transaction, context: Context, user: UserRow) -> None:
    now = context.now()
    if not await closures.erase(tx, user.id, now):
        raise MarketError(Code.ACCOUNT_CLOSED, "The account was erased before.")
    await card_queries.forget_of(tx, user.id, now)
    key = email_key(user.email)
    mail_hash = hashlib.sha256(key.encode()).hexdigest()
    await queries.erase(tx, user.id, mail_hash=mail_hash, now=now)


async def _give_up_money(
    tx: Transaction, context: Context, user_id: str, most: Mapping[Currency, int] | None
) -> None:
    """Move the money that a user waives to the house; more than `most` is refused."""
    for currency in Currency:
        account = ledger.available(user_id, currency)
        amount = await ledger_queries.balance(tx, account) or 0
        require_at_most(currency, amount, most)
        if amount:
            movement = Movement(account, ledger.revenue(currency), amount)
            transfer = Transfer(
                context.identifiers.new(),
                f"waived:{user_id}:{currency}",
                TransferKind.FEE,
                "waived",
                currency,
                (movement,),
                context.now(),
            )
            await ledger.post(tx, transfer)
