"""A user's wallet, movement by movement, as the ledger has it."""

from typing import NamedTuple

from market.events.context import Context
from market.money import ledger
from market.money.ledger import TransferKind
from market.money.money import Currency
from storage.money import ledger as queries
from storage.money.ledger import MovedRow

# Whoever gets something of a capture has earned it; so has who is paid out.
EARNING = "earning"
WORDS: dict[str, str] = {TransferKind.CAPTURE: EARNING, TransferKind.PAYOUT: EARNING}
# A job is called what it is, also where its money comes out of a review.
IN_REVIEW = "review:"
# These move what is pending, or the house's own, and never what a user can spend.
UNSEEN = frozenset((TransferKind.EXIT_EARNING, TransferKind.REVERSAL, TransferKind.FEE))


class Change(NamedTuple):
    """What one transfer changed of what a user can spend: micro-units, below zero what left.

    `reference` names what it was for: a job, a session, a deposit, a photo.
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
        context: the store, identifiers and the time.
    """

    def __init__(self, context: Context) -> None:
        self._store = context.store

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
    kind = WORDS.get(row.kind, row.kind)
    currency = Currency(row.currency)
    reference = row.reference.removeprefix(IN_REVIEW)
    return Change(row.id, row.created_at, kind, currency, row.amount, reference)
