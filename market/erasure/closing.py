"""Closing of accounts: everything of the account ends, and 14 days later the account is erased.

Until then a login opens the account again. An account with money or open work cannot be closed: the
refusal lists all of it. Users may give up the money that is left.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec import Struct

from market.accounts import keys
from market.accounts.accounts import ENDED, Accounts, Caller
from market.accounts.bounds import lock_user
from market.accounts.letters import Letters
from market.accounts.mail import account_closed
from market.bandwidth.sessions import Bandwidth
from market.base.errors import Code, MarketError
from market.devices.devices import Revoked, revoke_device
from market.events.catalogue import AccountClosed, timestamp
from market.events.context import Context
from market.events.recording import record
from market.money.money import as_decimal
from market.notify.webhooks import CLOSED, disable_all
from market.recovery.made_by_keys import MadeByKeys
from storage.accounts import closures, device_codes
from storage.accounts import users as user_queries
from storage.engines.store import Transaction
from storage.erasure import open_things
from storage.erasure.open_things import OpenRow

TAKE_BACK_SECONDS = 14 * 86_400
EndRequests = Callable[[Transaction, Context, str], Awaitable[None]]


class Closed(Struct, frozen=True):
    """A closed account: the time until which a login opens it again, and its revoked devices."""

    user_id: str
    due_at: int
    revoked: tuple[Revoked, ...] = ()


class Closing:
    """Closes accounts at the request of their users.

    Args:
        accounts: check the password.
        letters: e-mails to users.
        bandwidth: ends the sessions.
        made_by_keys: cuts the revoked devices.
        end_requests: ends requests of the staff about a user that a closing makes moot.
    """

    def __init__(
        self,
        context: Context,
        accounts: Accounts,
        letters: Letters,
        bandwidth: Bandwidth,
        made_by_keys: MadeByKeys,
        end_requests: EndRequests,
    ) -> None:
        self._context = context
        self._store = context.store
        self._accounts = accounts
        self._letters = letters
        self._bandwidth = bandwidth
        self._made_by_keys = made_by_keys
        self._end_requests = end_requests

    async def close(
        self, caller: Caller, password: str, *, waives: bool, client: str = ""
    ) -> Closed:
        """Close the caller's account, and end their proxy sessions.

        Args:
            caller: a login.
            password: of the caller.
            waives: whether the caller gives up the money that is left.
            client: the network that counts wrong passwords.

        Raises:
            MarketError: `account_not_empty`, with all that is open; `account_closed`,
                `wrong_password`, `too_busy`, `too_many_attempts`; `unauthorized`, when this login
                was ended meanwhile.
        """
        user = await self._accounts.require_password(caller, password, client=client)
        await self._store.read(require_empty, user.id, self._context.now(), waives=waives)
        for session_id in await self._store.read(open_things.active_sessions, user.id):
            await self._bandwidth.end(user.id, session_id)

        async def unit(tx: Transaction) -> Closed:
            await self._end_requests(tx, self._context, user.id)
            await lock_user(tx, user.id)
            await user_queries.lock(tx, user.id)
            if not await user_queries.is_live(tx, caller.session_id, self._context.now()):
                raise MarketError(Code.UNAUTHORIZED, ENDED)
            now_user = await user_queries.find(tx, user.id)
            if now_user is None or now_user.password_hash != user.password_hash:
                raise MarketError(Code.WRONG_PASSWORD, field="password")
            return await close_account(tx, self._context, self._letters, user.id, waives=waives)

        closed = await self._store.write(unit)
        self._letters.wake()
        await self._made_by_keys.ended(closed.revoked)
        return closed


async def require_empty(tx: Transaction, user_id: str, now: int, *, waives: bool = True) -> None:
    """Check that nothing keeps an account open but the proxy sessions that end before its closing.

    Raises:
        MarketError: `account_not_empty`.
    """
    row = await open_things.of_user(tx, user_id, now)
    _refuse(list_open(row, waives=waives, ends_sessions=True))


async def close_account(
    tx: Transaction, context: Context, letters: Letters, user_id: str, *, waives: bool
) -> Closed:
    """Close the account of a locked user.

    Logins, API keys, programs without a key, webhooks and worker tokens end.

    Raises:
        MarketError: `account_not_empty`, `account_closed`.
    """
    now = context.now()
    row = await open_things.of_user(tx, user_id, now)
    _refuse(list_open(row, waives=waives))
    due_at = now + TAKE_BACK_SECONDS
    if not await closures.close(tx, user_id, waives=waives, now=now, due_at=due_at):
        raise MarketError(Code.ACCOUNT_CLOSED)
    await record(tx, context, user_id, AccountClosed(timestamp(due_at)))
    await user_queries.end_logins(tx, user_id, but="", now=now)
    await device_codes.deny_approved(tx, user_id)
    await keys.end_all(tx, context, user_id)
    await disable_all(tx, context, user_id, reason=CLOSED)
    revoked = []
    for device_id in await open_things.devices(tx, user_id):
        token_hash = await revoke_device(tx, context, device_id, user_id, now)
        if token_hash is not None:
            revoked.append(Revoked(device_id, token_hash))
    words = partial(account_closed, until=timestamp(due_at))
    await letters.put(tx, user_id, f"account closed:{user_id}", words)
    return Closed(user_id, due_at, tuple(revoked))


def list_open(row: OpenRow, *, waives: bool, ends_sessions: bool = False) -> list[str]:
    """Return in words the money and the open work that prevent the end of an account.

    Args:
        row: the open things.
        waives: whether the user gives up the money that is left.
        ends_sessions: whether proxy sessions end first, so that their holds keep nothing.
    """
    found = []
    if row.usd and not waives:
        found.append(f"{as_decimal(row.usd)} USD")
    if row.credit and not waives:
        found.append(f"{as_decimal(row.credit)} credits")
    if row.pending:
        found.append(f"{as_decimal(row.pending)} USD of pending earnings")
    ends = ends_sessions and waives
    if row.held and not (ends and row.sessions):
        found.append("held money")
    for count, one, many in (
        (0 if ends else row.sessions, "proxy session", "proxy sessions"),
        (row.jobs, "job", "jobs"),
        (row.deploys, "deploy", "deploys"),
        (row.attempts, "job on a device of yours", "jobs on devices of yours"),
        (row.reviews, "review or dispute", "reviews and disputes"),
        (row.earnings, "earning of an exit", "earnings of exits"),
        (row.approvals, "request to the staff", "requests to the staff"),
        (row.payments, "payment, refund, dispute or debt", "payments, refunds, disputes and debts"),
        (row.payouts, "payout", "payouts"),
    ):
        if count:
            found.append(f"{count} {one if count == 1 else many}")
    return found


def _refuse(found: Sequence[str]) -> None:
    if found:
        raise MarketError(
            Code.ACCOUNT_NOT_EMPTY,
            f"{Code.ACCOUNT_NOT_EMPTY.meaning} Open: {'; '.join(found)}.",
        )
