"""The movements of a user's wallet, read from the ledger."""

from typing import NamedTuple

from market.events.context import Context
from market.money import debts, ledger
from market.money.ledger import TransferKind
from market.money.money import Currency
from storage.money import ledger as queries
from storage.money.ledger import MovedRow

# The receiver of a part of a transfer of these kinds has earned it.
EARNING = "earning"
WORDS: dict[str, str] = dict.fromkeys(ledger.EARNING_KINDS, EARNING)
# A job keeps its word, even if its money comes from a review.
IN_REVIEW = "review:"
# These move pending money or the house's own, and never the spendable money of a user.
UNSEEN = frozenset(
    (
        TransferKind.EXIT_EARNING,
        TransferKind.REVERSAL,
        TransferKind.FEE,
        TransferKind.CHARGEBACK,
        TransferKind.EXCHANGE,
    )
)


class Change(NamedTuple):
    """Change of a user's spendable money by one transfer: micro-units, negative for a debit.

    `reference` names the subject: a job, a session, a deposit, a photo. `earned` is the part of
    `amount` that is earned money.
    """

    id: str
    created_at: int
    kind: str
    currency: Currency
    amount: int
    reference: str
    earned: int = 0


class Wallet:
    """Reader of users' wallets."""

    def __init__(self, context: Context) -> None:
        self._store = context.store

    async def page(self, user_id: str, *, before: str, limit: int) -> list[Change]:
        """Return the changes of a user's spendable money, newest first; they sum to the balance."""
        rows = await self._store.read(
            queries.moved,
            usd=ledger.available(user_id, Currency.USD),
            credit=ledger.available(user_id, Currency.CREDIT),
            before=before,
            limit=limit,
        )
        return [change_of(row) for row in rows]

    async def owed(self, user_id: str) -> dict[Currency, int]:
        """Return the debts of a user in each currency, in micro-units."""
        return await self._store.read(debts.owed_in_all, user_id)


def change_of(row: MovedRow) -> Change:
    """Return a change of an account in the words of its user."""
    kind = WORDS.get(row.kind, row.kind)
    currency = Currency(row.currency)
    reference = row.reference.removeprefix(IN_REVIEW)
    return Change(row.id, row.created_at, kind, currency, row.amount, reference, row.earned)
