"""TLS handshakes at the exits' port: begun in turns of their networks, bounded, and cut when old.

A handshake costs half a millisecond of signing here, and its client a recorded message. So few are
begun at once, each network has its turn, and none holds more than a few places.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from market.base.networks import NetworkCounts, crowded

# Number of handshakes that begin together, and the pause before the next ones: each costs half a
# millisecond of signing, and half a millisecond more until the exit is attached. Everybody else
# waits meanwhile.
HANDSHAKES_AT_ONCE: Final = 8
HANDSHAKES_PAUSE_SECONDS: Final = 0.01
# Of one network, for each exit that it may have. An exit opens some connections under TLS beside
# its control connection, 20 a second by default, and a handshake is over after one round trip.
HANDSHAKES_PER_EXIT: Final = 8


class Shaking(Protocol):
    """A connection that has sent its ClientHello."""

    @property
    def sock(self) -> socket.SocketType:
        """Its socket."""

    @property
    def network(self) -> str:
        """The network that counts it."""


Member = TypeVar("Member", bound=Shaking)


class Handshakes(Generic[Member]):
    """The handshakes that wait and those under way, the oldest first.

    Args:
        begin: begins one; `end` follows.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, begin: Callable[[Member], None]) -> None:
        self._loop = loop
        self._begin = begin
        self._since: dict[Member, float] = {}
        self._counts = NetworkCounts()
        # In turns: the first network is next, and then the last.
        self._waiting: dict[str, deque[Member]] = {}
        self._is_busy = False  # some were begun just now, or are about to be

    def __len__(self) -> int:
        return len(self._since)

    def full_network(self, network: str, exits_per_network: int) -> str:
        """Return the network that may have no more, `network` or one around it; "" for none."""
        return crowded(network, HANDSHAKES_PER_EXIT * exits_per_network, self._counts)

    def add(self, member: Member) -> None:
        """Begin a handshake when it is the turn of its network."""
        self._since[member] = self._loop.time()
        self._counts.add(member.network)
        self._waiting.setdefault(member.network, deque()).append(member)
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._begin_some)

    def end(self, member: Member) -> bool:
        """Stop counting a handshake; return False if it had ended before."""
        if self._since.pop(member, None) is None:
            return False
        self._counts.add(member.network, -1)
        return True

    def oldest(self, before: float) -> Member | None:
        """Return the oldest handshake, if it came before a time of the loop."""
        member = next(iter(self._since), None)
        return member if member is not None and self._since[member] <= before else None

    def cut(self, member: Member) -> None:
        """End a handshake, begun or not; its connection is closed, by the loop or here."""
        self.end(member)
        if self._dequeue(member):
            member.sock.close()
            return
        try:
            member.sock.shutdown(socket.SHUT_RDWR)  # the loop reads its end, and closes it
        except OSError:  # the connection has ended by itself, and the loop closes it
            return

    def close(self) -> None:
        """Close those that have not begun; the loop ends the others."""
        for member in [each for queue in self._waiting.values() for each in queue]:
            self.cut(member)

    def _begin_some(self) -> None:
        """Begin some handshakes now, and further ones after a pause."""
        self._is_busy = bool(self._waiting)
        for _ in range(HANDSHAKES_AT_ONCE):
            network = next(iter(self._waiting), None)
            if network is None:
                break
            queue = self._waiting.pop(network)
            member = queue.popleft()
            if queue:
                self._waiting[network] = queue  # behind the others
            self._begin(member)
        if self._is_busy:
            self._loop.call_later(HANDSHAKES_PAUSE_SECONDS, self._begin_some)

    def _dequeue(self, member: Member) -> bool:
        """Remove a handshake from the queue; return False if it has begun."""
        queue = self._waiting.get(member.network)
        if queue is None or member not in queue:
            return False
        queue.remove(member)
        if not queue:
            del self._waiting[member.network]
        return True
