"""Queries of the audit on payouts: their holds, their transfers, and the sum of all earnings."""

from storage.engines.store import Transaction
from storage.money.earned import OWN_HOLDS, STILL_HELD
from storage.money.ledger import DifferenceRow, differences

_HOLD = "'payout:' || id AS reference"


async def against_holds(tx: Transaction) -> list[DifferenceRow]:
    """Return each payout whose hold has another amount, or was captured as it should not be."""
    held = differences(
        f"SELECT {_HOLD}, amount FROM payouts",
        "SELECT id AS reference, earned AS amount FROM holds WHERE id LIKE 'payout:%'",
    )
    captured = differences(
        f"SELECT {_HOLD}, amount FROM payouts WHERE state = 'paid' OR is_returned = 1",
        """
        SELECT id AS reference, captured AS amount FROM holds
        WHERE id LIKE 'payout:%' AND captured > 0
        """,
    )
    return [*await tx.all(DifferenceRow, held), *await tx.all(DifferenceRow, captured)]


async def against_house(tx: Transaction) -> list[DifferenceRow]:
    """Return each account of the house that is not what the paid payouts make it."""
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT 'house:payouts:usd' AS reference, usd - fee AS amount
            FROM payouts WHERE state = 'paid'
            UNION ALL
            SELECT 'house:fees:usd', fee FROM payouts WHERE state = 'paid'
            UNION ALL
            SELECT 'house:exchange:usd', -usd FROM payouts
            WHERE state = 'paid' AND currency = 'credit'
            UNION ALL
            SELECT 'house:exchange:credit', amount FROM payouts
            WHERE state = 'paid' AND currency = 'credit'
            """,
            """
            SELECT id AS reference, balance AS amount FROM accounts
            WHERE kind IN ('payouts', 'fees', 'exchange')
            """,
        ),
    )


async def against_earnings(tx: Transaction) -> list[DifferenceRow]:
    """Return each user and currency whose earnings are not the sum of where they went.

    They are available, still in open holds, paid out, spent from holds, or corrected.
    """
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT 'user:' || user_id || ':available:' || currency AS reference, total AS amount
            FROM earned_totals
            """,
            f"""
            SELECT id AS reference, earned AS amount FROM accounts WHERE earned > 0
            UNION ALL
            SELECT 'user:' || user_id || ':available:' || currency, {STILL_HELD}
            FROM holds WHERE earned > 0 AND resolved_at IS NULL AND {OWN_HOLDS}
            UNION ALL
            SELECT 'user:' || user_id || ':available:' || currency, amount
            FROM payouts WHERE state = 'paid'
            UNION ALL
            SELECT 'user:' || user_id || ':available:' || currency,
                earned - amount + COALESCE(captured, drawn)
            FROM holds
            WHERE earned > 0 AND earned > amount - COALESCE(captured, drawn)
                AND {OWN_HOLDS} AND id NOT LIKE 'payout:%'
            UNION ALL
            SELECT e.debit_account, -e.earned
            FROM entries AS e JOIN transfers AS t ON t.id = e.transfer_id
            WHERE e.earned < 0 AND t.kind <> 'hold'
            """,
        ),
    )


async def batches_against_payouts(tx: Transaction) -> list[DifferenceRow]:
    """Return each batch whose sum is not that of its payouts."""
    return await tx.all(
        DifferenceRow,
        differences(
            "SELECT id AS reference, net_usd AS amount FROM payout_batches",
            """
            SELECT batch_id AS reference, usd - fee AS amount
            FROM payouts WHERE batch_id IS NOT NULL
            """,
        ),
    )


async def unclaimed(tx: Transaction) -> list[DifferenceRow]:
    """Return each account of unclaimed money that is not the sum of its causes.

    They are returned payouts and refunds, and earnings of exits that were paid or taken back.
    """
    return await tx.all(
        DifferenceRow,
        differences(
            """
            SELECT 'house:unclaimed:' || p.currency AS reference, p.amount AS amount
            FROM payouts AS p JOIN transfers AS t ON t.business_key = 'payout:' || p.id || ':fee'
            WHERE p.state IN ('cancelled', 'rejected', 'failed')
            UNION ALL
            SELECT e.credit_account, e.amount
            FROM payment_returns AS r
            JOIN transfers AS t ON t.business_key = r.kind || ':' || r.id || ':unclaimed'
            JOIN entries AS e ON e.transfer_id = t.id
            WHERE r.status = 'void'
            UNION ALL
            SELECT e.credit_account, e.amount
            FROM accounts AS a
            JOIN entries AS e ON e.credit_account = a.id
            JOIN transfers AS t ON t.id = e.transfer_id
            JOIN exit_earnings AS x ON x.session_id = SUBSTR(t.reference, LENGTH('bandwidth:') + 1)
                AND t.business_key = 'exit:' || x.session_id || ':' || x.device_id || ':'
                    || x.number || ':unclaimed'
            WHERE a.kind = 'unclaimed'
                AND (x.paid_at IS NOT NULL OR x.reversed_at IS NOT NULL)
            """,
            "SELECT id AS reference, balance AS amount FROM accounts WHERE kind = 'unclaimed'",
        ),
    )
