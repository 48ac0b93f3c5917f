"""Settles the sessions that are used up, from the last byte until the payment is captured.

With the last byte of its budget a session is exhausted, and admits no client. It is settled when
that byte has left this machine. When its buyer ends a session, its connections are cut first, and
the session is settled with their final counts.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import final

from market.bandwidth.leases import Leases
from market.base.states import SessionStatus
from proxyd.metering.session import LiveSession
from proxyd.metering.sessions import Sessions
from storage.engines.errors import StoreError, UnavailableError

_logger = logging.getLogger("meter")


@final
class Settler:
    """The sessions that are used up and not settled; `in` takes their identifiers.

    Args:
        wake: set when there is something to settle.
    """

    def __init__(self, leases: Leases, sessions: Sessions, wake: asyncio.Event) -> None:
        self._leases = leases
        self._sessions = sessions
        self._wake = wake
        self._due: dict[str, LiveSession] = {}

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._due

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(tuple(self._due.values()))

    def exhaust(self, session: LiveSession) -> None:
        """Mark an active session as exhausted, and settle it soon.

        No client is admitted any more; its connections still deliver the counted bytes.
        """
        if session.status is not SessionStatus.ACTIVE:
            return
        session.status = SessionStatus.EXHAUSTED
        self._due[session.id] = session
        self._wake.set()
        for connection in tuple(session.connections):
            connection.finish()

    def clear(self) -> None:
        """Settle no lease: other nodes now have the leases of this node."""
        self._due.clear()

    async def settle(self) -> None:
        """Settle the due sessions; one session that fails does not hold up the others.

        Where the store is away no other is tried: each would wait for it in turn, and so would a
        daemon that stops. The session that met that comes last the next time.

        One whose last bytes are still in the kernel's queues waits until they have left, or are
        given back: a settlement cannot be taken back if the bytes are lost with this process.

        Raises:
            StoreError: some are not settled; the next call tries again.
        """
        failure: StoreError | None = None
        for session in self:
            if session.certain() != session.used:
                continue
            try:
                await self._settle_one(session)
            except UnavailableError:
                if session.id in self._due:  # a node that was declared dead settles none of them
                    self._due[session.id] = self._due.pop(session.id)
                raise
            except StoreError as error:
                failure = error
                continue
            self._due.pop(session.id, None)
            self._sessions.forget_later(session.id)
        if failure is not None:
            raise failure

    async def stop(self) -> None:
        """Settle the due sessions, and release every lease that is open here.

        Raises:
            StoreError: unwritten counts are lost, as after a crash.
        """
        try:
            await self.settle()
        finally:
            await self._leases.release(
                [
                    session.certain_usage()
                    for session in self._sessions
                    if session.is_leased or session.id in self._due
                ]
            )

    async def _settle_one(self, session: LiveSession) -> None:
        """Settle a session; if that fails, still store its used bytes.

        To try again soon would change nothing: the next start does, and logs it again.
        """
        try:
            await self._leases.settle(session.id, SessionStatus.EXHAUSTED, session.usage)
        except StoreError:
            raise
        except Exception:
            _logger.exception("session %s: used up and cannot be settled", session.id)
            await self._leases.release([session.usage] if session.usage is not None else [])
