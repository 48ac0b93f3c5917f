"""The limit above which an act that moves money needs a second person.

The limit counts the amounts that the author has moved alone within 24 hours, and the amounts that
the receiver got from single members: slices of a larger amount do not pass.
"""

from market.events.context import Context
from market.staff.base.roles import Author, Rule
from market.staff.money.approvals import Amount, Limits, author_key
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
