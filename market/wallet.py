"""A user's wallet, movement by movement, as the ledger has it."""

from dataclasses import dataclass

from market import ledger
from market.money import Currency
from storage import ledger as queries
from storage.ledger import MovedRow
from storage.store import Store

# By the last word of a transfer's business key, or else by its first.
KINDS = {
    "hold": "hold",
    "release": "release",
    "capture": "earning",
    "payout": "earning",
    "deposit": "deposit",
    "referral": "referral",
}
OTHER = "other"


@dataclass(frozen=True, slots=True)
class Change:
    """What one transfer changed of what a user can spend: micro-units, below zero what left.

    `reference` names what it was for: a job, a session, a deposit.
    """

    id: str
    created_at: int
    kind: str
    currency: Currency
    amount: int
    reference: str


class Wallet:
    """Reads users' wallets.

    Args:
        store: where the ledger is kept.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def page(self, user_id: str, *, before: str, limit: int) -> list[Change]:
        """Return what changed of what a user can spend, newest first; it sums to the balance."""
        rows = await self._store.read(
            queries.moved,
            usd=ledger.available(user_id, Currency.USD),
            credit=ledger.available(user_id, Currency.CREDIT),
            before=before,
            limit=limit,
        )
        return [_change(row) for row in rows]


def _change(row: MovedRow) -> Change:
    """Read what a transfer was for from its business key: `job:{id}:hold`, `deposit:{name}:usd`."""
    first, _, rest = row.business_key.partition(":")
    reference, _, last = rest.rpartition(":")
    kind = KINDS.get(last if first not in KINDS else first, OTHER)
    if kind == "referral":  # behind it stands whom it brought, which is nobody's business
        return Change(row.id, row.created_at, kind, Currency(row.currency), row.amount, first)
    named = reference if kind == "deposit" else f"{first}:{reference or rest}"
    return Change(row.id, row.created_at, kind, Currency(row.currency), row.amount, named)
