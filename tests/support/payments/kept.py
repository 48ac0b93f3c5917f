"""The model of balances: the money that a bank keeps, and the payments of cards in a month."""

from collections.abc import Iterable

from market.payments.provider import Seen
from market.payments.top_ups import month_of


def gone(seen: Seen) -> int:
    """Return the micro-USD of a payment that its bank has given back."""
    return sum(each.amount for each in seen.returns if each.state == "done")


def kept(seen: Seen) -> int:
    """Return the micro-USD of a payment that its bank keeps for the service."""
    return seen.amount - gone(seen) if seen.state == "paid" else 0


def by_month(charges: Iterable[tuple[int, Seen]]) -> dict[int, int]:
    """Return the micro-USD that cards have paid, by the month in which each charge began.

    Args:
        charges: the begin of each, in UTC seconds, and its facts.
    """
    months: dict[int, int] = {}
    for began_at, seen in charges:
        if seen.state == "paid":
            month = month_of(began_at)
            months[month] = months.get(month, 0) + seen.amount
    return months
