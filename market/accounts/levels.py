"""Levels of accounts: a new one has lower limits, until it is older or has paid for traffic.

An account is new for a time after it was opened, or until a day after the end of its first paid
session: in that day a complaint or a rule would have found it. A deposit alone changes nothing,
because a stolen card can make one. The staff can set the level of one user.
"""

from enum import StrEnum

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.money.money import GB
from storage.accounts import levels as queries
from storage.accounts.levels import LevelRow
from storage.engines.store import Transaction

DAY_SECONDS = 86_400
SETTLED_SECONDS = DAY_SECONDS


class Level(StrEnum):
    """The level that the staff gives an account in place of the usual one."""

    NEW = "new"
    KNOWN = "known"


class NewAccounts(Struct, frozen=True):
    """Limits of new accounts; with `seconds` 0 only accounts of the level `new` have them.

    Attributes:
        seconds: an account of at most this age is new.
        connections: the most open connections of all sessions of a user, in each process.
        ports: the ports of targets.
        bytes_per_day: the most bytes that all sessions of a user use in a day (UTC).
        needs_email: whether a purchase of traffic needs a confirmed e-mail address.
    """

    seconds: int = 0
    connections: int = 50
    ports: tuple[int, ...] = (80, 443)
    bytes_per_day: int = 2 * GB
    needs_email: bool = True


class Limited(Struct, frozen=True):
    """The limits of one new account; without an `until` they wait for the staff."""

    until: int | None
    connections: int
    ports: frozenset[int]
    bytes_per_day: int
    lacks_email: bool = False


async def limited(tx: Transaction, user_id: str, policy: NewAccounts, now: int) -> Limited | None:
    """Return the limits of a user whose account is new; None for a known one."""
    row = await queries.find(tx, user_id)
    if row is None:
        return None
    own = _own(row, now)
    if own is not None:
        is_new, until = own == Level.NEW, row.level_until
    else:
        until = await _usual_end(tx, user_id, row, policy, now)
        is_new = now < until
    if not is_new:
        return None
    return Limited(
        until=until,
        connections=policy.connections,
        ports=frozenset(policy.ports),
        bytes_per_day=policy.bytes_per_day,
        lacks_email=policy.needs_email and row.email_verified_at is None,
    )


async def has_used_its_day(tx: Transaction, user_id: str, limits: Limited, now: int) -> bool:
    """Return whether a user has used the bytes of this day."""
    used = await queries.used_since(tx, user_id, now - now % DAY_SECONDS)
    return used >= limits.bytes_per_day


async def require_email(tx: Transaction, user_id: str, policy: NewAccounts, now: int) -> None:
    """Refuse a purchase of a new account whose e-mail address is not confirmed.

    Raises:
        MarketError: `email_not_confirmed`.
    """
    found = await limited(tx, user_id, policy, now)
    if found is not None and found.lacks_email:
        raise MarketError(Code.EMAIL_NOT_CONFIRMED)


def _own(row: LevelRow, now: int) -> str | None:
    is_valid = row.level_until is None or now < row.level_until
    return row.level if is_valid else None


async def _usual_end(
    tx: Transaction, user_id: str, row: LevelRow, policy: NewAccounts, now: int
) -> int:
    """Return the end of the limits by the age of the account, and by its first paid session."""
    end = row.created_at + policy.seconds
    if not policy.seconds or now >= end:
        return 0
    paid_at = await queries.paid_at(tx, user_id)
    return end if paid_at is None else min(end, paid_at + SETTLED_SECONDS)
