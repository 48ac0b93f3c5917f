"""Personal data of users, which the staff sees masked until a member reveals it with a reason.

E-mail addresses and networks of a user are masked in each answer of this package: to pages, to
programs and to commands. The act `user.reveal` shows them to its author for an hour. It is a row of
the log with its reason, once an hour for each user and author. Of a member it counts for the login
or key alone that asked for it: a program with a key, or a stolen login, sees no data that the
member has revealed elsewhere.
"""

from collections.abc import Collection

from msgspec import Struct

from market.events.context import Context
from market.staff.base.acts import USER, Act, Changes, act, encoded, reason
from market.staff.base.roles import Action, Author, Member
from storage.engines.store import Transaction
from storage.staff.base import log as queries

REVEALED_SECONDS = 3_600
ELLIPSIS = "…"


class Revealed(Struct, frozen=True):
    """A user whose personal data the author sees until a time (UTC seconds)."""

    user_id: str
    until: int


def masked_email(email: str) -> str:
    """Return an e-mail address with the first character of each side, as `a…@e…`."""
    name, _, domain = email.partition("@")
    return f"{name[:1]}{ELLIPSIS}@{domain[:1]}{ELLIPSIS}"


def masked_network(network: str) -> str:
    """Return an address or a network with its first part only, as `203…`; "" for none."""
    if not network:
        return ""
    separator = ":" if ":" in network else "."
    return f"{network.partition(separator)[0]}{ELLIPSIS}"


async def revealed(
    tx: Transaction, author: Author, users: Collection[str], *, now: int
) -> dict[str, int]:
    """Return the users that an author has revealed, with the end of that in UTC seconds.

    A member has revealed them through the same login or key.
    """
    if not users:
        return {}
    member = author.staff_id if isinstance(author, Member) else None
    rows = await queries.newest_acts(
        tx,
        users,
        action=Action.USER_REVEAL,
        staff_id=member,
        unix_user=author.unix_user,
        changes=encoded(_of_login(author)),
        since=now - REVEALED_SECONDS,
    )
    return {row.user_id: row.at + REVEALED_SECONDS for row in rows}


async def reveal(context: Context, author: Author, user_id: str, why: str) -> Revealed:
    """Show the personal data of a user to the author for an hour.

    A repetition within the hour changes nothing, and is no act.

    Raises:
        MarketError: `not_permitted`, `invalid_field`.
    """
    text = reason(why)
    now = context.now()
    before = await context.store.read(revealed, author, (user_id,), now=now)
    if before:
        return Revealed(user_id, before[user_id])

    async def change(_: Transaction) -> tuple[Revealed, Changes]:
        return Revealed(user_id, now + REVEALED_SECONDS), _of_login(author)

    new = Act(author, Action.USER_REVEAL, USER, user_id, user_id, text)
    return await context.store.write(act, context, new, change)


def _of_login(author: Author) -> Changes:
    """Return the changes of a reveal: the login or key that it counts for."""
    if isinstance(author, Member) and author.session_id is not None:
        return {"login": (None, author.session_id)}
    return {}
