"""Makers of keys, worker tokens and webhooks: a login or API key that has ended makes none.

A request shows its token before its body, and may wait for other transactions after it: a thief
must not leave an API key, a key of an app, a worker token or a webhook behind that the owner's
revocation has not found.
"""

from market.accounts.accounts import ENDED as LOGIN_ENDED
from market.accounts.scopes import Maker
from market.accounts.spending import ENDED as KEY_ENDED
from market.base.errors import Code, MarketError
from storage.accounts import keys, users
from storage.engines.store import Transaction

# A login that began earlier does not prove that its user is there.
FRESH_SECONDS = 600


async def require_current(tx: Transaction, user_id: str, now: int, maker: Maker) -> None:
    """Lock the user, and refuse a login or a key that has ended.

    The transaction that ends the work of a key or replaces a password also locks the user: it comes
    before, or finds all.

    Args:
        tx: the transaction that makes something.
        user_id: the user; the caller locks their accounts before, if it locks any.
        now: UTC seconds.
        maker: the login or API key that makes it.

    Raises:
        MarketError: `unauthorized`.
    """
    await users.lock(tx, user_id)
    if maker.key is not None:
        if await keys.find_live(tx, maker.key.key_id, now) is None:
            raise MarketError(Code.UNAUTHORIZED, KEY_ENDED)
    elif maker.login_id is not None:
        began_at = await users.login_began_at(tx, maker.login_id, now)
        if began_at is None:
            raise MarketError(Code.UNAUTHORIZED, LOGIN_ENDED)


async def require_fresh(tx: Transaction, user_id: str, now: int, maker: Maker) -> None:
    """Lock the user, and check that the maker of a request has logged in just now.

    Args:
        tx: the transaction that makes something.
        user_id: the user; the caller locks their accounts before, if it locks any.
        now: UTC seconds.
        maker: the login that makes it; an API key is always fresh.

    Raises:
        MarketError: `fresh_login_needed`, `unauthorized`.
    """
    await require_current(tx, user_id, now, maker)
    if maker.login_id is not None:
        began_at = await users.login_began_at(tx, maker.login_id, now)
        if began_at is None or now - began_at >= FRESH_SECONDS:
            raise MarketError(Code.FRESH_LOGIN_NEEDED)
