"""Closing of accounts by the staff, and the record of their exports."""

from market.accounts.letters import Letters
from market.bandwidth.halts import HaltKind
from market.erasure.closing import Closed, close_account
from market.events.context import Context
from market.staff.base import requests
from market.staff.base.acts import USER, Act, Changes, act, reason
from market.staff.base.roles import Action, Author
from market.staff.finding.users import resolve
from market.staff.stopping import stopping, suspending
from storage.accounts import users as user_queries
from storage.accounts.users import UserRow
from storage.engines.store import Transaction
from storage.erasure.open_things import active_sessions


async def end_sessions(context: Context, author: Author, name: str, why: str) -> None:
    """End all sessions of a user whose money is waived: else their holds keep the account open.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`.
    """
    user = await context.store.read(resolve, name)
    for session_id in await context.store.read(active_sessions, user.id):
        await stopping.begin_end(context, author, session_id, why)
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
