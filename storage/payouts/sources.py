"""Queries on the sources of a user's earnings: the buyers, and signs that a buyer is the user."""

from typing import NamedTuple

from storage.engines.paging import NEWEST_FIRST
from storage.engines.store import Transaction

# The newest entries of a user that are looked at.
ENTRIES_MAX = 1_000


class SourceRow(NamedTuple):
    """A buyer of a user's work: the number of payments, and their micro-credits.

    `has_deposited` is 0 for a buyer without deposits, and `has_bonus` is 1 for one with rewards or
    bonuses. The others are signs that buyer and user are one person: logins from one network,
    devices at one address, an invitation, cards with the same digits, and equal payout methods.
    """

    buyer_id: str
    payments: int
    earned: int
    has_deposited: int
    has_bonus: int
    network: int
    address: int
    referral: int
    card: int
    payout_method: int

    @property
    def signs(self) -> tuple[str, ...]:
        """The names of the signs that buyer and user are one person."""
        names = ("network", "address", "referral", "card", "payout_method")
        return tuple(name for name in names if getattr(self, name))

    @property
    def is_circular(self) -> bool:
        """Whether a user may have turned an own bonus into earnings by a second account."""
        return bool(self.has_bonus and self.signs)


# Each is a query that finds a row if the sign is there, of the buyer `s.buyer_id`.
_HAS_DEPOSITED = """
    SELECT 1 FROM entries AS d JOIN transfers AS p ON p.id = d.transfer_id
    WHERE p.kind = 'deposit' AND d.credit_account IN (
        'user:' || s.buyer_id || ':available:usd', 'user:' || s.buyer_id || ':available:credit'
    )
"""
_HAS_BONUS = """
    SELECT 1 FROM referrals WHERE user_id = s.buyer_id OR referrer_id = s.buyer_id
    UNION ALL SELECT 1 FROM goodness_rewards WHERE user_id = s.buyer_id
"""
_NETWORK = """
    SELECT 1 FROM login_sessions AS a JOIN login_sessions AS b ON b.network = a.network
    WHERE a.user_id = :user_id AND b.user_id = s.buyer_id AND a.network <> ''
"""
_ADDRESS = """
    SELECT 1 FROM devices AS d JOIN device_origins AS a ON a.device_id = d.id
    JOIN device_origins AS b ON b.address = a.address
    JOIN devices AS e ON e.id = b.device_id
    WHERE d.user_id = :user_id AND e.user_id = s.buyer_id
"""
_REFERRAL = """
    SELECT 1 FROM referrals
    WHERE (user_id = :user_id AND referrer_id = s.buyer_id)
        OR (user_id = s.buyer_id AND referrer_id = :user_id)
"""
_CARD = """
    SELECT 1 FROM saved_cards AS a JOIN saved_cards AS b ON b.shown = a.shown
    WHERE a.user_id = :user_id AND b.user_id = s.buyer_id
        AND a.card_id IS NOT NULL AND b.card_id IS NOT NULL
"""
_METHOD = """
    SELECT 1 FROM payout_methods AS a
    JOIN payout_methods AS b ON b.kind = a.kind AND b.shown = a.shown
    WHERE a.user_id = :user_id AND b.user_id = s.buyer_id AND a.shown <> ''
"""
_SIGNS = (_NETWORK, _ADDRESS, _REFERRAL, _CARD, _METHOD)
_FLAGS = ", ".join(
    f"CASE WHEN EXISTS ({sign}) THEN 1 ELSE 0 END" for sign in (_HAS_DEPOSITED, _HAS_BONUS, *_SIGNS)
)
_IS_CIRCULAR = f"EXISTS ({_HAS_BONUS}) AND ({' OR '.join(f'EXISTS ({sign})' for sign in _SIGNS)})"
_BUYERS = f"""(
    SELECT j.user_id AS buyer_id, COUNT(*) AS payments, CAST(SUM(e.earned) AS BIGINT) AS earned
    FROM (
        SELECT transfer_id, earned FROM entries WHERE credit_account = :account
        ORDER BY transfer_id {NEWEST_FIRST} LIMIT :most
    ) AS e
    JOIN transfers AS t ON t.id = e.transfer_id
    JOIN jobs AS j ON j.id = SUBSTR(REPLACE(t.reference, 'review:', ''), 5, 36)
    WHERE e.earned > 0 AND t.kind IN ('capture', 'payout')
    GROUP BY j.user_id ORDER BY SUM(e.earned) DESC, j.user_id LIMIT :limit
) AS s"""


async def sources(tx: Transaction, user_id: str, *, limit: int) -> list[SourceRow]:
    """Return the buyers who paid for a user's newest work, the largest sum first."""
    return await tx.all(
        SourceRow,
        f"""
        SELECT s.buyer_id, s.payments, s.earned, {_FLAGS} FROM {_BUYERS}
        ORDER BY s.earned DESC, s.buyer_id
        """,
        user_id=user_id,
        account=f"user:{user_id}:available:credit",
        most=ENTRIES_MAX,
        limit=limit,
    )


async def has_circular(tx: Transaction, user_id: str, *, limit: int) -> bool:
    """Return whether one of the buyers is circular, of the `limit` with the largest sums."""
    found = await tx.one(
        int,
        f"SELECT 1 FROM {_BUYERS} WHERE {_IS_CIRCULAR} LIMIT 1",
        user_id=user_id,
        account=f"user:{user_id}:available:credit",
        most=ENTRIES_MAX,
        limit=limit,
    )
    return found is not None
