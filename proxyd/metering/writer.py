"""Writers of counts: the interface, and the writer of a daemon that is alone on its database.

A writer makes sessions from grants, is called when their budget is spent, and reports their use to
the store. A daemon alone leases whole remainders: a spent budget is a session that is used up.
Among nodes it is only this node's part (`cluster_writer`).

Counts are written twice a second (`FLUSH_SECONDS`), only of sessions that have moved, and only for
bytes that have left this machine: bytes in the kernel's queues would be lost with the machine. The
writer queries the kernel about sockets that have moved, and about a few of the others in turn, so
an idle connection costs nothing.
"""

import asyncio
import logging
from typing import Protocol, final

from market.bandwidth.leases import Grant, Leases, LeaseState, Usage
from market.base.states import SessionStatus
from proxyd.metering.halting import Halting
from proxyd.metering.leaving import Leaving
from proxyd.metering.pace import Pace
from proxyd.metering.session import LiveSession
from proxyd.metering.sessions import Sessions
from proxyd.metering.settling import Settler
from proxyd.metering.tallies import Tallies

# Cost of a crash: this long of every session's traffic is delivered and not billed.
FLUSH_SECONDS = 0.5

_logger = logging.getLogger("meter")


class Writer(Protocol):
    """Makes sessions, and keeps the store up to date with them.

    `halting` cuts sessions that the staff halts, and gives their leases back.
    """

    halting: Halting

    def made(self, grant: Grant, pace: Pace | None) -> LiveSession:
        """Make a session from a grant, and add it to the known ones."""

    def spent(self, session: LiveSession) -> None:
        """Act on the delivery of the last byte that was granted."""

    def restored(self, session: LiveSession) -> None:
        """Act on a session whose end was taken back: make it usable, now or later."""

    def pause(self) -> float:
        """Return the seconds until the next write, unless it is woken."""

    async def flush(self) -> None:
        """Store every changed count, and settle used-up sessions.

        Raises:
            StoreError: nothing is lost, and the next call tries again.
        """

    async def stop(self) -> None:
        """Store the last counts, and release every lease.

        Raises:
            StoreError: unwritten counts are lost, as after a crash.
        """


def unreported(changed: set[LiveSession]) -> list[LiveSession]:
    """Return the sessions whose counts must be stored.

    Args:
        changed: the sessions whose counts have changed; the others are removed from it.
    """
    due = [each for each in changed if each.used != each.reported and each.is_leased]
    changed.intersection_update(due)
    return due


@final
class SoloWriter:
    """The `Writer` of the one daemon of a database."""

    def __init__(
        self,
        leases: Leases,
        sessions: Sessions,
        settler: Settler,
        tallies: Tallies,
        wake: asyncio.Event,
    ) -> None:
        self._leases = leases
        self._tallies = tallies
        self._sessions = sessions
        self._settler = settler
        self._wake = wake
        self.halting = Halting(sessions, Leaving(leases, sessions, wake, cut_seconds=0.0))
        # Sessions whose counts may not be written down: most sessions that are known rest.
        self._changed: set[LiveSession] = set()
        # Sessions whose end may be stored, although its answer was lost. They are refused until a
        # report finds their lease.
        self._doubtful: set[LiveSession] = set()

    def made(self, grant: Grant, pace: Pace | None) -> LiveSession:
        """See `Writer.made`."""
        session = LiveSession(grant, self.spent, pace=pace, changed=self._changed)
        is_halted = session.lease_id is not None and self.halting.stops(session)
        if is_halted:
            session.status = SessionStatus.ENDED
        self._sessions.add(session, grant)
        if is_halted:
            self.halting.leaving.let_go(session, 0.0)
        elif session.is_spent and session.status is SessionStatus.ACTIVE:
            self.spent(session)
        return session

    def spent(self, session: LiveSession) -> None:
        """See `Writer.spent`: the session is used up."""
        self._settler.exhaust(session)

    def restored(self, session: LiveSession) -> None:
        """See `Writer.restored`: after the next report."""
        self._doubtful.add(session)
        self._wake.set()

    def pause(self) -> float:
        """See `Writer.pause`."""
        return FLUSH_SECONDS

    async def flush(self) -> None:
        """See `Writer.flush`."""
        await self.halting.leaving.release()
        await self._report()
        await self._settler.settle()

    async def stop(self) -> None:
        """See `Writer.stop`."""
        while self._doubtful:  # their leases are released as well
            self._sessions.confirm(self._doubtful.pop())
        await self._settler.stop()
        await self.halting.leaving.release()

    async def _report(self) -> None:
        # A report that is under way says nothing about a session that becomes doubtful meanwhile.
        doubtful, self._doubtful = self._doubtful, set()
        due = self._due(doubtful)
        tallies = self._tallies.take()
        if not due and not tallies:
            return
        try:
            replies = await self._leases.report([*due.values()], tallies)
        except BaseException:
            self._tallies.put_back(tallies)
            self._doubtful |= doubtful
            raise
        for (session, usage), reply in zip(due.items(), replies, strict=True):
            session.mark_reported(usage)
            if session in doubtful:
                if not isinstance(reply, LeaseState):
                    self._sessions.forget_later(session.id)
                elif session not in self._doubtful:  # again
                    self._sessions.confirm(session)
                continue
            if isinstance(reply, LeaseState) or session.status is not SessionStatus.ACTIVE:
                continue
            if reply is None:
                _logger.warning("session %s: lease lost; it is cut", session.id)
            self._sessions.cut(session.id, SessionStatus.ENDED)

    def _due(self, doubtful: set[LiveSession]) -> dict[LiveSession, Usage]:
        """Return the counts of doubtful sessions and all changed counts, for a report."""
        due = {each: each.certain_usage() for each in doubtful}
        for session in unreported(self._changed):
            usage = session.certain_usage()
            if usage.used_bytes != session.reported:
                due[session] = usage
        for session in self._settler:
            usage = session.certain_usage()
            if usage.used_bytes not in (session.reported, session.used):
                due[session] = usage
        return due
