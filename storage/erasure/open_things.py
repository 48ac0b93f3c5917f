"""Money and open work of a user, which prevent the end of the account."""

from typing import NamedTuple

from storage.engines.store import Transaction


class OpenRow(NamedTuple):
    """Money of a user in micro-units, and numbers of open things."""

    usd: int
    credit: int
    held: int
    pending: int
    sessions: int
    jobs: int
    deploys: int
    attempts: int
    reviews: int
    earnings: int
    approvals: int
    payments: int
    payouts: int


class MoneyRow(NamedTuple):
    """Money in a currency, in micro-units."""

    currency: str
    amount: int


async def of_user(tx: Transaction, user_id: str, now: int) -> OpenRow:
    """Return the open things of a user.

    Requests to close or erase the account, and deposits that wait for a second person, end with it.
    """
    row = await tx.one(
        OpenRow,
        """
        SELECT
            (SELECT CAST(COALESCE(SUM(balance), 0) AS BIGINT) FROM accounts
             WHERE user_id = :user AND kind = 'available' AND currency = 'usd'),
            (SELECT CAST(COALESCE(SUM(balance), 0) AS BIGINT) FROM accounts
             WHERE user_id = :user AND kind = 'available' AND currency = 'credit'),
            (SELECT CAST(COALESCE(SUM(balance), 0) AS BIGINT) FROM accounts
             WHERE user_id = :user AND kind = 'held'),
            (SELECT CAST(COALESCE(SUM(balance), 0) AS BIGINT) FROM accounts
             WHERE user_id = :user AND kind = 'pending'),
            (SELECT COUNT(*) FROM bandwidth_sessions
             WHERE user_id = :user AND status = 'active'),
            (SELECT COUNT(*) FROM jobs
             WHERE user_id = :user AND status IN ('waiting', 'running')),
            (SELECT COUNT(*) FROM deploys AS d
             JOIN deploy_rollouts AS r ON r.deploy_id = d.id AND r.state <> 'over'
             WHERE d.user_id = :user),
            (SELECT COUNT(*) FROM devices AS d
             JOIN job_attempts AS a ON a.device_id = d.id AND a.ended_at IS NULL
             WHERE d.user_id = :user),
            (SELECT COUNT(*) FROM job_reviews
             WHERE user_id = :user AND state IN ('held', 'disputed'))
            + (SELECT COUNT(*) FROM job_reviews
               WHERE job_id IN (SELECT id FROM jobs WHERE user_id = :user)
                   AND user_id <> :user AND state IN ('held', 'disputed'))
            + (SELECT COUNT(*) FROM appeals WHERE user_id = :user AND decided_at IS NULL),
            (SELECT COUNT(*) FROM exit_earnings
             WHERE user_id = :user AND posted_at IS NOT NULL AND paid_at IS NULL
                 AND reversed_at IS NULL),
            (SELECT COUNT(*) FROM approvals
             WHERE user_id = :user AND decision IS NULL AND expires_at > :now
                 AND action NOT IN ('user.erase', 'user.close', 'money.deposit')),
            (SELECT COUNT(*) FROM payments
             WHERE user_id = :user AND status IN ('open', 'doubtful'))
            + (SELECT COUNT(*) FROM payment_returns
               WHERE user_id = :user AND status = 'pending')
            + (SELECT COUNT(*) FROM debts WHERE user_id = :user AND paid < amount)
            + (SELECT COUNT(*) FROM earning_debts WHERE user_id = :user AND paid < amount),
            (SELECT COUNT(*) FROM payouts
             WHERE user_id = :user AND state IN ('requested', 'approved', 'sent'))
        """,
        user=user_id,
        now=now,
    )
    assert row is not None  # noqa: S101 - a row of sub-selects is always there
    return row


async def money(tx: Transaction, user_id: str) -> dict[str, int]:
    """Return the money of a user that is available or held, by currency, in micro-units."""
    rows = await tx.all(
        MoneyRow,
        """
        SELECT currency, CAST(SUM(balance) AS BIGINT) FROM accounts
        WHERE user_id = :user AND kind IN ('available', 'held') GROUP BY currency
        """,
        user=user_id,
    )
    return {row.currency: row.amount for row in rows if row.amount}


async def has_paid_in(tx: Transaction, user_id: str, since: int) -> bool:
    """Return whether a user has got money at a time or after it (UTC seconds).

    It is a deposit, a correction, an award, or a payment that came back: a payout, or a refund that
    its card refused later. Releases of holds do not count: their money was the user's before. Money
    of the very second counts: it may have come later.
    """
    found = await tx.one(
        int,
        """
        SELECT 1 FROM accounts AS a
        JOIN entries AS e ON e.credit_account = a.id
        JOIN transfers AS t ON t.id = e.transfer_id
        WHERE a.user_id = :user AND a.kind = 'available'
            AND (
                t.kind IN ('deposit', 'correction', 'award', 'refund')
                OR (t.kind = 'release' AND e.debit_account LIKE 'house:%')
            )
            AND t.created_at >= :since
        LIMIT 1
        """,
        user=user_id,
        since=since,
    )
    return found is not None


async def active_sessions(tx: Transaction, user_id: str) -> list[str]:
    """Return the active proxy sessions of a user."""
    return await tx.all(
        str,
        "SELECT id FROM bandwidth_sessions WHERE user_id = :user AND status = 'active' ORDER BY id",
        user=user_id,
    )


async def devices(tx: Transaction, user_id: str) -> list[str]:
    """Return the devices of a user whose tokens are not revoked."""
    return await tx.all(
        str,
        "SELECT id FROM devices WHERE user_id = :user AND revoked_at IS NULL ORDER BY id",
        user=user_id,
    )


async def sessions(tx: Transaction, user_id: str) -> list[str]:
    """Return all proxy sessions of a user."""
    return await tx.all(
        str, "SELECT id FROM bandwidth_sessions WHERE user_id = :user ORDER BY id", user=user_id
    )
