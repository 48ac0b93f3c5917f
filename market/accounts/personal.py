"""Limits and the price of one user, which the operator has set in the place of the service's.

They are read in the transaction that they limit, so a change is effective with the next purchase
on every node.
"""

from msgspec.structs import replace

from market.accounts.bounds import Bounds
from storage.accounts import user_limits as queries
from storage.engines.store import Transaction

FULL_PERCENT = 100


async def bounds_of(tx: Transaction, user_id: str, bounds: Bounds, now: int) -> Bounds:
    """Return the limits of one user.

    Args:
        tx: the transaction that adds an open object of the user.
        user_id: the user.
        bounds: the limits of the service.
        now: UTC seconds.
    """
    row = await queries.find_valid(tx, user_id, now)
    if row is None:
        return bounds
    return replace(
        bounds,
        sessions=bounds.sessions if row.sessions is None else row.sessions,
        jobs=bounds.jobs if row.jobs is None else row.jobs,
        devices=bounds.devices if row.devices is None else row.devices,
    )


async def price_percent_of(tx: Transaction, user_id: str, now: int) -> int:
    """Return the percentage of the service's prices per GB that a user pays."""
    row = await queries.find_valid(tx, user_id, now)
    return FULL_PERCENT if row is None or row.price_percent is None else row.price_percent


def part_of(price: int, percent: int) -> int:
    """Return a percentage of a price, in micro-units, rounded up."""
    return -(-price * percent // FULL_PERCENT)
