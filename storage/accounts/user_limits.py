"""Queries on the limits and the price of single users; `market.staff` writes them."""

from typing import NamedTuple

from storage.engines.store import Transaction


class UserLimitsRow(NamedTuple):  # as wide as its table
    """Limits and price of one user; None leaves the service's value. `until` is UTC seconds."""

    user_id: str
    sessions: int | None
    jobs: int | None
    devices: int | None
    price_percent: int | None
    until: int | None
    changed_at: int
    level: str | None = None


_COLUMNS = ", ".join(UserLimitsRow._fields)


async def find(tx: Transaction, user_id: str) -> UserLimitsRow | None:
    """Return the row of a user, also one whose time is over."""
    return await tx.one(
        UserLimitsRow,
        f"SELECT {_COLUMNS} FROM user_limits WHERE user_id = :user_id",
        user_id=user_id,
    )


async def find_valid(tx: Transaction, user_id: str, now: int) -> UserLimitsRow | None:
    """Return the row of a user, unless its time is over."""
    row = await find(tx, user_id)
    return row if row is not None and (row.until is None or now < row.until) else None
