"""The query that a purchase makes about its buyer."""

from storage.accounts.closures import IS_SHUT
from storage.accounts.suspensions import is_suspended
from storage.engines.store import Transaction
from storage.money.debts import HAS_OPEN
from storage.payments.returns import IS_DISPUTED


async def may_buy(tx: Transaction, user_id: str) -> bool:
    """Return whether nothing keeps a user from a purchase.

    It is one statement because each purchase waits for it, under the lock of the user. The reason
    of a refusal is found by one statement for each possible reason.
    """
    found = await tx.one(
        int,
        f"""
        SELECT 1 WHERE NOT (
            {is_suspended(":user_id", "purchases")}
            OR {IS_SHUT} OR {IS_DISPUTED} OR {HAS_OPEN}
        )
        """,
        user_id=user_id,
    )
    return found is not None
