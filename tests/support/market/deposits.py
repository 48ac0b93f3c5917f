"""Deposits that are no acts of the staff: the beginning of most tests."""

from typing import Literal

from market.accounts.accounts import deposit_key
from market.base.errors import Code, MarketError
from market.base.user_fields import check_reference, email_key
from market.events.catalogue import WalletDeposited
from market.events.catalogue import amount as shown
from market.events.context import Context
from market.events.recording import record
from market.money import ledger
from market.money.ledger import Movement, Transfer, TransferKind
from market.money.money import Currency
from storage.accounts import users
from storage.engines.store import Transaction


async def deposit(
    tx: Transaction,
    context: Context,
    *,
    email: str,
    currency: Currency,
    amount: int,
    reference: str,
    transfer_id: str,
    now: int,
) -> bool:
    """Pay money into a user's wallet; False when this reference was deposited before.

    Args:
        tx: the transaction.
        context: records it for its user.
        email: whose wallet.
        currency: the currency of the amount.
        amount: micro-units, above zero.
        reference: names this deposit, once and for all. A deposit of before may have a reference
            that is not permitted any more, and can be repeated.
        transfer_id: the identifier of the transfer.
        now: UTC seconds.

    Raises:
        MarketError: `user_not_found`, `invalid_field`, `amount_too_large`; `reference_reused`, when
            the reference is another deposit's.
    """
    user = await users.find_by_email(tx, email_key(email))
    if user is None:
        raise MarketError(Code.USER_NOT_FOUND, f"There is no user with the address {email}.")
    if amount <= 0:
        raise MarketError(Code.INVALID_FIELD, "A deposit must be above zero.", field=str(currency))
    movement = Movement(ledger.deposits(currency), ledger.available(user.id, currency), amount)
    key = deposit_key(reference, currency)
    if not await ledger.posted(tx, key):
        check_reference(reference)
    transfer = Transfer(
        transfer_id, key, TransferKind.DEPOSIT, reference, currency, (movement,), now
    )
    if await ledger.post(tx, transfer):
        name: Literal["usd", "credit"] = "usd" if currency is Currency.USD else "credit"
        deposited = WalletDeposited(shown(amount), name, reference)
        await record(tx, context, user.id, deposited, subject_id=transfer_id)
        return True
    if await ledger.posted(tx, key) != [movement]:
        raise MarketError(Code.REFERENCE_REUSED)
    return False
