"""The declaration of a route: method and path, who may call it, its request and its reply."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct, field, structs

from api.http.errors import Transport
from market.accounts.accounts import Caller
from market.accounts.scopes import Scope
from market.accounts.spending import Spender
from market.accounts.suspensions import MAY_NOT_BUY
from market.base.errors import Code
from market.events.idempotency import KeyedRequest, Receipt
from market.staff.base.callers import StaffCaller
from market.staff.base.roles import MATRIX, Action
from storage.blobs.base import Content
from storage.devices.devices import DeviceRow

# Refusals of each request that spends money.
PURCHASE_REFUSALS = (
    *MAY_NOT_BUY,
    Code.INSUFFICIENT_FUNDS,
    Code.SPEND_LIMIT_REACHED,
)


class Auth(Enum):
    """The token that a caller must send; where it is optional, one that is sent must be valid.

    `OPTIONAL_EITHER` is the token of a person, or of a worker device, or none. `STAFF` is the login
    or key of a member of the staff.
    """

    NONE = auto()
    JWT = auto()
    OPTIONAL_JWT = auto()
    OPTIONAL_EITHER = auto()
    WORKER = auto()
    STAFF = auto()


class Reply(Struct, kw_only=True):
    """A successful response; each has `ok`."""

    ok: Literal[True] = True


class Encoded(Reply):
    """A successful response that is JSON already."""

    body: bytes = b""


class Text(Reply):
    """A successful response that is a line of text, for clients that request text."""

    line: str = ""


class Csv(Reply):
    """A successful response that is a table (RFC 4180), to be saved as `name`."""

    name: str = ""
    body: str = ""


class Event(NamedTuple):
    """An event of a response: its name and its data.

    Without data it is nothing, which keeps the connection in use, and may say an `id`. A client
    that comes again says the `id` that it got last, in the header Last-Event-ID; "" for none.
    """

    name: str
    data: Struct | None
    id: str = ""


class Streamed(Reply):
    """A successful response that is sent as events."""

    events: AsyncGenerator[Event, None]


class Download(Reply):
    """A successful response that is a file, which is closed once it was sent.

    `name` is the name under which it is saved, without its folders; `etag` changes whenever its
    bytes do.
    """

    name: str
    etag: str
    content: Content


class Redirect(Reply, kw_only=True):
    """Redirection to another place: to `url`, for a while."""

    url: str


class WithCookie(Reply, kw_only=True):
    """A successful response, with the header Set-Cookie; `reply` is its body."""

    reply: Reply
    cookie: str


class Nothing(Struct):
    """A request that carries no data."""


_encoder = msgspec.json.Encoder()


def encode(reply: Struct) -> bytes:
    """Return a response as one line of JSON."""
    return _encoder.encode(reply) + b"\n"


Body = TypeVar("Body")
Query = TypeVar("Query")
Outcome = TypeVar("Outcome")


class Call(Struct, Generic[Body, Query], frozen=True):
    """A request that was read and checked.

    `client` is the network that it is counted by, `address` the exact address; `login` is the
    caller where the route authenticates, and `member` the caller of a route of the staff;
    `accept_language`, `accept`, `last_event_id` and `user_agent` are the headers of these names.
    With `is_console`, a page of this origin asks.
    `send_space` is there where the answer may be held.
    """

    body: Body
    query: Query
    path: dict[str, str]
    client: str
    login: Caller | None = None
    keyed: KeyedRequest | None = None
    worker: DeviceRow | None = None
    accept_language: str = ""
    address: str = ""
    accept: str = ""
    last_event_id: str = ""
    is_console: bool = False
    send_space: Callable[[], Awaitable[None]] | None = None
    user_agent: str = ""
    member: StaffCaller | None = None

    @property
    def device(self) -> DeviceRow:
        """The worker device that calls; for routes that require a worker token."""
        if self.worker is None:
            raise LookupError("the route does not authenticate workers")
        return self.worker

    def receipt(self, reply: Callable[[Outcome], "Reply"]) -> Receipt[Outcome] | None:
        """Return the receipt that keeps the reply to this request; None without an Idempotency-Key.

        Args:
            reply: makes it of the outcome of the request.
        """
        if self.keyed is None:
            return None
        return Receipt(self.keyed, lambda outcome: encode(reply(outcome)))

    @property
    def caller(self) -> Caller:
        """The login that calls; for routes that require one."""
        if self.login is None:
            raise LookupError("the route does not authenticate its callers")
        return self.login

    @property
    def staff(self) -> StaffCaller:
        """The member of the staff that calls; for routes of the staff."""
        if self.member is None:
            raise LookupError("the route does not authenticate the staff")
        return self.member

    @property
    def spender(self) -> Spender | None:
        """The API key that pays, within its limits; None where people pay by hand."""
        key = self.login.key if self.login is not None else None
        return key.spender if key is not None else None

    @property
    def user_id(self) -> str:
        """The identifier of the user who calls."""
        return self.caller.profile.user_id


class Route(Struct, frozen=True):
    """One endpoint. `path` may hold `{names}`; `errors` are the refusals of its own.

    A route with a `scope` wants a login, unless `auth` is set. An API key with the scope does where
    a login is wanted; without a scope, none does.

    With `body_optional`, a request without a body is one with an empty object. An `idempotent` one
    honours an Idempotency-Key. `example` is a body that works; `unavailable` are refusals of the
    transport that this one has beside those of all. One with `is_health` has a rate of its own.

    With `form_max_bytes`, the body is multipart/form-data of at most that size, and is handed over
    unread, as a `Form`. With `raw_max_bytes`, the body is bytes of any type, of at most that size,
    and is handed over unread, as a `RawBody` (`api.serving.bodies`); it may be compressed by one of
    `raw_encodings`, and no Idempotency-Key covers it.

    With `events`, the response may also be a stream of server-sent events; they are declared by
    name. With `has_text`, it may also be a line of text, and is about the client: caches do not
    keep it for another one. With `ends_with_client`, a request is cancelled when its client closes
    the connection. With `has_file`, the response is a file, or a redirection to where it is. With
    `is_held`, the answer may be minutes in coming, and the handler sends spaces meanwhile
    (`Call.send_space`).

    With `while_suspended`, a login opens it also while the logins of its user are suspended.

    In the rates, a request counts as `weight` requests, times the hundreds of items that its query
    asks for.

    `fixed` are fields that cannot be changed here, each with the refusal of a strict request. A
    body that has only such and unknown fields is refused in the same way, in every handling; all
    fields of such a body have defaults.
    """

    # One field for each thing that a route can declare: the router, the document of the API and the
    # tests read them one by one, and a table sets only the fields that differ from the defaults.
    method: str
    path: str
    summary: str
    handler: Callable[[Call[Any, Any]], Awaitable[Reply]]
    response: type[Reply]
    auth: Auth = Auth.NONE
    scope: Scope | None = None
    body: type[Struct] = Nothing
    query: type[Struct] = Nothing
    errors: tuple[Code, ...] = field(default=())
    body_optional: bool = False
    while_draining: bool = False
    while_suspended: bool = False
    is_health: bool = False
    idempotent: bool = False
    example: dict[str, Any] | None = None
    unavailable: tuple[Transport, ...] = ()
    form_max_bytes: int = 0
    raw_max_bytes: int = 0
    raw_encodings: tuple[Literal["gzip"], ...] = ()
    events: dict[str, type[Struct]] = field(default_factory=dict)
    ends_with_client: bool = False
    has_text: bool = False
    has_file: bool = False
    is_held: bool = False
    weight: int = 1
    fixed: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.scope is not None and self.auth is Auth.NONE:
            structs.force_setattr(self, "auth", Auth.JWT)


class StaffRoute(Route, frozen=True, kw_only=True):
    """One endpoint of the staff API, and the operation that the role of a caller has to permit.

    A key of the staff also needs the scope of the operation
    (`market/staff/base/callers.py`). Everyone may log in; every other operation needs a login or
    a key.
    """

    action: Action

    def __post_init__(self) -> None:
        if self.action not in MATRIX:
            raise ValueError(f"{self.method} {self.path}: {self.action} has no row in the matrix")
        is_login = self.action is Action.STAFF_LOGIN
        structs.force_setattr(self, "auth", Auth.NONE if is_login else Auth.STAFF)
