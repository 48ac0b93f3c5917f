"""Bandwidth, sold by the byte: buying a session, looking at it, ending it."""

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from market.accounts.bounds import Bounds, lock_and_keep, require
from market.accounts.funds import naming_funds
from market.accounts.levels import Limited, NewAccounts, require_email
from market.accounts.personal import FULL_PERCENT, bounds_of, part_of, price_percent_of
from market.accounts.spending import Spender, reporting_limits, spend
from market.accounts.suspensions import require_may_buy
from market.bandwidth import leases
from market.bandwidth.allowlist import canonical, prove
from market.bandwidth.credentials import Credentials, new_credentials
from market.bandwidth.lease_transactions import tell_expiring
from market.bandwidth.leases import Leases, Usage
from market.base.errors import Code, MarketError
from market.base.finishing import finished
from market.base.states import SessionStatus
from market.base.sweeping import Sweep
from market.events.catalogue import SessionCreated, amount, timestamp
from market.events.context import Context
from market.events.idempotency import Receipt
from market.events.recording import record
from market.exits.consents import NO_EXITS, ExitTerms
from market.exits.wishes import ExitWishes, countries_in
from market.exits.wishes import canonical as exit_text
from market.money import ledger
from market.money.money import GB, MICRO, Currency, as_decimal, cost, earned
from storage.bandwidth import allowlist as address_queries
from storage.bandwidth import sessions as queries
from storage.bandwidth.allowlist import AddressRow, ListedAddressRow
from storage.bandwidth.sessions import ListedRow, SessionRow
from storage.engines.store import Transaction
from storage.money.ledger import HoldRow

QUOTA_MAX_BYTES = 10_000 * GB
PRICE_MAX_PER_GB = 1_000_000 * MICRO
PRICE_CHANGES_MAX = 3  # during one purchase, before it is refused
EXPIRE_MAX_SESSIONS = 100
# The count of a list without a bound ends here: no reader gets so far.
COUNTED_MAX = 10_000

_logger = logging.getLogger("bandwidth")
_STATUSES = {str(status): status for status in SessionStatus}  # looked up for each row of a list


class Traffic(Protocol):
    """Requests of the marketplace to live traffic; the proxy's meter implements them."""

    def used_bytes(self, session_id: str, lease_id: str) -> int | None:
        """Return the used bytes of a session's lease; None when this process does not hold it."""

    def cut(self, session_id: str, status: SessionStatus) -> Usage | None:
        """Cut a session's connections and refuse new ones. Return the total use of its lease."""

    def restore(self, session_id: str) -> None:
        """Undo a `cut` that could not be stored."""

    def granted(self, port_index: int, addresses: Sequence[str]) -> None:
        """Forget that clients are unknown: their addresses open a session that was just sold.

        Args:
            port_index: the index among the ports without passwords.
            addresses: the addresses of the clients.
        """

    async def settle_exhausted(self) -> None:
        """Settle the exhausted sessions, if the store can be reached."""


class Terms(Struct, frozen=True):
    """Terms of the operator: prices in micro-USD per GB, and the address that clients dial.

    A session costs at least `cost_floor`, in micro-USD.

    A client whose address opens a session dials one of `passwordless_ports`; the stored form of a
    port is its index among them.
    """

    price_default: int
    price_floor: int
    lifetime_seconds: int
    public_host: str
    public_port: int
    passwordless_ports: tuple[int, ...] = ()
    cost_floor: int = 0


class Purchase(Struct, frozen=True):
    """Session after its purchase: its credentials, readable this once, and its price in micro-USD.

    On `passwordless_port` the buyer's `allow_ips` need no credentials. The addresses in
    `pending_ips` need them until a client with the password has come from there.
    """

    session_id: str
    host: str
    port: int
    username: str
    password: str
    cost: int
    passwordless_port: int | None = None
    pending_ips: tuple[str, ...] = ()


class Halted(Struct, frozen=True):
    """A halt of a session: its reason for the buyer, "" without one, and its time, in UTC seconds.

    Without an `until` it waits for the staff.
    """

    reason: str
    since: int
    until: int | None


class Session(NamedTuple):
    """A session as its buyer sees it; sizes in bytes, price in micro-USD per GB, times in UTC.

    While it is active, `allow_ips` need no password on the `passwordless_port`, if that port still
    exists; the `pending_ips` among them need it until they are proved. The API's list has these
    fields one by one, hence their number. `paid` is its final cost in micro-USD, once it is over.
    `exit` holds its exit wishes; "" if it leaves directly. While it is active, it may be `halted`.
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
    pending_ips: tuple[str, ...] = ()
    passwordless_port: int | None = None
    exit: str = ""
    halted: Halted | None = None


class OneSession(Struct, frozen=True):
    """Session with its address, its user name, and its price in micro-USD.

    `held` was held at the purchase; `due` is its cost, or the cost if it ended now. The rest of
    `held` returns to the buyer.
    """

    session: Session
    host: str
    username: str
    held: int
    due: int


class Door(Struct, frozen=True):
    """Place where an address needs no password: its `port`, None if the port was removed."""

    address: str
    port: int | None


class _PriceChangedError(Exception):
    """The buyer pays another percentage now than when the price was computed."""


class _TakenError(Exception):
    """One of the addresses opens another active session on this port."""


class _Order(NamedTuple):
    """Session that a buyer orders; the fields are the arguments of `Bandwidth.buy`."""

    user_id: str
    quota_bytes: int
    price_per_gb: int | None
    allow_ips: Sequence[str]
    client: str
    exit_wishes: ExitWishes | None
    spender: Spender | None


class _Sale(Struct, frozen=True):
    """Session to store, the addresses that open it, the buyer's reply, and the paying key.

    `percent` is the part of the service's prices that the buyer paid when the price was computed.
    """

    session: SessionRow
    percent: int
    addresses: Sequence[AddressRow]
    purchase: Purchase
    spender: Spender | None


class Bandwidth:
    """Sale of sessions.

    Args:
        bounds: returns the limits of one user.
        exit_terms: the least price of sessions through exits, and the share of the exits' owners.
        expire_max_sessions: most sessions that one sweep ends.
    """

    def __init__(
        self,
        context: Context,
        leases: Leases,
        traffic: Traffic,
        terms: Terms,
        bounds: Callable[[], Bounds],
        *,
        exit_terms: ExitTerms = NO_EXITS,
        expire_max_sessions: int = EXPIRE_MAX_SESSIONS,
    ) -> None:
        self.expire_max_sessions = expire_max_sessions
        self._bounds = bounds
        self._context = context
        self._store = context.store
        self._leases = leases
        self._traffic = traffic
        self._terms = terms
        self._exit_terms = exit_terms
        self._identifiers = context.identifiers
        self._now = context.now
        # Sessions that could not be ended, and when each is tried again.
        self._expiring = Sweep("session %s cannot be ended", _logger)

    async def terms_of(self, user_id: str | None) -> Terms:
        """Return the terms at which a user buys, or those for everybody (None)."""
        percent = FULL_PERCENT if user_id is None else await self._percent_of(user_id)
        return self._terms_at(percent)

    async def _percent_of(self, user_id: str) -> int:
        return await self._store.read(price_percent_of, user_id, self._now())

    def _terms_at(self, percent: int) -> Terms:
        terms = self._terms
        return replace(
            terms,
            price_default=part_of(max(terms.price_default, terms.price_floor), percent),
            price_floor=part_of(terms.price_floor, percent),
        )

    async def buy(
        self,
        user_id: str,
        *,
        quota_bytes: int,
        price_per_gb: int | None,
        allow_ips: Sequence[str] = (),
        client: str = "",
        exit_wishes: ExitWishes | None = None,
        receipt: Receipt[Purchase] | None = None,
        spender: Spender | None = None,
    ) -> Purchase:
        """Sell a session and hold its price.

        Args:
            user_id: the buyer.
            quota_bytes: the number of bytes, in both directions together.
            price_per_gb: micro-USD per GB; None for the operator's price.
            allow_ips: client addresses that need no password, on a port of their own.
            client: the address of the buyer, which needs no other proof.
            exit_wishes: exits for its connections, unless a client requests others; None to leave
                directly.
            receipt: stores the reply, for a request that must take effect once.
            spender: the API key that pays, or None.

        Raises:
            MarketError: `invalid_field`, `price_below_floor`, `session_too_small`,
                `insufficient_funds`, `too_many_sessions`, `too_many_addresses`,
                `passwordless_not_offered`, `addresses_taken`, `exits_not_offered`,
                `idempotency_key_reused`, `spend_limit_reached`, `email_not_confirmed`.
            Replayed: this was answered before.
        """
        for _ in range(PRICE_CHANGES_MAX):
            percent = await self._percent_of(user_id)
            order = _Order(
                user_id, quota_bytes, price_per_gb, allow_ips, client, exit_wishes, spender
            )
            try:
                return await self._buy_at(percent, order, receipt)
            except _PriceChangedError:
                continue
        raise MarketError(Code.TOO_BUSY)

    async def _buy_at(
        self, percent: int, order: "_Order", receipt: Receipt[Purchase] | None
    ) -> Purchase:
        """Sell a session to a buyer who pays a percentage of the service's prices."""
        user_id, quota_bytes, price_per_gb, allow_ips, client, exit_wishes, spender = order
        terms = self._terms_at(percent)
        if allow_ips and not self._terms.passwordless_ports:
            raise MarketError(Code.PASSWORDLESS_NOT_OFFERED, field="allow_ips")
        addresses = canonical(allow_ips)
        wanted = "" if exit_wishes is None else self._exit_text(exit_wishes)
        floor = terms.price_floor
        if wanted:
            floor = max(floor, self._exit_terms.price_floor(countries_in(wanted)))
        price = max(terms.price_default, floor) if price_per_gb is None else price_per_gb
        self._check(quota_bytes, price, floor)
        self._check_cost(cost(quota_bytes, price))
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
            exit=wanted,
            exit_share_percent=self._exit_terms.share_percent,
        )
        purchase = self._purchase(session, credentials, cost(quota_bytes, price))
        if not addresses:
            await self._sell(_Sale(session, percent, (), purchase, spender), receipt)
            return purchase
        for port_index, port in enumerate(self._terms.passwordless_ports):
            pending = tuple(address for address in addresses if address != client)
            with_port = replace(purchase, passwordless_port=port, pending_ips=pending)
            rows = [AddressRow(address, port_index, session.id) for address in addresses]
            try:
                await self._sell(_Sale(session, percent, rows, with_port, spender), receipt)
            except _TakenError:
                continue
            if client in addresses:
                self._traffic.granted(port_index, [client])
            return with_port
        raise MarketError(Code.ADDRESSES_TAKEN, field="allow_ips")

    async def _sell(self, sale: _Sale, receipt: Receipt[Purchase] | None) -> None:
        async with (
            naming_funds(self._context, sale.spender, sale.purchase.cost, "gb"),
            reporting_limits(self._context, sale.spender),
        ):
            await self._store.write(
                _buy,
                self._context,
                sale,
                self._bounds(),
                self._leases.new_accounts,
                receipt,
                transfer_id=self._identifiers.new(),
            )

    async def allow(self, user_id: str, session_id: str, client: str) -> Door:
        """Open a session to the buyer's present address, if the session was bought for it.

        A second call changes nothing.

        Raises:
            MarketError: `session_not_found`, when it does not exist or belongs to another user;
                `address_not_pending`; `addresses_taken`, when it opens another session there.
        """
        row = await self._store.write(_allow, user_id, session_id, client)
        self._traffic.granted(row.port_index, [client])
        return Door(client, self._port(row.port_index))

    async def page(
        self, user_id: str, *, status: SessionStatus | None, before: str, limit: int
    ) -> list[Session]:
        """Return a user's sessions, newest first, their counters as of now.

        Args:
            user_id: whose.
            status: only these; None for every one.
            before: only sessions older than this identifier; "" for the newest.
            limit: the most sessions to return.
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

    async def limited(self, user_id: str) -> Limited | None:
        """Return the limits of a user whose account is new; None for a known one."""
        return await self._leases.limited(user_id)

    async def count(self, user_id: str, *, is_active: bool) -> int:
        """Return the number of active sessions of a user, or of all, up to `COUNTED_MAX`."""
        if is_active:
            return await self._store.read(queries.count_active, user_id)
        return await self._store.read(queries.count, user_id, most=COUNTED_MAX)

    async def one(self, user_id: str, session_id: str) -> OneSession:
        """Return a session of a user with its present counters.

        Raises:
            MarketError: `session_not_found`, when it does not exist or belongs to another user.
        """
        await self._traffic.settle_exhausted()
        found = await self._store.read(
            _one, user_id=user_id, session_id=session_id, node_id=self._leases.node_id
        )
        if found is None:
            raise MarketError(Code.SESSION_NOT_FOUND, field="session_id")
        row, addresses, username = found
        session = self._shown(row, addresses)
        # Rounded as in a settlement: down, but a used byte is never free.
        due = max(earned(session.bytes_used, session.price_per_gb), min(session.bytes_used, 1))
        return OneSession(
            session=session,
            host=self._terms.public_host,
            username=username,
            held=cost(session.quota_bytes, session.price_per_gb),
            due=due if session.paid is None else session.paid,
        )

    async def end(self, user_id: str, session_id: str) -> None:
        """End a session: cut its connections, capture the price of its use, release the rest.

        A second call changes nothing.

        Raises:
            MarketError: `session_not_found`, when it does not exist or belongs to another user.
        """
        session = await self._store.read(queries.find, session_id)
        if session is None or session.user_id != user_id:
            raise MarketError(Code.SESSION_NOT_FOUND, field="session_id")
        if session.status == SessionStatus.ACTIVE:
            await self._leave_active(session_id, SessionStatus.ENDED)

    async def expire(self) -> int:
        """End some of the sessions whose time is over. Return the number that ended.

        A session that cannot be ended is logged, and tried again after a while; it does not delay
        the others.

        Raises:
            UnavailableError: the store did not answer; the others wait for it.
        """

        async def end(session_id: str) -> None:
            await self._leave_active(session_id, SessionStatus.EXPIRED)

        return await self._expiring.run(
            self._leases.due_to_expire, end, most=self.expire_max_sessions, now=self._now()
        )

    async def warn(self) -> int:
        """Notify buyers once of sessions that end within a day. Return the number of sessions.

        Raises:
            StoreError: not all buyers were notified.
        """
        return await self._store.write(tell_expiring, self._context)

    async def _leave_active(self, session_id: str, status: SessionStatus) -> None:
        usage = self._traffic.cut(session_id, status)
        await finished(self._store_end(session_id, status, usage))

    async def _store_end(self, session_id: str, status: SessionStatus, usage: Usage | None) -> None:
        try:
            await self._leases.end(session_id, status, usage)
        except BaseException:
            self._traffic.restore(session_id)
            raise

    def _exit_text(self, wishes: ExitWishes) -> str:
        if not self._exit_terms.is_offered:
            raise MarketError(Code.EXITS_NOT_OFFERED, field="exit")
        return exit_text(wishes)

    def _check(self, quota_bytes: int, price: int, floor: int) -> None:
        if not 0 < quota_bytes <= QUOTA_MAX_BYTES:
            raise MarketError(
                Code.INVALID_FIELD,
                f"A session has more than 0 and at most {QUOTA_MAX_BYTES // GB} GB.",
                field="gb",
            )
        if price < floor:
            raise MarketError(
                Code.PRICE_BELOW_FLOOR,
                f"The lowest price per GB is {as_decimal(floor)} USD.",
                field="price_per_gb",
            )
        if price > PRICE_MAX_PER_GB:
            raise MarketError(
                Code.INVALID_FIELD,
                f"The highest price per GB is {PRICE_MAX_PER_GB // MICRO} USD.",
                field="price_per_gb",
            )

    def _check_cost(self, price: int) -> None:
        if price < self._terms.cost_floor:
            message = f"The least that is sold is worth {as_decimal(self._terms.cost_floor)} USD."
            raise MarketError(Code.SESSION_TOO_SMALL, message, field="gb")

    def _purchase(self, session: SessionRow, credentials: Credentials, price_held: int) -> Purchase:
        return Purchase(
            session_id=session.id,
            host=self._terms.public_host,
            port=self._terms.public_port,
            username=credentials.username,
            password=credentials.password,
            cost=price_held,
        )

    def _shown(self, row: ListedRow, addresses: Sequence[ListedAddressRow]) -> Session:
        allow_ips: tuple[str, ...] = ()
        pending_ips: tuple[str, ...] = ()
        passwordless_port = None
        if addresses:
            allow_ips = tuple(sorted(each.address for each in addresses))
            pending_ips = tuple(sorted(each.address for each in addresses if each.is_pending))
            passwordless_port = self._port(addresses[0].port_index)
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
            pending_ips,
            passwordless_port,
            row.exit,
            _halted(row),
        )

    def _port(self, port_index: int) -> int | None:
        """Return the port without passwords with an index, if there still is one."""
        ports = self._terms.passwordless_ports
        return ports[port_index] if port_index < len(ports) else None


async def _buy(
    tx: Transaction,
    context: Context,
    sale: _Sale,
    bounds: Bounds,
    new_accounts: NewAccounts,
    receipt: Receipt[Purchase] | None,
    *,
    transfer_id: str,
) -> None:
    session = sale.session
    await lock_and_keep(tx, session.user_id, receipt, sale.purchase)
    await queries.insert(tx, session)
    if sale.addresses:
        await _take(tx, sale)
    await require_may_buy(tx, session.user_id)
    await require_email(tx, session.user_id, new_accounts, session.created_at)
    if await price_percent_of(tx, session.user_id, session.created_at) != sale.percent:
        raise _PriceChangedError
    bounds = await bounds_of(tx, session.user_id, bounds, session.created_at)
    if bounds.sessions:
        active = await queries.count_active(tx, session.user_id)
        require(active, bounds.sessions, Code.TOO_MANY_SESSIONS)
    if bounds.addresses and sale.addresses:
        addresses = await address_queries.count_of_user(tx, session.user_id)
        require(addresses, bounds.addresses, Code.TOO_MANY_ADDRESSES, field="allow_ips")
    hold = HoldRow(
        leases.hold_of(session.id), session.user_id, Currency.USD, sale.purchase.cost, None
    )
    await ledger.hold(tx, hold, transfer_id=transfer_id, now=session.created_at)
    await spend(tx, sale.spender, hold.currency, hold.amount, session.created_at)
    data = SessionCreated(
        session.id, session.quota_bytes, amount(sale.purchase.cost), timestamp(session.expires_at)
    )
    await record(tx, context, session.user_id, data, subject_id=session.id)


async def _take(tx: Transaction, sale: _Sale) -> None:
    """Open the session to the buyer's address, and record the others as pending."""
    if await address_queries.is_any_taken(tx, sale.session.user_id, sale.addresses):
        raise _TakenError
    pending = sale.purchase.pending_ips
    for row in sale.addresses:
        if row.address not in pending and not await address_queries.insert(tx, row):
            raise _TakenError
    await address_queries.insert_pending(
        tx, [row for row in sale.addresses if row.address in pending]
    )


async def _allow(tx: Transaction, user_id: str, session_id: str, client: str) -> AddressRow:
    session = await queries.find(tx, session_id)
    if session is None or session.user_id != user_id:
        raise MarketError(Code.SESSION_NOT_FOUND, field="session_id")
    return await prove(tx, session_id, client)


async def _one(
    tx: Transaction, *, user_id: str, session_id: str, node_id: str | None
) -> tuple[ListedRow, list[ListedAddressRow], str] | None:
    rows, addresses = await _page(
        tx, user_id=user_id, only="", before="", limit=1, node_id=node_id, session_id=session_id
    )
    session = await queries.find(tx, session_id)
    if not rows or session is None:
        return None
    return rows[0], addresses.get(session_id, []), session.username


async def _page(
    tx: Transaction,
    *,
    user_id: str,
    only: str,
    before: str,
    limit: int,
    node_id: str | None,
    session_id: str | None = None,
) -> tuple[list[ListedRow], dict[str, list[ListedAddressRow]]]:
    rows = await queries.page(
        tx,
        user_id=user_id,
        only=only,
        before=before,
        limit=limit,
        node_id=node_id,
        session_id=session_id,
    )
    addresses: dict[str, list[ListedAddressRow]] = {}
    opened = [row.id for row in rows if row.port_index is not None]
    if opened:
        for address in await address_queries.of_sessions(tx, opened):
            addresses.setdefault(address.session_id, []).append(address)
    return rows, addresses


def _halted(row: ListedRow) -> Halted | None:
    """Return the halt of an active session: its own, or that of all sessions of its user."""
    if row.status != SessionStatus.ACTIVE or row.halted_at is None:
        return None
    return Halted(row.halt_reason, row.halted_at, row.halted_until)
