"""Bandwidth, sold by the byte: buying a session, looking at it, ending it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from market import leases, ledger, once
from market.credentials import Credentials, new_credentials
from market.errors import Code, MarketError
from market.ids import Identifiers
from market.leases import Leases, Usage
from market.money import GB, MICRO, Currency, cost, shown
from market.once import Remember, forget
from market.states import SessionStatus
from storage import bandwidth as queries
from storage.bandwidth import ListedRow, SessionRow
from storage.ledger import HoldRow
from storage.store import Store, Transaction

QUOTA_MAX_BYTES = 10_000 * GB
PRICE_MAX_PER_GB = 1_000_000 * MICRO


class Traffic(Protocol):
    """What the marketplace asks of live traffic; the proxy's meter answers."""

    def used_bytes(self, session_id: str, lease_id: str) -> int | None:
        """Return the bytes used under a session's lease, None when that lease is not held here."""

    def cut(self, session_id: str, status: SessionStatus) -> Usage | None:
        """Cut a session's connections and refuse new ones; return what its lease used in all."""

    def restore(self, session_id: str) -> None:
        """Take back a `cut` that could not be written down."""

    async def settle_exhausted(self) -> None:
        """Have written down which sessions are exhausted, if the store can be reached."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the operator sells at: prices in micro-USD per GB, and what a client should dial."""

    price_default: int
    price_floor: int
    lifetime_seconds: int
    public_host: str
    public_port: int


@dataclass(frozen=True, slots=True)
class Purchase:
    """A session that was bought: its credentials, shown this once, and its price in micro-USD."""

    session_id: str
    host: str
    port: int
    username: str
    password: str
    cost: int


@dataclass(frozen=True, slots=True)
class Session:
    """A session as its buyer sees it; sizes in bytes, price in micro-USD per GB, times in UTC."""

    id: str
    port: int
    quota_bytes: int
    bytes_used: int
    status: SessionStatus
    price_per_gb: int
    created_at: int
    expires_at: int
    ended_at: int | None


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
        remember: Callable[[Purchase], Remember | None] = forget,
    ) -> Purchase:
        """Sell a session and hold its price.

        Args:
            user_id: the buyer.
            quota_bytes: how many bytes, in both directions together.
            price_per_gb: micro-USD per GB; None for the operator's price.
            remember: says how to answer when the same is asked again.

        Raises:
            MarketError: `invalid_field`, `price_below_floor`, `insufficient_funds`,
                `idempotency_key_reused`.
            Replayed: this was answered before.
        """
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
        price_held = cost(quota_bytes, price)
        purchase = self._purchase(session, credentials, price_held)
        transfer_id = self._identifiers.new()
        try:
            await once.write(
                self._store,
                remember(purchase),
                _buy,
                session,
                price_held,
                transfer_id=transfer_id,
            )
        except MarketError as error:
            if error.code is not Code.INSUFFICIENT_FUNDS:
                raise
            message = f"This costs {shown(price_held)} USD, more than is available."
            raise MarketError(error.code, message, field="gb") from error
        return purchase

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
        rows = await self._store.read(
            queries.page,
            user_id=user_id,
            only=status or "",
            before=before,
            limit=limit,
            node_id=self._leases.node_id,
        )
        return [self._shown(row) for row in rows]

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

    def _shown(self, row: ListedRow) -> Session:
        used = row.bytes_used
        if row.lease_id is not None and row.reported is not None:
            live = self._traffic.used_bytes(row.id, row.lease_id)
            used += live - row.reported if live is not None else 0
        return Session(
            id=row.id,
            port=self._terms.public_port,
            quota_bytes=row.quota_bytes,
            bytes_used=used,
            status=SessionStatus(row.status),
            price_per_gb=row.price_per_gb,
            created_at=row.created_at,
            expires_at=row.expires_at,
            ended_at=row.ended_at,
        )


async def _buy(tx: Transaction, session: SessionRow, price: int, *, transfer_id: str) -> None:
    hold = HoldRow(leases.hold_of(session.id), session.user_id, Currency.USD, price, None)
    await ledger.hold(tx, hold, transfer_id=transfer_id, now=session.created_at)
    await queries.insert(tx, session)
