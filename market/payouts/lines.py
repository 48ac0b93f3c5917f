"""The lines of each term of a user's earnings: they add up to the term."""

from enum import StrEnum

from msgspec import Struct

from market.accounts.wallet import Change, change_of
from market.money.money import Currency
from storage.engines.store import Transaction
from storage.money.ledger import MovedRow
from storage.payouts import lines as queries


class Term(StrEnum):
    """A term of the earnings; `Earnings` explains them."""

    EARNED = "earned"
    AVAILABLE = "available"
    HELD = "held"
    IN_PAYOUT = "in_payout"
    PAID = "paid"
    FEES = "fees"
    SPENT = "spent"


PAYOUT = "payout"  # the kind of lines that are payouts
_OF_PAYOUTS = (Term.IN_PAYOUT, Term.PAID, Term.FEES)


class Lines(Struct, frozen=True):
    """A part of the list of a term, in its currency."""

    currency: Currency
    term: Term
    before: str
    limit: int


async def page(tx: Transaction, user_id: str, which: Lines) -> list[Change]:
    """Return lines of a term, newest first.

    Of `available` all changes of it; of `held` the holds of open purchases; of `in_payout`, `paid`
    and `fees` the payouts; of `spent` also, below zero, what came back from a purchase.
    """
    rows = await queries.page(
        tx, user_id, which.currency, which.term, before=which.before, limit=which.limit
    )
    if which.term in _OF_PAYOUTS:
        return [
            Change(row.id, row.created_at, PAYOUT, which.currency, row.amount, row.reference)
            for row in rows
        ]
    return [change_of(MovedRow(*row[:4], which.currency, row.amount, row.amount)) for row in rows]
