"""Leases: who may hand out how many bytes of a session, and what they report back.

A session's bytes are handed out only under a lease, and the database keeps
`bytes_used + bytes_leased <= quota_bytes`, so that no number of holders can pass what was sold.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from market import ledger
from market.credentials import matches
from market.ids import Identifiers
from market.ledger import TransferIds
from market.money import Currency, earned
from market.states import SessionStatus
from storage import addresses
from storage import bandwidth as queries
from storage import ledger as ledger_queries
from storage.bandwidth import LeaseRow
from storage.errors import UnavailableError
from storage.store import Store, Transaction

EXPIRE_MAX_SESSIONS = 100


@dataclass(frozen=True, slots=True)
class Usage:
    """How many bytes of a session's lease are used, in all."""

    session_id: str
    lease_id: str
    used_bytes: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A session as its meter sees it; without a lease nothing may be handed out.

    Sizes in bytes, `expires_at` in UTC seconds. `names` are the client addresses that open it
    without a password while it is active, each behind the slot of its port.
    """

    session_id: str
    username: str
    password_hash: str
    status: SessionStatus
    expires_at: int
    lease_id: str | None
    granted_bytes: int
    names: tuple[tuple[int, str], ...]


class Leases:
    """Grants bytes to the meter and writes down what it reports.

    Args:
        store: where sessions are kept.
        identifiers: makes identifiers.
        now: the wall clock, in UTC seconds.
    """

    def __init__(self, store: Store, identifiers: Identifiers, now: Callable[[], int]) -> None:
        self._store = store
        self._identifiers = identifiers
        self._now = now
        # By session: a lease whose writing failed, so that nobody knows whether it was committed.
        self._unsure: dict[str, str] = {}

    async def find(self, username: str, password: bytes) -> str | None:
        """Return the session that these credentials belong to; None when there is none.

        Raises:
            UnavailableError: the store did not answer.
        """
        session = await self._store.read(queries.find_by_username, username)
        if session is None or not matches(password, session.password_hash):
            return None
        return session.id

    async def find_by_address(self, slot: int, address: str) -> str | None:
        """Return the active session that a client's address opens; None when there is none.

        Raises:
            UnavailableError: the store did not answer.
        """
        return await self._store.read(addresses.find_session, slot, address)

    async def open(self, session_id: str) -> Grant | None:
        """Lease the rest of a session that nobody else holds; None when there is no such session.

        Raises:
            UnavailableError: the store did not answer.
            ConstraintError: it is leased already.
        """
        lease_id = self._identifiers.new()
        try:
            grant = await self._store.write(
                _open, session_id, self._unsure.get(session_id), lease_id=lease_id, now=self._now()
            )
        except BaseException:
            self._unsure[session_id] = lease_id
            raise
        self._unsure.pop(session_id, None)
        return grant

    async def report(self, usages: Sequence[Usage]) -> list[str]:
        """Write down what is used; return the leases that are no longer open.

        Raises:
            UnavailableError: nothing was written; report again.
        """
        return await self._store.write(_report, usages)

    async def release(self, usages: Sequence[Usage]) -> None:
        """Write down what is used, and give the rest of each lease back to its session.

        Raises:
            UnavailableError: nothing was written; release again.
        """
        await self._store.write(_release, usages, now=self._now())

    async def settle(self, session_id: str, status: SessionStatus, usage: Usage | None) -> bool:
        """Let a session leave `active`: capture what was used, release the rest of its hold.

        One whose every byte is used becomes `exhausted`, whatever `status` says. Returns False when
        it had left `active` before; then nothing changes.

        Raises:
            UnavailableError: nothing was written; settle again.
        """
        return await self._store.write(
            _settle,
            session_id,
            status,
            usage,
            transfer_ids=TransferIds(self._identifiers.new(), self._identifiers.new()),
            now=self._now(),
        )

    async def recover(self) -> int:
        """Close the leases that a daemon left open when it died; return how many.

        Only what it had reported counts as used, so nothing is billed that was not delivered. A
        session that it had used up and not settled is settled now.
        """
        closed = await self._store.write(_recover, now=self._now())
        for session_id in await self._store.read(queries.used_up):
            await self.settle(session_id, SessionStatus.EXHAUSTED, None)
        return closed

    async def due_to_expire(self) -> list[str]:
        """Return some active sessions whose time is over."""
        return await self._store.read(
            queries.due_to_expire, now=self._now(), limit=EXPIRE_MAX_SESSIONS
        )


async def _open(
    tx: Transaction, session_id: str, unsure: str | None, *, lease_id: str, now: int
) -> Grant | None:
    await queries.lock(tx, [session_id])
    forgotten = await queries.find_open_lease(tx, unsure) if unsure is not None else None
    if forgotten is not None:
        await queries.close_lease(tx, forgotten, now)
    session = await queries.find(tx, session_id)
    if session is None:
        return None
    status = SessionStatus(session.status)
    if status is SessionStatus.ACTIVE and session.expires_at <= now:
        status = SessionStatus.EXPIRED
    if status is SessionStatus.ACTIVE and not await queries.lease_remainder(tx, session, lease_id):
        raise UnavailableError("the session changed while it was leased")
    leased = status is SessionStatus.ACTIVE
    named = await addresses.of_session(tx, session_id) if leased else []
    return Grant(
        session_id=session.id,
        username=session.username,
        password_hash=session.password_hash,
        status=status,
        expires_at=session.expires_at,
        lease_id=lease_id if leased else None,
        granted_bytes=session.quota_bytes - session.bytes_used - session.bytes_leased
        if leased
        else 0,
        names=tuple((row.slot, row.address) for row in named),
    )


async def _report(tx: Transaction, usages: Sequence[Usage]) -> list[str]:
    await queries.lock(tx, [usage.session_id for usage in usages])
    return [
        usage.lease_id
        for usage in usages
        if not await queries.report(tx, usage.lease_id, usage.used_bytes)
    ]


async def _release(tx: Transaction, usages: Sequence[Usage], *, now: int) -> None:
    await queries.lock(tx, [usage.session_id for usage in usages])
    for usage in usages:
        if await queries.report(tx, usage.lease_id, usage.used_bytes):
            lease = await queries.find_open_lease(tx, usage.lease_id)
            if lease is not None:
                await queries.close_lease(tx, lease, now)


async def _settle(
    tx: Transaction,
    session_id: str,
    status: SessionStatus,
    usage: Usage | None,
    *,
    transfer_ids: TransferIds,
    now: int,
) -> bool:
    SessionStatus.ACTIVE.require_before(status)
    await queries.lock(tx, [session_id])
    if usage is not None:
        await queries.report(tx, usage.lease_id, usage.used_bytes)
    await _close(tx, await queries.open_leases(tx, session_id), now)
    if await queries.is_used_up(tx, session_id):
        status = SessionStatus.EXHAUSTED
    session = await queries.change_status(
        tx, session_id, before=SessionStatus.ACTIVE, after=status, now=now
    )
    if session is None:
        return False
    await addresses.delete(tx, session_id)
    hold_id = hold_of(session_id)
    hold = await ledger_queries.find_hold(tx, hold_id)
    if hold is None:
        raise LookupError(f"the session {session_id} has no hold")
    owed = min(earned(session.bytes_used, session.price_per_gb), hold.amount)
    payment = (ledger.revenue(Currency.USD), owed)
    await ledger.capture(tx, hold_id, [payment], transfer_ids=transfer_ids, now=now)
    return True


async def _recover(tx: Transaction, *, now: int) -> int:
    leases = await queries.open_leases(tx, "")
    await queries.lock(tx, [lease.session_id for lease in leases])
    await _close(tx, leases, now)
    return len(leases)


async def _close(tx: Transaction, leases: Sequence[LeaseRow], now: int) -> None:
    for lease in leases:
        await queries.close_lease(tx, lease, now)


def hold_of(session_id: str) -> str:
    """Return the hold that pays for a session."""
    return f"bandwidth:{session_id}"
