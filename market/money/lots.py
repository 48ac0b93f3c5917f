"""Deposits as lots: spending takes the oldest money first, so the newest deposits are unspent."""

from market.money import ledger
from market.money.money import Currency
from storage.engines.store import Transaction
from storage.money import lots as queries
from storage.money.lots import DepositRow


async def unspent(
    tx: Transaction, user_id: str, currency: Currency, deposit: DepositRow, available: int
) -> int:
    """Return the part of a deposit that is neither spent nor returned, in micro-units.

    Args:
        tx: the transaction.
        user_id: the user that made the deposit.
        currency: its currency.
        deposit: the deposit.
        available: the spendable money of the user now, in micro-units.
    """
    account = ledger.available(user_id, currency)
    newer = await queries.newer_money(tx, user_id, account, deposit.id)
    left = deposit.amount - await queries.returned(tx, deposit.id)
    return max(0, min(left, available - newer))
