"""Queries on the money of payments that goes back to its payers: refunds and disputes."""

import json
from collections.abc import Sequence
from typing import NamedTuple

from storage.engines.store import Transaction, insert_row

# SQL for whether a payment of `:user_id` is disputed now.
IS_DISPUTED = (
    "EXISTS (SELECT 1 FROM payment_returns"
    " WHERE user_id = :user_id AND kind = 'dispute' AND status = 'pending')"
)


class ReturnRow(NamedTuple):  # as wide as its table
    """A refund or a dispute of a payment, in micro-USD; times in UTC seconds.

    `held` was taken from the user when it began, `taken` counts against the deposit now.
    `provider_ref` is the provider's own identifier.
    """

    id: str
    payment_id: str
    deposit_id: str
    user_id: str
    kind: str
    status: str
    amount: int
    held: int
    taken: int
    provider_ref: str | None
    created_at: int
    closed_at: int | None


_COLUMNS = ", ".join(ReturnRow._fields)
_SELECT = f"SELECT {_COLUMNS} FROM payment_returns"


async def insert(tx: Transaction, row: ReturnRow) -> None:
    """Add a return."""
    await insert_row(tx, "payment_returns", **row._asdict())


async def of_payment(tx: Transaction, payment_id: str) -> list[ReturnRow]:
    """Return the refunds and disputes of a payment, the oldest first."""
    return await tx.all(
        ReturnRow, f"{_SELECT} WHERE payment_id = :payment_id ORDER BY id", payment_id=payment_id
    )


async def of_payments(tx: Transaction, payment_ids: Sequence[str]) -> dict[str, list[ReturnRow]]:
    """Return the returns of payments, as `of_payment` does, by the payment."""
    rows = await tx.all(
        ReturnRow,
        f"{_SELECT} WHERE payment_id {tx.among('asked')} ORDER BY id",
        asked=json.dumps(list(payment_ids)),
    )
    found: dict[str, list[ReturnRow]] = {payment_id: [] for payment_id in payment_ids}
    for row in rows:
        found[row.payment_id].append(row)
    return found


async def set_ref(tx: Transaction, return_id: str, provider_ref: str) -> None:
    """Record the provider's identifier of a return that has none."""
    await tx.run(
        """
        UPDATE payment_returns SET provider_ref = :provider_ref
        WHERE id = :id AND provider_ref IS NULL
        """,
        id=return_id,
        provider_ref=provider_ref,
    )


async def move(
    tx: Transaction, return_id: str, *, before: str, after: str, taken: int, now: int
) -> bool:
    """Move a return from one state to another; False if it was in another state."""
    count = await tx.run(
        """
        UPDATE payment_returns SET status = :after, taken = :taken, closed_at = :now
        WHERE id = :id AND status = :before
        """,
        id=return_id,
        before=before,
        after=after,
        taken=taken,
        now=now,
    )
    return count == 1


async def is_disputed(tx: Transaction, user_id: str) -> bool:
    """Return whether a payment of a user is disputed now."""
    return await tx.one(int, f"SELECT 1 WHERE {IS_DISPUTED}", user_id=user_id) is not None
