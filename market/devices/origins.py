"""The addresses that devices were seen at: noted in memory, written in batches.

A complaint names an address and a time; these rows lead from there to the devices. An IPv6 address
is noted as its /64: one household has all of it, and may change the address for each connection. An
attached device is noted again every two minutes, so after a crash its last row ends two minutes
early at most. Rows are kept as long as the access records.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice

from msgspec import Struct

from market.base.networks import counted_network, parsed_address
from market.events.context import Context
from storage.devices import origins as queries
from storage.devices.origins import SightingRow
from storage.engines.errors import StoreError
from storage.engines.outage import Outage

DAY_SECONDS = 86_400
WRITE_SECONDS = 15.0
RENEW_SECONDS = 120  # a row of a device that stays is written that often
GAP_SECONDS = 300  # two renewals, and the time of a write
# Of one device, also in memory; a home line has a new address once or twice a day.
ROWS_PER_DAY = 100
KEPT_MAX = 50_000
WRITTEN_ROWS = 1_000
DELETED_ROWS = 10_000
# Devices that are noted or forgotten in one turn of the loop: some milliseconds.
TURN_MAX = 1_000

_logger = logging.getLogger("devices")
_Key = tuple[str, str]


class _Seen(Struct):
    """A device at an address; `written_at` is the end of its stored row, None before the first."""

    first: int
    last: int
    written_at: int | None = None


class DeviceOrigins:
    """Notes the addresses of devices, and writes them.

    Args:
        keep_days: days that a row is kept; with 0 none is written.
        most: devices and addresses in memory, half a kilobyte each.

    Attributes:
        dropped: the number of unwritten addresses that memory had no room for.
    """

    def __init__(self, context: Context, keep_days: int, most: int = KEPT_MAX) -> None:
        self._context = context
        self._keep_days = keep_days
        self._most = most
        self._seen: dict[_Key, _Seen] = {}  # the latest last
        self._due: dict[_Key, None] = {}
        self._counts = Counter[str]()  # of the addresses of each device in memory
        self._attached: Callable[[], Iterable[_Key]] = tuple
        self._renewed_at = 0
        self.dropped = 0
        self._logged_dropped = 0
        self._outage = Outage(_logger, "addresses of devices wait for the store", logging.ERROR)

    def watch(self, attached: Callable[[], Iterable[_Key]]) -> None:
        """Note the devices that a function returns again from now on, each with its address."""
        self._attached = attached

    def saw(self, device_id: str, address: str) -> None:
        """Note that a device is at an address now."""
        self._note(device_id, address, is_end=False)

    def left(self, device_id: str, address: str) -> None:
        """Note that a device was at an address until now."""
        self._note(device_id, address, is_end=True)

    async def run(self) -> None:
        """Write the noted addresses until cancelled; failures of the store delay that."""
        while True:
            await asyncio.sleep(WRITE_SECONDS)
            try:
                await self.flush()
            except StoreError as error:
                self._outage.failed(error)
            else:
                self._outage.ended()

    async def flush(self) -> None:
        """Write the noted addresses, and note attached devices again when that is due.

        Raises:
            StoreError: they are written the next time.
        """
        now = self._context.now()
        if now - self._renewed_at >= RENEW_SECONDS:
            self._renewed_at = now
            attached = list(self._attached())
            for begin in range(0, len(attached), TURN_MAX):
                for device_id, address in attached[begin : begin + TURN_MAX]:
                    self.saw(device_id, address)
                await asyncio.sleep(0)
        self._log_dropped()
        while self._due:
            await self._write_some()
        is_left = True
        while is_left:
            is_left = self._forget_old(now)
            await asyncio.sleep(0)

    async def delete_old(self) -> int:
        """Delete rows whose time is over, and return their number.

        Raises:
            StoreError: they are deleted later.
        """
        if not self._keep_days:
            return 0
        before = self._context.now() - self._keep_days * DAY_SECONDS
        return await self._context.store.write(
            queries.delete_old, before=before, limit=DELETED_ROWS
        )

    def _note(self, device_id: str, text: str, *, is_end: bool) -> None:
        address = parsed_address(text)
        if not self._keep_days or address is None:
            return
        key, now = (device_id, counted_network(str(address))), self._context.now()
        if key not in self._seen:
            if self._counts[device_id] >= ROWS_PER_DAY:
                self._forget_old(now)
            if self._counts[device_id] >= ROWS_PER_DAY:
                return  # it pushes out no other device
            self._counts[device_id] += 1
        seen = self._seen.pop(key, None)
        if seen is None or not 0 <= now - seen.last <= GAP_SECONDS:  # a set clock begins a row
            seen = _Seen(now, now)
        seen.last = now
        self._seen[key] = seen
        if is_end or seen.written_at is None or now - seen.written_at >= RENEW_SECONDS:
            self._due[key] = None
        if len(self._seen) > self._most:
            earliest = next(iter(self._seen))
            self.dropped += earliest in self._due
            self._forget(earliest)

    def _log_dropped(self) -> None:
        new = self.dropped - self._logged_dropped
        if new:
            _logger.warning(
                "addresses of devices: %d dropped: more than %d in memory", new, self._most
            )
        self._logged_dropped = self.dropped

    def _forget_old(self, now: int) -> bool:
        """Forget devices that were last seen before a gap, and are written.

        Returns:
            Whether some may be left for another turn of the loop.
        """
        for _ in range(TURN_MAX):
            if not self._seen:
                return False
            key, seen = next(iter(self._seen.items()))
            if key in self._due or now - seen.last <= GAP_SECONDS:
                return False
            self._forget(key)
        return True

    def _forget(self, key: _Key) -> None:
        device_id, _ = key
        del self._seen[key]
        self._due.pop(key, None)
        self._counts[device_id] -= 1
        if not self._counts[device_id]:
            del self._counts[device_id]

    async def _write_some(self) -> None:
        keys, numbers = list(islice(self._due, WRITTEN_ROWS)), Counter[str]()
        rows = []
        for device_id, address in keys:
            numbers[device_id] += 1
            seen = self._seen[device_id, address]
            began = seen.first if seen.written_at is None else seen.written_at
            row = SightingRow(device_id, address, began, seen.last, numbers[device_id])
            rows.append(row)
        for key in keys:
            del self._due[key]
        try:
            await self._context.store.write(
                queries.write, rows, gap_seconds=GAP_SECONDS, most=ROWS_PER_DAY
            )
        except StoreError:
            self._due.update((key, None) for key in keys if key in self._seen)
            raise
        for key, row in zip(keys, rows, strict=True):
            if (found := self._seen.get(key)) is not None:
                found.written_at = row.ended_at
