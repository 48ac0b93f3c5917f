"""Relays whose bytes nobody pays for here: between an exit and the node that has borrowed it.

That node counts them, and its buyers pay. So the payer of these relays has more bytes than any
stream, and reports nothing to anybody.
"""

import socket
from collections.abc import Callable
from typing import Final, final

from market.bandwidth.lease_book import Grant
from market.base.states import SessionStatus
from proxyd.exits.attached.load import Carried
from proxyd.exits.choosing.places import yields_at
from proxyd.exits.nodes.stand_in import Join
from proxyd.loop.reactor import Reactor
from proxyd.metering.session import LiveSession
from proxyd.relay.closing import Closer
from proxyd.relay.tcp import Relay

BYTES: Final = 1 << 61  # more than all streams of a process; see `relay.halfpipe.UNLIMITED`


@final
class UnmeteredRelays(Join):
    """Joins connections, within nobody's budget.

    Args:
        reactor: what the sockets of the loop share.
        closer: takes over sockets whose last bytes are still on their way.
    """

    __slots__ = ("_closer", "_payer", "_reactor")

    def __init__(self, reactor: Reactor, closer: Closer) -> None:
        self._reactor = reactor
        self._closer = closer
        grant = Grant("", "", "", SessionStatus.ACTIVE, 0, None, BYTES, ())
        self._payer = LiveSession(grant, lambda _: None)

    def __call__(
        self, borrower: socket.SocketType, exit_: socket.SocketType, over: Callable[[], None]
    ) -> Carried:
        """See `Join`."""
        return _Joined(self._reactor, borrower, exit_, self._payer, self._closer, over)


@final
class _Joined(Carried):
    """One relay, as the exit knows it that carries it."""

    __slots__ = ("_relay",)

    def __init__(
        self,
        reactor: Reactor,
        borrower: socket.SocketType,
        exit_: socket.SocketType,
        payer: LiveSession,
        closer: Closer,
        over: Callable[[], None],
    ) -> None:
        self._relay = Relay(reactor, borrower, exit_, payer, closer, over)
        # Both may have said something before they were joined, which is not reported again.
        self._relay.start(b"", None, client_unread=True, target_unread=True)

    @property
    def traffic(self) -> tuple[int, int]:
        """See `Carried.traffic`."""
        return self._relay.bytes_up, self._relay.bytes_down

    def yields_at(self) -> float:
        """See `Carried.yields_at`."""
        return yields_at(self._relay.active_at, is_half_closed=self._relay.is_half_closed)

    def abort(self) -> None:
        """See `Carried.abort`."""
        self._relay.abort()
