"""Worker devices: their tokens, their heartbeats, their presence.

Heartbeats are the most frequent request of the service. Memory has the latest report of every
device that reported, and every reply uses it; `run` writes changes to the store in batches. After a
crash a device has lost at most the reports of the last seconds.

With several daemons on one database a report stays in memory only until it is written.
"""

import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from typing import TypedDict

from msgspec import Struct

from market.accounts.bounds import Bounds, lock_user, require
from market.accounts.makers import require_current
from market.accounts.personal import bounds_of
from market.accounts.scopes import LOCAL, Maker
from market.base.errors import Code, MarketError
from market.base.gathering import Gathering
from market.devices.origins import DeviceOrigins
from market.devices.reports import ONLINE_SECONDS, USUAL_PACE, DevicePace, DeviceReports
from market.events.catalogue import DeviceCreated, DeviceOffline, DeviceRevoked
from market.events.context import Context
from market.events.idempotency import Receipt
from market.events.recording import NewEvent, record, record_all
from market.trust import trust
from market.trust.reputation import Reputation
from storage.devices import devices as queries
from storage.devices import made_by_keys
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction

TOKEN_BYTES = 32
TOKEN_MAX_CHARACTERS = 256
# A heartbeat is written down that much later at most, unless the store is away.
LATE_SECONDS = 30
AWAY_MAX_DEVICES = 1_000
FIND_MAX_DEVICES = 100  # looked up together: the first of them waits for the last
NAME_MAX_CHARACTERS = 200
UNKNOWN = "The worker token was not issued by this service, or was revoked; make a new one."

_logger = logging.getLogger("devices")


class Revoked(Struct, frozen=True):
    """A device whose worker token was revoked."""

    device_id: str
    token_hash: str


class Report(TypedDict, total=False):
    """Report of a device about itself: memory in GB, temperatures in °C, use in percent."""

    hostname: str
    gpu_name: str
    cpu_cores: int
    ram_gb: float
    cpu_temp: float
    gpu_temp: float
    cpu_pct: float
    ram_pct: float


class WorkerToken(Struct, frozen=True):
    """A new token, readable this once, and the device it belongs to."""

    token: str
    device_id: str


class Devices:
    """Worker devices.

    Args:
        bounds: returns the limits of one user.
        is_shared: whether other daemons receive reports of the same devices. Then each request
            reads the store, and only unsaved reports come from memory.
        pace: the time between writes of reports, and the number of devices in memory.
        origin_days: days that the addresses of devices are kept; with 0 none is.

    Attributes:
        reports: the latest reports of the devices.
        origins: the addresses that devices were seen at.
    """

    def __init__(
        self,
        context: Context,
        bounds: Callable[[], Bounds],
        *,
        is_shared: bool = False,
        pace: DevicePace = USUAL_PACE,
        origin_days: int = 0,
    ) -> None:
        self.reports = DeviceReports(context, is_shared=is_shared, pace=pace)
        self.origins = DeviceOrigins(context, origin_days)
        self._bounds = bounds
        self._context = context
        self._store = context.store
        self._now = context.now
        self._is_shared = is_shared
        self._finding = Gathering(self._read_some, FIND_MAX_DEVICES)

    async def create(
        self,
        user_id: str,
        *,
        name: str,
        device_type: str,
        min_price_usd: int | None,
        maker: Maker = LOCAL,
        receipt: Receipt[WorkerToken] | None = None,
    ) -> WorkerToken:
        """Register a device, offline, and make its token.

        Args:
            user_id: whose device.
            name: its label, and its host name until it reports another.
            device_type: desktop, mini_pc, server or phone.
            min_price_usd: micro-USD per hour below which it is not offered work.
            maker: the login or API key that makes it; one that has ended makes none.
            receipt: keeps the reply, if this is to be done once.

        Raises:
            MarketError: `invalid_field`, `too_many_devices`, `idempotency_key_reused`,
                `unauthorized`.
            Replayed: this was answered before.
        """
        if not name.isprintable() or len(name) > NAME_MAX_CHARACTERS:
            message = f"A name has 1 to {NAME_MAX_CHARACTERS} printable characters."
            raise MarketError(Code.INVALID_FIELD, message, field="name")
        token = secrets.token_urlsafe(TOKEN_BYTES)
        device = DeviceRow(
            id=self._context.identifiers.new(),
            user_id=user_id,
            token_hash=_hashed(token),
            name=name,
            hostname=name,
            device_type=device_type,
            min_price_usd=min_price_usd,
            gpu_name="",
            cpu_cores=0,
            ram_gb=0.0,
            cpu_temp=None,
            gpu_temp=None,
            cpu_pct=None,
            ram_pct=None,
            created_at=self._now(),
            last_heartbeat_at=None,
            offline_at=None,
            revoked_at=None,
        )
        worker_token = WorkerToken(token, device.id)

        async def unit(tx: Transaction) -> None:
            await lock_user(tx, user_id)
            await require_current(tx, user_id, self._now(), maker)
            if receipt is not None:
                await receipt.keep(tx, worker_token)
            await _create(
                tx,
                self._context,
                device,
                bounds=self._bounds(),
                maker=maker,
            )

        await self._store.write(unit)
        return worker_token

    async def authenticate(self, token: str) -> DeviceRow:
        """Return the device that shows a token, as of now.

        Raises:
            MarketError: `worker_unauthorized`.
        """
        if not token.isascii() or not 0 < len(token) <= TOKEN_MAX_CHARACTERS:
            raise MarketError(Code.WORKER_UNAUTHORIZED, UNKNOWN)
        token_hash = _hashed(token)
        device = self.reports.of_token(token_hash)
        if device is None:
            device = await self._find(token_hash)
        if device.revoked_at is not None:
            raise MarketError(Code.WORKER_UNAUTHORIZED, UNKNOWN)
        return device

    async def _find(self, token_hash: str) -> DeviceRow:
        device = await self._finding.ask(token_hash)
        if device is None or device.revoked_at is not None or self.reports.is_revoked(token_hash):
            raise MarketError(Code.WORKER_UNAUTHORIZED, UNKNOWN)
        return self.reports.found(device)

    async def _read_some(self, token_hashes: Sequence[str]) -> dict[str, DeviceRow]:
        rows = await self._store.read(queries.find_by_tokens, token_hashes)
        return {row.token_hash: row for row in rows}

    def heartbeat(self, device: DeviceRow, report: Report) -> None:
        """Process a device's report; a missing field keeps its last value.

        Raises:
            MarketError: `invalid_field`.
        """
        for field, text in (
            ("hostname", report.get("hostname", "")),
            ("gpu_name", report.get("gpu_name", "")),
        ):
            if not text.isprintable():
                message = f"The {field} has control characters."
                raise MarketError(Code.INVALID_FIELD, message, field=field)
        latest = self.reports.latest(device)
        self.reports.keep(latest._replace(last_heartbeat_at=self._now(), offline_at=None, **report))

    async def offline(self, device: DeviceRow) -> None:
        """Note that a device leaves; other daemons know it when this returns.

        Raises:
            StoreError: they will know it later.
        """
        self.reports.keep(self.reports.latest(device)._replace(offline_at=self._now()))
        if self._is_shared:
            await self.reports.flush()

    async def find(self, user_id: str, device_id: str) -> DeviceRow:
        """Return a device of a user, as of now, whether it was revoked or not.

        Raises:
            MarketError: `token_not_found`.
        """
        row = await self._store.read(queries.find, device_id=device_id, user_id=user_id)
        if row is None:
            raise MarketError(Code.TOKEN_NOT_FOUND)
        return self.reports.latest(row)

    async def page(self, user_id: str, *, before: str, limit: int) -> list[DeviceRow]:
        """Return a user's devices, revoked or not, newest first."""
        rows = await self._store.read(queries.page, user_id=user_id, before=before, limit=limit)
        return [self.reports.latest(row) for row in rows]

    async def reputations(self, device_ids: Sequence[str]) -> dict[str, Reputation]:
        """Return the reputations of these devices."""
        return await self._store.read(trust.of_devices, device_ids)

    async def revoke(self, user_id: str, device_id: str) -> None:
        """Revoke a device's token immediately; a second call changes nothing.

        Raises:
            MarketError: `token_not_found`, when the token does not exist or belongs to another
                user.
        """
        now = self._now()
        token_hash = await self._store.write(revoke_device, self._context, device_id, user_id, now)
        if token_hash is None:
            raise MarketError(Code.TOKEN_NOT_FOUND, field="token_id")
        self.note_revoked(token_hash)

    def note_revoked(self, token_hash: str) -> None:
        """Refuse a token also from memory, once a transaction has revoked it."""
        self.reports.note_revoked(token_hash, self._now())

    async def revoked_among(self, device_ids: Sequence[str]) -> list[str]:
        """Return those of the devices whose tokens were revoked, by any daemon or command.

        Raises:
            StoreError: the database is unavailable.
        """
        return await self._store.read(queries.revoked_among, device_ids)

    async def listening_among(self, device_ids: Sequence[str]) -> list[str]:
        """Return those of the devices that hold an open attempt at a job with ports.

        Raises:
            StoreError: the database is unavailable.
        """
        return await self._store.read(queries.listening_among, device_ids)

    def is_heard(self, device: DeviceRow) -> bool:
        """Return whether a device reported lately and has not left since."""
        latest = device.last_heartbeat_at
        return (
            device.revoked_at is None
            and device.offline_at is None
            and latest is not None
            and abs(self._now() - latest) <= ONLINE_SECONDS  # the clock may be set back
        )

    async def tell_silent(self, observed_seconds: float) -> int:
        """Notify owners of devices that stopped reporting. Return the number of devices.

        Call this periodically.

        Args:
            observed_seconds: time in which reports could arrive.

        Raises:
            StoreError: the owners are notified later.
        """
        if observed_seconds < ONLINE_SECONDS + LATE_SECONDS:
            return 0
        before = self._now() - ONLINE_SECONDS - LATE_SECONDS
        return await self._store.write(_tell_silent, self._context, before)


async def _create(
    tx: Transaction,
    context: Context,
    device: DeviceRow,
    *,
    bounds: Bounds,
    maker: Maker,
) -> None:
    await queries.insert(tx, device)
    if maker.purse_id is not None:
        await made_by_keys.note_device(tx, device.id, maker.purse_id)
    data = DeviceCreated(device.id, device.name, maker.key_id)
    await record(tx, context, device.user_id, data, subject_id=device.id)
    bounds = await bounds_of(tx, device.user_id, bounds, device.created_at)
    if bounds.devices:
        in_use = await queries.count_in_use(tx, device.user_id)
        require(in_use, bounds.devices, Code.TOO_MANY_DEVICES)


async def revoke_device(
    tx: Transaction, context: Context, device_id: str, user_id: str, now: int
) -> str | None:
    """Revoke a token, notify its owner once, and return its hash; None for another user's."""
    await queries.lock(tx, device_id)
    is_first = not await queries.is_revoked(tx, device_id)
    revoked = await queries.revoke(tx, device_id=device_id, user_id=user_id, now=now)
    if revoked is None:
        return None
    if is_first:
        data = DeviceRevoked(device_id, revoked.name)
        await record(tx, context, user_id, data, subject_id=device_id)
    return revoked.token_hash


async def _tell_silent(tx: Transaction, context: Context, before: int) -> int:
    rows = await queries.mark_silent(tx, before=before, limit=AWAY_MAX_DEVICES)
    news = [NewEvent(row.user_id, DeviceOffline(row.id, row.name), row.id) for row in rows]
    await record_all(tx, context, news)
    return len(rows)


def _hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
