"""Debts of users to the house, for money that was taken back after they had spent it.

A payment was taken back by its bank, or earnings were taken back after their payout. The house has
lost the money (`ledger.losses`). The next deposits of the user pay it back first. A sweep pays with
money that arrives in another way (`market/payouts/collecting.py`).
"""

from collections.abc import Callable

from market.money import ledger
from market.money.ledger import Movement, Transfer, TransferKind
from market.money.money import Currency
from storage.engines.store import Transaction
from storage.money import debts as queries
from storage.money.debts import DebtSource


async def owed(tx: Transaction, user_id: str, currency: Currency = Currency.USD) -> int:
    """Return the debt of a user in a currency, in micro-units."""
    return sum(debt.left for debt in await queries.open_of(tx, user_id, currency))


async def owed_of_earnings(tx: Transaction, user_id: str, currency: Currency) -> int:
    """Return the debt of a user for earnings in a currency, in micro-units."""
    rows = await queries.open_of(tx, user_id, currency)
    return sum(debt.left for debt in rows if debt.source == DebtSource.EARNINGS)


async def owed_in_all(tx: Transaction, user_id: str) -> dict[Currency, int]:
    """Return the debt of a user in each currency, in micro-units."""
    return {currency: await owed(tx, user_id, currency) for currency in Currency}


def accounts(user_id: str, currency: Currency = Currency.USD) -> list[Movement]:
    """Return a movement between the accounts that `pay` uses, for `ledger.lock`."""
    return [Movement(ledger.available(user_id, currency), ledger.losses(currency), 1)]


async def pay(
    tx: Transaction,
    user_id: str,
    most: int,
    *,
    cause: str,
    new_id: Callable[[], str],
    now: int,
    currency: Currency = Currency.USD,
    payer: str | None = None,
    only: DebtSource | None = None,
) -> int:
    """Pay the debts of a user from the available money, and return the micro-units that were paid.

    Args:
        tx: the transaction, which has locked `accounts`.
        user_id: the user.
        most: the micro-units that may be used, which are available.
        cause: the identifier of the event that brought the money. Each cause pays a debt once.
        new_id: makes the identifiers of transfers.
        now: UTC seconds.
        currency: the currency of the debts.
        payer: another account that pays instead.
        only: pay only debts of this source; earned money pays those for earnings then.
    """
    left = most
    for debt in await queries.open_of(tx, user_id, currency):
        if only is not None and debt.source != only:
            continue
        amount = min(left, debt.left)
        if not amount:
            break
        account = payer or ledger.available(user_id, currency)
        earned = -amount if only is DebtSource.EARNINGS else 0
        movement = Movement(account, ledger.losses(currency), amount, earned)
        reference = f"debt:{debt.id}"
        is_new = await ledger.post(
            tx,
            Transfer(
                new_id(),
                f"{reference}:{cause}",
                TransferKind.DEBT,
                reference,
                currency,
                (movement,),
                now,
            ),
        )
        assert is_new  # noqa: S101 - or the debt would shrink without a payment
        await queries.pay(tx, debt, amount)
        left -= amount
    return most - left
