"""Queries of the audit of payments: their rows against the ledger."""

from storage.engines.store import Transaction
from storage.money.ledger import DifferenceRow, differences


async def paid_against_deposits(tx: Transaction) -> list[DifferenceRow]:
    """Return each payment whose deposit differs from its amount or its user, or is missing."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT 'user:' || user_id || ':available:usd deposit:payment:' || id || ':usd'
                AS reference, amount
            FROM payments WHERE status = 'paid'
            """,
            """
            SELECT e.credit_account || ' ' || t.business_key AS reference, e.amount
            FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
            WHERE e.debit_account = 'house:deposits:usd'
                AND t.business_key LIKE 'deposit:payment:%'
            """,
        ),
    )


async def losses_against_postings(tx: Transaction) -> list[DifferenceRow]:
    """Return each debt that the ledger does not have, and the reverse.

    The business key of a lost return ends with its identifier, 36 characters, and `:loss`. The debt
    of a correction has the identifier of the transfer.
    """
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT id AS reference, amount FROM debts
            UNION ALL SELECT currency || id, amount FROM earning_debts
            """,
            """
            SELECT CASE WHEN t.kind = 'correction' THEN e.currency || t.id
                ELSE SUBSTR(t.business_key, LENGTH(t.business_key) - 40, 36) END AS reference,
                e.amount
            FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
            WHERE e.debit_account IN ('house:losses:usd', 'house:losses:credit')
            """,
        ),
    )


async def losses_against_returns(tx: Transaction) -> list[DifferenceRow]:
    """Return each completed return whose lost part is not its debt."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT id, CAST(SUM(lost) AS BIGINT), CAST(SUM(owed) AS BIGINT) FROM (
            SELECT id, CASE WHEN status = 'done' AND kind <> 'staff' THEN amount - held ELSE 0 END
                AS lost, 0 AS owed, CASE WHEN status = 'void' THEN 1 ELSE 0 END AS is_void
            FROM payment_returns
            UNION ALL SELECT id, 0, amount, 0 FROM debts
        ) AS both_lists
        GROUP BY id HAVING SUM(lost) <> SUM(owed) AND MAX(is_void) = 0 ORDER BY id
        """,
    )


async def debts_against_payments(tx: Transaction) -> list[DifferenceRow]:
    """Return each debt whose paid part differs from the transfers that paid it."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT 'debt:' || id AS reference, paid AS amount FROM debts WHERE paid > 0
            UNION ALL SELECT 'debt:' || id, paid FROM earning_debts WHERE paid > 0
            """,
            """
            SELECT t.reference, e.amount
            FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
            WHERE e.credit_account IN ('house:losses:usd', 'house:losses:credit')
            """,
        ),
    )


async def losses_against_debts(tx: Transaction) -> list[DifferenceRow]:
    """Return each account of losses that is not minus the unpaid rest of all debts."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT 'house:losses:usd' AS reference, paid - amount AS amount FROM debts
            UNION ALL SELECT 'house:losses:' || currency, paid - amount FROM earning_debts
            """,
            "SELECT id AS reference, balance AS amount FROM accounts WHERE kind = 'losses'",
        ),
    )


async def returned_too_much(tx: Transaction) -> list[DifferenceRow]:
    """Return each payment whose returns are more than its amount."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT payment_id, CAST(SUM(paid) AS BIGINT), CAST(SUM(gone) AS BIGINT) FROM (
            SELECT payment_id, 0 AS paid, amount AS gone FROM payment_returns
            WHERE status <> 'void'
            UNION ALL SELECT id, amount, 0 FROM payments
        ) AS both_ways
        GROUP BY payment_id HAVING SUM(gone) > SUM(paid) ORDER BY payment_id
        """,
    )


async def receipts_against_payments(tx: Transaction) -> list[DifferenceRow]:
    """Return each paid payment without a receipt, and a counter if its numbers have a gap.

    Also each credit note that differs from its refund.
    """
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT id AS reference, 1 AS amount FROM payments WHERE status = 'paid'
            UNION ALL SELECT id, latest FROM receipt_numbers
            UNION ALL SELECT id, latest FROM credit_note_numbers
            UNION ALL SELECT 'note of ' || return_id,
                CASE WHEN cancelled_at IS NULL THEN amount ELSE 0 END FROM credit_notes
            """,
            """
            SELECT payment_id AS reference, 1 AS amount FROM receipts
            UNION ALL SELECT 'receipts', COUNT(*) FROM receipts
            UNION ALL SELECT 'receipts', COALESCE(MAX(number), 0) - COUNT(*) FROM receipts
            UNION ALL SELECT 'credit_notes', COUNT(*) FROM credit_notes
            UNION ALL SELECT 'credit_notes', COALESCE(MAX(number), 0) - COUNT(*) FROM credit_notes
            UNION ALL SELECT 'note of ' || r.id,
                CASE WHEN r.status = 'done' THEN r.amount ELSE 0 END
            FROM payment_returns AS r JOIN credit_notes AS n ON n.return_id = r.id
            """,
        ),
    )
