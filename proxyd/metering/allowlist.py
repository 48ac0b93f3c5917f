"""Look-up of the sessions that client addresses open on ports without passwords, with a cache.

The session of an address is kept while that session is known, and believed while it is active: then
the address cannot have been given to another one. That an address opens none is kept for a second
(`NegativeBounds`), so that an unknown client that keeps trying costs one look-up a second.

A sale drops the cached answers "no session" of its addresses.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, final

from market.base.states import SessionStatus
from proxyd.metering.session import LiveSession
from proxyd.metering.sessions import Entry, Sessions
from proxyd.metering.single_flight import USUAL, NegativeBounds, NegativeCache, SingleFlight
from proxyd.wire.events import Refusal


@final
class Allowlist:
    """Finds the sessions that client addresses open.

    Args:
        find: asks the store which session an address opens, and makes that session known.
    """

    def __init__(
        self,
        sessions: Sessions,
        find: Callable[[Entry], Coroutine[Any, Any, LiveSession | None]],
        bounds: NegativeBounds = USUAL,
    ) -> None:
        self._sessions = sessions
        self._find = find
        self._unknown: NegativeCache[Entry] = NegativeCache(bounds)
        self._lookups: SingleFlight[Entry, LiveSession] = SingleFlight(self._look_up)
        # Entries that were granted while they were looked up: the answer may be older than that.
        self._granted_since: set[Entry] = set()

    def ask(
        self, entry: Entry, asker: str, callback: Callable[[LiveSession | Refusal], None]
    ) -> LiveSession | Refusal | None:
        """Return the session that an address opens, perhaps one that is over.

        Args:
            entry: the address, behind the index of the port that it came to.
            asker: the network that it counts for.
            callback: is called later, once, if this returns None.
        """
        session = self._sessions.of_entry(entry)
        if session is not None and session.status is SessionStatus.ACTIVE:
            return session
        if entry in self._unknown:
            return session or Refusal.WRONG
        return self._lookups.ask(entry, asker, callback)

    def granted(self, port_index: int, addresses: Sequence[str]) -> None:
        """Drop the cached answer "unknown" of clients that a session, just sold, admits.

        Args:
            port_index: the index of the port without passwords.
            addresses: the clients'.
        """
        for address in addresses:
            entry = (port_index, address)
            self._unknown.discard(entry)
            if entry in self._lookups:
                self._granted_since.add(entry)

    async def stop(self) -> None:
        """Stop sending queries to the store."""
        await self._lookups.stop()

    async def _look_up(self, entry: Entry) -> LiveSession | Refusal:
        """Query the store; repeat the query if a sale may have made the answer wrong."""
        session = await self._find(entry)
        while session is None and entry in self._granted_since:
            self._granted_since.discard(entry)
            session = await self._find(entry)
        self._granted_since.discard(entry)
        if session is not None:
            self._sessions.learn(entry, session)  # perhaps it was proved since it was leased
            return session
        self._unknown.add(entry)
        return self._sessions.of_entry(entry) or Refusal.WRONG
