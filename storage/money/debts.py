"""Queries on debts: spent payments that were taken back, and earnings taken back after a payout."""

from enum import StrEnum
from typing import NamedTuple

from storage.engines.store import Transaction, insert_row

# SQL for whether `:user_id` has an open debt in any currency.
HAS_OPEN = (
    "(EXISTS (SELECT 1 FROM debts WHERE user_id = :user_id AND paid < amount)"
    " OR EXISTS (SELECT 1 FROM earning_debts WHERE user_id = :user_id AND paid < amount))"
)


class DebtSource(StrEnum):
    """The cause of a debt, which is the table of it."""

    PAYMENT = "debts"
    EARNINGS = "earning_debts"


class DebtRow(NamedTuple):
    """An open debt, and the rest of it in micro-units of its currency."""

    id: str
    left: int
    source: str


class DebtorRow(NamedTuple):
    """A user with an open debt in a currency."""

    user_id: str
    currency: str


async def insert(tx: Transaction, debt_id: str, user_id: str, amount: int, now: int) -> None:
    """Add a debt of a user for a payment, in micro-USD."""
    await insert_row(tx, "debts", id=debt_id, user_id=user_id, amount=amount, created_at=now)


async def insert_of_earnings(
    tx: Transaction, debt_id: str, user_id: str, currency: str, amount: int, now: int
) -> None:
    """Add a debt of a user for earnings, in micro-units; its identifier is that of a transfer."""
    await insert_row(
        tx,
        "earning_debts",
        id=debt_id,
        user_id=user_id,
        currency=currency,
        amount=amount,
        created_at=now,
    )


async def open_of(tx: Transaction, user_id: str, currency: str) -> list[DebtRow]:
    """Return the open debts of a user in a currency, the oldest first."""
    return await tx.all(
        DebtRow,
        """
        SELECT id, amount - paid, 'debts' FROM debts
        WHERE user_id = :user_id AND paid < amount AND CAST(:currency AS TEXT) = 'usd'
        UNION ALL
        SELECT id, amount - paid, 'earning_debts' FROM earning_debts
        WHERE user_id = :user_id AND currency = :currency AND paid < amount
        ORDER BY 1
        """,
        user_id=user_id,
        currency=currency,
    )


async def has_open(tx: Transaction, user_id: str) -> bool:
    """Return whether a user has an open debt in any currency."""
    return await tx.one(int, f"SELECT 1 WHERE {HAS_OPEN}", user_id=user_id) is not None


async def taken_back(tx: Transaction, user_id: str, currency: str) -> int:
    """Return the earned money that corrections have taken from a user, with debts for it."""
    found = await tx.one(
        int,
        """
        SELECT CAST(COALESCE(SUM(amount), 0) AS BIGINT) FROM (
            SELECT -e.earned AS amount FROM entries AS e
            JOIN transfers AS t ON t.id = e.transfer_id
            WHERE e.debit_account = :account AND e.earned < 0 AND t.kind = 'correction'
            UNION ALL
            SELECT amount FROM earning_debts WHERE user_id = :user_id AND currency = :currency
        ) AS taken
        """,
        account=f"user:{user_id}:available:{currency}",
        user_id=user_id,
        currency=currency,
    )
    return found or 0


async def debtors(tx: Transaction, *, limit: int) -> list[DebtorRow]:
    """Return users whose available money can pay an open debt now.

    Only earned money pays a debt for earnings.
    """
    return await tx.all(
        DebtorRow,
        """
        SELECT d.user_id, d.currency FROM earning_debts AS d
        JOIN accounts AS a ON a.id = 'user:' || d.user_id || ':available:' || d.currency
        WHERE d.user_id > '' AND d.paid < d.amount AND a.earned > 0
        UNION
        SELECT d.user_id, 'usd' FROM debts AS d
        JOIN accounts AS a ON a.id = 'user:' || d.user_id || ':available:usd'
        WHERE d.user_id > '' AND d.paid < d.amount AND a.balance > 0
        ORDER BY 1, 2 LIMIT :limit
        """,
        limit=limit,
    )


async def pay(tx: Transaction, debt: DebtRow, amount: int) -> None:
    """Record that a part of a debt is paid, in micro-units.

    Raises:
        ConstraintError: `debts_paid_within` or `earning_debts_paid_within`, when less is left.
    """
    table = DebtSource(debt.source)
    await tx.run(
        f"UPDATE {table} SET paid = paid + :amount WHERE id = :id", id=debt.id, amount=amount
    )
