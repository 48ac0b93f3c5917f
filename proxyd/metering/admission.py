"""Admits clients: finds the session of their credentials or address, and checks its limits.

A session that is known is decided from memory, at once and without a task. The session of a new
client is looked up in the store, and its bytes are leased; however many clients wait for that, it
happens once.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol, final

from market.accounts.levels import Limited
from market.bandwidth.credentials import is_username, matches
from market.bandwidth.leases import Grant, Leases, Usage
from market.base.states import SessionStatus
from market.exits.wants import WantsError
from proxyd.metering.allowlist import Allowlist
from proxyd.metering.pace import Pace
from proxyd.metering.session import LiveSession
from proxyd.metering.sessions import Entry, Sessions
from proxyd.metering.single_flight import USUAL, NegativeBounds, NegativeCache, SingleFlight
from proxyd.metering.tallies import Tallies
from proxyd.metering.writer import Writer
from proxyd.wire.events import Refusal
from storage.engines.errors import UnavailableError

REFUSAL_OF_STATUS: Final = {
    SessionStatus.EXHAUSTED: Refusal.EXHAUSTED,
    SessionStatus.ENDED: Refusal.OVER,
    SessionStatus.EXPIRED: Refusal.OVER,
}

# Called with the decision on a client that the store had to decide.
Decide = Callable[[LiveSession | Refusal], None]


class Admitter(Protocol):
    """Interface to admit clients: the `Meter` implements it, and tests replace it."""

    def admit(
        self, username: bytes, password: bytes, asker: str, decide: Decide
    ) -> LiveSession | Refusal | None:
        """See `Admission.admit`."""

    def admit_address(
        self, port_index: int, address: str, asker: str, decide: Decide
    ) -> LiveSession | Refusal | None:
        """See `Admission.admit_address`."""

    def prove(self, session: LiveSession, address: str) -> None:
        """See `AddressProofs.add`."""


@final
class Admission:
    """Decides on the admission of clients.

    `connections_per_session` is the limit of open connections; it may be changed.

    Args:
        tallies: count refusals of clients that show a session's credentials.
        now: the wall clock, in UTC seconds.
        connections_per_session: see above.
        bytes_per_second: the limit of a session's speed; 0 for none.
        bounds: how long it is remembered that credentials, or an address, open nothing.
    """

    def __init__(
        self,
        leases: Leases,
        sessions: Sessions,
        writer: Writer,
        tallies: Tallies,
        now: Callable[[], int],
        *,
        connections_per_session: int,
        bytes_per_second: int,
        bounds: NegativeBounds = USUAL,
    ) -> None:
        self._leases = leases
        self._sessions = sessions
        self._writer = writer
        self._tallies = tallies
        self._now = now
        self.connections_per_session = connections_per_session
        self._bytes_per_second = bytes_per_second
        self._lookups: SingleFlight[tuple[str, bytes], LiveSession] = SingleFlight(self._find)
        self._unknown: NegativeCache[tuple[str, bytes]] = NegativeCache(bounds)
        self.allowlist = Allowlist(sessions, self._find_by_address, bounds)

    def admit(
        self, username: bytes, password: bytes, asker: str, decide: Decide
    ) -> LiveSession | Refusal | None:
        """Decide whether credentials open a session.

        A wrong password is refused before anything about the session.

        Args:
            username: as the client sent it; a name that no session can have is wrong without a
                query.
            password: the same.
            asker: the client's network; a question to the store counts for it.
            decide: is called later, once, if this returns None.
        """
        name = username.decode("latin-1")
        session = self._sessions.of_username(name)
        if session is not None:
            if not matches(password, session.password_hash):
                return Refusal.WRONG
            return self._decision(session)
        if not is_username(name) or (name, password) in self._unknown:
            return Refusal.WRONG
        return self._lookups.ask(
            (name, password), asker, lambda answer: decide(self._decision(answer))
        )

    def admit_address(
        self, port_index: int, address: str, asker: str, decide: Decide
    ) -> LiveSession | Refusal | None:
        """Decide whether a client's address opens a session on a port without passwords.

        Args:
            port_index: the index of the port.
            address: the client's.
            asker: its network, as in `admit`.
            decide: as in `admit`.
        """
        answer = self.allowlist.ask(
            (port_index, address), asker, lambda answer: decide(self._decision(answer))
        )
        return self._decision(answer) if answer is not None else None

    async def stop(self) -> None:
        """Stop sending queries to the store; clients that wait for a decision get none."""
        await self._lookups.stop()
        await self.allowlist.stop()

    def _decision(self, answer: LiveSession | Refusal) -> LiveSession | Refusal:
        """Return the session if it may have another connection; else the reason of the refusal."""
        if isinstance(answer, Refusal):
            return answer
        if answer.status is not SessionStatus.ACTIVE:
            return self._refused(answer, REFUSAL_OF_STATUS[answer.status])
        if answer.expires_at <= self._now():
            return self._refused(answer, Refusal.OVER)
        if len(answer.connections) >= self.connections_per_session:
            return self._refused(answer, Refusal.TOO_MANY_CONNECTIONS)
        if answer.limited is not None and self._has_too_many(answer, answer.limited):
            return self._refused(answer, Refusal.LIMITED)
        answer.check()
        return answer

    def _has_too_many(self, session: LiveSession, limited: Limited) -> bool:
        """Return whether a new account has all of its connections; forget limits that are over."""
        if limited.until is not None and limited.until <= self._now():
            session.limit(None)
            return False
        open_ = sum(len(each.connections) for each in self._sessions.of_user(session.user_id))
        return open_ >= limited.connections

    def _refused(self, session: LiveSession, refusal: Refusal) -> Refusal:
        # The name of each refusal is also its word in access records.
        self._tallies.refuse(session.id, refusal.name.lower())
        return refusal

    async def _find(self, credentials: tuple[str, bytes]) -> LiveSession | Refusal:
        session_id = await self._leases.find(*credentials)
        session = await self._live(session_id) if session_id is not None else None
        if session is None:
            self._unknown.add(credentials)
            return Refusal.WRONG
        return session

    async def _find_by_address(self, entry: Entry) -> LiveSession | None:
        session_id = await self._leases.find_by_address(*entry)
        return await self._live(session_id) if session_id is not None else None

    async def _live(self, session_id: str) -> LiveSession | None:
        """Return a known session, or lease it, once for all simultaneous callers.

        Raises:
            StoreError: it could not be leased.
        """
        sessions = self._sessions
        opening = sessions.opening.get(session_id)
        if opening is not None:
            await opening.wait()
            if sessions.get(session_id) is None:
                raise UnavailableError("the session could not be leased")
        if (session := sessions.get(session_id)) is not None:
            return session
        sessions.opening[session_id] = opening = asyncio.Event()
        try:
            grant = await self._leases.open(session_id)
            return await self._made(grant) if grant is not None else None
        finally:
            del sessions.opening[session_id]
            opening.set()

    async def _made(self, grant: Grant) -> LiveSession:
        """Make a session from a grant.

        Raises:
            StoreError: it was sold with wishes that this version does not know, by a later one
                perhaps: it must not leave from elsewhere. Its lease is given back.
        """
        try:
            return self._writer.made(grant, self._pace())
        except WantsError as error:
            message = f"it was sold with wishes that are not understood here: {error}"
        if grant.lease_id is not None:  # not in the handler: see `proxyd.compiled.hot`
            await self._leases.release([Usage(grant.session_id, grant.lease_id, 0)])
        raise UnavailableError(message)

    def _pace(self) -> Pace | None:
        if not self._bytes_per_second:
            return None
        return Pace(asyncio.get_running_loop(), self._bytes_per_second)
