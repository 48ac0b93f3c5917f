"""Halted sessions of this process: their connections are cut, and their leases given back.

The store refuses to lease a halted session. A lease whose opening is under way may have been
granted before the halt, so the latest halts are remembered until the session or user may go on.
"""

import asyncio
from typing import final

from market.accounts.levels import Limited
from market.bandwidth.halts import HaltKind
from market.base.states import SessionStatus
from proxyd.metering.leaving import Leaving
from proxyd.metering.session import LiveSession
from proxyd.metering.sessions import Sessions
from storage.bandwidth.halts import HaltRow

# An opening lasts for seconds at most.
REMEMBERED_SECONDS = 120.0
REMEMBERED_MAX = 10_000  # acts of the staff are rare


@final
class Halting:
    """Carries out the orders of the staff about the sessions of this process.

    Args:
        leaving: reports on cut sessions for the last time, and releases their leases.
    """

    def __init__(self, sessions: Sessions, leaving: Leaving) -> None:
        self._sessions = sessions
        self.leaving = leaving
        # The times (loop time) at which users and sessions were halted, the oldest first.
        self._halted: dict[str, float] = {}

    def clear(self) -> None:
        """Forget the halts, because all leases of this process are gone."""
        self._halted.clear()
        self.leaving.clear()

    def carry_out(self, order: HaltRow) -> int:
        """Carry out an order; return the number of connections that were cut."""
        if order.kind == HaltKind.HALT:
            return self._halt(order)
        if order.kind == HaltKind.GO:
            self._go(order)
        return 0

    def limits(self, user_id: str, limited: Limited | None) -> None:
        """Apply the limits of a user to the known sessions; None for a known account."""
        for session in self._sessions.of_user(user_id):
            session.limit(limited)

    def has_sessions(self, user_id: str) -> bool:
        """Return whether sessions of a user are known here."""
        return bool(self._sessions.of_user(user_id))

    def stops(self, session: LiveSession) -> bool:
        """Return whether a session that was just leased was halted while its lease was opened."""
        latest = max(self._halted.get(each, 0.0) for each in (session.id, session.user_id))
        return latest > 0.0 and asyncio.get_running_loop().time() - latest < REMEMBERED_SECONDS

    def _halt(self, order: HaltRow) -> int:
        halted = order.session_id or order.user_id
        self._halted.pop(halted, None)
        self._halted[halted] = asyncio.get_running_loop().time()
        if len(self._halted) > REMEMBERED_MAX:
            del self._halted[next(iter(self._halted))]
        cut = 0
        for session in self._of(order):
            cut += len(session.connections)
            is_over = session.lease_id is None or session.status is SessionStatus.EXHAUSTED
            self._sessions.cut(session.id, SessionStatus.ENDED)
            if not is_over:
                self.leaving.let_go(session, 0.0)
        return cut

    def _go(self, order: HaltRow) -> None:
        """Forget refusals, so that the next client causes a query to the store."""
        self._halted.pop(order.session_id or order.user_id, None)
        for session in self._of(order):
            if session.lease_id is None:
                self._sessions.drop(session)

    def _of(self, order: HaltRow) -> list[LiveSession]:
        """Return the known sessions of an order."""
        if order.session_id is not None:
            session = self._sessions.get(order.session_id)
            return [] if session is None else [session]
        return list(self._sessions.of_user(order.user_id))
