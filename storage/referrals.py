"""Queries on referral codes and on who came by whose."""

from typing import NamedTuple

from storage.store import Transaction


class ReferralRow(NamedTuple):
    """One who came by another's code; bonuses in micro-credits."""

    user_id: str
    referrer_id: str
    referrer_bonus: int
    referred_bonus: int
    created_at: int


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


async def insert(tx: Transaction, referral: ReferralRow) -> bool:
    """Note by whose code a user came; False when that is known already."""
    added = await tx.run(
        """
        INSERT INTO referrals (user_id, referrer_id, referrer_bonus, referred_bonus, created_at)
        VALUES (:user_id, :referrer_id, :referrer_bonus, :referred_bonus, :created_at)
        ON CONFLICT (user_id) DO NOTHING
        """,
        **referral._asdict(),
    )
    return added == 1


async def totals(tx: Transaction, referrer_id: str) -> TotalsRow:
    """Return what came of a user's code."""
    found = await tx.one(
        TotalsRow,
        """
        SELECT COUNT(*), CAST(COALESCE(SUM(referrer_bonus), 0) AS BIGINT) FROM referrals
        WHERE referrer_id = :referrer_id
        """,
        referrer_id=referrer_id,
    )
    return found or TotalsRow(0, 0)
