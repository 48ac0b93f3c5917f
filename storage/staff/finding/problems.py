"""Queries on the open problems of one user: complaints, disputes, requests, debts, barred exits."""

from typing import NamedTuple

from storage.engines.store import Transaction


class ProblemRow(NamedTuple):
    """An open problem, by its kind and its subject, and its begin (UTC seconds).

    `id` is the number of a complaint, the job of a dispute, the device of a barred exit, and the
    identifier of everything else.
    """

    kind: str
    id: str
    at: int


# Each part reads the rows of one user by an index.
_OPEN = """
    SELECT 'complaint' AS kind, CAST(number AS TEXT) AS id, opened_at AS at FROM tickets
    WHERE user_id = :user_id AND closed_at IS NULL
    UNION ALL
    SELECT 'dispute of the buyer', job_id, disputed_at FROM job_reviews
    WHERE buyer_id = :user_id AND disputed_at IS NOT NULL AND state = 'disputed'
    UNION ALL
    SELECT 'dispute with the worker', job_id, disputed_at FROM job_reviews
    WHERE user_id = :user_id AND disputed_at IS NOT NULL AND state = 'disputed'
    UNION ALL
    SELECT 'appeal', id, created_at FROM appeals
    WHERE user_id = :user_id AND decided_at IS NULL
    UNION ALL
    SELECT 'waits for a second person', id, asked_at FROM approvals
    WHERE user_id = :user_id AND decision IS NULL AND expires_at > :now
    UNION ALL
    SELECT 'dispute of a payment', payment_id, created_at FROM payment_returns
    WHERE user_id = :user_id AND kind = 'dispute' AND status = 'pending'
    UNION ALL
    SELECT 'doubtful payment', id, created_at FROM payments
    WHERE user_id = :user_id AND status = 'doubtful'
    UNION ALL
    SELECT 'debt', id, created_at FROM debts WHERE user_id = :user_id AND paid < amount
    UNION ALL
    SELECT 'debt', id, created_at FROM earning_debts WHERE user_id = :user_id AND paid < amount
    UNION ALL
    SELECT 'payout', id, requested_at FROM payouts
    WHERE user_id = :user_id AND state = 'requested'
    UNION ALL
    SELECT 'barred exit', device_id, barred_at FROM exits
    WHERE user_id = :user_id AND barred_at IS NOT NULL
"""


async def problems(tx: Transaction, user_id: str, *, now: int, limit: int) -> list[ProblemRow]:
    """Return the newest open problems of a user at a time (UTC seconds)."""
    return await tx.all(
        ProblemRow,
        f"SELECT kind, id, at FROM ({_OPEN}) AS listed ORDER BY at DESC, kind, id LIMIT :limit",
        user_id=user_id,
        now=now,
        limit=limit,
    )
