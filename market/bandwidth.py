"""Bandwidth, sold by the byte: buying a session, looking at it, ending it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from market import leases, ledger, once
from market.addresses import canonical
from market.credentials import Credentials, new_credentials
from market.errors import Code, MarketError
from market.ids import Identifiers
from market.leases import Leases, Usage
from market.money import GB, MICRO, Currency, cost, shown
from market.once import Remember, forget
from market.states import SessionStatus
from storage import addresses as address_queries
from storage import bandwidth as queries
from storage.addresses import AddressRow
from storage.bandwidth import ListedRow, SessionRow
from storage.ledger import HoldRow
from storage.store import Store, Transaction

QUOTA_MAX_BYTES = 10_000 * GB
PRICE_MAX_PER_GB = 1_000_000 * MICRO
_STATUSES = {str(status): status for status in SessionStatus}  # looked up for each row of a list


class Traffic(Protocol):
    """What the marketplace asks of live traffic; the proxy's meter answers."""

    def used_bytes(self, session_id: str, lease_id: str) -> int | None:
        """Return the bytes used under a session's lease, None when that lease is not held here."""

    def cut(self, session_id: str, status: SessionStatus) -> Usage | None:
        """Cut a session's connections and refuse new ones; return what its lease used in all."""

    def restore(self, session_id: str) -> None:
        """Take back a `cut` that could not be written down."""

    def named(self, slot: int, addresses: Sequence[str]) -> None:
        """Hear that a session was sold that client addresses open, on the port with this slot."""

    async def settle_exhausted(self) -> None:
        """Have written down which sessions are exhausted, if the store can be reached."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the operator sells at: prices in micro-USD per GB, and what a client should dial.

    A client whose address opens a session dials one of `passwordless_ports`; the place of a port
    among them is its slot, which is what is kept of it.
    """

    price_default: int
    price_floor: int
    lifetime_seconds: int
    public_host: str
    public_port: int
    passwordless_ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Purchase:
    """A session that was bought: its credentials, shown this once, and its price in micro-USD.

    `passwordless_port` is where the client addresses that the buyer has named need no credentials.
    """

    session_id: str
    host: str
    port: int
    username: str
    password: str
    cost: int
    passwordless_port: int | None = None


class Session(NamedTuple):
    """A session as its buyer sees it; sizes in bytes, price in micro-USD per GB, times in UTC.

    While it is active, `allow_ips` need no password on the `passwordless_port`, if there still is
    such a port.
    `paid` is what it has cost, in micro-USD, once it is over.
    """

    id: str
    port: int
    quota_bytes: int
    bytes_used: int
    status: SessionStatus
    price_per_gb: int
    created_at: int
    expires_at: int
    ended_at: int | None
    paid: int | None
    allow_ips: tuple[str, ...] = ()
    passwordless_port: int | None = None


class Bandwidth:
    """Sells sessions.

    Args:
        store: where sessions are kept.
        leases: settles them.
        traffic: the live counters.
        terms: prices and addresses.
        identifiers: makes identifiers.
        now: the wall clock, in UTC seconds.
    """

    def __init__(
        self,
        store: Store,
        leases: Leases,
        traffic: Traffic,
        terms: Terms,
        identifiers: Identifiers,
        now: Callable[[], int],
    ) -> None:
        self._store = store
        self._leases = leases
        self._traffic = traffic
        self._terms = terms
        self._identifiers = identifiers
        self._now = now

    async def buy(
        self,
        user_id: str,
        *,
        quota_bytes: int,
        price_per_gb: int | None,
        allow_ips: Sequence[str] = (),
        remember: Callable[[Purchase], Remember | None] = forget,
    ) -> Purchase:
        """Sell a session and hold its price.

        Args:
            user_id: the buyer.
            quota_bytes: how many bytes, in both directions together.
            price_per_gb: micro-USD per GB; None for the operator's price.
            allow_ips: client addresses that are to need no password, on a port of their own.
            remember: says how to answer when the same is asked again.

        Raises:
            MarketError: `invalid_field`, `price_below_floor`, `insufficient_funds`,
                `passwordless_not_offered`, `addresses_taken`, `idempotency_key_reused`.
            Replayed: this was answered before.
        """
        if allow_ips and not self._terms.passwordless_ports:
            raise MarketError(Code.PASSWORDLESS_NOT_OFFERED, field="allow_ips")
        addresses = canonical(allow_ips)
        price = self._terms.price_default if price_per_gb is None else price_per_gb
        self._check(quota_bytes, price)
        credentials = new_credentials()
        now = self._now()
        session = SessionRow(
            id=self._identifiers.new(),
            user_id=user_id,
            username=credentials.username,
            password_hash=credentials.password_hash,
            quota_bytes=quota_bytes,
            bytes_used=0,
            bytes_leased=0,
            price_per_gb=price,
            status=SessionStatus.ACTIVE,
            created_at=now,
            expires_at=now + self._terms.lifetime_seconds,
            ended_at=None,
        )
        purchase = self._purchase(session, credentials, cost(quota_bytes, price))
        if not addresses:
            await self._sell(session, purchase, [], remember)
            return purchase
        for slot, port in enumerate(self._terms.passwordless_ports):
            named = replace(purchase, passwordless_port=port)
            rows = [AddressRow(address, slot, session.id) for address in addresses]
            try:
                await self._sell(session, named, rows, remember)
            except _TakenError:
                continue
            self._traffic.named(slot, addresses)
            return named
        raise MarketError(Code.ADDRESSES_TAKEN, field="allow_ips")

    async def _sell(
        self,
        session: SessionRow,
        purchase: Purchase,
        addresses: Sequence[AddressRow],
        remember: Callable[[Purchase], Remember | None],
    ) -> None:
        try:
            await once.write(
                self._store,
                remember(purchase),
                _buy,
                session,
                addresses,
                purchase.cost,
                transfer_id=self._identifiers.new(),
            )
        except MarketError as error:
            if error.code is not Code.INSUFFICIENT_FUNDS:
                raise
            message = f"This costs {shown(purchase.cost)} USD, more than is available."
            raise MarketError(error.code, message, field="gb") from error

    async def page(
        self, user_id: str, *, status: SessionStatus | None, before: str, limit: int
    ) -> list[Session]:
        """Return a user's sessions, newest first, their counters as of now.

        Args:
            user_id: whose.
            status: only these; None for every one.
            before: only sessions older than this identifier; "" for the newest.
            limit: how many at most.
        """
        await self._traffic.settle_exhausted()
        rows, addresses = await self._store.read(
            _page,
            user_id=user_id,
            only=status or "",
            before=before,
            limit=limit,
            node_id=self._leases.node_id,
        )
        return [self._shown(row, addresses.get(row.id, ())) for row in rows]

    async def end(self, user_id: str, session_id: str) -> None:
        """End a session: cut its connections, capture what was used, release the rest.

        Ending what has ended changes nothing.

        Raises:
            MarketError: `session_not_found`, when there is none or it is somebody else's.
        """
        session = await self._store.read(queries.find, session_id)
        if session is None or session.user_id != user_id:
            raise MarketError(Code.SESSION_NOT_FOUND, field="session_id")
        if session.status == SessionStatus.ACTIVE:
            await self._leave_active(session_id, SessionStatus.ENDED)

    async def expire(self) -> int:
        """End sessions whose time is over; return how many were found."""
        due = await self._leases.due_to_expire()
        for session_id in due:
            await self._leave_active(session_id, SessionStatus.EXPIRED)
        return len(due)

    async def _leave_active(self, session_id: str, status: SessionStatus) -> None:
        usage = self._traffic.cut(session_id, status)
        try:
            await self._leases.call_in(session_id, status)
            await self._leases.settle(session_id, status, usage)
        except BaseException:
            self._traffic.restore(session_id)
            raise

    def _check(self, quota_bytes: int, price: int) -> None:
        if not 0 < quota_bytes <= QUOTA_MAX_BYTES:
            raise MarketError(
                Code.INVALID_FIELD,
                f"A session has more than 0 and at most {QUOTA_MAX_BYTES // GB} GB.",
                field="gb",
            )
        if price < self._terms.price_floor:
            raise MarketError(
                Code.PRICE_BELOW_FLOOR,
                f"The lowest price per GB is {shown(self._terms.price_floor)} USD.",
                field="price_per_gb",
            )
        if price > PRICE_MAX_PER_GB:
            raise MarketError(
                Code.INVALID_FIELD,
                f"The highest price per GB is {PRICE_MAX_PER_GB // MICRO} USD.",
                field="price_per_gb",
            )

    def _purchase(self, session: SessionRow, credentials: Credentials, price_held: int) -> Purchase:
        return Purchase(
            session_id=session.id,
            host=self._terms.public_host,
            port=self._terms.public_port,
            username=credentials.username,
            password=credentials.password,
            cost=price_held,
        )

    def _shown(self, row: ListedRow, addresses: Sequence[AddressRow]) -> Session:
        allow_ips: tuple[str, ...] = ()
        passwordless_port = None
        if addresses:
            ports, slot = self._terms.passwordless_ports, addresses[0].slot
            allow_ips = tuple(sorted(each.address for each in addresses))
            passwordless_port = ports[slot] if slot < len(ports) else None
        used = row.bytes_used
        if row.lease_id is not None and row.reported is not None:
            live = self._traffic.used_bytes(row.id, row.lease_id)
            used += live - row.reported if live is not None else 0
        return Session(
            row.id,
            self._terms.public_port,
            row.quota_bytes,
            used,
            _STATUSES[row.status],
            row.price_per_gb,
            row.created_at,
            row.expires_at,
            row.ended_at,
            row.captured,
            allow_ips,
            passwordless_port,
        )


class _TakenError(Exception):
    """On this port an active session has one of the addresses."""


async def _buy(
    tx: Transaction,
    session: SessionRow,
    addresses: Sequence[AddressRow],
    price: int,
    *,
    transfer_id: str,
) -> None:
    await queries.insert(tx, session)
    for address in addresses:
        if not await address_queries.insert(tx, address):
            raise _TakenError
    hold = HoldRow(leases.hold_of(session.id), session.user_id, Currency.USD, price, None)
    await ledger.hold(tx, hold, transfer_id=transfer_id, now=session.created_at)


async def _page(
    tx: Transaction, *, user_id: str, only: str, before: str, limit: int, node_id: str | None
) -> tuple[list[ListedRow], dict[str, list[AddressRow]]]:
    rows = await queries.page(
        tx, user_id=user_id, only=only, before=before, limit=limit, node_id=node_id
    )
    addresses: dict[str, list[AddressRow]] = {}
    opened = [row.id for row in rows if row.slot is not None]
    if opened:
        for address in await address_queries.of_sessions(tx, opened):
            addresses.setdefault(address.session_id, []).append(address)
    return rows, addresses
