"""The status of the service: the state of its parts, the time that they worked, and notices."""

import asyncio
import json
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from market.events.context import Context
from storage.engines.errors import UnavailableError
from storage.engines.store import Transaction
from storage.site import status as queries
from storage.site.status import HOUR_SECONDS, NoticeRow, NowRow, WorkedRow

State = Literal["working", "failing", "off", "unknown"]
WORKING: State = "working"
FAILING: State = "failing"
OFF: State = "off"
UNKNOWN: State = "unknown"

COMPONENTS = ("api", "proxy", "exits", "jobs", "mail", "database")
LOOK_SECONDS = 10
# A longer gap between two looks is an outage: only the time of one look counts as work.
GAP_MAX_SECONDS = 30
KEEP_DAYS = 90
DAY_HOURS = 24
REPORT_SECONDS = 5  # the age of a report that visitors get
NOTICES_MAX = 20
# Notices that have ended are shown for a week.
ENDED_SHOWN_SECONDS = 7 * 86_400


class Component(Struct, frozen=True):
    """A part of the service; shares of time from 0 to 1, None while there is too little of it."""

    name: str
    state: State
    day: float | None
    ninety_days: float | None


class StatusReport(Struct, frozen=True):
    """The status at a time (UTC seconds)."""

    at: int
    components: tuple[Component, ...]
    notices: tuple[NoticeRow, ...]


class Status:
    """Records looks at the parts of the service, and reports them."""

    def __init__(self, context: Context) -> None:
        self._store = context.store
        self._now = context.now
        self._report: StatusReport | None = None
        self._reported_at = -REPORT_SECONDS
        self._reading = asyncio.Lock()  # one visitor reads, and the others wait for the report

    async def look(self, components: Mapping[str, State]) -> None:
        """Record the state of each component.

        Raises:
            StoreError: nothing was recorded, so that the time counts as an outage.
        """
        await self._store.write(_look, self._now(), components)

    async def report(self) -> StatusReport:
        """Return the status, at most `REPORT_SECONDS` old; also without the database.

        Raises:
            StoreError: the database cannot be read, and could not since the start.
        """
        if self._report is not None and self._is_new():
            return self._report
        async with self._reading:
            if self._report is None or not self._is_new():
                now = self._now()
                try:
                    self._report = await self._store.read(_report, now)
                except UnavailableError:
                    if self._report is None:
                        raise
                    self._report = _without_database(self._report)
                self._reported_at = now
            return self._report

    def _is_new(self) -> bool:
        return 0 <= self._now() - self._reported_at < REPORT_SECONDS


async def _look(tx: Transaction, now: int, components: Mapping[str, State]) -> None:
    before = (await queries.now(tx)).at
    gap = now - before
    worked = gap if 0 <= gap <= GAP_MAX_SECONDS else LOOK_SECONDS
    seconds = {
        name: worked if state == WORKING else 0
        for name, state in components.items()
        if state != OFF
    }
    await queries.record(tx, now, components, seconds)
    if now // HOUR_SECONDS != before // HOUR_SECONDS:
        await queries.forget(tx, now // HOUR_SECONDS - KEEP_DAYS * DAY_HOURS)


async def _report(tx: Transaction, now: int) -> StatusReport:
    row, hour = await queries.now(tx), now // HOUR_SECONDS
    day = await queries.worked(tx, hour - DAY_HOURS)
    ninety_days = await queries.worked(tx, hour - KEEP_DAYS * DAY_HOURS)
    shown = [
        each
        for each in await queries.notices(tx, limit=NOTICES_MAX)
        if each.ended_at is None or each.ended_at > now - ENDED_SHOWN_SECONDS
    ]
    shares = [
        {each.component: _share(each, now) for each in period} for period in (day, ninety_days)
    ]
    states = _states(row, now)
    return StatusReport(
        at=row.at,
        components=tuple(
            Component(name, states[name], shares[0].get(name), shares[1].get(name))
            for name in COMPONENTS
        ),
        notices=tuple(shown),
    )


def _states(row: NowRow, now: int) -> dict[str, State]:
    """Return the state of each component; an old look says nothing of the present."""
    if now - row.at > GAP_MAX_SECONDS:
        return dict.fromkeys(COMPONENTS, UNKNOWN)
    found: dict[str, State] = json.loads(row.components)
    return {name: found.get(name, UNKNOWN) for name in COMPONENTS}


def _share(row: WorkedRow, now: int) -> float | None:
    """Return the share of the time since the first hour's end in which a component worked.

    The first hour is left out: looks may have begun in the middle of it.
    """
    elapsed = now - (row.first_hour + 1) * HOUR_SECONDS
    if elapsed < HOUR_SECONDS:
        return None
    return min(row.seconds / elapsed, 1.0)


def _without_database(report: StatusReport) -> StatusReport:
    components = tuple(
        Component(each.name, FAILING if each.name == "database" else UNKNOWN, None, None)
        for each in report.components
    )
    return StatusReport(report.at, components, report.notices)
