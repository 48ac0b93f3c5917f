"""Money that comes back for an erased user: the house keeps it in an account of its own.

No login reaches an erased account, so money there would be frozen for good.
"""

from typing import NamedTuple

from market.money import ledger
from market.money.ledger import Movement, Transfer, TransferKind
from market.money.money import Currency
from storage.accounts import closures
from storage.engines.store import Transaction


class Return(NamedTuple):
    """Available money that came back for a user: its micro-units, and the names of its transfer."""

    user_id: str
    currency: Currency
    amount: int
    key: str
    reference: str


def movement(user_id: str, currency: Currency, amount: int = 1) -> Movement:
    """Return the movement that `put_aside` makes, also for `ledger.lock`."""
    return Movement(ledger.available(user_id, currency), ledger.unclaimed(currency), amount)


async def put_aside(tx: Transaction, back: Return, *, transfer_id: str, now: int) -> None:
    """Move money that came back to the house, if its user is erased.

    The caller has locked the accounts (`movement`), which an erasure locks as well.

    Raises:
        LookupError: it was moved before; its cause can happen only once.
    """
    if not back.amount or not await closures.is_erased(tx, back.user_id):
        return
    moved = (movement(back.user_id, back.currency, back.amount),)
    kind = TransferKind.FEE
    transfer = Transfer(transfer_id, back.key, kind, back.reference, back.currency, moved, now)
    if not await ledger.post(tx, transfer):
        raise LookupError(f"{back.key} was posted before")
