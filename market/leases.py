"""Leases: who may hand out how many bytes of a session, and what they report back.

A session's bytes are handed out only under a lease, and the database keeps
`bytes_used + bytes_leased <= quota_bytes`, so that no number of holders can pass what was sold.

The one daemon of an SQLite database leases whole remainders. Of several on one database each is a
node, which leases a slice, asks for more in time, and returns what others need more.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from market import ledger
from market.allowlist import prove
from market.credentials import matches
from market.errors import MarketError
from market.ids import Identifiers
from market.ledger import TransferIds
from market.money import Currency, earned
from market.notices import Notice, Topic
from market.states import SessionStatus
from storage import allowlist, nodes
from storage import bandwidth as queries
from storage import ledger as ledger_queries
from storage.bandwidth import CountsRow, LeaseRow
from storage.errors import UnavailableError
from storage.nodes import SeenRow
from storage.store import Store, Transaction

SLICE_FIRST_BYTES = 1024 * 1024
SLICE_LEAST_BYTES = 64 * 1024
SHARE_OF_REMAINDER = 4
# Other nodes report in a quarter of a second; one that is busy may need longer, and what it reports
# too late is given away. One that is dead makes whoever ends a session wait so long.
RECALL_SECONDS = 5.0
RECALL_STEP_SECONDS = 0.02

_logger = logging.getLogger("leases")


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
    without a password while it is active, each behind the slot of its port; `pending` are those
    that will once a client comes from them with the password.
    """

    session_id: str
    username: str
    password_hash: str
    status: SessionStatus
    expires_at: int
    lease_id: str | None
    granted_bytes: int
    entries: tuple[tuple[int, str], ...]
    pending: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ask:
    """What a node says of its lease: what it used in all, how much it wants, what it can spare.

    `want_bytes` more are wanted; with `keep_bytes` the lease shall grant that many in all.
    """

    usage: Usage
    want_bytes: int = 0
    keep_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A node's lease after it asked: what it grants in all, and whether the session is used up."""

    granted_bytes: int
    is_used_up: bool


@dataclass(frozen=True, slots=True)
class Rejection:
    """A report that was not written: more than the lease grants, or less than nothing."""


LeaseReply = LeaseState | Rejection | None


class Leases:
    """Grants bytes to the meter and writes down what it reports.

    `node_id` is this daemon among several on the database, None when there is only one.

    Args:
        store: where sessions are kept.
        identifiers: makes identifiers.
        now: the wall clock, in UTC seconds.
    """

    def __init__(self, store: Store, identifiers: Identifiers, now: Callable[[], int]) -> None:
        self._store = store
        self._identifiers = identifiers
        self._now = now
        self.node_id: str | None = None
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
        return await self._store.read(allowlist.find_session, slot, address)

    async def prove(self, shown: Sequence[tuple[str, str]]) -> list[int | None]:
        """Have pending addresses open their sessions, because a client with the password came.

        Args:
            shown: sessions, and an address of each.

        Returns:
            For each the slot of the port on which it is known from now on; None when it cannot be.

        Raises:
            UnavailableError: the store did not answer.
        """
        return await self._store.write(_prove, shown)

    async def open(self, session_id: str) -> Grant | None:
        """Lease bytes of a session; None when there is no such session.

        The one daemon gets the rest of it, which nobody else may hold then; a node gets a slice.

        Raises:
            UnavailableError: the store did not answer.
            ConstraintError: it is leased already.
        """
        unsure = self._unsure.get(session_id)
        if unsure is not None:
            await self._store.write(_forgo, session_id, unsure, now=self._now())
            self._unsure.pop(session_id, None)
        lease_id, node_id = self._identifiers.new(), self.node_id
        try:
            grant = await self._store.write(
                _open,
                session_id,
                lease_id=lease_id,
                node_id=node_id,
                now=self._now(),
            )
        except BaseException:
            self._unsure[session_id] = lease_id
            raise
        if self.node_id != node_id:
            raise UnavailableError("the node was declared dead while it leased")
        return grant

    async def forgo_unsure(self) -> None:
        """Close leases of which nobody knows whether they were opened: their bytes are nobody's.

        Raises:
            UnavailableError: the store did not answer; they stay unsure.
        """
        for session_id, lease_id in tuple(self._unsure.items()):
            await self._store.write(_forgo, session_id, lease_id, now=self._now())
            if self._unsure.get(session_id) == lease_id:  # and not a later one
                del self._unsure[session_id]

    async def report(self, usages: Sequence[Usage]) -> list[LeaseReply]:
        """Write down what is used; as `exchange`, but nothing is asked for."""
        return await self.exchange([Ask(usage) for usage in usages])

    async def exchange(self, asks: Sequence[Ask]) -> list[LeaseReply]:
        """Report, and change how much leases grant, in a few statements however many they are.

        When nothing is left to lease and others hold some, they are told that it is wanted.

        Returns:
            An answer to each: None when the lease is no longer open, `Rejection` when its counts
            cannot be; the others are written all the same.

        Raises:
            UnavailableError: perhaps written, perhaps not; the next answer tells.
        """
        return await self._store.write(_exchange, asks, node_id=self.node_id or "")

    async def recall(self, session_id: str, status: SessionStatus) -> None:
        """Have other nodes cut a session and report a last time, and wait for them.

        At most `RECALL_SECONDS`: what they report later is not billed.

        Raises:
            UnavailableError: the store did not answer.
        """
        if self.node_id is None:
            return
        notice = Notice(Topic.CUT, session_id, status, self.node_id)
        if not await self._store.write(_recall, notice):
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RECALL_SECONDS
        while loop.time() < deadline:
            await asyncio.sleep(RECALL_STEP_SECONDS)
            if not await self._store.read(queries.leased_elsewhere, session_id, self.node_id):
                return

    async def statuses(self, session_ids: Sequence[str]) -> dict[str, SessionStatus]:
        """Return where sessions are in their lives."""
        found = await self._store.read(queries.status_of, session_ids)
        return {session_id: SessionStatus(status) for session_id, status in found.items()}

    async def release(self, usages: Sequence[Usage]) -> None:
        """Write down what is used, and give the rest of each lease back to its session.

        Of counts that cannot be, those that were written before stay.

        Raises:
            UnavailableError: perhaps written, perhaps not; release again, which is harmless.
        """
        if usages:
            await self._store.write(_release, usages, now=self._now())

    async def settle(self, session_id: str, status: SessionStatus, usage: Usage | None) -> bool:
        """Let a session leave `active`: capture what was used, release the rest of its hold.

        One whose every byte is used becomes `exhausted`, whatever `status` says. Returns False when
        it had left `active` before; then nothing changes.

        Raises:
            UnavailableError: perhaps written, perhaps not; settle again, which is harmless.
        """
        return await self._store.write(
            _settle,
            session_id,
            status,
            usage,
            node_id=self.node_id,
            transfer_ids=TransferIds(self._identifiers.new(), self._identifiers.new()),
            now=self._now(),
        )

    async def recover(self) -> int:
        """Close the leases that the one daemon left open when it died; return how many.

        Only what it had reported counts as used, so nothing is billed that was not delivered. A
        session that it had used up and not settled is settled now.
        """
        closed = await self._store.write(_recover, now=self._now())
        await self._settle_used_up()
        return closed

    async def nodes(self) -> list[SeenRow]:
        """Return every node, as it was seen last."""
        return await self._store.read(nodes.seen)

    async def reap(self, dead: Sequence[SeenRow]) -> int:
        """Close the leases of nodes that were not seen since, and remove them.

        As in `recover`, what they had reported counts. Returns how many nodes were reaped.
        """
        reaped = 0
        for node in dead:
            reaped += await self._store.write(_reap, node, now=self._now())
        if reaped:
            await self._settle_used_up()
        return reaped

    async def leave(self) -> None:
        """Take this node from the database; leases that it did not release are closed."""
        if self.node_id is not None:
            await self._store.write(_leave, self.node_id, now=self._now())

    async def _settle_used_up(self) -> None:
        """Settle every session that is used up; one that cannot be is told and left as it is."""
        for session_id in await self._store.read(queries.used_up):
            try:
                await self.settle(session_id, SessionStatus.EXHAUSTED, None)
            except UnavailableError:
                raise
            except Exception:
                _logger.exception("session %s: used up and cannot be settled", session_id)

    async def due_to_expire(self, limit: int) -> list[str]:
        """Return active sessions whose time is over, at most `limit`, the oldest first."""
        return await self._store.read(queries.due_to_expire, now=self._now(), limit=limit)


async def _prove(tx: Transaction, shown: Sequence[tuple[str, str]]) -> list[int | None]:
    await queries.lock(tx, [session_id for session_id, _ in shown])
    slots: list[int | None] = []
    for session_id, address in shown:
        try:
            slots.append((await prove(tx, session_id, address)).slot)
        except MarketError:
            slots.append(None)
    return slots


async def _forgo(tx: Transaction, session_id: str, lease_id: str, *, now: int) -> None:
    """Close a lease that nothing was handed out under, if it was opened at all."""
    await queries.lock(tx, [session_id])
    await _close(tx, [lease for lease, _ in await queries.held(tx, [lease_id])], now)


async def _open(
    tx: Transaction,
    session_id: str,
    *,
    lease_id: str,
    node_id: str | None,
    now: int,
) -> Grant | None:
    await queries.lock(tx, [session_id])
    session = await queries.find(tx, session_id)
    if session is None:
        return None
    status = SessionStatus(session.status)
    if status is SessionStatus.ACTIVE and session.expires_at <= now:
        status = SessionStatus.EXPIRED
    leased = status is SessionStatus.ACTIVE
    size = session.quota_bytes - session.bytes_used - session.bytes_leased
    if node_id is not None:
        size = slice_of(size, SLICE_FIRST_BYTES)
    if leased and not await queries.lease(tx, session, lease_id, size, node_id):
        raise UnavailableError("the session changed while it was leased")
    opened = await allowlist.of_session(tx, session_id) if leased else []
    pending = await allowlist.pending_of_session(tx, session_id) if leased else []
    return Grant(
        session_id=session.id,
        username=session.username,
        password_hash=session.password_hash,
        status=status,
        expires_at=session.expires_at,
        lease_id=lease_id if leased else None,
        granted_bytes=size if leased else 0,
        entries=tuple((row.slot, row.address) for row in opened),
        pending=tuple(row.address for row in pending),
    )


def slice_of(remainder: int, want_bytes: int) -> int:
    """Return how much of a remainder a node gets: no more than leaves some for others."""
    fair = max(SLICE_LEAST_BYTES, remainder // SHARE_OF_REMAINDER)
    return min(remainder, want_bytes, fair)


class _Book:
    """Leases and their sessions while they are locked: what is changed is written in the end.

    Args:
        held: as they are in the store.
    """

    def __init__(self, held: Sequence[tuple[LeaseRow, CountsRow]]) -> None:
        self.leases = {lease.id: lease for lease, _ in held}
        self.sessions = {lease.session_id: counts for lease, counts in held}
        self.wanted: list[str] = []

    def answer(self, ask: Ask) -> LeaseReply:
        """Take a report, and change what its lease grants."""
        lease = self.leases.get(ask.usage.lease_id)
        if lease is None:
            return None
        counts, used = self.sessions[lease.session_id], ask.usage.used_bytes
        more = used - lease.used_bytes
        is_granted = 0 <= used <= lease.granted_bytes
        is_leased = counts.bytes_leased >= lease.granted_bytes - lease.used_bytes
        if not (is_granted and is_leased) or counts.bytes_used + more < 0:
            _logger.error(
                "session %s: report rejected: %d bytes used, %d granted",
                lease.session_id,
                used,
                lease.granted_bytes,
            )
            return Rejection()
        counts = counts._replace(
            bytes_used=counts.bytes_used + more, bytes_leased=counts.bytes_leased - more
        )
        lease = lease._replace(used_bytes=used)
        granted = self._granted(ask, lease, counts)
        counts = counts._replace(bytes_leased=counts.bytes_leased + granted - lease.granted_bytes)
        self.leases[lease.id] = lease._replace(granted_bytes=granted)
        self.sessions[lease.session_id] = counts
        return LeaseState(granted, counts.bytes_used == counts.quota_bytes)

    def _granted(self, ask: Ask, lease: LeaseRow, counts: CountsRow) -> int:
        """Return how much a lease grants from now on, in all."""
        if ask.keep_bytes is not None:
            return max(lease.used_bytes, min(lease.granted_bytes, ask.keep_bytes))
        if not ask.want_bytes or counts.status != SessionStatus.ACTIVE:
            return lease.granted_bytes
        left = counts.quota_bytes - counts.bytes_used - counts.bytes_leased
        if left == 0 and counts.bytes_leased > lease.granted_bytes - lease.used_bytes:
            self.wanted.append(lease.session_id)
        return lease.granted_bytes + slice_of(left, ask.want_bytes)


async def _exchange(tx: Transaction, asks: Sequence[Ask], *, node_id: str) -> list[LeaseReply]:
    await queries.lock(tx, [ask.usage.session_id for ask in asks])
    book = _Book(await queries.held(tx, [ask.usage.lease_id for ask in asks]))
    answers = [book.answer(ask) for ask in asks]
    await queries.change(tx, list(book.leases.values()), book.sessions)
    if book.wanted:
        await tx.notify(
            *(
                Notice(Topic.WANTED, each, SessionStatus.ACTIVE, node_id).text
                for each in book.wanted
            )
        )
    return answers


async def _recall(tx: Transaction, notice: Notice) -> bool:
    """Tell other nodes to let go of a session; False when none has a lease of it."""
    if not await queries.leased_elsewhere(tx, notice.session_id, notice.node_id):
        return False
    await tx.notify(notice.text)
    return True


async def _release(tx: Transaction, usages: Sequence[Usage], *, now: int) -> None:
    await _exchange(tx, [Ask(usage) for usage in usages], node_id="")
    held = await queries.held(tx, [usage.lease_id for usage in usages])
    await _close(tx, [lease for lease, _ in held], now)


async def _settle(
    tx: Transaction,
    session_id: str,
    status: SessionStatus,
    usage: Usage | None,
    *,
    node_id: str | None,
    transfer_ids: TransferIds,
    now: int,
) -> bool:
    SessionStatus.ACTIVE.require_before(status)
    await queries.lock(tx, [session_id])
    if usage is not None:
        await _exchange(tx, [Ask(usage)], node_id="")
    await _close(tx, await queries.open_leases(tx, session_id), now)
    if await queries.is_used_up(tx, session_id):
        status = SessionStatus.EXHAUSTED
    session = await queries.change_status(
        tx, session_id, before=SessionStatus.ACTIVE, after=status, now=now
    )
    if session is None:
        return False
    await allowlist.delete(tx, session_id)
    hold_id = hold_of(session_id)
    hold = await ledger_queries.find_hold(tx, hold_id)
    if hold is None:
        raise LookupError(f"the session {session_id} has no hold")
    owed = earned(session.bytes_used, session.price_per_gb)
    if session.bytes_used:
        owed = max(owed, 1)  # what is worth less than a millionth would be free, as often as wanted
    owed = min(owed, hold.amount)
    payment = (ledger.revenue(Currency.USD), owed)
    await ledger.capture(tx, hold_id, [payment], transfer_ids=transfer_ids, now=now)
    if node_id is not None:
        await tx.notify(Notice(Topic.OVER, session_id, status, node_id).text)
    return True


async def _recover(tx: Transaction, *, now: int) -> int:
    leases = await nodes.leases(tx, None)
    await queries.lock(tx, [lease.session_id for lease in leases])
    await _close(tx, leases, now)
    return len(leases)


async def _reap(tx: Transaction, node: SeenRow, *, now: int) -> int:
    """Declare a node dead, unless it was seen after all."""
    await nodes.lock(tx, node.id)
    if node not in await nodes.seen(tx):
        return 0
    await _leave(tx, node.id, now=now)
    return 1


async def _leave(tx: Transaction, node_id: str, *, now: int) -> None:
    await nodes.lock(tx, node_id)
    leases = await nodes.leases(tx, node_id)
    await queries.lock(tx, [lease.session_id for lease in leases])
    await _close(tx, await nodes.leases(tx, node_id), now)
    await nodes.remove(tx, node_id)


async def _close(tx: Transaction, leases: Sequence[LeaseRow], now: int) -> None:
    if leases:
        await queries.close_leases(tx, leases, now)


def hold_of(session_id: str) -> str:
    """Return the hold that pays for a session."""
    return f"bandwidth:{session_id}"
