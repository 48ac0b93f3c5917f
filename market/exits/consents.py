"""Exits: devices that sessions leave through, with their owners' consent, and for pay.

A device becomes an exit by two keys. Its owner agrees to the terms in the account (`consent`), and
a person at the device agrees to the same text; the device shows its hash when it attaches
(`authorize`). After a change of the text both have to agree again.

The daemon counts the bytes of an exit, and the reports of leases contain these counts
(`market.bandwidth.lease_book`). Its owner's share of the price is posted every hour and when the
session is settled, to the owner's pending account (`market.exits.earnings`), and paid out from
there after a while (`market.exits.payouts`).
"""

import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from market.accounts.suspensions import Part
from market.base.errors import Code, MarketError
from market.devices.devices import Devices
from market.events.context import Context
from market.money import ledger
from market.money.money import GB
from storage.accounts import suspensions
from storage.bandwidth import sessions as bandwidth_queries
from storage.devices import devices as device_queries
from storage.devices.devices import DeviceRow
from storage.engines.store import Transaction
from storage.exits import exits as queries
from storage.exits.exits import (
    ConsentRow,
    CountryRow,
    DayRow,
    EarnedDayRow,
    ExitRow,
    LimitsRow,
    OriginRow,
    StandingRow,
    SumRow,
)
from storage.money import ledger as ledger_queries

DAY_SECONDS = 86_400
# A home router keeps a few thousand connections in mind, and its owner wants some of them.
CONNECTIONS_MAX = 1_000
RATE_MAX_BYTES = 125_000_000_000  # a terabit a second: a mistyped number, rather than a limit
PRICE_MAX_PER_GB = 1_000_000_000_000
EARNINGS_MAX_DAYS = 366
ANY_COUNTRY = "any"
# Findings about exits that lie, by kind, in words for their owners.
BARRED_WORDS = {
    "content": "Pages arrived with changes through this device.",
    "certificate": "Through this device a site showed a certificate that is not its own.",
    "junk": "This device returned data that is not the target's reply.",
    "dns": "This device resolves names to wrong addresses.",
    "silence": "This device confirmed connections that led nowhere.",
    "unasked": "This device reported connections that the service had not requested.",
    "flood": "This device flooded the service.",
}

# The states of an attached exit: it carries, or could.
_ATTACHED_STATES = frozenset({"online", "resting"})
# A query that changes a device as an exit: it takes the transaction, the device and a value.
_Change = Callable[..., Coroutine[Any, Any, None]]


class ExitDeviceLimits(Struct, frozen=True):
    """How much a device carries at most; bytes are both ways together, and 0 is no limit.

    `ports` are those of targets. It carries nothing for buyers who pay less than
    `min_price_per_gb`, in micro-USD.
    """

    connections: int
    bytes_per_second: int
    bytes_per_day: int
    ports: tuple[int, ...]
    min_price_per_gb: int = 0


class ExitTerms(Struct, frozen=True):
    """Terms of the operator for the owners of exits, and for buyers.

    Owners get `share_percent` of the price, `hold_seconds` after it was posted. Sessions that leave
    through exits cost at least `price_floors` of their country, in micro-USD per GB; countries
    without an entry use "any". Every session costs at least `session_price_floor`. `limits`
    are the default limits of a device, and its ports are the only ones permitted. Without
    `is_offered` a device cannot attach.
    """

    is_offered: bool = False
    share_percent: int = 60
    hold_seconds: int = 7 * DAY_SECONDS
    price_floors: Mapping[str, int] = {}
    session_price_floor: int = 0
    limits: ExitDeviceLimits = ExitDeviceLimits(16, 0, 5 * GB, (80, 443, 8080, 8443))

    def price_floor(self, countries: Sequence[str]) -> int:
        """Return the least price per GB of a session that wants these countries; none: any."""
        floors = self.price_floors
        rest = floors.get(ANY_COUNTRY, 0)
        return max((floors.get(each, rest) for each in countries), default=rest)


NO_EXITS = ExitTerms()


class ExitGrant(Struct, frozen=True):
    """Permission of a device to carry connections: its owner, its least price, and its limits.

    `bytes_today` are the reported bytes since 00:00 UTC; the daily limit starts from them. A
    `paused` device stays attached and carries nothing.
    """

    device_id: str
    user_id: str
    min_price_per_gb: int
    limits: ExitDeviceLimits
    bytes_today: int = 0
    paused: bool = False


class Door(Struct, frozen=True):
    """Address where exits attach, and the SHA-256 of its certificate, in hexadecimal."""

    host: str
    port: int
    certificate_sha256: str


class Coverage(Struct, frozen=True):
    """How many exits of a country, in lower case, take connections now."""

    country: str
    exits: int


class Whereabouts(Struct, frozen=True):
    """Location of an address, in lower case; unknown fields are "" and 0.

    `opinions` are the countries that the sources name, "" where a source knows none.
    """

    country: str = ""
    state: str = ""
    city: str = ""
    asn: int = 0
    kind: str = ""
    opinions: Mapping[str, str] = {}


class Attached(Protocol):
    """Requests of the marketplace to the attached exits; the daemon implements them.

    The bodies here are of a daemon without exits.
    """

    def door(self) -> Door | None:
        """Return the address where exits attach, or None if they cannot."""
        return None

    def doors(self) -> Sequence[Door]:
        """Return the addresses where devices attach to the other daemons of this service."""
        return ()

    def state(self, device_id: str) -> str | None:  # noqa: ARG002 - nobody is there
        """Return why an attached device carries nothing, "" if it carries, None if it is away."""
        return None

    def coverage(self) -> Sequence[Coverage]:
        """Return the number of exits that accept connections, by country."""
        return ()

    def attribution(self) -> Sequence[str]:
        """Return the sources to credit wherever the location of exits is shown."""
        return ()

    def origins(self) -> Sequence[OriginRow]:
        """Return the origin of each attached device."""
        return ()

    def locate(self, address: str) -> Whereabouts:  # noqa: ARG002 - nothing is known of any
        """Return the location of an address."""
        return Whereabouts()

    def remark(self, device_id: str) -> str:  # noqa: ARG002 - nobody is there
        """Return a remark for the owner of an attached device, or ""."""
        return ""


class NoneAttached(Attached):
    """An `Attached` of a daemon without exits."""


class MyExit(Struct, frozen=True):
    """Device in its owner's view: its permission, its state, and its earnings.

    `reason` explains why it carries nothing, or not from its present place; "" when all is well.
    """

    id: str
    row: ExitRow
    state: str
    reason: str
    sums: SumRow


class Exits:
    """Exits, their permissions, their bytes and their earnings."""

    def __init__(self, context: Context, devices: Devices, terms: ExitTerms) -> None:
        self._attached: Attached = NoneAttached()
        self.terms = terms
        self.text = text_of(terms)
        self.terms_hash = hashlib.sha256(self.text.encode()).hexdigest()
        self._store = context.store
        self._identifiers = context.identifiers
        self._now = context.now
        self._devices = devices
        self._watchers: list[Callable[[str], None]] = []
        self._told = 0  # number of notifications to watchers
        # The origins of the attached exits as stored, and their permissions at the last look.
        self._recorded: dict[str, OriginRow] = {}
        self._standings: dict[str, StandingRow] = {}

    @property
    def attached(self) -> Attached:
        """The exits that are attached; none until the port of exits has joined."""
        return self._attached

    def join(self, attached: Attached) -> None:
        """Use `attached` from now on for the attached exits.

        The port of exits asks this which devices may attach, so it is built later.
        """
        self._attached = attached

    def watch(self, changed: Callable[[str], None]) -> None:
        """Register `changed` for each device whose permission is reduced or changed.

        The call comes after the commit. Then `current` returns the device's permission.
        """
        self._watchers.append(changed)

    def tell(self, device_id: str) -> None:
        """Notify watchers that a device has changed; harmless if it has not."""
        self._told += 1
        for changed in self._watchers:
            changed(device_id)

    async def look(self) -> int:
        """Compare the attached exits with the store. Return the number of exits to cut.

        Watchers are notified of each exit whose permission ended or changed since the last look.
        The cause may be another process: a command of the operator, or another daemon. A changed
        origin of an exit is recorded.

        Raises:
            UnavailableError: the store did not answer; the next look catches up.
        """
        origins = {each.device_id: each for each in self.attached.origins()}
        if not origins:
            self._standings = {}
            return 0
        standings = await self._store.read(queries.standings, list(origins))
        ended = 0
        for each in standings:
            is_new = self._is_new(each)
            if is_new:
                self.tell(each.device_id)
            ended += is_new and bool(each.is_ended or each.is_paused)
        self._standings = {each.device_id: each for each in standings}
        recorded = self._recorded
        moved = [each for each in origins.values() if recorded.get(each.device_id) != each]
        if moved:
            await self._store.write(queries.move, moved)
        self._recorded = origins
        return ended

    async def consent(
        self, user_id: str, device_id: str, terms_hash: str, limits: ExitDeviceLimits | None = None
    ) -> ExitDeviceLimits:
        """Agree that a device is an exit, under the terms with this hash; return its limits.

        Agreeing again changes the limits, if there are any, and ends a pause.

        Raises:
            MarketError: `exits_not_offered`, `token_not_found`, `terms_changed`, `invalid_field`,
                `exit_barred`.
        """
        if not self.terms.is_offered:
            raise MarketError(Code.EXITS_NOT_OFFERED)
        if terms_hash != self.terms_hash:
            raise MarketError(Code.TERMS_CHANGED, field="terms_hash")
        if limits is not None:
            self._check(limits)
        event = self._event(device_id, "given", self.terms_hash)
        granted = await self._store.write(
            _consent, event, user_id=user_id, limits=limits, offered=self.terms.limits
        )
        self.tell(device_id)
        return granted

    async def limits(self, user_id: str, device_id: str) -> ExitDeviceLimits:
        """Return the limits of a device; the usual ones if it is no exit of the user.

        Ports that are not offered any more are left out.
        """
        row = await self._store.read(queries.find, device_id)
        if row is None or row.user_id != user_id:
            return self.terms.limits
        return _kept(limits_of(row), self.terms.limits)

    async def change_limits(self, user_id: str, device_id: str, limits: ExitDeviceLimits) -> None:
        """Set how much a device carries at most.

        Raises:
            MarketError: `token_not_found`, `consent_needed`, `invalid_field`.
        """
        self._check(limits)
        await self._change(user_id, device_id, queries.change_limits, _row(limits))

    async def pause(self, user_id: str, device_id: str) -> None:
        """Stop a device from carrying until `resume`; a second call changes nothing.

        Raises:
            MarketError: `token_not_found`, `consent_needed`.
        """
        await self._change(user_id, device_id, queries.pause, self._now())

    async def resume(self, user_id: str, device_id: str) -> None:
        """Allow a device to carry connections again; a second call changes nothing.

        Raises:
            MarketError: `token_not_found`, `consent_needed`.
        """
        await self._change(user_id, device_id, queries.pause, None)

    async def revoke(self, user_id: str, device_id: str) -> None:
        """Take a consent back: the device is no exit any more. A second call changes nothing.

        Raises:
            MarketError: `token_not_found`.
        """
        event = self._event(device_id, "revoked", "")
        await self._store.write(_revoke, event, user_id=user_id)
        self.tell(device_id)

    async def authorize(self, token: str, terms_hash: str) -> ExitGrant:
        """Return the permission of a device with a token, where a person has agreed to the terms.

        Raises:
            MarketError: `worker_unauthorized`, `consent_needed`, `terms_changed`, `exit_paused`,
                `exit_barred`, `exits_not_offered`.
        """
        device = await self._devices.authenticate(token)
        if not self.terms.is_offered:
            raise MarketError(Code.EXITS_NOT_OFFERED)
        grant = replace(await self.current(device.id), user_id=device.user_id)
        if terms_hash != self.terms_hash:
            raise MarketError(Code.TERMS_CHANGED)
        if grant.paused:
            raise MarketError(Code.EXIT_PAUSED)
        return grant

    async def current(self, device_id: str) -> ExitGrant:
        """Return the permission of a device that was authorized before; it may be paused.

        Raises:
            MarketError: `worker_unauthorized`, `consent_needed`, `terms_changed`, `exit_barred`.
        """
        while True:
            told = self._told
            row, today, is_suspended = await self._store.read(_standing, device_id, self._today())
            if told == self._told:
                break
            # Another decision can follow the read, and a watcher may not know the device yet.
        if row is None:
            raise MarketError(Code.CONSENT_NEEDED)
        if row.token_revoked_at is not None:
            raise MarketError(Code.WORKER_UNAUTHORIZED)
        _require_consent(row)
        if row.terms_hash != self.terms_hash:
            raise MarketError(Code.TERMS_CHANGED)
        return ExitGrant(
            device_id=device_id,  # of one exit one text: it is kept while the exit is attached
            user_id=row.user_id,
            min_price_per_gb=row.min_price_per_gb,
            limits=limits_of(row),
            bytes_today=today,
            paused=row.paused_at is not None or is_suspended,
        )

    def price_floor(self, country: str) -> int:
        """Return the least price of sessions that leave in a country, in micro-USD per GB.

        Args:
            country: in lower case; "" if it is not known.
        """
        return self.terms.price_floor((country,))

    async def page(self, user_id: str, *, before: str, limit: int) -> list[MyExit]:
        """Return a user's devices that are or were exits, newest first.

        Args:
            user_id: whose.
            before: only devices older than this identifier; "" for the newest.
            limit: the most devices to return.
        """
        rows, sums = await self._store.read(
            _page, user_id, before=before, limit=limit, today=self._today()
        )
        return [
            MyExit(row.device_id, row, self._state(row), self._reason(row), sums[row.device_id])
            for row in rows
        ]

    async def states(self, device_ids: Sequence[str]) -> dict[str, str]:
        """Return the state, in a word, of those of the devices that are or were exits."""
        rows = await self._store.read(queries.of_devices, device_ids)
        return {row.device_id: self._state(row) for row in rows}

    def is_online(self, device: DeviceRow, exit_state: str | None) -> bool:
        """Return whether a device sends heartbeats, or is attached as an exit.

        Args:
            device: as the store has it.
            exit_state: its word in `states`; None of a device that never was an exit.
        """
        return self._devices.is_heard(device) or exit_state in _ATTACHED_STATES

    async def today(self, device_ids: Sequence[str]) -> dict[str, DayRow]:
        """Return the bytes since 00:00 UTC of those of the devices that were exits today."""
        rows = await self._store.read(queries.days, device_ids, since=self._today())
        return {row.device_id: row for row in rows}

    async def earnings(self, user_id: str) -> list[EarnedDayRow]:
        """Return the bytes and earnings of a user's exits by day, the latest day first.

        A day's bytes have earned their share when they are reported; it is posted within the hour.
        """
        since = self._today() - EARNINGS_MAX_DAYS + 1
        return await self._store.read(queries.days_of_user, user_id, since=since)

    async def pending(self, user_id: str) -> int:
        """Return a user's earnings from exits that are not paid out yet, in micro-USD."""
        return await self._store.read(ledger_queries.balance, ledger.pending(user_id)) or 0

    async def payable_at(self, user_id: str) -> int | None:
        """Return the time of the next payout of pending earnings; None without any."""
        posted_at = await self._store.read(queries.pending_since, user_id)
        return None if posted_at is None else posted_at + self.terms.hold_seconds

    async def by_country(self, user_id: str, session_id: str) -> list[CountryRow]:
        """Return the reported bytes of a session by country.

        Raises:
            MarketError: `session_not_found`, when it does not exist or belongs to another user.
        """
        return await self._store.read(_by_country, user_id, session_id)

    def _is_new(self, standing: StandingRow) -> bool:
        """Return whether watchers may not know the present permission of a device."""
        before = self._standings.get(standing.device_id)
        if standing.is_ended or (before is not None and before != standing):
            return True
        # A device that is away may carry connections that began before.
        is_told = before is not None and bool(self.attached.state(standing.device_id))
        return bool(standing.is_paused) and not is_told

    def _check(self, limits: ExitDeviceLimits) -> None:
        for name, least, most in (
            ("connections", 1, CONNECTIONS_MAX),
            ("bytes_per_second", 0, RATE_MAX_BYTES),
            ("bytes_per_day", 0, RATE_MAX_BYTES * DAY_SECONDS),
        ):
            if not least <= getattr(limits, name) <= most:
                message = f"{name} is between {least} and {most}."
                raise MarketError(Code.INVALID_FIELD, message, field=f"limits.{name}")
        if not 0 <= limits.min_price_per_gb <= PRICE_MAX_PER_GB:
            message = "This is more than the highest price."
            raise MarketError(Code.INVALID_FIELD, message, field="limits.min_price_per_gb")
        offered = self.terms.limits.ports
        if not limits.ports or not set(limits.ports) <= set(offered):
            message = f"ports are some of {_listed(offered)}."
            raise MarketError(Code.INVALID_FIELD, message, field="limits.ports")

    async def _change(self, user_id: str, device_id: str, change: _Change, value: object) -> None:
        await self._store.write(_of_owner, user_id, device_id, change, value)
        self.tell(device_id)

    def _event(self, device_id: str, event: str, terms_hash: str) -> ConsentRow:
        return ConsentRow(
            self._identifiers.new(), device_id, event, terms_hash, "", created_at=self._now()
        )

    def _today(self) -> int:
        return self._now() // DAY_SECONDS

    def _state(self, row: ExitRow) -> str:
        """Return the state of an exit in a word."""
        if row.barred_at is not None:
            return "barred"
        if row.revoked_at is not None or row.token_revoked_at is not None:
            return "revoked"
        if row.terms_hash != self.terms_hash:
            return "terms_changed"
        if row.paused_at is not None:
            return "paused"
        state = self.attached.state(row.device_id)
        if state is None:
            return "offline"
        return "resting" if state else "online"

    def _reason(self, row: ExitRow) -> str:
        if row.barred_at is not None:
            return barred_because(row)
        attached = self.attached
        return attached.state(row.device_id) or attached.remark(row.device_id)


def limits_of(row: ExitRow) -> ExitDeviceLimits:
    """Return the limits of a device."""
    return ExitDeviceLimits(
        row.connections,
        row.bytes_per_second,
        row.bytes_per_day,
        tuple(int(port) for port in row.ports.split(",")),
        row.min_price_per_gb,
    )


def barred_because(row: ExitRow) -> str:
    """Return the reason of a bar for the device's owner, in a sentence or two; else ""."""
    if row.barred_at is None:
        return ""
    words = BARRED_WORDS.get(row.barred_for, "")
    return f"{words} {Code.EXIT_BARRED.meaning}".strip()


def text_of(terms: ExitTerms) -> str:
    """Return the terms for owners: a page, with the figures that the operator has set."""
    page = Path(__file__).with_name("exit_terms.txt").read_text(encoding="utf-8")
    days = terms.hold_seconds / DAY_SECONDS
    return page.format(
        ports=_listed(terms.limits.ports), share_percent=terms.share_percent, hold_days=f"{days:g}"
    )


def _listed(ports: Sequence[int]) -> str:
    return ", ".join(str(port) for port in ports)


def _row(limits: ExitDeviceLimits) -> LimitsRow:
    return LimitsRow(
        limits.connections,
        limits.bytes_per_second,
        limits.bytes_per_day,
        ",".join(str(port) for port in sorted(set(limits.ports))),
        limits.min_price_per_gb,
    )


def _require_consent(row: ExitRow) -> None:
    if row.barred_at is not None:
        raise MarketError(Code.EXIT_BARRED, barred_because(row))
    if row.revoked_at is not None:
        raise MarketError(Code.CONSENT_NEEDED)


async def _owned(tx: Transaction, user_id: str, device_id: str) -> None:
    """Lock a device.

    Raises:
        MarketError: `token_not_found`, when it does not exist, belongs to another user, or is
            revoked.
    """
    await device_queries.lock(tx, device_id)
    owner = await device_queries.owner_of(tx, device_id)
    if owner != user_id:
        raise MarketError(Code.TOKEN_NOT_FOUND, field="token_id")


async def _consent(
    tx: Transaction,
    event: ConsentRow,
    *,
    user_id: str,
    limits: ExitDeviceLimits | None,
    offered: ExitDeviceLimits,
) -> ExitDeviceLimits:
    """Store a consent; without limits, the earlier limits hold, or else the offered ones."""
    await _owned(tx, user_id, event.device_id)
    if await device_queries.is_revoked(tx, event.device_id):
        raise MarketError(Code.TOKEN_NOT_FOUND, field="token_id")
    row = await queries.find(tx, event.device_id)
    if row is not None and row.barred_at is not None:
        raise MarketError(Code.EXIT_BARRED, barred_because(row))
    granted = limits or (offered if row is None else _kept(limits_of(row), offered))
    await queries.open_pending_account(tx, ledger.pending(user_id), user_id)
    await queries.consent(
        tx,
        device_id=event.device_id,
        user_id=user_id,
        terms_hash=event.terms_hash,
        limits=_row(granted),
        now=event.created_at,
    )
    if row is None or row.revoked_at is not None or row.terms_hash != event.terms_hash:
        await queries.insert_consent(tx, event)
    return granted


def _kept(limits: ExitDeviceLimits, offered: ExitDeviceLimits) -> ExitDeviceLimits:
    """Return limits without the ports that no device has any more."""
    ports = tuple(port for port in limits.ports if port in offered.ports)
    return replace(limits, ports=ports or offered.ports)


async def _of_owner(
    tx: Transaction, user_id: str, device_id: str, change: _Change, value: object
) -> None:
    await _owned(tx, user_id, device_id)
    row = await queries.find(tx, device_id)
    if row is None:
        raise MarketError(Code.CONSENT_NEEDED)
    _require_consent(row)
    await change(tx, device_id, value)


async def _revoke(tx: Transaction, event: ConsentRow, *, user_id: str) -> None:
    await _owned(tx, user_id, event.device_id)
    if await queries.revoke(tx, event.device_id, event.created_at):
        await queries.insert_consent(tx, event)


async def _standing(
    tx: Transaction, device_id: str, today: int
) -> tuple[ExitRow | None, int, bool]:
    """Return an exit, its bytes today, and whether the devices of its owner are suspended."""
    days = await queries.days(tx, [device_id], since=today)
    row = await queries.find(tx, device_id)
    shown = None if row is None else await suspensions.shown(tx, row.user_id, Part.DEVICES)
    return row, sum(day.used_bytes for day in days), shown is not None


async def _page(
    tx: Transaction, user_id: str, *, before: str, limit: int, today: int
) -> tuple[list[ExitRow], dict[str, SumRow]]:
    rows = await queries.of_user(tx, user_id, before=before, limit=limit)
    sums = await queries.sums(tx, [row.device_id for row in rows], day=today)
    return rows, {each.device_id: each for each in sums}


async def _by_country(tx: Transaction, user_id: str, session_id: str) -> list[CountryRow]:
    session = await bandwidth_queries.find(tx, session_id)
    if session is None or session.user_id != user_id:
        raise MarketError(Code.SESSION_NOT_FOUND)
    return await queries.by_country(tx, session_id)
