"""One user as the staff sees them: found by a name, viewed on one page, and noted about."""

from msgspec import Struct
from msgspec.structs import replace

from market.base.errors import Code, MarketError
from market.base.user_fields import email_key, username_key
from market.events.context import Context
from market.money import ledger
from market.money.money import Currency
from market.staff.base import masks
from market.staff.base.acts import (
    NOTE_MAX_CHARACTERS,
    SEARCH,
    USER,
    Act,
    Changes,
    Text,
    TextKind,
    act,
    checked_text,
    reason,
    require_name,
)
from market.staff.base.masks import Revealed
from market.staff.base.roles import Action, Author, Member
from storage.accounts import closures as closure_queries
from storage.accounts import keys as key_queries
from storage.accounts import suspensions as suspension_queries
from storage.accounts import user_limits as limit_queries
from storage.accounts import users as user_queries
from storage.accounts.closures import ClosureRow
from storage.accounts.keys import KeyRow
from storage.accounts.suspensions import SuspendedRow
from storage.accounts.user_limits import UserLimitsRow
from storage.accounts.users import LoginRow, LoginSessionRow, UserRow
from storage.devices import devices as device_queries
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.jobs import jobs as job_queries
from storage.jobs.jobs import OwnJobRow
from storage.money import ledger as ledger_queries
from storage.money.ledger import MovedRow
from storage.payouts import payouts as payout_queries
from storage.staff.base import log as log_queries
from storage.staff.base.log import NoteRow, ShownLogRow
from storage.staff.finding import problems as problem_queries
from storage.staff.finding import search as search_queries
from storage.staff.finding.problems import ProblemRow
from storage.staff.finding.search import NamedSessionRow, OpenRow

LISTED_MAX = 10
COUNTED_MAX = 1_000


class UserPage(Struct, frozen=True):
    """All that the staff sees of a user: the newest rows of each kind.

    `is_masked`: e-mail address and networks are masked; `reveal` shows them for an hour.
    `is_verified` is whether the operator has checked the identity. A count of `open` above
    `COUNTED_MAX` is `COUNTED_MAX` + 1.
    """

    user: UserRow
    is_masked: bool
    profile: LoginRow
    is_verified: bool
    closure: ClosureRow | None
    suspended: list[SuspendedRow]
    problems: list[ProblemRow]
    open: OpenRow
    personal: UserLimitsRow | None
    transactions: list[MovedRow]
    sessions: list[NamedSessionRow]
    devices: list[DeviceRow]
    jobs: list[OwnJobRow]
    keys: list[KeyRow]
    logins: list[LoginSessionRow]
    notes: list[NoteRow]
    log: list[ShownLogRow]


async def resolve(tx: Transaction, name: str) -> UserRow:
    """Return the user with an identifier, an e-mail address, or a user name.

    An identifier comes first: another user may have chosen it as their name.

    Raises:
        MarketError: `invalid_field`, `user_not_found`; `ambiguous`, with the users of this name.
    """
    require_name(name)
    by_id = await user_queries.find(tx, name.lower())
    if by_id is not None:
        return by_id
    rows = (
        await user_queries.find_by_email(tx, email_key(name)),
        await user_queries.find_by_username(tx, username_key(name)),
    )
    found = {row.id: row for row in rows if row is not None}
    if not found:
        raise MarketError(
            Code.USER_NOT_FOUND, f"No user has the identifier, e-mail address or name {name!r}."
        )
    if len(found) > 1:
        raise MarketError(
            Code.AMBIGUOUS, f"Several users have this name: {', '.join(sorted(found))}."
        )
    [row] = found.values()
    return row


async def find(context: Context, author: Author, name: str) -> UserRow:
    """Return the user that an operation of the staff names.

    A member could guess an address that is masked, and the operation may be refused and leave no
    row. So an e-mail address is looked up as an act of its own, as a search for it is, also without
    a hit.

    Raises:
        MarketError: as `resolve`, and `not_permitted`.
    """
    if "@" not in name or not isinstance(author, Member):
        return await context.store.read(resolve, name)
    searcher = replace(author, receipt=None)  # the answer is that of the operation

    async def look(tx: Transaction) -> tuple[UserRow | MarketError, Changes]:
        try:
            return await resolve(tx, name), {"hits": (None, 1)}
        except MarketError as error:
            return error, {"hits": (None, 0)}

    new = Act(searcher, Action.SEARCH_EMAIL, SEARCH)
    found = await context.store.write(act, context, new, look)
    if isinstance(found, MarketError):
        raise found
    return found


async def named(context: Context, author: Author, name: str) -> str:
    """Return a name of a user for a read that is no act; of an e-mail address the identifier.

    Raises:
        MarketError: as `find`.
    """
    if "@" not in name:
        return name
    return (await find(context, author, name)).id


async def view(context: Context, author: Author, name: str) -> UserPage:
    """Return one user's page, masked unless revealed; the log records that it was read.

    Raises:
        MarketError: `not_permitted`, `user_not_found`, `ambiguous`.
    """
    user = await find(context, author, name)

    async def look(tx: Transaction) -> tuple[UserPage, Changes]:
        now = context.now()
        page = await _page(tx, user, now)
        is_clear = await masks.revealed(tx, author, (user.id,), now=now)
        return page if is_clear else _masked(page), {}

    new = Act(author, Action.USER_VIEW, USER, user.id, user.id)
    return await context.store.write(act, context, new, look)


async def reveal(context: Context, author: Author, name: str, why: str) -> Revealed:
    """Show e-mail address and networks of a user to the author for an hour.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`.
    """
    reason(why)  # before the user: a refusal tells nothing about a name
    user = await find(context, author, name)
    return await masks.reveal(context, author, user.id, why)


async def note(context: Context, author: Author, name: str, body: str) -> str:
    """Write a note about a user; return the user's identifier.

    Raises:
        MarketError: `not_permitted`, `invalid_field`, `user_not_found`, `ambiguous`.
    """
    text = Text(TextKind.NOTE, checked_text(body, "note", NOTE_MAX_CHARACTERS, field="text"))
    user = await find(context, author, name)

    async def change(_: Transaction) -> tuple[str, Changes]:
        return user.id, {}

    new = Act(author, Action.USER_NOTE, USER, user.id, user.id, text)
    return await context.store.write(act, context, new, change)


def _masked(page: UserPage) -> UserPage:
    """Return a page without the personal data that `reveal` shows."""
    network = masks.masked_network
    return replace(
        page,
        is_masked=True,
        user=page.user._replace(email=masks.masked_email(page.user.email)),
        keys=[
            key._replace(last_used_network=network(key.last_used_network or "") or None)
            for key in page.keys
        ],
        logins=[login._replace(network=network(login.network)) for login in page.logins],
    )


async def _page(tx: Transaction, user: UserRow, now: int) -> UserPage:
    profile = await user_queries.profile(tx, user.id)
    if profile is None:
        raise MarketError(Code.USER_NOT_FOUND)
    usd, credit = (ledger.available(user.id, each) for each in (Currency.USD, Currency.CREDIT))
    return UserPage(
        user=user,
        is_masked=False,
        profile=profile,
        is_verified=await payout_queries.is_verified(tx, user.id),
        closure=await closure_queries.find(tx, user.id),
        suspended=await suspension_queries.of_user(tx, user.id),
        problems=await problem_queries.problems(tx, user.id, now=now, limit=LISTED_MAX),
        personal=await limit_queries.find_valid(tx, user.id, now),
        open=await search_queries.open_things(tx, user.id, now=now, most=COUNTED_MAX + 1),
        transactions=await ledger_queries.moved(
            tx, usd=usd, credit=credit, before="", limit=LISTED_MAX
        ),
        sessions=await search_queries.sessions(tx, user.id, limit=LISTED_MAX),
        devices=await device_queries.page(tx, user_id=user.id, before="", limit=LISTED_MAX),
        jobs=await job_queries.page_of_user(
            tx, user_id=user.id, status="", before="", limit=LISTED_MAX
        ),
        keys=await key_queries.all_of(tx, user.id, now=now, limit=LISTED_MAX),
        logins=await user_queries.logins(tx, user.id, now=now, limit=LISTED_MAX),
        notes=await log_queries.notes(tx, user.id, limit=LISTED_MAX),
        log=await log_queries.shown(tx, user_id=user.id, limit=LISTED_MAX),
    )
