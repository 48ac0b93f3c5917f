"""Routes that find, show and note users, and the log of the staff's acts."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from api.routing.codec import money
from api.routing.listing import Limit, Listing, Timestamp, timestamp
from api.routing.routes import Call, Nothing, Reply, StaffRoute
from api.staff.words import PREFIX, ActItem, Name, ReasonRequest, act_item, author, items, moment
from market.base.errors import Code
from market.base.states import ClosureStatus
from market.staff.base.acts import NOTE_MAX_CHARACTERS
from market.staff.base.masks import Revealed
from market.staff.base.roles import Action
from market.staff.desk import StaffDesk
from market.staff.finding import history, search, users
from market.staff.finding.search import Found
from market.staff.finding.tables import TABLES, balances
from market.staff.finding.users import UserPage
from storage.accounts.closures import ClosureRow
from storage.engines.paging import NEWEST_NUMBER

ONE = f"{PREFIX}/users/{{user}}"
FINDING = (Code.USER_NOT_FOUND, Code.AMBIGUOUS)
CHANGING = (*FINDING, Code.ACCOUNT_CLOSED)  # an erased account refuses every change


class SearchRequest(Struct):
    """A part that is known of a user; it is no query, because logs of web servers keep queries."""

    text: Name


class NoteRequest(Struct):
    """A note about a user, for the staff alone."""

    text: Annotated[str, Meta(max_length=NOTE_MAX_CHARACTERS)]


class LogQuery(Listing, Struct):
    """The newest acts before a number: about a user, of a member, of an operation."""

    user: Name | None = None
    staff: Name | None = None
    action: Annotated[str, Meta(max_length=64)] | None = None
    before: Annotated[int, Meta(ge=1, le=NEWEST_NUMBER)] | None = None
    limit: Limit = 50


class Hit(Struct):
    """A row that matches; `matched` is the text that matched."""

    kind: str
    id: str
    user_id: str
    username: str
    email: str
    matched: str


class FoundItem(Struct):
    """The rows that match by one field, and whether there are more."""

    by: str
    hits: list[Hit]
    has_more: bool


class SearchReply(Reply, kw_only=True):
    """The rows that match, by field."""

    found: list[FoundItem]


class Balance(Struct):
    """The money of a user in one currency."""

    currency: str
    available: float
    held: float


class ProblemItem(Struct):
    """Open problem of a user, such as a complaint or a debt.

    `id` is the number of a complaint, the job of a dispute, the device of a barred exit, and the
    identifier of everything else.
    """

    kind: str
    id: str
    at: Timestamp


class OpenItem(Struct):
    """Numbers of a user's open things, each at most 1001, and the newest open problems."""

    sessions: int
    jobs: int
    devices: int
    keys: int
    problems: list[ProblemItem]


class TransactionItem(Struct):
    """A change of a user's account; negative for money that left it."""

    id: str
    at: Timestamp
    kind: str
    amount: float
    currency: str
    reference: str


class SessionItem(Struct):
    """A session of a user; clients name it by `proxy_user` at the proxy."""

    id: str
    proxy_user: str
    status: str
    used_bytes: int
    quota_bytes: int
    created_at: Timestamp
    expires_at: Timestamp


class DeviceItem(Struct):
    """A device of a user."""

    id: str
    name: str
    type: str
    last_seen_at: Timestamp | None
    revoked_at: Timestamp | None


class JobItem(Struct):
    """A job of a user."""

    id: str
    title: str
    type: str
    status: str
    price: float
    currency: str
    created_at: Timestamp


class UserKeyItem(Struct):
    """An API key of a user."""

    id: str
    name: str
    prefix: str
    last_used_at: Timestamp | None
    last_used_network: str | None
    expires_at: Timestamp | None
    revoked_at: Timestamp | None


class LoginItem(Struct):
    """A valid login of a user."""

    id: str
    at: Timestamp
    network: str
    program: str


class NoteItem(Struct):
    """A note about a user."""

    number: int
    at: Timestamp
    author: str | None
    text: str


class ClosureItem(Struct):
    """The closing of an account; a closed one is erased after `erased_after`."""

    state: ClosureStatus
    closed_at: Timestamp
    erased_after: Timestamp | None
    erased_at: Timestamp | None


class UserItem(Struct):
    """A user.

    `is_masked`: e-mail address and networks are masked until they are revealed.
    `identity_checked`: the operator has checked the identity for payouts. `closure` is null if the
    account was never closed.
    """

    id: str
    username: str
    email: str
    is_masked: bool
    verified_at: Timestamp | None
    created_at: Timestamp
    identity_checked: bool
    closure: ClosureItem | None


class SuspendedItem(Struct):
    """A suspended part of a user: the reason that the user reads, and its end, if it has one."""

    part: str
    shown: str
    since: Timestamp
    until: Timestamp | None


class UserReply(Reply, kw_only=True):
    """A user, and the ten newest rows of each kind."""

    user: UserItem
    suspended: list[SuspendedItem]
    balances: list[Balance]
    open: OpenItem
    transactions: list[TransactionItem]
    sessions: list[SessionItem]
    devices: list[DeviceItem]
    jobs: list[JobItem]
    keys: list[UserKeyItem]
    logins: list[LoginItem]
    notes: list[NoteItem]
    log: list[ActItem]


class RevealedReply(Reply, kw_only=True):
    """A user whose personal data the caller sees until a time."""

    user_id: str
    until: Timestamp


class NotedReply(Reply, kw_only=True):
    """The user that a note is about."""

    user_id: str


class LogReply(Reply, kw_only=True):
    """Acts of the staff, the newest first; `before` continues the list, null at its end."""

    acts: list[ActItem]
    before: int | None


class UserRoutes:
    """The routes of the search, of one user, and of the log."""

    def __init__(self, desk: StaffDesk) -> None:
        self._context = desk.context

    def table(self) -> list[StaffRoute]:
        """Return the declarations."""
        return [
            StaffRoute(
                "POST",
                f"{PREFIX}/search",
                "Find users by an address, a name, an identifier, a key or a payment",
                self.search,
                SearchReply,
                action=Action.SEARCH,
                body=SearchRequest,
                example={"text": "ada@example.com"},
            ),
            StaffRoute(
                "GET",
                ONE,
                "One user; the log records the view",
                self.show,
                UserReply,
                action=Action.USER_VIEW,
                errors=FINDING,
            ),
            StaffRoute(
                "POST",
                f"{ONE}/reveal",
                "Show e-mail address and networks of a user for an hour",
                self.reveal,
                RevealedReply,
                action=Action.USER_REVEAL,
                body=ReasonRequest,
                idempotent=True,
                errors=FINDING,
                example={"reason": "the user telephones"},
            ),
            StaffRoute(
                "POST",
                f"{ONE}/notes",
                "Write a note about a user",
                self.note,
                NotedReply,
                action=Action.USER_NOTE,
                body=NoteRequest,
                idempotent=True,
                errors=CHANGING,
                example={"text": "asked by telephone about a deposit"},
            ),
            StaffRoute(
                "GET",
                f"{PREFIX}/log",
                "The newest acts of the staff",
                self.log,
                LogReply,
                action=Action.LOG_READ,
                query=LogQuery,
                errors=(*FINDING, Code.STAFF_NOT_FOUND),
            ),
        ]

    async def search(self, call: Call[SearchRequest, Any]) -> SearchReply:
        """Find users."""
        found = await search.who(self._context, author(call), call.body.text)
        return SearchReply(found=[_found(each) for each in found])

    async def show(self, call: Call[Nothing, Any]) -> UserReply:
        """Return one user."""
        return _user(await users.view(self._context, author(call), call.path["user"]))

    async def reveal(self, call: Call[ReasonRequest, Any]) -> RevealedReply:
        """Reveal personal data of a user."""
        by, name = author(call, _revealed), call.path["user"]
        return _revealed(await users.reveal(self._context, by, name, call.body.reason))

    async def note(self, call: Call[NoteRequest, Any]) -> NotedReply:
        """Write a note."""
        by = author(call, _noted)
        return _noted(await users.note(self._context, by, call.path["user"], call.body.text))

    async def log(self, call: Call[Nothing, LogQuery]) -> LogReply:
        """List acts of the staff."""
        query = call.query
        rows = await history.read(
            self._context,
            author(call),
            user=query.user,
            staff=query.staff,
            action=query.action,
            before=query.before or NEWEST_NUMBER,
            limit=query.limit + 1,
        )
        part = rows[: query.limit]
        return LogReply(
            acts=[act_item(row) for row in part],
            before=part[-1].number if len(rows) > query.limit else None,
        )


def _revealed(revealed: Revealed) -> RevealedReply:
    return RevealedReply(user_id=revealed.user_id, until=timestamp(revealed.until))


def _noted(user_id: str) -> NotedReply:
    return NotedReply(user_id=user_id)


def _found(found: Found) -> FoundItem:
    return FoundItem(
        by=found.by,
        hits=[Hit(*hit) for hit in found.hits],
        has_more=found.has_more,
    )


def _closure(row: ClosureRow) -> ClosureItem:
    state = ClosureStatus(row.state)
    return ClosureItem(
        state=state,
        closed_at=timestamp(row.closed_at),
        erased_after=timestamp(row.due_at) if state is ClosureStatus.CLOSED else None,
        erased_at=moment(row.erased_at),
    )


def _user(page: UserPage) -> UserReply:
    user = page.user
    return UserReply(
        user=UserItem(
            id=user.id,
            username=user.username,
            email=user.email,
            is_masked=page.is_masked,
            verified_at=moment(user.email_verified_at),
            created_at=timestamp(user.created_at),
            identity_checked=page.is_verified,
            closure=None if page.closure is None else _closure(page.closure),
        ),
        suspended=items(page.suspended, TABLES["suspended"], SuspendedItem),
        balances=[
            Balance(currency, money(available), money(held))
            for currency, available, held in balances(page)
        ],
        open=OpenItem(*page.open, items(page.problems, TABLES["problems"], ProblemItem)),
        transactions=items(page.transactions, TABLES["transactions"], TransactionItem),
        sessions=items(page.sessions, TABLES["sessions"], SessionItem),
        devices=items(page.devices, TABLES["devices"], DeviceItem),
        jobs=items(page.jobs, TABLES["jobs"], JobItem),
        keys=items(page.keys, TABLES["keys"], UserKeyItem),
        logins=items(page.logins, TABLES["logins"], LoginItem),
        notes=items(page.notes, TABLES["notes"], NoteItem),
        log=[act_item(row) for row in page.log],
    )
