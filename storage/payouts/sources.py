"""Queries on the sources of a user's earnings: the buyers, and signs that a buyer is the user."""

from typing import NamedTuple

from storage.engines.store import Transaction

# The newest earnings of a user that are looked at.
EARNINGS_MAX = 5_000


class BuyerRow(NamedTuple):
    """A buyer of a user's work: the number of payments, and their micro-credits."""

    buyer_id: str
    payments: int
    earned: int


class SignsRow(NamedTuple):
    """A bonus of a buyer, and signs about the buyer.

    `has_bonus` is 1 for a buyer with rewards or bonuses. The others are signs that buyer and user
    are one person: logins from one network, devices at one address, an invitation, cards with the
    same digits, and equal payout methods.
    """

    has_bonus: int
    network: int
    address: int
    referral: int
    card: int
    payout_method: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the signs that buyer and user are one person."""
        return tuple(name for name in self._fields[1:] if getattr(self, name))

    @property
    def is_circular(self) -> bool:
        """Whether a user may have turned an own bonus into earnings by a second account."""
        return bool(self.has_bonus and self.names)


# Each is a query that finds a row if it is so.
_OF_BUYER = (
    """
    SELECT 1 FROM referrals WHERE user_id = :buyer_id
    UNION ALL SELECT 1 FROM referrals WHERE referrer_id = :buyer_id
    UNION ALL SELECT 1 FROM goodness_rewards WHERE user_id = :buyer_id
    """,
    """
    SELECT 1 FROM login_sessions AS a JOIN login_sessions AS b ON b.network = a.network
    WHERE a.user_id = :user_id AND b.user_id = :buyer_id AND a.network <> ''
    """,
    """
    SELECT 1 FROM devices AS d JOIN device_origins AS a ON a.device_id = d.id
    JOIN device_origins AS b ON b.address = a.address
    JOIN devices AS e ON e.id = b.device_id
    WHERE d.user_id = :user_id AND e.user_id = :buyer_id
    """,
    """
    SELECT 1 FROM referrals WHERE user_id = :user_id AND referrer_id = :buyer_id
    UNION ALL SELECT 1 FROM referrals WHERE user_id = :buyer_id AND referrer_id = :user_id
    """,
    """
    SELECT 1 FROM saved_cards AS a JOIN saved_cards AS b ON b.shown = a.shown
    WHERE a.user_id = :user_id AND b.user_id = :buyer_id
        AND a.card_id IS NOT NULL AND b.card_id IS NOT NULL
    """,
    """
    SELECT 1 FROM payout_methods AS a
    JOIN payout_methods AS b ON b.kind = a.kind AND b.shown = a.shown
    WHERE a.user_id = :user_id AND b.user_id = :buyer_id AND a.shown <> ''
    """,
)
_FLAGS = ", ".join(f"CASE WHEN EXISTS ({found}) THEN 1 ELSE 0 END" for found in _OF_BUYER)


async def buyers(tx: Transaction, user_id: str, *, limit: int) -> list[BuyerRow]:
    """Return the buyers who paid for a user's newest work, the largest sum first.

    Only pay for work counts: returned holds are free, and would hide it in any number.
    """
    return await tx.all(
        BuyerRow,
        """
        SELECT j.user_id, COUNT(*), CAST(SUM(e.earned) AS BIGINT)
        FROM (
            SELECT n.earned, t.reference
            FROM (
                SELECT transfer_id FROM earned_lines WHERE account = :account AND is_back = 0
                ORDER BY transfer_id DESC LIMIT :most
            ) AS l
            JOIN transfers AS t ON t.id = l.transfer_id
            JOIN entries AS n ON n.transfer_id = l.transfer_id
            WHERE t.kind IN ('capture', 'payout')
                AND n.credit_account = :account AND n.earned > 0
        ) AS e
        JOIN jobs AS j ON j.id = SUBSTR(REPLACE(e.reference, 'review:', ''), 5, 36)
        GROUP BY j.user_id ORDER BY SUM(e.earned) DESC, j.user_id LIMIT :limit
        """,
        account=f"user:{user_id}:available:credit",
        most=EARNINGS_MAX,
        limit=limit,
    )


async def has_deposited(tx: Transaction, buyer_id: str) -> bool:
    """Return whether a buyer has a deposit; all credits of the wallet are read without one."""
    found = await tx.one(
        int,
        """
        SELECT 1 FROM entries AS d JOIN transfers AS p ON p.id = d.transfer_id
        WHERE p.kind = 'deposit' AND d.credit_account IN (:usd, :credit) LIMIT 1
        """,
        usd=f"user:{buyer_id}:available:usd",
        credit=f"user:{buyer_id}:available:credit",
    )
    return found is not None


async def signs(tx: Transaction, user_id: str, buyer_id: str) -> SignsRow:
    """Return the signs about a buyer of a user's work."""
    row = await tx.one(SignsRow, f"SELECT {_FLAGS}", user_id=user_id, buyer_id=buyer_id)
    assert row is not None  # noqa: S101 - a row of sub-selects is always there
    return row


async def may_be_circular(tx: Transaction, user_id: str, *, amount: int, limit: int) -> bool:
    """Return whether an amount that a user has earned may be a bonus of the user.

    Either one of the buyers is circular, of the `limit` with the largest sums, or these buyers paid
    less than the amount: then many small payments may hide a circular buyer.

    Args:
        tx: the transaction.
        user_id: the user.
        amount: micro-credits.
        limit: the number of buyers.
    """
    found = await buyers(tx, user_id, limit=limit)
    if sum(buyer.earned for buyer in found) < amount:
        return True
    for buyer in found:
        if (await signs(tx, user_id, buyer.buyer_id)).is_circular:
            return True
    return False
