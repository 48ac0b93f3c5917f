"""The log of all acts of staff, as an operator reads it."""

from market.base.errors import Code, MarketError
from market.events.context import Context
from market.staff.base.acts import permit
from market.staff.base.roles import Action, Author
from market.staff.finding.users import named, resolve
from market.staff.members.accounts import find
from storage.engines.paging import NEWEST_NUMBER
from storage.engines.store import Transaction
from storage.staff.base import log as queries
from storage.staff.base.log import ShownLogRow


async def read(
    context: Context,
    author: Author,
    *,
    user: str | None = None,
    staff: str | None = None,
    action: str | None = None,
    before: int = NEWEST_NUMBER,
    limit: int,
) -> list[ShownLogRow]:
    """Return the newest acts before a number, the latest first; None filters nothing.

    Raises:
        MarketError: `not_permitted`, `user_not_found`, `staff_not_found`, `ambiguous`;
            `invalid_field`, when no such action exists.
    """
    if action is not None and action not in set(Action):
        known = ", ".join(sorted(Action))
        raise MarketError(Code.INVALID_FIELD, f"There is no such action; the actions are: {known}.")
    name = None if user is None else await named(context, author, user)
    return await context.store.read(_read, author, name, staff, action, before, limit)


async def _read(
    tx: Transaction,
    author: Author,
    user: str | None,
    staff: str | None,
    action: str | None,
    before: int,
    limit: int,
) -> list[ShownLogRow]:
    await permit(tx, author, Action.LOG_READ)
    return await queries.shown(
        tx,
        user_id=None if user is None else (await resolve(tx, user)).id,
        staff_id=None if staff is None else (await find(tx, staff)).id,
        action=action,
        before=before,
        limit=limit,
    )
