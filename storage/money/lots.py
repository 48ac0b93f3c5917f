"""Queries on deposits as lots: the part of each that is spent, and the part that was returned."""

from typing import NamedTuple

from storage.engines.store import Transaction

# Money that comes back to a wallet: it was spent before, so it is no new money.
RETURNS = "('release', 'refund')"


class DepositRow(NamedTuple):
    """A deposit of a user: its transfer, and the amount in micro-units."""

    id: str
    amount: int


async def find_deposit(tx: Transaction, business_key: str, account: str) -> DepositRow | None:
    """Return the deposit with a business key, if it was paid into an account."""
    return await tx.one(
        DepositRow,
        """
        SELECT t.id, e.amount FROM transfers AS t JOIN entries AS e ON e.transfer_id = t.id
        WHERE t.business_key = :key AND t.kind = 'deposit' AND e.credit_account = :account
        """,
        key=business_key,
        account=account,
    )


async def returned(tx: Transaction, deposit_id: str) -> int:
    """Return the micro-units of a deposit that went back, or wait to go back."""
    by_staff = await tx.one(
        int,
        """
        SELECT CAST(COALESCE(-SUM(amount), 0) AS BIGINT) FROM staff_money
        WHERE deposit_id = :deposit_id
        """,
        deposit_id=deposit_id,
    )
    by_provider = await tx.one(
        int,
        """
        SELECT CAST(COALESCE(SUM(taken), 0) AS BIGINT) FROM payment_returns
        WHERE deposit_id = :deposit_id
        """,
        deposit_id=deposit_id,
    )
    return (by_staff or 0) + (by_provider or 0)


async def newer_money(tx: Transaction, user_id: str, account: str, deposit_id: str) -> int:
    """Return what an account received after a deposit, without the returned part of deposits.

    Money that came back to the account does not count: it is older. The rows of one account behind
    the deposit are read, by the index of credited accounts.
    """
    received = await tx.one(
        int,
        f"""
        SELECT CAST(COALESCE(SUM(e.amount), 0) AS BIGINT)
        FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
        WHERE e.credit_account = :account AND e.transfer_id > :deposit_id
            AND t.kind NOT IN {RETURNS}
        """,
        account=account,
        deposit_id=deposit_id,
    )
    back = await tx.one(
        int,
        """
        SELECT CAST(COALESCE(SUM(e.amount), 0) AS BIGINT)
        FROM entries AS e
        JOIN transfers AS t ON t.id = e.transfer_id
        JOIN staff_money AS m ON m.business_key = t.business_key
        WHERE e.debit_account = :account AND e.transfer_id > :deposit_id
            AND t.kind = 'deposit_refund' AND m.deposit_id > :deposit_id
        """,
        account=account,
        deposit_id=deposit_id,
    )
    by_provider = await tx.one(
        int,
        """
        SELECT CAST(COALESCE(SUM(taken), 0) AS BIGINT) FROM payment_returns
        WHERE user_id = :user_id AND deposit_id > :deposit_id
            AND CAST(:account AS TEXT) = 'user:' || user_id || ':available:usd'
        """,
        account=account,
        user_id=user_id,
        deposit_id=deposit_id,
    )
    return (received or 0) - (back or 0) - (by_provider or 0)
