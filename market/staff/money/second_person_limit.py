"""Acts that move money: done by one person within a limit, or stored for a second person.

The limit counts the amounts that the author has moved alone within 24 hours, and the amounts that
the receiver got from single members: slices of a larger amount do not pass.
"""

from collections.abc import Awaitable, Callable

from market.events.context import Context
from market.staff.base.acts import REPEATED, Changes
from market.staff.base.roles import Author, Rule
from market.staff.money import approvals
from market.staff.money.approvals import Amount, Limits, Outcome, Posting, author_key
from storage.engines.store import Transaction
from storage.staff.money import money as money_queries

WINDOW_SECONDS = 24 * 3_600


async def needs_second_person(
    tx: Transaction, context: Context, author: Author, new: Amount, limits: Limits
) -> bool:
    """Return whether an act exceeds its author's or its receiver's limit, with earlier ones.

    A rule of the daemon is no person, and has no limit.
    """
    if isinstance(author, Rule):
        return False
    since, limit = context.now() - WINDOW_SECONDS, limits[new.currency]
    if abs(new.amount) > limit:
        return True
    by_author = await money_queries.unapproved_of_author(
        tx, author_key(author), new.currency, since
    )
    by_user = await money_queries.unapproved_of_user(tx, new.user_id, new.currency, since)
    return max(by_author, by_user) + abs(new.amount) > limit


async def do_or_ask(
    tx: Transaction,
    context: Context,
    author: Author,
    new: Amount,
    limits: Limits,
    *,
    check: Callable[[], Awaitable[object]],
    post: Callable[[Transaction, Context, Amount, Posting], Awaitable[tuple[Outcome, Changes]]],
) -> tuple[Outcome, Changes]:
    """Move an amount within an act or ask a second person, unless this was done before.

    Args:
        tx: the transaction of the act.
        context: identifiers and the time.
        author: the member of the staff.
        new: the amount.
        limits: the amounts that one person may move.
        check: refuses a request that could not be carried out now.
        post: moves the amount, under conditions of its own.
    """
    before = await approvals.earlier(tx, context, new)
    if before is not None:
        return before, {REPEATED: (None, before.id)}
    if await needs_second_person(tx, context, author, new, limits):
        await check()
        return await approvals.ask(tx, context, author, new)
    return await post(tx, context, new, Posting(author_key(author)))
