"""Queries that compare earned money with its entries."""

from storage.engines.store import Transaction
from storage.money.ledger import DifferenceRow, differences

# Holds of reviews have money of the house, which is earned at their capture.
OWN_HOLDS = "id NOT LIKE 'review:%'"
# The earned money of a hold that is still in it. Draws take other money first, so the rest of
# the hold counts as earned first, as at its release.
STILL_HELD = "CASE WHEN amount - drawn < earned THEN amount - drawn ELSE earned END"


async def against_entries(tx: Transaction) -> list[DifferenceRow]:
    """Return each account whose earned money is not the sum of its entries' parts."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT credit_account AS reference, SUM(earned) AS amount
            FROM entries WHERE earned > 0 GROUP BY credit_account
            UNION ALL
            SELECT debit_account, SUM(earned) FROM entries WHERE earned < 0 GROUP BY debit_account
            """,
            "SELECT id AS reference, earned AS amount FROM accounts WHERE earned <> 0",
        ),
    )


async def totals_against_entries(tx: Transaction) -> list[DifferenceRow]:
    """Return each user's total of earnings that is not the sum of the earnings in the ledger."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT e.credit_account AS reference, SUM(e.earned) AS amount
            FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
            WHERE e.earned > 0 AND t.kind IN ('capture', 'payout', 'award')
            GROUP BY e.credit_account
            """,
            """
            SELECT 'user:' || user_id || ':available:' || currency AS reference, total AS amount
            FROM earned_totals
            """,
        ),
    )


async def holds_against_entries(tx: Transaction) -> list[DifferenceRow]:
    """Return each hold whose earned part was not taken, or not given back as its rules say."""
    taken = differences(
        f"SELECT id AS reference, earned AS amount FROM holds WHERE earned > 0 AND {OWN_HOLDS}",
        """
        SELECT t.reference, -e.earned AS amount
        FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
        WHERE e.earned < 0 AND t.kind = 'hold'
        """,
    )
    returned = differences(
        f"""
        SELECT id AS reference,
            CASE WHEN amount - captured < earned THEN amount - captured ELSE earned END AS amount
        FROM holds WHERE earned > 0 AND resolved_at IS NOT NULL AND {OWN_HOLDS}
        """,
        """
        SELECT t.reference, e.earned AS amount
        FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
        WHERE e.earned > 0 AND t.kind = 'release'
        """,
    )
    return [*await tx.all(DifferenceRow, taken), *await tx.all(DifferenceRow, returned)]


async def lines_against_entries(tx: Transaction) -> list[DifferenceRow]:
    """Return each account whose number of lines with new or returned earned money is wrong."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT credit_account || CASE WHEN is_back = 1 THEN ' back' ELSE '' END AS reference,
                1 AS amount
            FROM (
                SELECT DISTINCT e.credit_account, e.transfer_id,
                    CASE WHEN t.kind IN ('capture', 'payout', 'award') THEN 0 ELSE 1 END AS is_back
                FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
                WHERE e.earned > 0
            ) AS entered
            """,
            """
            SELECT account || CASE WHEN is_back = 1 THEN ' back' ELSE '' END AS reference,
                1 AS amount
            FROM earned_lines
            """,
        ),
    )
