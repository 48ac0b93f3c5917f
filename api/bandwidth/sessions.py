"""Routes of bandwidth: buy a session, list sessions, end one (specification 4.12 to 4.14)."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from api.accounts.accounts import RequiredText
from api.http import literals
from api.http.identifiers import in_body, in_path
from api.http.literals import SESSION_STATUSES
from api.routing.codec import Money, Size, money
from api.routing.listing import Page, Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.levels import Limited
from market.accounts.scopes import Scope
from market.accounts.suspensions import MAY_NOT_BUY
from market.bandwidth.allowlist import ADDRESSES_MAX
from market.bandwidth.sessions import (
    QUOTA_MAX_BYTES,
    Bandwidth,
    Halted,
    OneSession,
    Purchase,
    Session,
)
from market.base.errors import Code
from market.base.states import SessionStatus
from market.exits.wishes import ASN_MOST, LIFETIME_LEAST_SECONDS, LIFETIME_MOST_SECONDS, ExitWishes
from market.money.money import GB

ExitText = Annotated[str, Meta(min_length=1, max_length=100)]
AllowIps = Annotated[list[str], Meta(min_length=1, max_length=ADDRESSES_MAX)]


class ExitRequest(Struct):
    """Exits of a session, unless a client names others behind its user name.

    `country` is a code of two letters (ISO 3166), "eu", or several joined by "_". Connections of
    one `session`, a label, keep their exit for `lifetime_seconds` from its first use; with `strict`
    they rather fail than have another. With `rotate` no two in a row have the same. `dns` says
    where names are looked up, and with `tls` "only" no port but 443 is dialled.
    """

    country: ExitText | None = None
    state: ExitText | None = None
    city: ExitText | None = None
    asn: Annotated[int, Meta(ge=1, le=ASN_MOST)] | None = None
    kind: Literal["residential", "mobile", "datacenter", "any"] | None = None
    session: ExitText | None = None
    lifetime_seconds: (
        Annotated[int, Meta(ge=LIFETIME_LEAST_SECONDS, le=LIFETIME_MOST_SECONDS)] | None
    ) = None
    strict: bool | None = None
    rotate: bool | None = None
    dns: Literal["node", "exit"] | None = None
    tls: Literal["any", "only"] | None = None
    secure: bool | None = None


class BuyRequest(Struct):
    """The amount in GB, and the price in USD per GB.

    Clients that come from one of `allow_ips` need no password, on a port of their own: at once if
    the request comes from there, else once a client has come from there to `port` with the
    password, or the buyer to `/api/bandwidth/allow`.

    With `exit`, connections leave through devices of others; without it, from this service.
    """

    gb: Annotated[Size, Meta(extra_json_schema={"maximum": QUOTA_MAX_BYTES // GB})]
    price_per_gb: Money | None = None
    allow_ips: AllowIps | None = None
    exit: ExitRequest | None = None


class Proxy(Struct):
    """The address of the proxy, and the credentials.

    With `allow_ips`, those clients dial `passwordless_port` without credentials; addresses among
    them that are `pending_ips` need the password until they have connected with it once.
    """

    host: str
    port: int
    username: str
    password: str
    protocol: Literal["socks5"] = "socks5"
    passwordless_port: int | UnsetType = UNSET
    pending_ips: list[str] | UnsetType = UNSET


class BuyReply(Reply, kw_only=True):
    """A session that was bought; its password is returned only here. `cost_usd` is held."""

    session_id: str
    proxy: Proxy
    cost_usd: float


class ListQuery(Page):
    """Sessions to list: `status=all` adds the past ones."""

    status: Literal[literals.SessionStatus, "all"] = "active"


class HaltedItem(Struct):
    """A halt of a session: no connection is open, and none is admitted.

    Without an `until` it waits for the service. The time of the session runs on.
    """

    reason: str
    since: Timestamp
    until: Timestamp | UnsetType = UNSET


class SessionItem(Struct):
    """A session in the list; sizes in bytes and GB, price in USD per GB, `paid` in USD.

    While it is active, clients from `allow_ips` need no password on `passwordless_port`, except the
    `pending_ips`. `exit` is the wish for exits, in the form that stands behind the user name; it is
    absent if the session leaves directly. `halted` is there while the service has halted it.
    """

    # One field for each of the documented reply.
    id: str
    port: int
    bytes_used: int
    gb_used: float
    status: literals.SessionStatus
    price_per_gb: float
    quota_bytes: int
    bytes_left: int
    created_at: Timestamp
    expires_at: Timestamp
    ended_at: Timestamp | UnsetType = UNSET
    paid: float | UnsetType = UNSET
    allow_ips: list[str] | UnsetType = UNSET
    pending_ips: list[str] | UnsetType = UNSET
    passwordless_port: int | UnsetType = UNSET
    exit: str | UnsetType = UNSET
    halted: HaltedItem | UnsetType = UNSET


class LimitedItem(Struct):
    """The limits of a new account, until a time, or until the service changes its level.

    It has at most `connections` open, reaches only `ports`, and uses at most `gb_per_day` in a day
    (UTC). With `needs_email` it buys nothing before its e-mail address is confirmed.
    """

    connections: int
    ports: list[int]
    gb_per_day: float
    needs_email: bool
    until: Timestamp | UnsetType = UNSET


class ListReply(Reply, kw_only=True):
    """Sessions, newest first; `next_cursor` is there when there are more.

    `total` is the number of active sessions, or of all with `status=all`, 10,000 at most; the first
    part of a list has it. `limited` is there while the account is new.
    """

    sessions: list[SessionItem]
    total: int | UnsetType = UNSET
    limited: LimitedItem | UnsetType = UNSET
    next_cursor: str | UnsetType = UNSET


class TermsReply(Reply, kw_only=True):
    """Terms of sale of sessions: the price in USD, and the lifetime.

    Without a price of the buyer's own a GB costs `price_per_gb`; none is sold below
    `price_per_gb_floor`, nor a session that costs less than `cost_floor_usd`. `allow_ips` is
    accepted if `has_passwordless` is true. Exits may cost more: `GET /api/exits/coverage`. A caller
    with a login sees their own price, where the operator has set one.
    """

    price_per_gb: float
    price_per_gb_floor: float
    cost_floor_usd: float
    gb_max: int
    lifetime_seconds: int
    has_passwordless: bool


class OneReply(Reply, kw_only=True):
    """A session, and the address that a client dials; its password was returned with the purchase.

    `held_usd` was set aside with the purchase. `due_usd` is the part of it that the session has
    cost, or would cost if it ended now; the rest is released.
    """

    session: SessionItem
    host: str
    username: str
    held_usd: float
    due_usd: float


class EndRequest(Struct):
    """Session to end."""

    session_id: RequiredText


class AllowRequest(Struct):
    """Session that the address of this request shall open."""

    session_id: RequiredText


class AllowReply(Reply, kw_only=True):
    """The address that needs no password any more, on `passwordless_port`."""

    address: str
    passwordless_port: int | UnsetType = UNSET


class BandwidthRoutes:
    """The routes of bandwidth."""

    def __init__(self, bandwidth: Bandwidth) -> None:
        self._bandwidth = bandwidth

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                "/api/bandwidth/create",
                "Buy a proxy session",
                self.create,
                BuyReply,
                scope=Scope.SESSIONS_WRITE,
                body=BuyRequest,
                example={"gb": 0.5, "price_per_gb": 2},
                idempotent=True,
                errors=(
                    *MAY_NOT_BUY,
                    Code.INSUFFICIENT_FUNDS,
                    Code.SPEND_LIMIT_REACHED,
                    Code.PRICE_BELOW_FLOOR,
                    Code.SESSION_TOO_SMALL,
                    Code.EMAIL_NOT_CONFIRMED,
                    Code.TOO_MANY_SESSIONS,
                    Code.TOO_MANY_ADDRESSES,
                    Code.PASSWORDLESS_NOT_OFFERED,
                    Code.ADDRESSES_TAKEN,
                    Code.EXITS_NOT_OFFERED,
                ),
            ),
            Route(
                "GET",
                "/api/bandwidth/terms",
                "At which price sessions are sold",
                self.terms,
                TermsReply,
                auth=Auth.OPTIONAL_JWT,
                scope=Scope.SESSIONS_READ,
            ),
            Route(
                "GET",
                "/api/bandwidth/sessions",
                "List my proxy sessions",
                self.sessions,
                ListReply,
                scope=Scope.SESSIONS_READ,
                query=ListQuery,
            ),
            Route(
                "GET",
                "/api/bandwidth/sessions/{session_id}",
                "Look at a proxy session of mine",
                self.one,
                OneReply,
                scope=Scope.SESSIONS_READ,
                errors=(Code.SESSION_NOT_FOUND,),
            ),
            Route(
                "POST",
                "/api/bandwidth/end",
                "End a proxy session",
                self.end,
                Reply,
                scope=Scope.SESSIONS_WRITE,
                body=EndRequest,
                errors=(Code.SESSION_NOT_FOUND,),
            ),
            Route(
                "POST",
                "/api/bandwidth/allow",
                "Prove that I come from an address of allow_ips",
                self.allow,
                AllowReply,
                scope=Scope.SESSIONS_WRITE,
                body=AllowRequest,
                errors=(
                    Code.SESSION_NOT_FOUND,
                    Code.ADDRESS_NOT_PENDING,
                    Code.ADDRESSES_TAKEN,
                ),
            ),
        ]

    async def create(self, call: Call[BuyRequest, Any]) -> BuyReply:
        """Buy a session."""
        bought = await self._bandwidth.buy(
            call.user_id,
            quota_bytes=call.body.gb,
            price_per_gb=call.body.price_per_gb,
            allow_ips=call.body.allow_ips or (),
            client=call.address,
            exit_wishes=None if call.body.exit is None else _wishes(call.body.exit),
            spender=call.spender,
            receipt=call.receipt(_bought),
        )
        return _bought(bought)

    async def terms(self, call: Call[Nothing, Any]) -> TermsReply:
        """Return the price, the floors and the bounds of sessions, for a caller with a login."""
        user_id = None if call.login is None else call.user_id
        terms = await self._bandwidth.terms_of(user_id)
        return TermsReply(
            price_per_gb=money(max(terms.price_default, terms.price_floor)),
            price_per_gb_floor=money(terms.price_floor),
            cost_floor_usd=money(terms.cost_floor),
            gb_max=QUOTA_MAX_BYTES // GB,
            lifetime_seconds=terms.lifetime_seconds,
            has_passwordless=bool(terms.passwordless_ports),
        )

    async def sessions(self, call: Call[Nothing, ListQuery]) -> ListReply:
        """List the caller's sessions, their counters as of now."""
        query = call.query
        rows = await self._bandwidth.page(
            call.user_id,
            status=None if query.status == "all" else SessionStatus(query.status),
            before=query.before,
            limit=query.fetch_limit,
        )
        part, cursor = query.cut(rows)
        items = [_item(session) for session in part]
        reply = ListReply(sessions=items, next_cursor=cursor)
        limited = await self._bandwidth.limited(call.user_id)
        if limited is not None:
            reply.limited = _limited(limited)
        if not query.cursor and query.status in ("active", "all"):
            is_active = query.status == "active"
            reply.total = await self._bandwidth.count(call.user_id, is_active=is_active)
        return reply

    async def one(self, call: Call[Nothing, Any]) -> OneReply:
        """Return a session of the caller, its counters as of now."""
        session_id = in_path(call.path["session_id"], Code.SESSION_NOT_FOUND)
        return _one(await self._bandwidth.one(call.user_id, session_id))

    async def end(self, call: Call[EndRequest, Any]) -> Reply:
        """End a session."""
        session_id = in_body(call.body.session_id, "session_id")
        await self._bandwidth.end(call.user_id, session_id)
        return Reply()

    async def allow(self, call: Call[AllowRequest, Any]) -> AllowReply:
        """Let the caller's address open a session of the caller."""
        session_id = in_body(call.body.session_id, "session_id")
        door = await self._bandwidth.allow(call.user_id, session_id, call.address)
        return AllowReply(address=door.address, passwordless_port=_or_unset(door.port))


def _bought(purchase: Purchase) -> BuyReply:
    return BuyReply(
        session_id=purchase.session_id,
        proxy=Proxy(
            purchase.host,
            purchase.port,
            purchase.username,
            purchase.password,
            passwordless_port=_or_unset(purchase.passwordless_port),
            pending_ips=list(purchase.pending_ips) or UNSET,
        ),
        cost_usd=money(purchase.cost),
    )


def _one(found: OneSession) -> OneReply:
    return OneReply(
        session=_item(found.session),
        host=found.host,
        username=found.username,
        held_usd=money(found.held),
        due_usd=money(found.due),
    )


def _item(session: Session) -> SessionItem:
    used, quota, ended_at = session.bytes_used, session.quota_bytes, session.ended_at
    return SessionItem(
        id=session.id,
        port=session.port,
        bytes_used=used,
        gb_used=used / GB,
        status=SESSION_STATUSES[session.status],
        price_per_gb=money(session.price_per_gb),
        quota_bytes=quota,
        bytes_left=quota - used,
        created_at=timestamp(session.created_at),
        expires_at=timestamp(session.expires_at),
        ended_at=UNSET if ended_at is None else timestamp(ended_at),
        paid=UNSET if session.paid is None else money(session.paid),
        allow_ips=list(session.allow_ips) if session.allow_ips else UNSET,
        pending_ips=list(session.pending_ips) if session.pending_ips else UNSET,
        passwordless_port=_or_unset(session.passwordless_port),
        exit=session.exit or UNSET,
        halted=UNSET if session.halted is None else _halted(session.halted),
    )


def _halted(halted: Halted) -> HaltedItem:
    until = halted.until
    return HaltedItem(
        reason=halted.reason,
        since=timestamp(halted.since),
        until=UNSET if until is None else timestamp(until),
    )


def _limited(limited: Limited) -> LimitedItem:
    until = limited.until
    return LimitedItem(
        connections=limited.connections,
        ports=sorted(limited.ports),
        gb_per_day=limited.bytes_per_day / GB,
        needs_email=limited.lacks_email,
        until=UNSET if until is None else timestamp(until),
    )


def _wishes(wanted: ExitRequest) -> ExitWishes:
    return ExitWishes(
        countries=wanted.country.split("_") if wanted.country else (),
        state=wanted.state or "",
        city=wanted.city or "",
        asn=wanted.asn or 0,
        kind=wanted.kind or "",
        session=wanted.session or "",
        lifetime_seconds=wanted.lifetime_seconds or 0,
        strict=bool(wanted.strict),
        rotate=bool(wanted.rotate),
        dns_at_exit=wanted.dns == "exit",
        tls_only=wanted.tls == "only",
        secure=bool(wanted.secure),
    )


def _or_unset(port: int | None) -> int | UnsetType:
    return UNSET if port is None else port
