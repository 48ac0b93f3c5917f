"""Which session a client's address opens, on the ports without passwords; from memory if it can.

Who opens a session is kept as long as that session is, and believed while it is active: then nobody
else can have been given the address. Who opens none is kept for a moment, so that a stranger who
knocks and knocks costs the store one look-up a second.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from market.states import SessionStatus
from proxyd.metering.single_flight import NegativeCache, SingleFlight
from proxyd.wire.events import Refusal

if TYPE_CHECKING:
    from proxyd.metering.session import LiveSession

Name = tuple[int, str]


class Addresses:
    """Knows client addresses, each behind the slot of the port that it comes to.

    Args:
        find: asks the store which session an address opens, and brings that session to life.
    """

    def __init__(self, find: Callable[[Name], Coroutine[Any, Any, "LiveSession | None"]]) -> None:
        self._find = find
        self._sessions: dict[Name, LiveSession] = {}
        self._unknown: NegativeCache[Name] = NegativeCache()
        self._lookups: SingleFlight[Name, LiveSession] = SingleFlight(self._look_up)
        self._named_since: set[Name] = set()

    def ask(
        self, name: Name, asker: str, told: "Callable[[LiveSession | Refusal], None]"
    ) -> "LiveSession | Refusal | None":
        """Return the session that an address opens, perhaps one that is over.

        Args:
            name: the address, behind the slot of the port that it came to.
            asker: the network that it counts for.
            told: is called with the answer, later, if None is returned; else never.
        """
        session = self._sessions.get(name)
        if session is not None and session.status is SessionStatus.ACTIVE:
            return session
        if name in self._unknown:
            return session or Refusal.WRONG
        return self._lookups.ask(name, asker, told)

    def opens(self, session: "LiveSession") -> None:
        """Remember the addresses that open an active session."""
        self._sessions.update(dict.fromkeys(session.names, session))

    def learn(self, name: Name, session: "LiveSession") -> None:
        """Remember one more address that opens a session, while that is active."""
        if session.status is SessionStatus.ACTIVE:
            if name not in session.names:
                session.names = (*session.names, name)
            self._sessions[name] = session

    def forget(self, session: "LiveSession") -> None:
        """Forget a session, though not one that its addresses were given to since."""
        for name in session.names:
            if self._sessions.get(name) is session:
                del self._sessions[name]

    def named(self, slot: int, addresses: Sequence[str]) -> None:
        """Forget that addresses open no session: they do from now on."""
        for address in addresses:
            self._unknown.discard((slot, address))
            if (slot, address) in self._lookups:
                self._named_since.add((slot, address))

    async def stop(self) -> None:
        """Ask the store nothing any more."""
        await self._lookups.stop()

    async def _look_up(self, name: Name) -> "LiveSession | Refusal":
        """Ask the store; again, if the answer may be older than the sale that made it wrong."""
        found = await self._find(name)
        while found is None and name in self._named_since:
            self._named_since.discard(name)
            found = await self._find(name)
        self._named_since.discard(name)
        if found is not None:
            self.learn(name, found)  # it may have been proved since the session was leased
            return found
        self._unknown.add(name)
        return self._sessions.get(name) or Refusal.WRONG
