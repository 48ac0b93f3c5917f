"""Byte budgets and counters of the live sessions, in memory, written down every half second.

A session's bytes are taken from its budget before they are read, become used when the kernel has
them, and go back to the budget when they could not be delivered. All of it happens on the event
loop, so no two connections can take the same byte.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from market.credentials import is_username, matches
from market.leases import Grant, Leases, Share, Usage
from market.states import SessionStatus
from proxyd.metering.allowlist import Addresses
from proxyd.metering.pace import Pace
from proxyd.metering.session import LiveSession
from proxyd.metering.single_flight import NegativeCache, SingleFlight
from proxyd.wire.events import Refusal
from storage.errors import StoreError, UnavailableError

FLUSH_SECONDS = 0.5
REMEMBER_SECONDS = 60.0
# Somebody else has the address, for as long as their session lasts: asking is a write each time.
PROVE_AGAIN_SECONDS = 60.0

REFUSAL_OF_STATUS = {
    SessionStatus.EXHAUSTED: Refusal.EXHAUSTED,
    SessionStatus.ENDED: Refusal.OVER,
    SessionStatus.EXPIRED: Refusal.OVER,
}

_logger = logging.getLogger("meter")


class Meter:
    """Knows the live sessions, and keeps the store up to date with them.

    Args:
        leases: grants bytes, and takes the counts.
        now: the wall clock, in UTC seconds.
        connections_per_session: how many may be open at once.
        bytes_per_second: how fast a session may go; 0 for as fast as it can.
    """

    def __init__(
        self,
        leases: Leases,
        now: Callable[[], int],
        *,
        connections_per_session: int,
        bytes_per_second: int = 0,
    ) -> None:
        self._leases = leases
        self._now = now
        self.connections_per_session = connections_per_session
        self._bytes_per_second = bytes_per_second
        self._by_username: dict[str, LiveSession] = {}
        self._by_id: dict[str, LiveSession] = {}
        # Those whose counts may not be written down: most sessions that are known rest.
        self._changed: set[LiveSession] = set()
        self._lookups: SingleFlight[tuple[str, bytes], LiveSession] = SingleFlight(self._find)
        self._unknown: NegativeCache[tuple[str, bytes]] = NegativeCache()
        self._addresses = Addresses(self._find_by_address)
        self._opening: dict[str, asyncio.Event] = {}
        self._cut_unseen: dict[str, SessionStatus] = {}
        self._forget_at: dict[str, float] = {}
        self._to_settle: dict[str, LiveSession] = {}
        self._to_prove: set[tuple[str, str]] = set()
        self._wake = asyncio.Event()
        self._store_failing = False

    @property
    def live(self) -> int:
        """How many sessions are known here and can be used."""
        return sum(each.status is SessionStatus.ACTIVE for each in self._by_id.values())

    # --- what the gateway asks -----------------------------------------------------------------

    def admit(
        self,
        username: bytes,
        password: bytes,
        asker: str,
        decide: Callable[[LiveSession | Refusal], None],
    ) -> LiveSession | Refusal | None:
        """Decide whether credentials open a session, from memory if it is known there.

        A wrong password is told before anything about the session.

        Args:
            username: as the client has shown it; one that was never made is wrong at once.
            password: the same.
            asker: the client's network, for which a question to the store counts.
            decide: is called once with the decision, later, if None is returned; else never.

        Returns:
            The decision, or None if the store has to be asked.
        """
        name = username.decode("latin-1")
        session = self._by_username.get(name)
        if session is not None:
            right = matches(password, session.password_hash)
            return self._admitted(session) if right else Refusal.WRONG
        if not is_username(name) or (name, password) in self._unknown:
            return Refusal.WRONG
        return self._lookups.ask(
            (name, password), asker, lambda answer: decide(self._admitted(answer))
        )

    def admit_address(
        self,
        slot: int,
        address: str,
        asker: str,
        decide: Callable[[LiveSession | Refusal], None],
    ) -> LiveSession | Refusal | None:
        """Decide whether a client's address opens a session on a port without passwords.

        Args:
            slot: which of those ports.
            address: the client's.
            asker: its network, as in `admit`.
            decide: as in `admit`.

        Returns:
            As `admit`.
        """
        answer = self._addresses.ask(
            (slot, address), asker, lambda later: decide(self._admitted(later))
        )
        return None if answer is None else self._admitted(answer)

    def prove(self, session: LiveSession, address: str) -> None:
        """Hear from which address a client has come with a session's password.

        If the session was bought for that address, it needs none from there in a moment.
        """
        due = session.pending.get(address)
        if due is not None and due <= asyncio.get_running_loop().time():
            self._to_prove.add((session.id, address))
            self._wake.set()

    def _admitted(self, session: LiveSession | Refusal) -> LiveSession | Refusal:
        if isinstance(session, Refusal):
            return session
        if session.status is not SessionStatus.ACTIVE:
            return REFUSAL_OF_STATUS[session.status]
        if session.expires_at <= self._now():
            return Refusal.OVER
        if len(session.connections) >= self.connections_per_session:
            return Refusal.TOO_MANY_CONNECTIONS
        return session

    async def _find(self, shown: tuple[str, bytes]) -> LiveSession | Refusal:
        session_id = await self._leases.find(*shown)
        session = await self._live(session_id) if session_id is not None else None
        if session is None:
            self._unknown.add(shown)
            return Refusal.WRONG
        return session

    async def _find_by_address(self, name: tuple[int, str]) -> LiveSession | None:
        session_id = await self._leases.find_by_address(*name)
        return await self._live(session_id) if session_id is not None else None

    async def _live(self, session_id: str) -> LiveSession | None:
        """Return a session that lives, or lease it; once, however many want it at once.

        Raises:
            StoreError: it could not be leased.
        """
        opening = self._opening.get(session_id)
        if opening is not None:
            await opening.wait()
            if session_id not in self._by_id:
                raise UnavailableError("the session could not be leased")
        if session_id in self._by_id:
            return self._by_id[session_id]
        self._opening[session_id] = opening = asyncio.Event()
        try:
            grant = await self._leases.open(session_id)
            return self._adopt(grant) if grant is not None else None
        finally:
            del self._opening[session_id]
            opening.set()

    def _adopt(self, grant: Grant) -> LiveSession:
        pace = None
        if self._bytes_per_second:
            pace = Pace(asyncio.get_running_loop(), self._bytes_per_second)
        session = self._made(grant, pace)
        cut = self._cut_unseen.pop(session.id, None)
        if cut is not None:
            session.status = cut
            session.cuts = 1  # as `cut` would have noted, so that `restore` takes it back
        self._by_username[session.username] = session
        self._by_id[session.id] = session
        if session.status is not SessionStatus.ACTIVE:
            self._forget_later(session.id)
            return session
        self._addresses.opens(session)
        if session.granted == 0:
            self._exhausted(session)
        return session

    def _made(self, grant: Grant, pace: Pace | None) -> LiveSession:
        return LiveSession(grant, self._exhausted, pace, self._changed)

    # --- what the marketplace asks: market.bandwidth.Traffic -----------------------------------

    def used_bytes(self, session_id: str, lease_id: str) -> int | None:
        """Return the bytes used under a session's lease, None when that lease is not held here."""
        session = self._by_id.get(session_id)
        return session.used if session is not None and session.lease_id == lease_id else None

    def cut(self, session_id: str, status: SessionStatus) -> Usage | None:
        """Cut a session's connections and refuse new ones; return what its lease used in all."""
        session = self._by_id.get(session_id)
        self._forget_later(session_id)
        if session is None:
            self._cut_unseen[session_id] = status
            return None
        for connection in tuple(session.connections):
            connection.abort()
        for closing in tuple(session.closings):  # so that what is settled is what was delivered
            closing.abort()
        session.cuts += 1
        if session.status is SessionStatus.ACTIVE:
            session.status = status
        return session.usage

    def restore(self, session_id: str) -> None:
        """Take back a `cut` that could not be written down, unless another one was."""
        self._cut_unseen.pop(session_id, None)
        session = self._by_id.get(session_id)
        if session is None:
            return
        session.cuts = max(0, session.cuts - 1)
        if session.cuts or session.lease_id is None:
            return
        if session.status is not SessionStatus.EXHAUSTED:
            session.status = SessionStatus.ACTIVE
            self._changed.add(session)
            self._forget_at.pop(session_id, None)

    def named(self, slot: int, addresses: Sequence[str]) -> None:
        """Hear that a session was sold that client addresses open, on the port with this slot."""
        self._addresses.named(slot, addresses)

    async def settle_exhausted(self) -> None:
        """Have written down which sessions are exhausted, if the store can be reached."""
        if self._to_settle:
            with suppress(StoreError):  # `run` tries again, and tells
                await self._settle()

    # --- writing down --------------------------------------------------------------------------

    async def run(self) -> None:
        """Write counts down until cancelled; the store's failures delay that and lose nothing."""
        while True:
            try:
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self.flush()
            self._forget_old()
            if self._store_failing:
                await asyncio.sleep(FLUSH_SECONDS)

    def _pause(self) -> float:
        """Return how long nothing need be written down, unless somebody wakes us."""
        return FLUSH_SECONDS

    async def flush(self) -> None:
        """Write down every count that changed, settle what is exhausted, let go of what is lost."""
        try:
            await self._report()
            await self._settle()
            await self._prove()
            await self._leases.forgo_unsure()
        except StoreError as error:
            if not self._store_failing:
                _logger.error("counts wait for the store to return: %s", error)
            self._store_failing = True
        else:
            if self._store_failing:
                _logger.info("the store is back, counts are written")
            self._store_failing = False

    async def stop(self) -> None:
        """Write the last counts down and give every lease back.

        Raises:
            StoreError: what is not written is lost, as after a crash.
        """
        await self._lookups.stop()
        await self._addresses.stop()
        try:
            await self._settle()
        finally:
            await self._leases.release(
                [
                    Usage(session.id, session.lease_id or "", session.certain())
                    for session in self._by_id.values()
                    if self._reports(session) or session.id in self._to_settle
                ]
            )

    @staticmethod
    def _reports(session: LiveSession) -> bool:
        return session.lease_id is not None and session.status is SessionStatus.ACTIVE

    def _unreported(self) -> list[LiveSession]:
        """Return the sessions whose counts are not written down and shall be; forget the others."""
        found = [
            each for each in self._changed if each.used != each.reported and self._reports(each)
        ]
        self._changed.intersection_update(found)
        return found

    async def _report(self) -> None:
        changed = []
        for session in self._unreported():
            certain = session.certain()
            if certain != session.reported:
                changed.append((session, certain))
        for session in self._to_settle.values():
            certain = session.certain()
            if certain not in (session.reported, session.used):
                changed.append((session, certain))
        if not changed:
            return
        answers = await self._leases.report(
            [Usage(session.id, session.lease_id or "", used) for session, used in changed]
        )
        for (session, used), answer in zip(changed, answers, strict=True):
            session.reported = used
            if isinstance(answer, Share) or session.status is not SessionStatus.ACTIVE:
                continue
            if answer is None:
                _logger.warning("session %s has lost its lease; it is cut", session.id)
            self.cut(session.id, SessionStatus.ENDED)

    async def _settle(self) -> None:
        """Settle what is exhausted; one session that fails does not hold up the others.

        Where the store is away nobody else is tried: each would wait for it in turn, and so would a
        daemon that stops. Whoever met that comes last the next time.

        One whose last bytes are still in the kernel's queues waits until they have left, or are
        given back: what is settled cannot be taken back when they go down with this process.
        """
        failed: StoreError | None = None
        for session in tuple(self._to_settle.values()):
            if session.certain() != session.used:
                continue
            try:
                await self._settle_one(session)
            except UnavailableError:
                self._to_settle[session.id] = self._to_settle.pop(session.id)
                raise
            except StoreError as error:
                failed = error
                continue
            self._to_settle.pop(session.id, None)
            self._forget_later(session.id)
        if failed is not None:
            raise failed

    async def _settle_one(self, session: LiveSession) -> None:
        """Settle a session; of one that cannot be, what is used is written down all the same.

        To try again soon would change nothing: the next start does, and tells again.
        """
        try:
            await self._leases.settle(session.id, SessionStatus.EXHAUSTED, session.usage)
        except StoreError:
            raise
        except Exception:
            _logger.exception("session %s is used up and cannot be settled", session.id)
            await self._leases.release([session.usage] if session.usage is not None else [])

    async def _prove(self) -> None:
        """Write down which addresses were proved; what cannot be is tried again after a while."""
        shown = tuple(self._to_prove)
        if not shown:
            return
        self._to_prove.clear()
        try:
            slots = await self._leases.prove(shown)
        except BaseException:
            self._to_prove.update(shown)
            raise
        for (session_id, address), slot in zip(shown, slots, strict=True):
            session = self._by_id.get(session_id)
            if session is None or address not in session.pending:
                continue
            if slot is None:
                session.pending[address] = asyncio.get_running_loop().time() + PROVE_AGAIN_SECONDS
            else:
                del session.pending[address]
                self._addresses.learn((slot, address), session)
                self._addresses.named(slot, [address])

    def _exhausted(self, session: LiveSession) -> None:
        if session.status is not SessionStatus.ACTIVE:
            return
        session.status = SessionStatus.EXHAUSTED
        self._to_settle[session.id] = session
        self._wake.set()
        for connection in tuple(session.connections):
            connection.finish()

    def _forget_later(self, session_id: str) -> None:
        self._forget_at[session_id] = asyncio.get_running_loop().time() + REMEMBER_SECONDS

    def _forget_old(self) -> None:
        now = asyncio.get_running_loop().time()
        for session_id in [each for each, due in self._forget_at.items() if due <= now]:
            if session_id in self._to_settle:
                continue
            del self._forget_at[session_id]
            self._cut_unseen.pop(session_id, None)
            session = self._by_id.pop(session_id, None)
            if session is not None:
                del self._by_username[session.username]
                self._addresses.forget(session)
