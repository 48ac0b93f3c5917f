"""Queries on the sources of a user's earnings, for the decision about a payout."""

from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST
from storage.engines.store import Transaction

# The newest entries of a user that are looked at.
ENTRIES_MAX = 1_000


class SourceRow(NamedTuple):
    """A buyer of a user's work: the number of payments, and their micro-credits.

    `has_deposited` is 0 for a buyer who has never paid money in: bonuses paid for the work.
    """

    buyer_id: str
    payments: int
    earned: int
    has_deposited: int


async def sources(tx: Transaction, user_id: str, *, limit: int) -> list[SourceRow]:
    """Return the buyers who paid for a user's newest work, the largest sum first."""
    return await tx.all(
        SourceRow,
        f"""
        SELECT j.user_id, COUNT(*), CAST(SUM(e.earned) AS BIGINT), CASE WHEN EXISTS (
            SELECT 1 FROM entries AS d JOIN transfers AS p ON p.id = d.transfer_id
            WHERE p.kind = 'deposit' AND d.credit_account IN (
                'user:' || j.user_id || ':available:usd',
                'user:' || j.user_id || ':available:credit'
            )
        ) THEN 1 ELSE 0 END
        FROM (
            SELECT transfer_id, earned FROM entries WHERE credit_account = :account
            ORDER BY transfer_id {NEWEST_FIRST} LIMIT :most
        ) AS e
        JOIN transfers AS t ON t.id = e.transfer_id
        JOIN jobs AS j ON j.id = SUBSTR(REPLACE(t.reference, 'review:', ''), 5, 36)
        WHERE e.earned > 0 AND t.kind IN ('capture', 'payout')
        GROUP BY j.user_id ORDER BY SUM(e.earned) DESC, j.user_id LIMIT :limit
        """,
        account=f"user:{user_id}:available:credit",
        most=ENTRIES_MAX,
        limit=limit,
    )
