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
    """Return each lost part of a return that the ledger does not have, and the reverse."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT r.kind || ':' || r.id || ':loss' AS reference, d.amount
            FROM debts AS d JOIN payment_returns AS r ON r.id = d.id
            """,
            """
            SELECT t.business_key AS reference, e.amount
            FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
            WHERE e.debit_account = 'house:losses:usd'
            """,
        ),
    )


async def losses_against_returns(tx: Transaction) -> list[DifferenceRow]:
    """Return each completed return whose lost part is not its debt."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT id AS reference, amount - held AS amount FROM payment_returns
            WHERE status = 'done' AND kind <> 'staff' AND amount > held
            """,
            """
            SELECT d.id AS reference, d.amount
            FROM debts AS d JOIN payment_returns AS r ON r.id = d.id WHERE r.status <> 'void'
            """,
        ),
    )


async def debts_against_payments(tx: Transaction) -> list[DifferenceRow]:
    """Return each debt whose paid part differs from the transfers that paid it."""
    return await tx.all(
        DifferenceRow,
        differences(
            "SELECT 'debt:' || id AS reference, paid AS amount FROM debts WHERE paid > 0",
            """
            SELECT t.reference, e.amount
            FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
            WHERE e.credit_account = 'house:losses:usd'
            """,
        ),
    )


async def losses_against_debts(tx: Transaction) -> list[DifferenceRow]:
    """Return the house's account of losses, if it is not minus the unpaid rest of all debts."""
    return await tx.all(
        DifferenceRow,
        differences(
            "SELECT 'house:losses:usd' AS reference, paid - amount AS amount FROM debts",
            "SELECT id AS reference, balance AS amount FROM accounts WHERE kind = 'losses'",
        ),
    )


async def returned_too_much(tx: Transaction) -> list[DifferenceRow]:
    """Return each payment whose returns are more than its amount."""
    return await tx.all(
        DifferenceRow,
        """
        SELECT p.id, p.amount, r.amount
        FROM (
            SELECT payment_id, CAST(SUM(amount) AS BIGINT) AS amount FROM payment_returns
            WHERE status <> 'void' GROUP BY payment_id
        ) AS r
        JOIN payments AS p ON p.id = r.payment_id
        WHERE r.amount > p.amount ORDER BY p.id
        """,
    )


async def receipts_against_payments(tx: Transaction) -> list[DifferenceRow]:
    """Return each paid payment without a receipt, and the counter if the numbers have a gap."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT id AS reference, 1 AS amount FROM payments WHERE status = 'paid'
            UNION ALL SELECT id, latest FROM receipt_numbers
            """,
            """
            SELECT payment_id AS reference, 1 AS amount FROM receipts
            UNION ALL SELECT 'receipts', COUNT(*) FROM receipts
            UNION ALL SELECT 'receipts', COALESCE(MAX(number), 0) - COUNT(*) FROM receipts
            """,
        ),
    )
