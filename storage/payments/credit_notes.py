"""Queries on the credit notes of refunds."""

from typing import NamedTuple

from storage.engines.store import Transaction, insert_row


class CreditNoteRow(NamedTuple):
    """The credit note of a refund, in micro-USD; its particulars are those of the receipt.

    It is cancelled when the card refuses the money later.
    """

    number: int
    return_id: str
    receipt_number: int
    amount: int
    issued_at: int
    cancelled_at: int | None


async def next_number(tx: Transaction) -> int:
    """Return the next number of a credit note; the numbers have no gaps.

    The counter is locked until the end of the transaction. The accounts are locked before.
    """
    number = await tx.one(
        int,
        """
        UPDATE credit_note_numbers SET latest = latest + 1 WHERE id = 'credit_notes'
        RETURNING latest
        """,
    )
    if number is None:
        raise LookupError("the counter of credit notes is missing")
    return number


async def insert(tx: Transaction, row: CreditNoteRow) -> None:
    """Add a credit note."""
    await insert_row(tx, "credit_notes", **row._asdict())


async def cancel(tx: Transaction, return_id: str, now: int) -> None:
    """Cancel the credit note of a refund, if it has one."""
    await tx.run(
        """
        UPDATE credit_notes SET cancelled_at = :now
        WHERE return_id = :return_id AND cancelled_at IS NULL
        """,
        return_id=return_id,
        now=now,
    )


async def of_payment(tx: Transaction, payment_id: str) -> list[CreditNoteRow]:
    """Return the credit notes of a payment, the oldest first."""
    return await tx.all(
        CreditNoteRow,
        """
        SELECT n.number, n.return_id, n.receipt_number, n.amount, n.issued_at, n.cancelled_at
        FROM payment_returns AS r JOIN credit_notes AS n ON n.return_id = r.id
        WHERE r.payment_id = :payment_id ORDER BY n.number
        """,
        payment_id=payment_id,
    )
