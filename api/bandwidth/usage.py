"""Routes of usage: the use over time, as JSON and as a table; and a summary."""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, tzinfo
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from api.http.identifiers import in_body
from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Call, Csv, Nothing, Reply, Route
from market.accounts.scopes import Scope
from market.bandwidth.usage import FORECAST_HOURS, Forecast, Point, Series, Sum, UsageHistory
from market.bandwidth.usage_range import Range, Step, range_of, zone_of
from market.base.errors import Code, MarketError
from market.money.money import BYTE_DIGITS, GB

StepWord = Literal["hour", "day"]
STEPS: dict[StepWord, Step] = {"hour": Step.HOUR, "day": Step.DAY}
# `Sum.cost` in USD.
COST_DIGITS = 15
# Reading all hours that are kept takes as long as five other requests.
USAGE_WEIGHT = 5
UNDATED_NOTE = "used before hours were recorded"

_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class UsageQuery(Struct, rename={"begins": "from", "ends": "to"}):
    """Time and sessions: whole hours or days from `from` until before `to`, up to the present one.

    Both are days (2026-11-21, from midnight), or times with `Z` or an offset (in a URL, `+` is
    written `%2B`). Without `to` it is until now, without `from` a day of hours, or 30 days. Days
    begin at midnight in `tz`. With `fill` the series also has hours and days without use; for
    `by=none` it has them unless `fill` is false.
    """

    begins: str | None = None
    ends: str | None = None
    step: StepWord = "hour"
    by: Literal["session", "none"] = "none"
    session_id: str | None = None
    fill: bool | None = None
    tz: str = "UTC"


class SummaryQuery(Struct):
    """In which time zone days begin at midnight."""

    tz: str = "UTC"


class UsageSum(Struct):
    """Use, with the numbers of successful connections and of refusals by reason.

    `cost_usd` is the price of the bytes, not rounded: the list of sessions has the final cost of a
    session when it is over. Connections and refusals are counted, and never billed.
    """

    bytes: int
    gb: float
    cost_usd: float
    connections: int
    refusals: dict[str, int]


class UsageItem(UsageSum):
    """Use from `at` on, for an hour, or for the `day`; of one session, or of all."""

    at: Timestamp
    day: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET


class BilledSum(Struct):
    """The used bytes and their price, not rounded."""

    bytes: int
    gb: float
    cost_usd: float


class UsageReply(Reply, kw_only=True, rename={"begins": "from", "ends": "to"}):
    """Usage over time; the series adds up to `total`.

    Use that ends by `complete_until` does not change any more. Bytes belong to the hour in which
    the proxy reported them, half a second later; until then they belong to the present one.
    Connections and refusals are included once they were reported, half a second after their bytes.
    `undated` is present if sessions that were bought in this time used bytes before hours were
    recorded: these are part of their use, and in no hour.
    """

    step: StepWord
    begins: Timestamp
    ends: Timestamp
    tz: str
    complete_until: Timestamp
    total: UsageSum
    undated: BilledSum | UnsetType = UNSET
    series: list[UsageItem]


class ForecastSum(BilledSum):
    """Forecast of the next 24 hours, if they are like the last `window_hours` whole ones.

    `hours_used` of those hours had use: with fewer than 6 the forecast is null.
    """

    window_hours: int
    hours_used: int


class SummaryReply(Reply, kw_only=True):
    """Use today, in 7 and in 30 days including today, and in all; as of `at`.

    `forecast` is null when too little was used lately.
    """

    at: Timestamp
    tz: str
    today: UsageSum
    last_7_days: UsageSum
    last_30_days: UsageSum
    all: BilledSum
    forecast: ForecastSum | None


class UsageRoutes:
    """The routes of usage."""

    def __init__(self, usage: UsageHistory) -> None:
        self._usage = usage

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "GET",
                "/api/usage",
                "How much I have used, by the hour or day",
                self.series,
                UsageReply,
                scope=Scope.USAGE_READ,
                query=UsageQuery,
                weight=USAGE_WEIGHT,
                errors=(Code.TOO_MANY_ROWS, Code.SESSION_NOT_FOUND),
            ),
            Route(
                "GET",
                "/api/usage.csv",
                "How much I have used, as a table",
                self.csv,
                Csv,
                scope=Scope.USAGE_READ,
                query=UsageQuery,
                weight=USAGE_WEIGHT,
                errors=(Code.TOO_MANY_ROWS, Code.SESSION_NOT_FOUND),
            ),
            Route(
                "GET",
                "/api/usage/summary",
                "How much I have used today, lately, and ever",
                self.summary,
                SummaryReply,
                scope=Scope.USAGE_READ,
                query=SummaryQuery,
                errors=(Code.TOO_MANY_ROWS,),
            ),
        ]

    async def series(self, call: Call[Nothing, UsageQuery]) -> UsageReply:
        """Return a series of the caller's usage."""
        series = await self._series(call)
        whole, undated = series.range.whole, series.undated
        return UsageReply(
            step=call.query.step,
            begins=timestamp(whole.begins_at),
            ends=timestamp(whole.ends_at),
            tz=call.query.tz,
            complete_until=timestamp(series.complete_until),
            total=_sum(series.total),
            undated=_billed(undated) if undated.used_bytes else UNSET,
            series=[_item(point, series.range) for point in series.points],
        )

    async def csv(self, call: Call[Nothing, UsageQuery]) -> Csv:
        """Return the same as a table."""
        series = await self._series(call)
        whole = series.range.whole
        first, last = (timestamp(at)[:10] for at in (whole.begins_at, whole.ends_at - 1))
        lines = "\r\n".join(",".join(cells) for cells in _cells(series))
        return Csv(name=f"usage-{first}-{last}.csv", body=f"{lines}\r\n")

    async def summary(self, call: Call[Nothing, SummaryQuery]) -> SummaryReply:
        """Return the recent use and the total use of the caller."""
        summary = await self._usage.summary(call.user_id, zone_of(call.query.tz))
        return SummaryReply(
            at=timestamp(summary.now),
            tz=call.query.tz,
            today=_sum(summary.today),
            last_7_days=_sum(summary.week),
            last_30_days=_sum(summary.month),
            all=_billed(summary.ever),
            forecast=None if summary.forecast is None else _expected(summary.forecast),
        )

    async def _series(self, call: Call[Nothing, UsageQuery]) -> Series:
        query = call.query
        zone = zone_of(query.tz)
        range_ = range_of(
            STEPS[query.step],
            zone,
            moment_of(query.begins, zone, "from"),
            moment_of(query.ends, zone, "to"),
            now=self._usage.now,
        )
        session_id = query.session_id
        return await self._usage.series(
            call.user_id,
            range_,
            session_id=None if session_id is None else in_body(session_id, "session_id"),
            by_session=query.by == "session",
            fill=query.by == "none" if query.fill is None else query.fill,
        )


def moment_of(text: str | None, zone: tzinfo, field: str) -> int | None:
    """Return a day, or a time with an offset, in UTC seconds; a fraction of a second is dropped.

    Raises:
        MarketError: `invalid_field`, when it is neither.
    """
    if text is None:
        return None
    try:
        if _DAY.fullmatch(text):
            day = date.fromisoformat(text)
            moment = datetime(day.year, day.month, day.day, tzinfo=zone)
        elif _MOMENT.fullmatch(text):
            moment = datetime.fromisoformat(text.upper())
        else:
            raise ValueError("neither a day nor a time")
        return (moment - _EPOCH) // (_EPOCH.resolution * 1_000_000)
    except (ValueError, OverflowError) as error:
        message = (
            f"{field} is neither a day (2026-11-21) nor a time with Z or an offset "
            "(2026-11-21T19:00:00Z; in a URL, + is written %2B)."
        )
        raise MarketError(Code.INVALID_FIELD, message, field=field) from error


def _sum(total: Sum) -> UsageSum:
    return UsageSum(
        bytes=total.used_bytes,
        gb=total.used_bytes / GB,
        cost_usd=total.cost / 10**COST_DIGITS,
        connections=total.connections,
        refusals=total.refusals,
    )


def _billed(total: Sum) -> BilledSum:
    return BilledSum(
        bytes=total.used_bytes, gb=total.used_bytes / GB, cost_usd=total.cost / 10**COST_DIGITS
    )


def _expected(forecast: Forecast) -> ForecastSum:
    billed = _billed(forecast.sum)
    return ForecastSum(
        bytes=billed.bytes,
        gb=billed.gb,
        cost_usd=billed.cost_usd,
        window_hours=FORECAST_HOURS,
        hours_used=forecast.hours,
    )


def _item(point: Point, range_: Range) -> UsageItem:
    total = point.sum
    return UsageItem(
        bytes=total.used_bytes,
        gb=total.used_bytes / GB,
        cost_usd=total.cost / 10**COST_DIGITS,
        connections=total.connections,
        refusals=total.refusals,
        at=timestamp(point.bucket.begins_at),
        day=_day(point, range_) or UNSET,
        session_id=point.session_id or UNSET,
    )


def _day(point: Point, range_: Range) -> str:
    """Return the date of a day; "" for an hour."""
    if range_.step is Step.HOUR:
        return ""
    return datetime.fromtimestamp(point.bucket.begins_at, range_.zone).date().isoformat()


def _cells(series: Series) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table, its header first.

    No cell has text of a user, and none has a character that a program could take for the beginning
    of a formula, or that would need quotes.
    """
    yield (
        "from",
        "to",
        "day",
        "session_id",
        "bytes",
        "gb",
        "cost_usd",
        "connections",
        "refused",
        "reasons",
        "note",
    )
    for point in series.points:
        bucket, total = point.bucket, point.sum
        yield (
            timestamp(bucket.begins_at),
            timestamp(bucket.ends_at),
            _day(point, series.range),
            point.session_id,
            *_counts(total),
            str(total.connections),
            str(sum(total.refusals.values())),
            " ".join(f"{reason}:{count}" for reason, count in sorted(total.refusals.items())),
            "",
        )
    if series.undated.used_bytes:
        yield ("", "", "", "", *_counts(series.undated), "", "", "", UNDATED_NOTE)


def _counts(total: Sum) -> tuple[str, str, str]:
    gb = _decimal(total.used_bytes, BYTE_DIGITS)
    return str(total.used_bytes), gb, _decimal(total.cost, COST_DIGITS)


def _decimal(number: int, digits: int) -> str:
    """Return `number` divided by a power of ten, as text with `digits` decimals."""
    whole, rest = divmod(number, 10**digits)
    return f"{whole}.{rest:0{digits}d}"
