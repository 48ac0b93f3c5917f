"""Writer of one node among several: it leases slices of sessions, and shares them with others.

One loop does all its business with the store, so that the messages about a lease arrive in order:
it reports every half second, requests more bytes when a budget runs low, and returns unused bytes.
Changes of a session by other nodes arrive as notices (`hear`), between two turns of that loop.

A node takes the bytes that it returns from the budget before the store gets them back. Connections
find the low budget where they look in any case, and wait as for any other byte.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from market.bandwidth.leases import RECALL_SECONDS, Ask, Grant, LeaseReply, Leases, Rejection, Tally
from market.bandwidth.notices import Notice, Topic
from market.base.states import SessionStatus
from proxyd.metering.fence import Fence
from proxyd.metering.halting import Halting
from proxyd.metering.lease_slices import LeaseSlice
from proxyd.metering.leaving import Leaving
from proxyd.metering.pace import Pace
from proxyd.metering.session import LiveSession
from proxyd.metering.sessions import Sessions
from proxyd.metering.settling import Settler
from proxyd.metering.tallies import Tallies
from proxyd.metering.writer import FLUSH_SECONDS, unreported
from storage.engines.errors import StoreError

# Each is one transaction that locks its sessions: other nodes wait until it ends.
BATCH_SESSIONS = 1_000
CATCH_UP_SESSIONS = 500

_logger = logging.getLogger("meter")


@dataclass(frozen=True, slots=True)
class ClusterTimes:
    """The times at which a node reports on sessions and releases them.

    Attributes:
        flush_seconds: between two reports; a crash may cost the traffic of this time (`writer`).
        idle_seconds: a client that comes back within this time finds its bytes still here.
        cut_seconds: a session that ends elsewhere is refused for this time. By then the node that
            ends it has settled it, or could not: a client that was let in again before that would
            be billed for bytes after the end.
    """

    flush_seconds: float = FLUSH_SECONDS
    idle_seconds: float = 3.0
    cut_seconds: float = RECALL_SECONDS + 2.0


USUAL: Final = ClusterTimes()


class _Asks:
    """Sessions that need more bytes, and sessions with bytes to return.

    Args:
        wake: set when there is something to do.
    """

    def __init__(self, wake: asyncio.Event) -> None:
        self._wake = wake
        # Sessions to ask more bytes for, and from when on (loop time).
        self._asking: dict[str, float] = {}
        # Sessions to return bytes of, because another node wants some or no client uses them here.
        self._returning: set[str] = set()

    def more(self, session_id: str, at: float) -> None:
        """Request more bytes of a session at a time."""
        if session_id not in self._asking:
            self._asking[session_id] = at
            self._wake.set()

    def less(self, session_id: str) -> None:
        """Return bytes of a session with the next report."""
        self._returning.add(session_id)

    def less_soon(self, session_id: str) -> None:
        """Return bytes of a session immediately, without a wait for the next report."""
        self._returning.add(session_id)
        self._wake.set()

    def first_due(self, default: float) -> float:
        """Return the time at which the first request is due."""
        return min(self._asking.values(), default=default)

    def take(self, now: float) -> tuple[set[str], set[str]]:
        """Remove and return the sessions that need bytes now, and the ones with bytes to return."""
        asking = {each for each, due in self._asking.items() if due <= now}
        returning, self._returning = self._returning, set()
        for session_id in asking:
            del self._asking[session_id]
        return asking, returning

    def put_back(self, asking: set[str], returning: set[str], now: float) -> None:
        """Make the taken sessions due again."""
        self._returning |= returning
        self._asking.update(dict.fromkeys(asking, now))

    def clear(self) -> None:
        """Clear all entries."""
        self._asking.clear()
        self._returning.clear()


class _Holding:
    """Sessions that may hold bytes; sessions at rest hold none, and are not checked.

    Args:
        asks: returns the bytes of a session that no connection uses.
        idle_seconds: how long a session without a connection keeps its bytes.
    """

    def __init__(self, asks: _Asks, idle_seconds: float) -> None:
        self._asks = asks
        self._idle_seconds = idle_seconds
        self._sessions: set[LiveSession] = set()

    def add(self, session: LiveSession) -> None:
        """Add a session to check."""
        self._sessions.add(session)

    def clear(self) -> None:
        """Clear all entries."""
        self._sessions.clear()

    def find_idle(self, changed: set[LiveSession], now: float) -> None:
        """Return the bytes of sessions that have had no connection for `idle_seconds`.

        Args:
            changed: sessions whose counts have changed: these sessions may hold bytes again.
            now: loop time.
        """
        self._sessions |= changed  # one that was refunded or restored may hold bytes again
        at_rest = []
        for session in self._sessions:
            lease_slice = _slice_of(session)
            if session.connections and session.is_leased:
                lease_slice.idle_since = None
            elif session.available == 0 or not session.is_leased:
                lease_slice.idle_since = None
                at_rest.append(session)
            elif lease_slice.idle_since is None:
                lease_slice.idle_since = now
            elif now - lease_slice.idle_since >= self._idle_seconds:
                self._asks.less(session.id)
        self._sessions.difference_update(at_rest)


class _CatchingUp:
    """Looks up the known sessions in the store, because notices were missed.

    Args:
        wake: set when there is something to do.
    """

    def __init__(self, leases: Leases, sessions: Sessions, wake: asyncio.Event) -> None:
        self._leases = leases
        self._sessions = sessions
        self._wake = wake
        self._is_due = False

    def request(self) -> None:
        """Request a look-up in the store soon."""
        self._is_due = True
        self._wake.set()

    async def run(self) -> None:
        """End the sessions that have ended elsewhere, if that is due.

        Raises:
            StoreError: it stays due.
        """
        if not self._is_due:
            return
        known = [each.id for each in self._sessions if each.is_leased]
        self._is_due = False
        try:
            for first in range(0, len(known), CATCH_UP_SESSIONS):
                statuses = await self._leases.statuses(known[first : first + CATCH_UP_SESSIONS])
                for session_id, status in statuses.items():
                    if status is not SessionStatus.ACTIVE:
                        self._sessions.end(session_id, status)
        except StoreError:
            self._is_due = True
            raise


@final
class ClusterWriter:
    """The `Writer` of a node among others.

    Args:
        wake: set when there is something to do.
    """

    def __init__(
        self,
        leases: Leases,
        sessions: Sessions,
        settler: Settler,
        tallies: Tallies,
        fence: Fence,
        wake: asyncio.Event,
        times: ClusterTimes = USUAL,
    ) -> None:
        self._leases = leases
        self._sessions = sessions
        self._settler = settler
        self._tallies = tallies
        self._fence = fence
        self._changed: set[LiveSession] = set()
        self._asks = _Asks(wake)
        self._holding = _Holding(self._asks, times.idle_seconds)
        self.halting = Halting(sessions, Leaving(leases, sessions, wake, times.cut_seconds))
        self._catching_up = _CatchingUp(leases, sessions, wake)
        self._flush_seconds = times.flush_seconds
        self._report_at = 0.0

    # --- calls of the node -----------------------------------------------------------------------

    def hear(self, text: str) -> None:
        """Act on a notice of another node, or of this one."""
        notice = Notice.read(text)
        if notice is None:
            return
        if notice.topic is Topic.OVER:
            self._sessions.end(notice.session_id, notice.status)
        elif notice.node_id != self._leases.node_id:
            if notice.topic is Topic.CUT:
                self.halting.leaving.recalled(notice.session_id, notice.status)
            else:
                self._return(notice.session_id)

    def catch_up(self) -> None:
        """Look up the known sessions in the store, because notices may have been missed."""
        self._catching_up.request()

    def resume(self) -> None:
        """Wake every waiting connection: bytes may be handed out again."""
        for session in self._sessions:
            session.wake()

    def forget_all(self) -> None:
        """Cut everything at once and forget it: other nodes have the bytes leased here."""
        for session in self._sessions:
            self._sessions.drop(session)
        self._asks.clear()
        self._holding.clear()
        self.halting.clear()
        self._settler.clear()

    # --- sessions --------------------------------------------------------------------------------

    def made(self, grant: Grant, pace: Pace | None) -> LiveSession:
        """See `Writer.made`; a session that was recalled while it was leased is released."""
        lease_slice = LeaseSlice(grant.session_id, grant.granted_bytes, self._fence, self._ask)
        session = LiveSession(
            grant, self.spent, pace=pace, changed=self._changed, lease_slice=lease_slice
        )
        refused_until = self._sessions.refused_until(session.id)
        if self.halting.stops(session):
            session.status, refused_until = SessionStatus.ENDED, 0.0
        self._sessions.add(session, grant)
        self._holding.add(session)
        if session.status is not SessionStatus.ACTIVE:
            if session.lease_id is not None:
                self.halting.leaving.let_go(session, refused_until)
        elif session.is_spent:
            self.spent(session)
        return session

    def spent(self, session: LiveSession) -> None:
        """See `Writer.spent`: this node's part is used; whether all of it is, the store knows."""
        _slice_of(session).ask()

    def _ask(self, lease_slice: LeaseSlice) -> None:
        """Request more bytes, now or at `retry_at` of the slice."""
        self._asks.more(lease_slice.session_id, lease_slice.retry_at)

    def _return(self, session_id: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None and session.available > 0:
            self._asks.less_soon(session_id)

    # --- the store -------------------------------------------------------------------------------

    def restored(self, session: LiveSession) -> None:
        """See `Writer.restored`: now, because a notice also says that it has ended."""
        self._sessions.confirm(session)

    def pause(self) -> float:
        """See `Writer.pause`."""
        due = self._asks.first_due(self._report_at)
        return max(0.0, min(due, self._report_at) - asyncio.get_running_loop().time())

    async def flush(self) -> None:
        """See `Writer.flush`."""
        await self._catching_up.run()
        await self.halting.leaving.release()
        await self._report()
        await self._settler.settle()

    async def stop(self) -> None:
        """See `Writer.stop`."""
        await self._settler.stop()
        await self.halting.leaving.release()

    async def _report(self) -> None:
        """Report the used bytes of the sessions due, request more bytes, and return unused ones."""
        now = asyncio.get_running_loop().time()
        if is_time := now >= self._report_at:
            self._report_at = now + self._flush_seconds
            self._holding.find_idle(self._changed, now)
        asking, returning = self._asks.take(now)
        due = asking | returning
        if is_time:
            due.update(each.id for each in unreported(self._changed))
        sessions = [
            each for each in map(self._sessions.get, due) if each is not None and each.is_leased
        ]
        tallies = self._tallies.take() if is_time else []
        try:
            for first in range(0, max(len(sessions), len(tallies) and 1), BATCH_SESSIONS):
                batch = sessions[first : first + BATCH_SESSIONS]
                await self._exchange(
                    [(each, self._ask_of(each, now, asking, returning)) for each in batch], tallies
                )
                tallies = []
        except BaseException:
            self._tallies.put_back(tallies)
            self._asks.put_back(asking, returning, now)
            raise

    def _ask_of(
        self, session: LiveSession, now: float, asking: set[str], returning: set[str]
    ) -> Ask:
        """Return the message about a session: it returns bytes, requests more, or only reports."""
        if session.id in returning:
            kept = _slice_of(session).kept(session.available, is_used=bool(session.connections))
            session.shrink(kept)
            return Ask(session.certain_usage(), keep_bytes=session.granted)
        want = _slice_of(session).wanted(now) if session.id in asking else 0
        return Ask(session.certain_usage(), want_bytes=want)

    async def _exchange(
        self, batch: Sequence[tuple[LiveSession, Ask]], tallies: Sequence[Tally]
    ) -> None:
        replies = await self._leases.exchange([ask for _, ask in batch], tallies)
        for (session, ask), reply in zip(batch, replies, strict=True):
            if self._sessions.get(session.id) is session and session.is_leased:
                self._replied(session, ask, reply)

    def _replied(self, session: LiveSession, ask: Ask, reply: LeaseReply) -> None:
        """Act on the store's reply about a session's lease."""
        if reply is None:
            _logger.warning("session %s: lease lost; it is cut", session.id)
            self._sessions.drop(session)
            return
        session.mark_reported(ask.usage)
        if isinstance(reply, Rejection):
            self._sessions.cut(session.id, SessionStatus.ENDED)
            return
        if reply.granted_bytes < session.granted:  # another program changed the lease
            _logger.error(
                "session %s: lease reduced: %d bytes granted, %d expected; it is cut",
                session.id,
                reply.granted_bytes,
                session.granted,
            )
            self._sessions.cut(session.id, SessionStatus.ENDED)
            return
        if ask.want_bytes > 0:
            now = asyncio.get_running_loop().time()
            _slice_of(session).topped_up(reply.granted_bytes - session.granted, now)
        session.regrant(reply.granted_bytes)
        self._holding.add(session)
        if reply.is_used_up:
            self._settler.exhaust(session)
        elif session.available <= 0 and session.is_waited_for:
            _slice_of(session).ask()


def _slice_of(session: LiveSession) -> LeaseSlice:
    """Return the slice that `ClusterWriter.made` gives each session."""
    assert session.lease_slice is not None  # noqa: S101 - nothing else makes sessions of a node
    return session.lease_slice
