"""Restricted accounts: a payment is disputed, or spent money was taken back.

A restricted user buys nothing and gets no payout. A deposit that pays the debt ends the
restriction, and so do earnings if the debt is for earnings.
"""

from market.base.errors import Code, MarketError
from market.money import debts
from market.money.money import Currency, as_decimal
from storage.engines.store import Transaction
from storage.money import debts as debt_queries
from storage.payments import returns


async def require_unrestricted(tx: Transaction, user_id: str) -> None:
    """Refuse a purchase, a refund or a payout of a restricted user.

    The caller has locked the user (`bounds.lock_user`), as the begin of a dispute does.

    Raises:
        MarketError: `account_restricted`.
    """
    await require_undisputed(tx, user_id)
    if not await debt_queries.has_open(tx, user_id):
        return
    owed = await debts.owed_in_all(tx, user_id)
    usd, credits_owed = as_decimal(owed[Currency.USD]), as_decimal(owed[Currency.CREDIT])
    message = (
        f"Money was taken back after it was spent. Pay in {usd} USD first."
        if owed[Currency.USD]
        else f"Earnings were taken back after their payout. The next {credits_owed} credits that "
        "your devices earn pay for them first."
    )
    raise MarketError(Code.ACCOUNT_RESTRICTED, message)


async def is_restricted(tx: Transaction, user_id: str) -> bool:
    """Return whether a payment of a user is disputed, or the user owes money."""
    return await returns.is_disputed(tx, user_id) or await debt_queries.has_open(tx, user_id)


async def require_undisputed(tx: Transaction, user_id: str) -> None:
    """Refuse an act of a user with a disputed payment.

    Raises:
        MarketError: `account_restricted`.
    """
    if await returns.is_disputed(tx, user_id):
        raise MarketError(
            Code.ACCOUNT_RESTRICTED, "A payment is disputed at its bank; wait for the decision."
        )
