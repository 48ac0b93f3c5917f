"""Sessions that this process gives up: cut, reported for the last time, and their leases released.

A session leaves because another node ends it, or because the staff halts it. A halted session stays
active in the store, which refuses to lease it: the next client causes a query there.
"""

import asyncio
from typing import final

from market.bandwidth.leases import Leases
from market.base.states import SessionStatus
from proxyd.metering.session import LiveSession
from proxyd.metering.sessions import Sessions


@final
class Leaving:
    """Sessions to report on for the last time, and the end of their refusal (loop time).

    Args:
        wake: set when there is something to do.
        cut_seconds: how long a session is refused at most.
    """

    def __init__(
        self, leases: Leases, sessions: Sessions, wake: asyncio.Event, cut_seconds: float
    ) -> None:
        self._leases = leases
        self._sessions = sessions
        self._wake = wake
        self._cut_seconds = cut_seconds
        self._leaving: dict[str, tuple[LiveSession, float]] = {}

    def clear(self) -> None:
        """Clear all entries."""
        self._leaving.clear()

    def recalled(self, session_id: str, status: SessionStatus) -> None:
        """Cut a session that is about to leave `active`, and report on it for the last time.

        One that is not known here has nothing to cut, and is refused: its clients come to another
        node as soon as theirs has cut them. One that is being leased is let go as soon as it is.
        """
        session = self._sessions.get(session_id)
        if session is not None:
            self._sessions.cut(session_id, status)
            self.let_go(session, None)
        else:
            until = asyncio.get_running_loop().time() + self._cut_seconds
            self._sessions.refuse(session_id, status, until)

    def let_go(self, session: LiveSession, refused_until: float | None) -> None:
        """Report on a session for the last time, then refuse it for at most `cut_seconds`.

        Args:
            session: the session, which was cut.
            refused_until: until when (loop time) it was refused already: a client that keeps trying
                does not make that longer.
        """
        until = asyncio.get_running_loop().time() + self._cut_seconds
        if refused_until is not None:
            until = min(until, refused_until)
        self._leaving[session.id] = (session, until)
        self._wake.set()

    async def release(self) -> None:
        """Report on ending sessions for the last time, and release their leases.

        One whose end was taken back is in use again, and stays. Of the others none is taken back
        from here on: the cut that is added says so, also when the store's answer is lost.
        """
        for session_id, (session, _) in tuple(self._leaving.items()):
            if session.is_leased:
                del self._leaving[session_id]
            elif self._sessions.get(session_id) is session:
                self._sessions.cut(session_id, session.status)
        leaving = tuple(self._leaving.items())
        usages = [session.usage for _, (session, _) in leaving]
        await self._leases.release([usage for usage in usages if usage is not None])
        now = asyncio.get_running_loop().time()
        for session_id, (session, until) in leaving:
            if self._leaving.get(session_id) == (session, until):  # and not a later one
                del self._leaving[session_id]
            if self._sessions.get(session_id) is session:
                self._sessions.drop(session)
                if until > now:
                    self._sessions.refuse(session_id, session.status, until)
