"""Queries on referral codes, and on which user registered with whose code."""

from typing import NamedTuple

from storage.engines.store import Transaction


class ReferralRow(NamedTuple):
    """User who applied another's code; bonuses in micro-credits, unpaid while `paid_at` is null.

    `user_id` is the referred user, `referrer_id` the code's owner; times in UTC seconds.
    """

    user_id: str
    referrer_id: str
    referrer_bonus: int
    referred_bonus: int
    created_at: int
    paid_at: int | None


class TotalsRow(NamedTuple):
    """Number of users who applied a user's code, and the bonus for them, in micro-credits."""

    referrals: int
    bonus: int


async def code_of(tx: Transaction, user_id: str) -> str | None:
    """Return a user's code; None when they have none."""
    return await tx.one(
        lambda code: code,
        "SELECT referral_code FROM users WHERE id = :user_id",
        user_id=user_id,
    )


async def set_code(tx: Transaction, user_id: str, code: str) -> None:
    """Give a user a code, unless they have one."""
    await tx.run(
        "UPDATE users SET referral_code = :code WHERE id = :user_id AND referral_code IS NULL",
        user_id=user_id,
        code=code,
    )


async def owner_of(tx: Transaction, code: str) -> str | None:
    """Return the user that a code belongs to."""
    return await tx.one(str, "SELECT id FROM users WHERE referral_code = :code", code=code)


async def registered_at(tx: Transaction, user_id: str) -> int | None:
    """Return when a user registered, in UTC seconds."""
    return await tx.one(int, "SELECT created_at FROM users WHERE id = :user_id", user_id=user_id)


async def referrer_of(tx: Transaction, user_id: str) -> str | None:
    """Return the owner of the code that a user applied."""
    return await tx.one(
        str, "SELECT referrer_id FROM referrals WHERE user_id = :user_id", user_id=user_id
    )


async def is_among(tx: Transaction, ancestor: str, *, of: str, most: int) -> bool:
    """Return whether a user is among the referrers of another, their referrers, and so on.

    One statement walks the line, over at most `most` referrals.

    Args:
        tx: the transaction.
        ancestor: the user who may be among them.
        of: the user whose line is walked.
        most: the number of steps after which it ends.
    """
    row = await tx.one(
        int,
        """
        WITH RECURSIVE line (user_id, steps) AS (
            SELECT referrer_id, 1 FROM referrals WHERE user_id = :of
            UNION ALL
            SELECT r.referrer_id, line.steps + 1
            FROM line JOIN referrals AS r ON r.user_id = line.user_id
            WHERE line.steps < :most
        )
        SELECT 1 FROM line WHERE user_id = :ancestor LIMIT 1
        """,
        of=of,
        ancestor=ancestor,
        most=most,
    )
    return row is not None


async def is_verified(tx: Transaction, user_id: str) -> bool:
    """Return whether a user has confirmed their e-mail address."""
    row = await tx.one(
        int,
        "SELECT 1 FROM users WHERE id = :user_id AND email_verified_at IS NOT NULL",
        user_id=user_id,
    )
    return row is not None


async def paid_since(tx: Transaction, moment: int) -> int:
    """Return the bonuses paid for referrals since a moment, in micro-credits."""
    total = await tx.one(
        int,
        """
        SELECT CAST(COALESCE(SUM(referrer_bonus + referred_bonus), 0) AS BIGINT) FROM referrals
        WHERE paid_at >= :moment
        """,
        moment=moment,
    )
    return total or 0


async def count_paid_since(tx: Transaction, referrer_id: str, moment: int) -> int:
    """Return how many referrals a user was paid for since a moment."""
    count = await tx.one(
        int,
        "SELECT COUNT(*) FROM referrals WHERE referrer_id = :referrer_id AND paid_at >= :moment",
        referrer_id=referrer_id,
        moment=moment,
    )
    return count or 0


async def pending(
    tx: Transaction,
    *,
    verified: bool,
    since: int,
    today: int,
    daily: int,
    room: int | None,
    limit: int,
) -> list[ReferralRow]:
    """Return referrals that may be paid now, their referrers taking turns.

    Args:
        tx: the transaction.
        verified: whether the referred user must have confirmed their e-mail address.
        since: only referrals from this moment on, in UTC seconds.
        today: when the day began, in UTC seconds.
        daily: how many referrals a referrer is paid for a day; 0 for no bound.
        room: the most micro-credits of one referral; None for no bound.
        limit: how many at most.
    """
    return await tx.all(
        ReferralRow,
        """
        SELECT user_id, referrer_id, referrer_bonus, referred_bonus, created_at, paid_at FROM (
            SELECT r.user_id, r.referrer_id, r.referrer_bonus, r.referred_bonus, r.created_at,
                r.paid_at,
                ROW_NUMBER() OVER (PARTITION BY r.referrer_id ORDER BY r.created_at) AS turn
            FROM referrals AS r JOIN users AS u ON u.id = r.user_id
            WHERE r.paid_at IS NULL AND r.created_at >= :since
                AND (CAST(:room AS BIGINT) IS NULL OR r.referrer_bonus + r.referred_bonus <= :room)
                AND (CAST(:verified AS BIGINT) = 0 OR u.email_verified_at IS NOT NULL)
                AND (CAST(:daily AS BIGINT) = 0 OR :daily > (
                    SELECT COUNT(*) FROM referrals AS p
                    WHERE p.referrer_id = r.referrer_id AND p.paid_at >= :today
                ))
        ) AS due
        ORDER BY turn, created_at
        LIMIT :limit
        """,
        verified=int(verified),
        since=since,
        today=today,
        daily=daily,
        room=room,
        limit=limit,
    )


async def mark_paid(tx: Transaction, user_id: str, now: int) -> bool:
    """Record that the bonuses of a referral are paid; False when they were before."""
    row_count = await tx.run(
        "UPDATE referrals SET paid_at = :now WHERE user_id = :user_id AND paid_at IS NULL",
        user_id=user_id,
        now=now,
    )
    return row_count == 1


async def insert(tx: Transaction, referral: ReferralRow) -> bool:
    """Record whose code a user applied; False when they have applied one before."""
    row_count = await tx.run(
        """
        INSERT INTO referrals
            (user_id, referrer_id, referrer_bonus, referred_bonus, created_at, paid_at)
        VALUES
            (:user_id, :referrer_id, :referrer_bonus, :referred_bonus, :created_at, :paid_at)
        ON CONFLICT (user_id) DO NOTHING
        """,
        **referral._asdict(),
    )
    return row_count == 1


async def of_referrer(tx: Transaction, referrer_id: str, *, limit: int) -> list[ReferralRow]:
    """Return who applied a user's code, newest first."""
    return await tx.all(
        ReferralRow,
        """
        SELECT user_id, referrer_id, referrer_bonus, referred_bonus, created_at, paid_at
        FROM referrals WHERE referrer_id = :referrer_id
        ORDER BY created_at DESC, user_id LIMIT :limit
        """,
        referrer_id=referrer_id,
        limit=limit,
    )


async def totals(tx: Transaction, referrer_id: str) -> TotalsRow:
    """Return the totals of a user's code; a referral that is not paid has earned nothing."""
    row = await tx.one(
        TotalsRow,
        """
        SELECT COUNT(*), CAST(COALESCE(
            SUM(CASE WHEN paid_at IS NULL THEN 0 ELSE referrer_bonus END), 0
        ) AS BIGINT) FROM referrals
        WHERE referrer_id = :referrer_id
        """,
        referrer_id=referrer_id,
    )
    return row or TotalsRow(0, 0)
