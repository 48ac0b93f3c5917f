"""Debts of users to the house: the spent part of payments that were taken back.

The house has lost the money (`ledger.losses`). The next deposits of the user pay it back first.
"""

from collections.abc import Callable

from market.money import ledger
from market.money.ledger import Movement, Transfer, TransferKind
from market.money.money import Currency
from storage.engines.store import Transaction
from storage.money import debts as queries


async def owed(tx: Transaction, user_id: str) -> int:
    """Return the debt of a user, in micro-USD."""
    return sum(debt.left for debt in await queries.open_of(tx, user_id))


def accounts(user_id: str) -> list[Movement]:
    """Return a movement between the accounts that `pay` uses, for `ledger.lock`."""
    return [Movement(ledger.available(user_id, Currency.USD), ledger.losses(), 1)]


async def pay(
    tx: Transaction,
    user_id: str,
    most: int,
    *,
    cause: str,
    new_id: Callable[[], str],
    now: int,
    payer: str | None = None,
) -> int:
    """Pay the debts of a user from the available money, and return the micro-USD that were paid.

    Args:
        tx: the transaction, which has locked `accounts`.
        user_id: the user.
        most: the micro-USD that may be used, which are available.
        cause: the identifier of the event that brought the money. Each cause pays a debt once.
        new_id: makes the identifiers of transfers.
        now: UTC seconds.
        payer: another account that pays instead.
    """
    left = most
    for debt in await queries.open_of(tx, user_id):
        amount = min(left, debt.left)
        if not amount:
            break
        account = payer or ledger.available(user_id, Currency.USD)
        movement = Movement(account, ledger.losses(), amount)
        reference = f"debt:{debt.id}"
        is_new = await ledger.post(
            tx,
            Transfer(
                new_id(),
                f"{reference}:{cause}",
                TransferKind.DEBT,
                reference,
                Currency.USD,
                (movement,),
                now,
            ),
        )
        assert is_new  # noqa: S101 - or the debt would shrink without a payment
        await queries.pay(tx, debt.id, amount)
        left -= amount
    return most - left
