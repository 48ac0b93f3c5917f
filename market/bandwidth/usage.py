"""Usage of buyers: by the hour, by the day, by session.

The meter's reports (`market.bandwidth.leases`) write the rows behind it, which add up to the bytes
of each session. A report is of the hour in which it is made: bytes that waited for the store are of
that in which it was back. The bytes that this process has counted since its last report are added
to the present hour, as the list of sessions adds them, so that the two agree. Connections and
refusals are those of the last report.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import tzinfo
from typing import NamedTuple

from msgspec import Struct

from market.bandwidth.leases import Leases
from market.bandwidth.sessions import Traffic
from market.bandwidth.usage_range import ROWS_MAX, Range, hours_kept_since, last_days, require_rows
from market.base.errors import Code, MarketError
from market.events.context import Context
from storage.bandwidth import sessions as bandwidth_queries
from storage.bandwidth import usage as queries
from storage.bandwidth.sessions import UsedLeaseRow
from storage.bandwidth.usage import HOUR_SECONDS, Bucket, PriceRow, RefusedRow, UsedRow
from storage.engines.store import Transaction

# Longest wait of a report before it is stored, and largest difference of daemons' clocks.
FINAL_AFTER_SECONDS = 300
# Prices, or reasons, of one bucket: far more of either than a buyer meets.
KINDS_MAX = 20
# A day, so that nights count as much as they last.
FORECAST_HOURS = 24
# Fewer hours of use do not predict a day.
FORECAST_LEAST_HOURS = 6
# Bounds a transaction of the sweep; an hour has one row per used session.
ROLLED_MAX_ROWS = 2_000
ROLLED_MAX_BATCHES = 50


class Sum(Struct, frozen=True):
    """Used bytes, and outcomes of connections.

    `cost` is the price of the bytes, exact: in micro-USD per GB times bytes, which is 10^-15 USD. A
    bill rounds it once.
    """

    used_bytes: int = 0
    cost: int = 0
    connections: int = 0
    refusals: dict[str, int] = {}

    def __add__(self, other: "Sum") -> "Sum":
        refusals = self.refusals or other.refusals
        if self.refusals and other.refusals:
            refusals = dict(Counter(self.refusals) + Counter(other.refusals))
        return Sum(
            self.used_bytes + other.used_bytes,
            self.cost + other.cost,
            self.connections + other.connections,
            refusals,
        )


class Point(NamedTuple):
    """One bucket of a series; `session_id` is "" where sessions are added up."""

    bucket: Bucket
    session_id: str
    sum: Sum


class Series(Struct, frozen=True):
    """A series of usage, in the order of time, and then of sessions.

    Nothing that ends by `complete_until` (UTC seconds) changes any more. `undated` was used by
    sessions that were bought within the range, before hours were recorded; it is in no bucket, and
    not in the total.
    """

    range: Range
    points: tuple[Point, ...]
    total: Sum
    undated: Sum
    complete_until: int


class Forecast(Struct, frozen=True):
    """Use of the next 24 hours, if it continues like the last `FORECAST_HOURS` whole hours.

    `hours` is the number of those with any use.
    """

    sum: Sum
    hours: int


class Summary(Struct, frozen=True):
    """Use of today, of the last 7 and 30 days including it, and in all; as of `now`.

    `forecast`: None without enough recent use.
    """

    today: Sum
    week: Sum
    month: Sum
    ever: Sum
    forecast: Forecast | None
    now: int


class UsageHistory:
    """Answers for usage, and adds old hours up to days.

    Args:
        rolled_max_rows: how many hours one transaction adds up.
    """

    def __init__(
        self,
        context: Context,
        leases: Leases,
        traffic: Traffic,
        rolled_max_rows: int = ROLLED_MAX_ROWS,
    ) -> None:
        self.rolled_max_rows = rolled_max_rows
        self._store = context.store
        self._now = context.now
        self._leases = leases
        self._traffic = traffic

    @property
    def now(self) -> int:
        """The present, in UTC seconds."""
        return self._now()

    async def series(
        self,
        user_id: str,
        range_: Range,
        *,
        session_id: str | None = None,
        by_session: bool = False,
        fill: bool = True,
    ) -> Series:
        """Return the use of a user's sessions.

        Args:
            user_id: the user.
            range_: the time range.
            session_id: only this session; None for all.
            by_session: one series for each session.
            fill: also with empty buckets: all of them, or all of each session that has any use.

        Raises:
            MarketError: `session_not_found`, when it does not exist or belongs to another user;
                `too_many_rows`.
        """
        used, refused, undated, leases = await self._store.read(
            _series,
            user_id,
            range_,
            session_id=session_id,
            by_session=by_session,
            node_id=self._leases.node_id,
        )
        now = self._now()
        live = _at_present(self._unreported(leases), range_.buckets, now, by_session=by_session)
        sums = _sums([*used, *live], refused)
        if fill:
            sessions = {key[1] for key in sums} if by_session else {""}
            if by_session and session_id is not None:
                sessions = {session_id}
            require_rows(len(sessions) * len(range_.buckets))
            for bucket in range_.buckets:
                for each in sessions:
                    sums.setdefault((bucket.begins_at, each), Sum())
        require_rows(len(sums))
        by_time = {bucket.begins_at: bucket for bucket in range_.buckets}
        points = [Point(by_time[key[0]], key[1], each) for key, each in sorted(sums.items())]
        return Series(
            range=range_,
            points=tuple(points),
            total=sum((point.sum for point in points), Sum()),
            undated=_priced(undated),
            complete_until=(now - FINAL_AFTER_SECONDS) // HOUR_SECONDS * HOUR_SECONDS,
        )

    async def summary(self, user_id: str, zone: tzinfo) -> Summary:
        """Return the use of a user's sessions, recently by the days of a zone, and in all.

        Raises:
            MarketError: `too_many_rows`.
        """
        now = self._now()
        day, days, more = (last_days(count, zone, now=now) for count in (1, 7, 30))
        # Each after the other, so that no row is read twice.
        spans = [
            day,
            Bucket(days.begins_at, day.begins_at),
            Bucket(more.begins_at, days.begins_at),
        ]
        hour = now - now % HOUR_SECONDS
        first = hour - FORECAST_HOURS * HOUR_SECONDS
        hours = [Bucket(at, at + HOUR_SECONDS) for at in range(first, hour, HOUR_SECONDS)]
        used, refused, lately, ever, leases = await self._store.read(
            _summary, user_id, spans, hours, node_id=self._leases.node_id
        )
        unreported = self._unreported(leases)
        live = _at_present(unreported, spans, now, by_session=False)
        ever += [PriceRow(row.price_per_gb, row.used_bytes) for row in unreported]
        sums = _sums([*used, *live], refused)
        today, before, long_before = (sums.get((span.begins_at, ""), Sum()) for span in spans)
        week = today + before
        return Summary(
            today=today,
            week=week,
            month=week + long_before,
            ever=_priced(ever),
            forecast=_forecast(lately),
            now=now,
        )

    async def roll_up(self) -> int:
        """Add hours that are not kept any longer to their days. Return the number of rows.

        Raises:
            UnavailableError: the store did not answer; the sums so far stay.
        """
        before, rolled = hours_kept_since(self._now()), 0
        limit = self.rolled_max_rows
        for make_days in (queries.make_days, queries.make_days_of_refusals):
            for _ in range(ROLLED_MAX_BATCHES):
                rows = await self._store.write(make_days, before=before, limit=limit)
                rolled += rows
                if rows < limit:
                    break
        return rolled

    def _unreported(self, leases: Iterable[UsedLeaseRow]) -> list[UsedRow]:
        """Return the use of this process's leases since their last reports, undated."""
        rows = []
        for lease in leases:
            used = self._traffic.used_bytes(lease.session_id, lease.lease_id)
            if used is not None and used != lease.reported:
                more = used - lease.reported
                rows.append(UsedRow(0, lease.session_id, lease.price_per_gb, more, 0))
        return rows


def _at_present(
    unreported: Iterable[UsedRow], buckets: Iterable[Bucket], now: int, *, by_session: bool
) -> list[UsedRow]:
    """Date unreported bytes: the present hour is in one bucket, or in none."""
    hour = now - now % HOUR_SECONDS
    return [
        row._replace(begins_at=bucket.begins_at, session_id=row.session_id if by_session else "")
        for bucket in buckets
        if bucket.begins_at <= hour < bucket.ends_at
        for row in unreported
    ]


async def _series(
    tx: Transaction,
    user_id: str,
    range_: Range,
    *,
    session_id: str | None,
    by_session: bool,
    node_id: str | None,
) -> tuple[list[UsedRow], list[RefusedRow], list[PriceRow], list[UsedLeaseRow]]:
    if session_id is not None:
        session = await bandwidth_queries.find(tx, session_id)
        if session is None or session.user_id != user_id:
            raise MarketError(Code.SESSION_NOT_FOUND, field="session_id")
    used, refused = await _rows(
        tx, user_id, range_.buckets, session_id=session_id, by_session=by_session
    )
    undated = await queries.undated(tx, user_id, range_.whole, session_id=session_id)
    leases = await bandwidth_queries.leases_of_user(
        tx, user_id, node_id=node_id, session_id=session_id
    )
    return used, refused, undated, leases


async def _summary(
    tx: Transaction,
    user_id: str,
    spans: Sequence[Bucket],
    hours: Sequence[Bucket],
    *,
    node_id: str | None,
) -> tuple[list[UsedRow], list[RefusedRow], list[UsedRow], list[PriceRow], list[UsedLeaseRow]]:
    used, refused = await _rows(tx, user_id, spans, session_id=None, by_session=False)
    lately = await queries.used(
        tx,
        user_id,
        hours,
        session_id=None,
        by_session=False,
        limit=FORECAST_HOURS * KINDS_MAX + 1,
    )
    if len(lately) > FORECAST_HOURS * KINDS_MAX:
        raise MarketError(Code.TOO_MANY_ROWS)
    ever = await queries.used_ever(tx, user_id)
    leases = await bandwidth_queries.leases_of_user(tx, user_id, node_id=node_id, session_id=None)
    return used, refused, lately, ever, leases


def _forecast(lately: Sequence[UsedRow]) -> Forecast | None:
    sums = [each for each in _sums(lately, ()).values() if each.used_bytes]
    if len(sums) < FORECAST_LEAST_HOURS:
        return None
    return Forecast(sum(sums, Sum()), len(sums))


async def _rows(
    tx: Transaction,
    user_id: str,
    buckets: Sequence[Bucket],
    *,
    session_id: str | None,
    by_session: bool,
) -> tuple[list[UsedRow], list[RefusedRow]]:
    most = ROWS_MAX * KINDS_MAX
    used = await queries.used(
        tx, user_id, buckets, session_id=session_id, by_session=by_session, limit=most + 1
    )
    refused = await queries.refused(
        tx, user_id, buckets, session_id=session_id, by_session=by_session, limit=most + 1
    )
    if max(len(used), len(refused)) > most:
        raise MarketError(Code.TOO_MANY_ROWS)
    return used, refused


def _sums(used: Iterable[UsedRow], refused: Iterable[RefusedRow]) -> dict[tuple[int, str], Sum]:
    """Add rows up, by the beginning of their bucket and by session.

    There may be tens of thousands of them, so that a sum is made once for all of its rows.

    Raises:
        MarketError: `too_many_rows`, when there are more sums than an answer has rows.
    """
    counts: dict[tuple[int, str], tuple[int, int, int]] = {}
    for row in used:
        key = row.begins_at, row.session_id
        used_bytes, cost, connections = counts.get(key, (0, 0, 0))
        counts[key] = (
            used_bytes + row.used_bytes,
            cost + row.used_bytes * row.price_per_gb,
            connections + row.connections,
        )
    refusals: dict[tuple[int, str], dict[str, int]] = {}
    for refusal in refused:
        reasons = refusals.setdefault((refusal.begins_at, refusal.session_id), {})
        reasons[refusal.reason] = reasons.get(refusal.reason, 0) + refusal.refusals
    keys = counts.keys() | refusals.keys()
    require_rows(len(keys))
    return {key: Sum(*counts.get(key, (0, 0, 0)), refusals.get(key, {})) for key in keys}


def _priced(rows: Iterable[PriceRow]) -> Sum:
    return sum((Sum(row.used_bytes, row.used_bytes * row.price_per_gb) for row in rows), Sum())
