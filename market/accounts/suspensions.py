"""Suspended parts of a user's account, and the refusals that their owner gets."""

from enum import StrEnum

from market.accounts.restrictions import require_unrestricted
from market.base.errors import Code, MarketError
from storage.accounts import closures
from storage.accounts import suspensions as queries
from storage.engines.store import Transaction
from storage.payments import buyers

# Refusals of `require_may_buy`, beside that of a suspended account.
MAY_NOT_BUY = (Code.ACCOUNT_CLOSED, Code.ACCOUNT_RESTRICTED)


class Part(StrEnum):
    """A part of an account that the service can suspend.

    `LOGINS`: a login opens only what its owner needs to read the reason. `KEYS`: API keys open
    nothing. `SESSIONS`: no node relays for the user's proxy sessions. `DEVICES`: the user's devices
    carry no connections and get no jobs. `PURCHASES`: the user buys nothing.
    """

    LOGINS = "logins"
    KEYS = "keys"
    SESSIONS = "sessions"
    DEVICES = "devices"
    PURCHASES = "purchases"


def refusal(shown: str) -> MarketError:
    """Return the refusal of a suspended part.

    Args:
        shown: the reason that the staff wrote for the user; "" if it was erased.
    """
    message = f"{Code.ACCOUNT_SUSPENDED.meaning} The reason: {shown}" if shown else None
    return MarketError(Code.ACCOUNT_SUSPENDED, message)


async def require_may_buy(tx: Transaction, user_id: str) -> None:
    """Refuse a purchase of a user who may not pay, or whose account is restricted.

    The caller has locked the user (`bounds.lock_user`), as the suspension does: the second of the
    two transactions sees the first.

    Raises:
        MarketError: `account_suspended`, `account_closed`, `account_restricted`.
    """
    if not await buyers.may_buy(tx, user_id):
        await require_may_pay(tx, user_id)
        await require_unrestricted(tx, user_id)


async def require_may_pay(tx: Transaction, user_id: str) -> None:
    """Refuse a payment of a user whose purchases are suspended, or whose account is closed.

    Raises:
        MarketError: `account_suspended`, `account_closed`.
    """
    await _require(tx, user_id, Part.PURCHASES)
    if await closures.is_shut(tx, user_id):
        raise MarketError(Code.ACCOUNT_CLOSED)


async def require_devices(tx: Transaction, user_id: str) -> None:
    """Refuse a job to a device whose owner's devices are suspended.

    Raises:
        MarketError: `account_suspended`.
    """
    await _require(tx, user_id, Part.DEVICES)


async def _require(tx: Transaction, user_id: str, part: Part) -> None:
    shown = await queries.shown(tx, user_id, part)
    if shown is not None:
        raise refusal(shown)
