"""The latest reports of devices: answered from memory, written to the store in batches."""

import asyncio
import logging
from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from market.events.catalogue import DeviceOffline, DeviceOnline
from market.events.context import Context
from market.events.recording import NewEvent, record_all
from storage.devices import devices as queries
from storage.devices.devices import DeviceRow
from storage.engines.errors import StoreError
from storage.engines.outage import Outage
from storage.engines.store import Transaction

ONLINE_SECONDS = 90

_logger = logging.getLogger("devices")


class DevicePace(Struct, frozen=True):
    """The time between writes of reports, and the number of devices in memory.

    Attributes:
        write_seconds: between two transactions of reports.
        shared_write_seconds: the same where several daemons serve the same devices.
        write_devices: the devices of one transaction.
        kept_devices: the devices in memory, about a kilobyte each. A device that was silent for
            longer than these is looked up at its next request.
        revoked_tokens: the tokens that are remembered after they were revoked. A request that has
            shown its token may still be under way then. The number is more than users can revoke
            in a minute or two.
    """

    write_seconds: float = 2.0
    shared_write_seconds: float = 1.0
    write_devices: int = 1_000
    kept_devices: int = 50_000
    revoked_tokens: int = 10_000


USUAL_PACE = DevicePace()


class DeviceReports:
    """Keeps the latest reports of devices, and the tokens that were revoked lately.

    Args:
        is_shared: whether other daemons get reports of the same devices. Then a report stays in
            memory only until it is written.
        pace: the time between writes of reports, and the number of devices in memory.
    """

    def __init__(self, context: Context, *, is_shared: bool, pace: DevicePace = USUAL_PACE) -> None:
        self.pace = pace
        self._context = context
        self._is_shared = is_shared
        self._by_token: dict[str, DeviceRow] = {}
        self._by_id: dict[str, str] = {}
        self._changed: set[str] = set()
        # Tokens that were revoked here lately, the latest last: one may be read from the store, or
        # report, while it is being revoked.
        self._revoked: dict[str, None] = {}
        self._flushing = asyncio.Lock()
        self._outage = Outage(_logger, "heartbeats wait for the store to return", logging.ERROR)

    def of_token(self, token_hash: str) -> DeviceRow | None:
        """Return the device of a token from memory; None if the store must be read."""
        return None if self._is_shared else self._by_token.get(token_hash)

    def is_revoked(self, token_hash: str) -> bool:
        """Return whether a token was revoked here lately."""
        return token_hash in self._revoked

    def found(self, device: DeviceRow) -> DeviceRow:
        """Return the latest report of a device that was read from the store, and keep it."""
        if self._is_shared:
            return self.latest(device)
        device = self._by_token.setdefault(device.token_hash, device)
        self._by_id[device.id] = device.token_hash
        self._forget_some()
        return device

    def note_revoked(self, token_hash: str, now: int) -> None:
        """Refuse a token also from memory, once a transaction has revoked it."""
        self._revoked[token_hash] = None
        if len(self._revoked) > self.pace.revoked_tokens:
            del self._revoked[next(iter(self._revoked))]
        device = self._by_token.get(token_hash)
        if device is not None and device.revoked_at is None:
            self._by_token[token_hash] = device._replace(revoked_at=now)

    def latest(self, row: DeviceRow) -> DeviceRow:
        """Return a device as its latest report has it."""
        token_hash = self._by_id.get(row.id)
        if token_hash is None:
            return row
        cached = self._by_token[token_hash]
        if self._is_shared:
            newer = queries.heard_of_at(cached) >= queries.heard_of_at(row)
            return cached._replace(revoked_at=row.revoked_at) if newer else row
        return cached

    def keep(self, device: DeviceRow) -> None:
        """Keep a report of a device in memory, and write it to the store soon."""
        token_hash = device.token_hash
        if token_hash in self._revoked and device.revoked_at is None:
            return
        self._by_token.pop(token_hash, None)  # the device with the latest report stands last
        self._by_token[token_hash] = device
        self._by_id[device.id] = token_hash
        self._changed.add(token_hash)
        self._forget_some()

    async def run(self) -> None:
        """Write reports down until cancelled; the store's failures delay that."""
        while True:
            pace = self.pace
            seconds = pace.shared_write_seconds if self._is_shared else pace.write_seconds
            await asyncio.sleep(seconds)
            try:
                await self.flush()
            except StoreError as error:
                self._outage.failed(error)
            else:
                self._outage.ended()

    async def flush(self) -> None:
        """Write every report that is not in the store yet; one flush waits for the other.

        Raises:
            StoreError: the reports that are not written stay for the next flush.
        """
        async with self._flushing:
            while self._changed:
                await self._write_some()

    async def _write_some(self) -> None:
        batch = [self._by_token[token] for token in islice(self._changed, self.pace.write_devices)]
        await self._context.store.write(_write, self._context, batch, self._is_shared)
        for device in batch:
            if self._by_token[device.token_hash] is not device:  # has reported again meanwhile
                continue
            self._changed.discard(device.token_hash)
            if self._is_shared:
                del self._by_id[self._by_token.pop(device.token_hash).id]
        self._forget_some()

    def _forget_some(self) -> None:
        """Forget the longest silent devices above the bound, if their reports are in the store."""
        over = len(self._by_token) - self.pace.kept_devices
        if over <= 0:
            return
        written = (token for token in self._by_token if token not in self._changed)
        for token_hash in list(islice(written, over)):
            del self._by_id[self._by_token.pop(token_hash).id]


async def _write(
    tx: Transaction, context: Context, devices: Sequence[DeviceRow], only_newer: bool
) -> None:
    """Store reports, and notify owners of devices that have come or left."""
    await queries.write_reports(tx, devices, only_newer=only_newer)
    device_ids, since = [device.id for device in devices], context.now() - ONLINE_SECONDS
    news = [
        NewEvent(row.user_id, DeviceOnline(row.id, row.name), row.id)
        for row in await queries.mark_present(tx, device_ids, since=since)
    ]
    left = [device.id for device in devices if device.offline_at is not None]
    if left:
        news += [
            NewEvent(row.user_id, DeviceOffline(row.id, row.name), row.id)
            for row in await queries.mark_left(tx, left)
        ]
    await record_all(tx, context, news)
