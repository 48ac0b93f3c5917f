"""Queries on referral codes and on who came by whose."""

from typing import NamedTuple

from storage.store import Transaction


class ReferralRow(NamedTuple):
    """One who came by another's code; bonuses in micro-credits, paid once `paid_at` says when."""

    user_id: str
    referrer_id: str
    referrer_bonus: int
    referred_bonus: int
    created_at: int
    paid_at: int | None


class TotalsRow(NamedTuple):
    """How many came by a user's code, and what that earned, in micro-credits."""

    referrals: int
    bonus: int


async def code_of(tx: Transaction, user_id: str) -> str | None:
    """Return a user's code, None while they have none."""
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
    """Return whose code it is."""
    return await tx.one(str, "SELECT id FROM users WHERE referral_code = :code", code=code)


async def registered_at(tx: Transaction, user_id: str) -> int | None:
    """Return when a user registered, in UTC seconds."""
    return await tx.one(int, "SELECT created_at FROM users WHERE id = :user_id", user_id=user_id)


async def referrer_of(tx: Transaction, user_id: str) -> str | None:
    """Return by whose code a user came."""
    return await tx.one(
        str, "SELECT referrer_id FROM referrals WHERE user_id = :user_id", user_id=user_id
    )


async def is_among(tx: Transaction, ancestor: str, *, of: str, most: int) -> bool:
    """Say whether a user came by another's code, over at most so many, in one statement."""
    found = await tx.one(
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
    return found is not None


async def is_verified(tx: Transaction, user_id: str) -> bool:
    """Say whether a user has confirmed their e-mail address."""
    found = await tx.one(
        int,
        "SELECT 1 FROM users WHERE id = :user_id AND email_verified_at IS NOT NULL",
        user_id=user_id,
    )
    return found is not None


async def paid_since(tx: Transaction, moment: int) -> int:
    """Return what was paid for referrals since a moment, in micro-credits."""
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
    counted = await tx.one(
        int,
        "SELECT COUNT(*) FROM referrals WHERE referrer_id = :referrer_id AND paid_at >= :moment",
        referrer_id=referrer_id,
        moment=moment,
    )
    return counted or 0


async def pending(
    tx: Transaction, *, verified: bool, since: int, today: int, daily: int, limit: int
) -> list[ReferralRow]:
    """Return referrals that may be paid now, in turns of their referrers.

    Args:
        tx: the transaction.
        verified: whether the one who came must have confirmed their address.
        since: only those of this moment and later, in UTC seconds.
        today: when the day began, in UTC seconds.
        daily: none of a referrer who was paid for so many today; 0 for no bound.
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
        limit=limit,
    )


async def mark_paid(tx: Transaction, user_id: str, now: int) -> bool:
    """Note that the bonuses of a referral are paid; False when they were before."""
    changed = await tx.run(
        "UPDATE referrals SET paid_at = :now WHERE user_id = :user_id AND paid_at IS NULL",
        user_id=user_id,
        now=now,
    )
    return changed == 1


async def insert(tx: Transaction, referral: ReferralRow) -> bool:
    """Note by whose code a user came; False when that is known already."""
    added = await tx.run(
        """
        INSERT INTO referrals
            (user_id, referrer_id, referrer_bonus, referred_bonus, created_at, paid_at)
        VALUES
            (:user_id, :referrer_id, :referrer_bonus, :referred_bonus, :created_at, :paid_at)
        ON CONFLICT (user_id) DO NOTHING
        """,
        **referral._asdict(),
    )
    return added == 1


async def totals(tx: Transaction, referrer_id: str) -> TotalsRow:
    """Return what came of a user's code; what is not paid yet earned nothing."""
    found = await tx.one(
        TotalsRow,
        """
        SELECT COUNT(*), CAST(COALESCE(
            SUM(CASE WHEN paid_at IS NULL THEN 0 ELSE referrer_bonus END), 0
        ) AS BIGINT) FROM referrals
        WHERE referrer_id = :referrer_id
        """,
        referrer_id=referrer_id,
    )
    return found or TotalsRow(0, 0)
