"""Closing of accounts by the staff, and the record of their exports."""

from msgspec import structs

from market.accounts.letters import Letters
from market.bandwidth.halts import HaltKind
from market.base.errors import Code, MarketError
from market.erasure.closing import Closed, close_account, require_empty
from market.events.context import Context
from market.staff.base import answers, requests
from market.staff.base.acts import USER, Act, Changes, act, permit, reason, require_stranger
from market.staff.base.roles import Action, Author, Member
from market.staff.finding.users import resolve
from market.staff.stopping import stopping, suspending
from storage.accounts import users as user_queries
from storage.accounts.users import UserRow
from storage.engines.store import Transaction
from storage.erasure.open_things import active_sessions


async def end_sessions(context: Context, author: Author, name: str, why: str) -> None:
    """End all sessions of a user whose money is waived: else their holds keep the account open.

    Nothing ends if something else keeps the account open, or if a request that is repeated has
    closed it before.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`;
            `account_not_empty`, with all that is open.
        Replayed: as `act`.
    """
    reason(why)
    user = await context.store.read(resolve, name)
    sessions = await context.store.read(_to_end, author, user.id, context.now())
    if isinstance(author, Member):  # the answer is that of the closing
        author = structs.replace(author, receipt=None)
    for session_id in sessions:
        try:
            await stopping.begin_end(context, author, session_id, why)
        except MarketError as error:
            if error.code is not Code.SESSION_NOT_FOUND:
                raise
            continue  # it has ended meanwhile
        await stopping.finish_end(context, session_id)


async def close(
    context: Context, letters: Letters, author: Author, name: str, *, waives: bool, why: str
) -> Closed:
    """Close an account; a login within 14 days opens it again.

    Args:
        context: the store, identifiers and the time.
        letters: e-mails to users.
        author: of the act.
        name: of the user.
        waives: whether the user has given up the money that is left.
        why: the reason.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`;
            `account_not_empty`, with all that is open; `account_closed`.
    """
    text = reason(why)
    user = await context.store.read(resolve, name)

    async def change(tx: Transaction) -> tuple[Closed, Changes]:
        await user_queries.lock(tx, user.id)
        ended = await requests.end_moot(tx, context, user.id, requests.BY_CLOSING)
        closed = await close_account(tx, context, letters, user.id, waives=waives)
        # Event streams, exits and tunnels of the user end on all nodes.
        await suspending.order(tx, HaltKind.LOOK, user.id, None, now=context.now())
        return closed, {"account": ("open", "closed"), "waives": (None, waives), **ended}

    made = Act(author, Action.USER_CLOSE, USER, user.id, user.id, text)
    closed = await context.store.write(act, context, made, change)
    letters.wake()
    return closed


async def export(context: Context, author: Author, name: str) -> UserRow:
    """Return the user of an export, which the log records.

    Raises:
        MarketError: `not_permitted`, `user_not_found`, `ambiguous`.
    """
    user = await context.store.read(resolve, name)

    async def change(_: Transaction) -> tuple[UserRow, Changes]:
        return user, {}

    made = Act(author, Action.USER_EXPORT, USER, user.id, user.id)
    return await context.store.write(act, context, made, change)


async def _to_end(tx: Transaction, author: Author, user_id: str, now: int) -> list[str]:
    """Return the sessions that end before an account is closed whose money is waived."""
    await permit(tx, author, Action.USER_CLOSE)
    if isinstance(author, Member) and author.receipt is not None:
        await answers.replay(tx, author.receipt)
    await require_stranger(tx, author, user_id)
    await require_empty(tx, user_id, now)
    return await active_sessions(tx, user_id)
