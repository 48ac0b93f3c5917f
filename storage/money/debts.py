"""Queries on debts: the spent part of payments that a bank or a provider took back."""

from typing import NamedTuple

from storage.engines.store import Transaction, insert_row


class DebtRow(NamedTuple):
    """An open debt, and the rest of it in micro-USD."""

    id: str
    left: int


async def insert(tx: Transaction, debt_id: str, user_id: str, amount: int, now: int) -> None:
    """Add a debt of a user, in micro-USD."""
    await insert_row(tx, "debts", id=debt_id, user_id=user_id, amount=amount, created_at=now)


async def open_of(tx: Transaction, user_id: str) -> list[DebtRow]:
    """Return the open debts of a user, the oldest first."""
    return await tx.all(
        DebtRow,
        """
        SELECT id, amount - paid FROM debts WHERE user_id = :user_id AND paid < amount ORDER BY id
        """,
        user_id=user_id,
    )


async def pay(tx: Transaction, debt_id: str, amount: int) -> None:
    """Record that a part of a debt is paid, in micro-USD.

    Raises:
        ConstraintError: `debts_paid_within`, when less is left.
    """
    await tx.run("UPDATE debts SET paid = paid + :amount WHERE id = :id", id=debt_id, amount=amount)
