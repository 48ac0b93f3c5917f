"""Work of a device in its owner's view: its state, its jobs, its earnings by day."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from market.base.errors import Code, MarketError
from market.devices.devices import Devices
from market.dispatch.asks import Standing
from market.dispatch.dispatch import Dispatch
from market.events.context import Context
from market.jobs.answers import OpenDispute, open_disputes
from market.jobs.appeals import open_until
from storage.devices import device_work as queries
from storage.devices import devices as device_queries
from storage.devices.device_work import DoneRow
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.exits import exits as exit_queries

DAY_SECONDS = 86_400
DAYS_MAX = 366


class WorkState(StrEnum):
    """State of a device's work; the first one that applies."""

    REVOKED = "revoked"
    NEVER_SEEN = "never_seen"
    OFFLINE = "offline"
    WORKING = "working"
    NOT_ASKING = "not_asking"
    WANTS_NONE = "wants_none"
    WAITING = "waiting"


class Seen(Struct, frozen=True):
    """Device in its owner's view: its state, its running jobs, and how waiting jobs suit it."""

    row: DeviceRow
    state: WorkState
    running: int
    standing: Standing


class EarnedDay(NamedTuple):
    """Earnings of a device on a day: micro-credits by jobs, micro-USD and bytes as an exit.

    Days are counted from 1970, in UTC.
    """

    day: int
    earned: int
    earned_usd: int
    shared_bytes: int


class Done(Struct, frozen=True):
    """A job that a device had; its owner may answer a dispute, or appeal until a time."""

    row: DoneRow
    appeal_until: int | None
    dispute: OpenDispute | None

    @property
    def id(self) -> str:
        """The identifier of the job."""
        return self.row.id


class DeviceWork:
    """Reports to owners about the work of their devices.

    Args:
        is_shared: whether devices can request work from other daemons, which are not visible here.
    """

    def __init__(
        self, context: Context, devices: Devices, dispatch: Dispatch, *, is_shared: bool
    ) -> None:
        self._store = context.store
        self._now = context.now
        self._devices = devices
        self._dispatch = dispatch
        self._is_shared = is_shared

    async def states(self, rows: Sequence[DeviceRow]) -> Mapping[str, WorkState]:
        """Return the state of each of these devices."""
        running = await self._store.read(
            device_queries.running_on, [row.id for row in rows if row.revoked_at is None]
        )
        return {row.id: self._state(row, running.get(row.id, 0)) for row in rows}

    async def find(self, user_id: str, device_id: str) -> Seen:
        """Return a device of a user.

        Raises:
            MarketError: `token_not_found`.
        """
        row = await self._devices.find(user_id, device_id)
        running = (await self._store.read(device_queries.running_on, [row.id])).get(row.id, 0)
        reputation = (await self._devices.reputations([row.id]))[row.id]
        standing = self._dispatch.devices.standing(row, reputation.score)
        return Seen(row, self._state(row, running), running, standing)

    async def jobs(self, user_id: str, device_id: str, *, before: str, limit: int) -> list[Done]:
        """Return the jobs that a device of a user has had, newest first.

        Raises:
            MarketError: `token_not_found`.
        """

        async def look(tx: Transaction) -> list[Done]:
            await _require(tx, user_id, device_id)
            rows = await queries.page(tx, device_id=device_id, before=before, limit=limit)
            found = [row.id for row in rows]
            ends = await open_until(tx, user_id, found, self._now())
            disputes = await open_disputes(tx, user_id, found)
            return [Done(row, ends.get(row.id), disputes.get(row.id)) for row in rows]

        return await self._store.read(look)

    async def earned(self, user_id: str, device_id: str, days: int) -> list[EarnedDay]:
        """Return the earnings of a user's device in the last days, the latest first.

        Today is one of them; a day on which it earned nothing is left out.

        Raises:
            MarketError: `token_not_found`.
        """
        first = self._now() // DAY_SECONDS - days + 1
        return await self._store.read(_earned, user_id, device_id, first)

    def _state(self, row: DeviceRow, running: int) -> WorkState:
        if row.revoked_at is not None:
            return WorkState.REVOKED
        if row.last_heartbeat_at is None and self._dispatch.devices.is_asking(row.id) is None:
            return WorkState.NEVER_SEEN
        if not self._devices.is_heard(row):
            return WorkState.OFFLINE
        if running:
            return WorkState.WORKING
        is_asking = self._dispatch.devices.is_asking(row.id)
        if not is_asking and not self._is_shared:
            return WorkState.NOT_ASKING
        return (
            WorkState.WANTS_NONE if self._dispatch.devices.slots(row.id) == 0 else WorkState.WAITING
        )


async def _require(tx: Transaction, user_id: str, device_id: str) -> None:
    if await device_queries.find(tx, device_id=device_id, user_id=user_id) is None:
        raise MarketError(Code.TOKEN_NOT_FOUND)


async def _earned(tx: Transaction, user_id: str, device_id: str, first: int) -> list[EarnedDay]:
    await _require(tx, user_id, device_id)
    jobs = {
        row.day: row.earned
        for row in await queries.earned_by_day(tx, device_id=device_id, since=first)
    }
    exits = {row.day: row for row in await exit_queries.days(tx, [device_id], since=first)}
    return [
        EarnedDay(
            day,
            jobs.get(day, 0),
            exits[day].earned if day in exits else 0,
            exits[day].used_bytes if day in exits else 0,
        )
        for day in sorted({*jobs, *exits}, reverse=True)
    ]
