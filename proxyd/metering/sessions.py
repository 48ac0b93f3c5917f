"""Known sessions of this process: by identifier, by user name, by client address.

Only in memory: no function here queries the store. A session is known from when it was leased until
some time after it is over; while other code does not ask the store about it, memory may answer.

A *cut* ends a session here before the store knows of it, and may be taken back if the store cannot
be reached. It may also come while the session is still being leased: then it is kept, and carried
out when the lease arrives.
"""

import asyncio
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from market.bandwidth.leases import Grant, Usage
from market.base.states import SessionStatus
from proxyd.metering.session import LiveSession

# A client address, behind the index of the port without passwords that it comes to.
Entry = tuple[int, str]


@dataclass(frozen=True, slots=True)
class MemoryBounds:
    """Limits of the memory of ended sessions: their time and number.

    Attributes:
        remember_seconds: long enough that clients which keep trying a session that is over are
            refused without the store.
        unseen_most: cuts of sessions that no client has come for here: some 300 bytes each. Beyond
            it the oldest is dropped, and the store decides about that session again.
    """

    remember_seconds: float = 60.0
    unseen_most: int = 100_000


USUAL: Final = MemoryBounds()


@final
class Sessions:
    """The sessions known here.

    `opening` has an event for each session that is being leased, set when that is over. `pending`
    has, for each session that has any, the addresses that are to be proved, and from when on (loop
    time) that may be tried.

    Args:
        forgotten: called with each session that ended long enough ago that no client returns to it;
            None if the owner needs no call.
    """

    def __init__(
        self, forgotten: Callable[[str], None] | None = None, bounds: MemoryBounds = USUAL
    ) -> None:
        self._bounds = bounds
        self.opening: dict[str, asyncio.Event] = {}
        self.pending: dict[str, dict[str, float]] = {}
        self._forgotten = forgotten
        self._by_id: dict[str, LiveSession] = {}
        self._by_username: dict[str, LiveSession] = {}
        self._by_entry: dict[Entry, LiveSession] = {}
        self._by_user: dict[str, dict[str, LiveSession]] = {}
        self._entries: dict[str, set[Entry]] = {}
        # How many cuts of a known session were not taken back.
        self._cuts: dict[str, int] = {}
        # Cuts of sessions that are not known yet: their status from then on.
        self._cut_unseen: dict[str, SessionStatus] = {}
        self._forget_at: dict[str, float] = {}

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(tuple(self._by_id.values()))

    def get(self, session_id: str) -> LiveSession | None:
        """Return a session by its identifier; None when it is not known."""
        return self._by_id.get(session_id)

    def of_username(self, username: str) -> LiveSession | None:
        """Return a session by the user name of its credentials; None when it is not known."""
        return self._by_username.get(username)

    def of_user(self, user_id: str) -> Sequence[LiveSession]:
        """Return the sessions of a user."""
        return tuple(self._by_user.get(user_id, {}).values())

    def of_entry(self, entry: Entry) -> LiveSession | None:
        """Return the session, perhaps over, that a client address opens; None when not known."""
        return self._by_entry.get(entry)

    @property
    def live(self) -> int:
        """The number of sessions that are known here and can be used."""
        return sum(each.status is SessionStatus.ACTIVE for each in self._by_id.values())

    # --- who becomes known ---------------------------------------------------------------------

    def add(self, session: LiveSession, grant: Grant) -> None:
        """Add a session; carry out a cut that came before it."""
        cut = self._cut_unseen.pop(session.id, None)
        if cut is not None:
            session.status = cut
            self._cuts[session.id] = 1  # so that `restore` takes it back
        self._by_id[session.id] = session
        self._by_username[session.username] = session
        self._by_user.setdefault(session.user_id, {})[session.id] = session
        if grant.pending:
            self.pending[session.id] = dict.fromkeys(grant.pending, 0.0)
        if session.status is not SessionStatus.ACTIVE:
            self.forget_later(session.id)
            return
        for entry in grant.entries:
            self.learn(entry, session)

    def learn(self, entry: Entry, session: LiveSession) -> None:
        """Remember that a client address opens a session, while the session is active."""
        if session.status is SessionStatus.ACTIVE:
            self._entries.setdefault(session.id, set()).add(entry)
            self._by_entry[entry] = session

    # --- ends ---------------------------------------------------------------------------------

    def cut(self, session_id: str, status: SessionStatus) -> Usage | None:
        """Cut a session's connections and refuse new ones.

        Returns:
            The total use of its lease; None when it is not known here or has no lease.
        """
        session = self._by_id.get(session_id)
        self.forget_later(session_id)
        if session is None:
            self._note_unseen(session_id, status)
            return None
        session.check()  # before it is changed, so that nothing has to be taken back
        for connection in tuple(session.connections):
            connection.abort()
        for closing in tuple(session.closings):  # so that all delivered bytes are settled
            closing.abort()
        self._cuts[session_id] = self._cuts.get(session_id, 0) + 1
        if session.status is SessionStatus.ACTIVE:
            session.status = status
        return session.usage

    def restore(self, session_id: str) -> LiveSession | None:
        """Take back a `cut` whose end could not be stored, unless another end was stored.

        Returns:
            The session, if it has a lease and no other cut. It is refused until `confirm`.
        """
        self._cut_unseen.pop(session_id, None)
        session = self._by_id.get(session_id)
        if session is None:
            self._forget_at.pop(session_id, None)
            return None
        cuts = max(0, self._cuts.pop(session_id, 0) - 1)
        if cuts:
            self._cuts[session_id] = cuts
            return None
        if session.lease_id is None or session.status is SessionStatus.EXHAUSTED:
            return None
        self._forget_at.pop(session_id, None)
        return session

    def confirm(self, session: LiveSession) -> None:
        """Make a session usable whose cut was taken back, unless it was cut again."""
        if session.id not in self._cuts and session.status is not SessionStatus.EXHAUSTED:
            session.status = SessionStatus.ACTIVE
            session.mark_changed()

    def end(self, session_id: str, status: SessionStatus) -> None:
        """Note that a session has left the state `active` in the store.

        Its connections are cut; connections of a used-up session still deliver the counted bytes.
        """
        session = self._by_id.get(session_id)
        if session is None:
            self._note_unseen(session_id, status)
            self.forget_later(session_id)
            return
        # Like a cut that is never taken back: the answer to the own end may still be on its way,
        # and its caller may give up before it arrives.
        self._cuts[session_id] = self._cuts.get(session_id, 0) + 1
        if session.status is SessionStatus.ACTIVE:
            session.status = status
            for connection in tuple(session.connections):
                if status is SessionStatus.EXHAUSTED:
                    connection.finish()
                else:
                    connection.abort()
        self.forget_later(session_id)

    def refuse(self, session_id: str, status: SessionStatus, until: float) -> None:
        """Refuse new clients of a session that is not known here until its final status arrives.

        Args:
            session_id: the session.
            status: the status that it is about to get.
            until: the time (loop time) at which the store is queried again.
        """
        self._forget_at[session_id] = until
        self._note_unseen(session_id, status)

    def refused_until(self, session_id: str) -> float | None:
        """Return the loop time until which an unknown session is refused, if it is refused."""
        return self._forget_at.get(session_id) if session_id in self._cut_unseen else None

    def _note_unseen(self, session_id: str, status: SessionStatus) -> None:
        self._cut_unseen[session_id] = status
        if len(self._cut_unseen) > self._bounds.unseen_most:
            oldest = next(iter(self._cut_unseen))
            del self._cut_unseen[oldest]
            self._forget_at.pop(oldest, None)

    # --- forgetting --------------------------------------------------------------------------

    def drop(self, session: LiveSession) -> None:
        """Cut a session and forget it, so that the next client causes a query to the store."""
        session.status = SessionStatus.ENDED
        for connection in tuple(session.connections):
            connection.abort()
        self._forget_at.pop(session.id, None)
        self._forget(session)

    def forget_later(self, session_id: str) -> None:
        """Forget a session, or the cut of one that is not known, after `remember_seconds`."""
        now = asyncio.get_running_loop().time()
        self._forget_at[session_id] = now + self._bounds.remember_seconds

    def forget_old(self, kept: Container[str]) -> None:
        """Forget the sessions whose time has come; leased sessions are in use, and stay.

        Args:
            kept: the identifiers of sessions to remember longer.
        """
        now = asyncio.get_running_loop().time()
        for session_id in [each for each, due in self._forget_at.items() if due <= now]:
            if session_id in kept:
                continue
            del self._forget_at[session_id]
            self._cut_unseen.pop(session_id, None)
            session = self._by_id.get(session_id)
            if session is not None and session.is_leased:
                continue
            if session is not None:
                self._forget(session)
            if self._forgotten is not None:
                self._forgotten(session_id)

    def _forget(self, session: LiveSession) -> None:
        if self._by_id.get(session.id) is session:
            del self._by_id[session.id]
            of_user = self._by_user.get(session.user_id, {})
            of_user.pop(session.id, None)
            if not of_user:
                self._by_user.pop(session.user_id, None)
        if self._by_username.get(session.username) is session:
            del self._by_username[session.username]
        for entry in self._entries.pop(session.id, ()):
            if self._by_entry.get(entry) is session:  # it may open a later session by now
                del self._by_entry[entry]
        self.pending.pop(session.id, None)
        self._cuts.pop(session.id, None)
