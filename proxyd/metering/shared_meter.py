"""The meter of one node among several: it holds slices of sessions, and shares them with others.

One loop does all its business with the store, so that what is said of a lease arrives in order: it
reports every half second, asks for more as soon as a budget runs low, and returns what is not used.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from market.leases import Answer, Ask, Grant, Leases, Refused, Usage
from market.notices import Notice, Topic
from market.states import SessionStatus
from proxyd.metering.lease_slices import Fence, SharedSession
from proxyd.metering.meter import FLUSH_SECONDS, Meter
from proxyd.metering.pace import Pace
from proxyd.metering.session import LiveSession
from storage.errors import StoreError

BATCH_SESSIONS = 1_000
CATCH_UP_SESSIONS = 500
IDLE_SECONDS = 3.0
CUT_SECONDS = 3.0

_logger = logging.getLogger("meter")


class SharedMeter(Meter):
    """See `Meter`.

    Args:
        leases: grants bytes, and takes the counts.
        now: the wall clock, in UTC seconds.
        fence: until when bytes may be handed out.
        connections_per_session: how many may be open at once.
        bytes_per_second: how fast a session may go on this node; 0 for as fast as it can.
    """

    def __init__(
        self,
        leases: Leases,
        now: Callable[[], int],
        fence: Fence,
        *,
        connections_per_session: int,
        bytes_per_second: int = 0,
    ) -> None:
        super().__init__(
            leases,
            now,
            connections_per_session=connections_per_session,
            bytes_per_second=bytes_per_second,
        )
        self._fence = fence
        self._asking: dict[str, float] = {}
        self._returning: set[str] = set()
        self._letting_go: dict[str, LiveSession] = {}
        self._report_at = 0.0
        self._must_catch_up = False

    # --- what the node says ----------------------------------------------------------------------

    def hear(self, text: str) -> None:
        """Act on what a daemon told all of them."""
        notice = Notice.read(text)
        if notice is None:
            return
        if notice.topic is Topic.OVER:
            self._is_over(notice.session_id, notice.status)
        elif notice.node_id != self._leases.node_id:
            if notice.topic is Topic.CUT:
                self._let_go(notice.session_id, notice.status)
            else:
                self._return(notice.session_id)

    def catch_up(self) -> None:
        """Ask what became of the sessions known here, because notices may have been missed."""
        self._must_catch_up = True
        self._wake.set()

    def resume(self) -> None:
        """Let everybody who waits try again: bytes may be handed out once more."""
        for session in tuple(self._by_id.values()):
            if isinstance(session, SharedSession):
                session.wake()

    def forget_all(self) -> None:
        """Cut everything at once and forget it: other nodes have what was leased here."""
        for session in tuple(self._by_id.values()):
            self._drop(session)
        self._asking.clear()
        self._returning.clear()
        self._letting_go.clear()
        self._to_settle.clear()

    # --- sessions --------------------------------------------------------------------------------

    def _made(self, grant: Grant, pace: Pace | None) -> LiveSession:
        return SharedSession(grant, self._ask, self._exhausted, self._fence, pace, self._changed)

    def _adopt(self, grant: Grant) -> LiveSession:
        session = super()._adopt(grant)
        if session.status is not SessionStatus.ACTIVE and session.lease_id is not None:
            self._letting_go[session.id] = session
            self._wake.set()
        return session

    def _exhausted(self, session: LiveSession) -> None:
        """What this node had of the session is used; whether all of it is, the store knows."""
        self._ask(session)

    def _ask(self, session: LiveSession) -> None:
        """Ask for more, now or when it is worth it again."""
        if isinstance(session, SharedSession) and session.id not in self._asking:
            self._asking[session.id] = session.retry_at
            self._wake.set()

    def _return(self, session_id: str) -> None:
        session = self._by_id.get(session_id)
        if session is not None and session.available > 0:
            self._returning.add(session_id)
            self._wake.set()

    def _let_go(self, session_id: str, status: SessionStatus) -> None:
        """Cut a session that is about to leave `active`, and report on it a last time.

        One that is being leased has nothing to cut yet, and is let go as soon as it has.
        """
        session = self._by_id.get(session_id)
        if session is not None:
            self.cut(session_id, status)
            self._letting_go[session_id] = session
            self._wake.set()
        elif session_id in self._opening:
            self._refuse_for_a_while(session_id, status)

    def _refuse_for_a_while(self, session_id: str, status: SessionStatus) -> None:
        """Refuse a session until its end is known; if it does not end after all, not for long."""
        self._cut_unseen[session_id] = status
        self._forget_at[session_id] = asyncio.get_running_loop().time() + CUT_SECONDS

    def _is_over(self, session_id: str, status: SessionStatus) -> None:
        """A session has left `active`: cut it; what was counted of a used-up one still arrives."""
        session = self._by_id.get(session_id)
        if session is None:
            self._cut_unseen[session_id] = status
        elif session.status is SessionStatus.ACTIVE:
            session.status = status
            for connection in tuple(session.connections):
                if status is SessionStatus.EXHAUSTED:
                    connection.finish()
                else:
                    connection.abort()
        self._forget_later(session_id)

    def _drop(self, session: LiveSession) -> None:
        """Cut a session and forget it, so that the store is asked when somebody comes for it."""
        session.status = SessionStatus.ENDED
        for connection in tuple(session.connections):
            connection.abort()
        self._by_id.pop(session.id, None)
        if self._by_username.get(session.username) is session:
            del self._by_username[session.username]
        self._addresses.forget(session)
        self._forget_at.pop(session.id, None)

    # --- the store -------------------------------------------------------------------------------

    async def stop(self) -> None:
        """See `Meter.stop`."""
        await super().stop()
        await self._release()

    def _pause(self) -> float:
        """Return in how many seconds there is something to do."""
        due = min(self._asking.values(), default=self._report_at)
        return max(0.0, min(due, self._report_at) - asyncio.get_running_loop().time())

    async def _report(self) -> None:
        if self._must_catch_up:
            await self._catch_up()
        await self._release()
        now = asyncio.get_running_loop().time()
        if is_time := now >= self._report_at:
            self._report_at = now + FLUSH_SECONDS
            self._find_idle(now)
        asking = {each for each, due in self._asking.items() if due <= now}
        returning, self._returning = self._returning, set()
        for session_id in asking:
            del self._asking[session_id]
        due = asking | returning
        if is_time:
            due.update(each.id for each in self._unreported())
        sessions = [
            each
            for each in map(self._by_id.get, due)
            if isinstance(each, SharedSession) and self._reports(each)
        ]
        try:
            for first in range(0, len(sessions), BATCH_SESSIONS):
                batch = sessions[first : first + BATCH_SESSIONS]
                await self._exchange(
                    [(each, self._said(each, now, asking, returning)) for each in batch]
                )
        except BaseException:
            self._returning |= returning
            self._asking.update(dict.fromkeys(asking, now))
            raise

    def _find_idle(self, now: float) -> None:
        """Return what sessions hold that nobody has been using for a while."""
        for session in self._by_id.values():
            if not isinstance(session, SharedSession) or not self._reports(session):
                continue
            if session.connections:
                session.idle_since = None
            elif session.idle_since is None:
                session.idle_since = now
            elif session.available > 0 and now - session.idle_since >= IDLE_SECONDS:
                self._returning.add(session.id)

    def _said(
        self, session: SharedSession, now: float, asking: set[str], returning: set[str]
    ) -> Ask:
        """Return what is said of a session: it returns some, asks for more, or only reports."""
        if session.id in returning:
            keep = session.spare()
            return Ask(self._certain(session), keep_bytes=keep)
        want = session.wanted(now) if session.id in asking else 0
        return Ask(self._certain(session), want_bytes=want)

    @staticmethod
    def _certain(session: SharedSession) -> Usage:
        return Usage(session.id, session.lease_id or "", session.certain())

    async def _exchange(self, batch: Sequence[tuple[SharedSession, Ask]]) -> None:
        answers = await self._leases.exchange([ask for _, ask in batch])
        for (session, ask), answer in zip(batch, answers, strict=True):
            if self._by_id.get(session.id) is session and self._reports(session):
                self._answered(session, ask, answer)

    def _answered(self, session: SharedSession, ask: Ask, answer: Answer) -> None:
        if answer is None:
            _logger.warning("session %s has lost its lease; it is cut", session.id)
            self._drop(session)
            return
        session.reported = ask.usage.used_bytes
        if isinstance(answer, Refused):
            self.cut(session.id, SessionStatus.ENDED)
            return
        now = asyncio.get_running_loop().time()
        session.answered(answer.granted_bytes, now, asked=ask.want_bytes > 0)
        if answer.is_used_up:
            super()._exhausted(session)
        elif session.available <= 0 and session.is_waited_for:
            self._ask(session)

    async def _release(self) -> None:
        """Report a last time on sessions that are about to be over, and let their leases go."""
        leaving = tuple(self._letting_go.values())
        await self._leases.release([each.usage for each in leaving if each.usage is not None])
        for session in leaving:
            self._letting_go.pop(session.id, None)
            if self._by_id.get(session.id) is session:
                self._drop(session)
                self._refuse_for_a_while(session.id, session.status)

    async def _catch_up(self) -> None:
        known = [each.id for each in self._by_id.values() if self._reports(each)]
        self._must_catch_up = False
        try:
            for first in range(0, len(known), CATCH_UP_SESSIONS):
                statuses = await self._leases.statuses(known[first : first + CATCH_UP_SESSIONS])
                for session_id, status in statuses.items():
                    if status is not SessionStatus.ACTIVE:
                        self._is_over(session_id, status)
        except StoreError:
            self._must_catch_up = True
            raise
