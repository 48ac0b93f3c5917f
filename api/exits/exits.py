"""Routes of exits: consent and limits of a device, its earnings, and the countries with exits."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from api.accounts.accounts import RequiredText
from api.http.identifiers import in_body, in_path
from api.http.literals import EXIT_STATES, ExitState
from api.routing.codec import Money, money
from api.routing.listing import Listed, Page, Timestamp, timestamp
from api.routing.routes import Auth, Call, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.base.errors import Code, MarketError
from market.exits.consents import (
    CONNECTIONS_MAX,
    DAY_SECONDS,
    Coverage,
    ExitDeviceLimits,
    Exits,
    MyExit,
    limits_of,
)
from storage.exits.exits import CountryRow, EarnedDayRow

PORTS_MAX = 100

Count = Annotated[int, Meta(ge=0)]
Port = Annotated[int, Meta(ge=1, le=65_535)]


class TermsReply(Reply, kw_only=True):
    """Terms that the owner of an exit agrees to, and the address at which exits attach.

    `terms_hash` is the SHA-256 of `text`. Without `host` this service has no exits.
    `certificate_sha256` is that of the certificate there, in hexadecimal.
    """

    text: str
    terms_hash: str
    share_percent: int
    payout_hold_days: float
    host: str | UnsetType = UNSET
    port: int | UnsetType = UNSET
    certificate_sha256: str | UnsetType = UNSET


class LimitsBody(Struct):
    """Limits of a device. A field left out stays as it is, at first as proposed.

    Bytes are both ways together, and 0 is no limit. `ports` are those of targets. The device
    carries nothing for buyers who pay less than `min_price_per_gb`, in USD.
    """

    connections: Annotated[int, Meta(ge=1, le=CONNECTIONS_MAX)] | None = None
    bytes_per_second: Count | None = None
    bytes_per_day: Count | None = None
    ports: Annotated[list[Port], Meta(min_length=1, max_length=PORTS_MAX)] | None = None
    min_price_per_gb: Money | None = None


class ConsentRequest(Struct):
    """Device that should be an exit, the hash of the terms that its owner has read, and limits."""

    token_id: RequiredText
    terms_hash: RequiredText
    limits: LimitsBody | None = None


class DeviceRequest(Struct):
    """Device of the request."""

    token_id: RequiredText


class RevokeExitRequest(Struct):
    """Device of the request; a device that shows its own worker token may leave it out."""

    token_id: RequiredText | None = None


class LimitsRequest(Struct):
    """Device of the request, and its new limits."""

    token_id: RequiredText
    limits: LimitsBody


class LimitsItem(Struct):
    """The most that a device carries; see the request."""

    connections: int
    bytes_per_second: int
    bytes_per_day: int
    ports: list[int]
    min_price_per_gb: float


class ConsentReply(Reply, kw_only=True):
    """The limits that hold for the device."""

    limits: LimitsItem


class ExitItem(Struct):
    """A device as an exit; bytes both ways together, amounts in USD, days since 00:00 UTC.

    `earned_usd` is everything that its bytes have earned; of that, `pending_usd` is posted and not
    paid out yet, and `taken_back_usd` never will be. `name` is that of its worker token. `reason`
    says why it carries nothing, or that it leaves from elsewhere; it is empty when all is well.
    """

    # One field for each thing that an owner wants to know.
    device_id: str
    name: str
    state: ExitState
    consented_at: Timestamp
    country: str
    limits: LimitsItem
    bytes_today: int
    bytes_total: int
    earned_today_usd: float
    earned_usd: float
    pending_usd: float
    taken_back_usd: float
    reason: str


class MyExitsReply(Listed[ExitItem], kw_only=True):
    """Exits, newest first; `next_cursor` is there when there are more."""

    items: list[ExitItem] = field(name="exits")


class EarningsQuery(Struct):
    """Unit in which earnings are summed."""

    by: Literal["day"] = "day"


class EarningsItem(Struct):
    """Bytes of exits on a day (UTC), the earnings for them, and the amount taken back, in USD."""

    day: Annotated[str, Meta(extra_json_schema={"format": "date"})]
    bytes: int
    earned_usd: float
    taken_back_usd: float


class EarningsReply(Reply, kw_only=True):
    """The days of the last year on which something was carried, the latest first."""

    earnings: list[EarningsItem]
    pending_usd: float


class CoverageItem(Struct):
    """A country (ISO 3166), about how many exits it has, and their least price, in USD per GB."""

    country: str
    exits: Literal["1-9", "10-99", "100-999", "1000+"]
    price_per_gb_floor: float


class CoverageReply(Reply, kw_only=True):
    """The countries in which exits take connections now.

    `attribution` names the sources of the data on places; show it with them.
    """

    countries: list[CoverageItem]
    attribution: list[str]


class SessionExitItem(Struct):
    """The bytes of a session that left in a country ("" if unknown), and the number of exits."""

    country: str
    exits: int
    bytes: int


class SessionExitsReply(Reply, kw_only=True):
    """Countries and exits of a session, with the most bytes first."""

    countries: list[SessionExitItem]


class ExitRoutes:
    """The routes of exits."""

    def __init__(self, exits: Exits) -> None:
        self._exits = exits

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [*self._of_owners(), *self._of_buyers()]

    def _of_owners(self) -> list[Route]:
        of_device = (Code.TOKEN_NOT_FOUND, Code.CONSENT_NEEDED, Code.EXIT_BARRED)
        return [
            Route(
                "GET",
                "/api/exits/terms",
                "What the owner of an exit agrees to",
                self.terms,
                TermsReply,
            ),
            Route(
                "POST",
                "/api/worker/exit/consent",
                "Agree that a device of mine is an exit",
                self.consent,
                ConsentReply,
                scope=Scope.DEVICES_WRITE,
                body=ConsentRequest,
                errors=(
                    Code.EXITS_NOT_OFFERED,
                    Code.TOKEN_NOT_FOUND,
                    Code.TERMS_CHANGED,
                    Code.EXIT_BARRED,
                ),
            ),
            Route(
                "POST",
                "/api/worker/exit/limits",
                "Set how much an exit of mine carries at most",
                self.limits,
                ConsentReply,
                scope=Scope.DEVICES_WRITE,
                body=LimitsRequest,
                errors=of_device,
            ),
            Route(
                "POST",
                "/api/worker/exit/pause",
                "Have an exit of mine carry nothing for now",
                self.pause,
                Reply,
                scope=Scope.DEVICES_WRITE,
                body=DeviceRequest,
                errors=of_device,
            ),
            Route(
                "POST",
                "/api/worker/exit/resume",
                "Have a paused exit of mine carry again",
                self.resume,
                Reply,
                scope=Scope.DEVICES_WRITE,
                body=DeviceRequest,
                errors=of_device,
            ),
            Route(
                "POST",
                "/api/worker/exit/revoke",
                "Take back that a device is an exit; the device itself may, too",
                self.revoke,
                Reply,
                auth=Auth.OPTIONAL_EITHER,
                scope=Scope.DEVICES_WRITE,
                body=RevokeExitRequest,
                body_optional=True,
                errors=(Code.TOKEN_NOT_FOUND, Code.UNAUTHORIZED),
            ),
            Route(
                "GET",
                "/api/exits/me",
                "List my exits, and what they have earned",
                self.mine,
                MyExitsReply,
                scope=Scope.DEVICES_READ,
                query=Page,
            ),
            Route(
                "GET",
                "/api/worker/exit/earnings",
                "What my exits have earned by day",
                self.earnings,
                EarningsReply,
                scope=Scope.DEVICES_READ,
                query=EarningsQuery,
            ),
        ]

    def _of_buyers(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/api/exits/coverage",
                "In which countries there are exits now",
                self.coverage,
                CoverageReply,
            ),
            Route(
                "GET",
                "/api/bandwidth/sessions/{session_id}/exits",
                "Where a session of mine has left",
                self.of_session,
                SessionExitsReply,
                scope=Scope.SESSIONS_READ,
                errors=(Code.SESSION_NOT_FOUND,),
            ),
        ]

    async def terms(self, call: Call[Nothing, Any]) -> TermsReply:  # noqa: ARG002 - the same for all
        """Return the terms, and where exits attach."""
        exits, door = self._exits, self._exits.attached.door()
        return TermsReply(
            text=exits.text,
            terms_hash=exits.terms_hash,
            share_percent=exits.terms.share_percent,
            payout_hold_days=exits.terms.hold_seconds / DAY_SECONDS,
            host=UNSET if door is None else door.host,
            port=UNSET if door is None else door.port,
            certificate_sha256=UNSET if door is None else door.certificate_sha256,
        )

    async def consent(self, call: Call[ConsentRequest, Any]) -> ConsentReply:
        """Make a device of the caller's an exit."""
        body = call.body
        device_id = in_body(body.token_id, "token_id")
        limits = None
        if body.limits is not None:
            limits = _over(await self._exits.limits(call.user_id, device_id), body.limits)
        granted = await self._exits.consent(call.user_id, device_id, body.terms_hash, limits)
        return ConsentReply(limits=_limits_item(granted))

    async def limits(self, call: Call[LimitsRequest, Any]) -> ConsentReply:
        """Set limits."""
        device_id = in_body(call.body.token_id, "token_id")
        limits = _over(await self._exits.limits(call.user_id, device_id), call.body.limits)
        await self._exits.change_limits(call.user_id, device_id, limits)
        return ConsentReply(limits=_limits_item(limits))

    async def pause(self, call: Call[DeviceRequest, Any]) -> Reply:
        """Pause a device as an exit."""
        await self._exits.pause(call.user_id, in_body(call.body.token_id, "token_id"))
        return Reply()

    async def resume(self, call: Call[DeviceRequest, Any]) -> Reply:
        """Let a device carry connections again."""
        await self._exits.resume(call.user_id, in_body(call.body.token_id, "token_id"))
        return Reply()

    async def revoke(self, call: Call[RevokeExitRequest, Any]) -> Reply:
        """Take a consent back, for the owner or for the device that calls."""
        if call.worker is not None:
            await self._exits.revoke(call.worker.user_id, call.worker.id)
            return Reply()
        if call.login is None:
            raise MarketError(Code.UNAUTHORIZED)
        if call.body.token_id is None:
            message = "The field token_id is missing."
            raise MarketError(Code.INVALID_FIELD, message, field="token_id")
        await self._exits.revoke(call.user_id, in_body(call.body.token_id, "token_id"))
        return Reply()

    async def mine(self, call: Call[Nothing, Page]) -> MyExitsReply:
        """List the caller's exits, as of now."""
        query = call.query
        rows = await self._exits.page(call.user_id, before=query.before, limit=query.fetch_limit)
        return MyExitsReply.of(query, rows, _item)

    async def earnings(self, call: Call[Nothing, EarningsQuery]) -> EarningsReply:
        """Return the earnings of the caller's exits."""
        days = await self._exits.earnings(call.user_id)
        pending = await self._exits.pending(call.user_id)
        return EarningsReply(
            earnings=[_earnings_item(day) for day in days], pending_usd=money(pending)
        )

    async def coverage(
        self,
        call: Call[Nothing, Any],  # noqa: ARG002 - the same for all
    ) -> CoverageReply:
        """Return the countries with exits."""
        attached = self._exits.attached
        return CoverageReply(
            countries=[
                self._coverage_item(each)
                for each in sorted(attached.coverage(), key=lambda each: each.country)
                if each.exits and each.country
            ],
            attribution=list(attached.attribution()),
        )

    async def of_session(self, call: Call[Nothing, Any]) -> SessionExitsReply:
        """Return the places where a session of the caller's has left."""
        session_id = in_path(call.path["session_id"], Code.SESSION_NOT_FOUND)
        rows = await self._exits.by_country(call.user_id, session_id)
        return SessionExitsReply(countries=[_session_item(row) for row in rows])

    def _coverage_item(self, each: Coverage) -> CoverageItem:
        terms = self._exits.terms
        floor = max(terms.session_price_floor, terms.price_floor((each.country,)))
        return CoverageItem(each.country, _band(each.exits), money(floor))


def _band(exits: int) -> Literal["1-9", "10-99", "100-999", "1000+"]:
    """Return a rough number: exact numbers would show when a single device comes and goes."""
    if exits < 10:
        return "1-9"
    if exits < 100:
        return "10-99"
    return "100-999" if exits < 1_000 else "1000+"


def _over(limits: ExitDeviceLimits, body: LimitsBody) -> ExitDeviceLimits:
    """Return limits, with those of a request where it has any."""
    return ExitDeviceLimits(
        limits.connections if body.connections is None else body.connections,
        limits.bytes_per_second if body.bytes_per_second is None else body.bytes_per_second,
        limits.bytes_per_day if body.bytes_per_day is None else body.bytes_per_day,
        limits.ports if body.ports is None else tuple(body.ports),
        limits.min_price_per_gb if body.min_price_per_gb is None else body.min_price_per_gb,
    )


def _limits_item(limits: ExitDeviceLimits) -> LimitsItem:
    return LimitsItem(
        limits.connections,
        limits.bytes_per_second,
        limits.bytes_per_day,
        list(limits.ports),
        money(limits.min_price_per_gb),
    )


def _item(mine: MyExit) -> ExitItem:
    row, sums = mine.row, mine.sums
    return ExitItem(
        device_id=row.device_id,
        name=sums.name,
        state=EXIT_STATES[mine.state],
        consented_at=timestamp(row.consented_at),
        country=row.country,
        limits=_limits_item(limits_of(row)),
        bytes_today=sums.day_bytes,
        bytes_total=sums.used_bytes,
        earned_today_usd=money(sums.day_earned),
        earned_usd=money(sums.earned),
        pending_usd=money(sums.pending),
        taken_back_usd=money(sums.taken_back),
        reason=mine.reason,
    )


def _earnings_item(day: EarnedDayRow) -> EarningsItem:
    start = timestamp(day.day * DAY_SECONDS)
    return EarningsItem(
        start.partition("T")[0], day.used_bytes, money(day.earned), money(day.taken_back)
    )


def _session_item(row: CountryRow) -> SessionExitItem:
    return SessionExitItem(row.country, row.exits, row.used_bytes)
