"""Queries on payments and payouts that wait, for the alerts and the metrics."""

from typing import NamedTuple

from storage.engines.store import Transaction


class WaitingRow(NamedTuple):
    """Numbers of payments and payouts that wait.

    `newest_dispute` is the time of the newest dispute that its bank has not decided, 0 without one.
    A payout is late after the promised time of its decision.
    """

    open_payments: int
    doubtful_payments: int
    disputes: int
    newest_dispute: int
    payouts: int
    late_payouts: int


NOTHING = WaitingRow(0, 0, 0, 0, 0, 0)


async def waiting(tx: Transaction, now: int) -> WaitingRow:
    """Return the numbers at a time (UTC seconds)."""
    row = await tx.one(
        WaitingRow,
        """
        SELECT
            (SELECT COUNT(*) FROM payments WHERE status = 'open'),
            (SELECT COUNT(*) FROM payments WHERE status = 'doubtful'),
            (SELECT COUNT(*) FROM payment_returns WHERE kind = 'dispute' AND status = 'pending'),
            (SELECT COALESCE(MAX(created_at), 0) FROM payment_returns
             WHERE kind = 'dispute' AND status = 'pending'),
            (SELECT COUNT(*) FROM payouts WHERE state = 'requested'),
            (SELECT COUNT(*) FROM payouts WHERE state = 'requested' AND decide_by < :now)
        """,
        now=now,
    )
    return row or NOTHING
