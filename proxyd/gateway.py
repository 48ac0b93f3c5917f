"""The proxy's front door: accepts clients, within bounds, and lets them go when it closes.

When all slots or file descriptors are taken, other clients make way: first the clients that were
refused and stay, then the handshakes that have taken longest. A handshake may take
`limits.handshake_seconds`, and half a second while others need its slot.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from api.http.rate import RateLimit
from market.base.networks import NetworkCounts, counted_network, crowded
from proxyctl.protocol.policy import Policy
from proxyd.acceptor import Acceptor
from proxyd.access import SESSION_LINES_MAX, Hour, SessionLines
from proxyd.access_records import Access, Reached, Sent
from proxyd.connection import ClientConnection, ConnectionServices
from proxyd.counters import Counters
from proxyd.egress.exit import Exit
from proxyd.egress.resolve import Resolver
from proxyd.exits.dialling.dial import Ways
from proxyd.handshake import PASSWORD_PORT, Client, Handshake, HandshakeServices
from proxyd.limits import ProxyLimits
from proxyd.loop.deadlines import Deadlines
from proxyd.loop.fair_slots import FairSlots
from proxyd.loop.reactor import Reactor
from proxyd.metering.meter import Meter
from proxyd.metering.session import LiveSession
from proxyd.relay.closing import USUAL as CLOSING
from proxyd.relay.closing import Closer, ClosingBounds
from proxyd.relay.udp import DROPPED_PER_SECOND, NO_HOUR, DatagramEgress
from proxyd.wire.events import Address, Request, ServerProtocol
from proxyd.wire.wants import Wants

IDLE_CHECKS_PER_LIMIT: Final = 10  # a connection is cut at most a tenth of the limit late

_logger = logging.getLogger("gateway")


@dataclass(frozen=True, slots=True)
class ClientBounds:
    """The bounds on clients that the code keeps.

    Attributes:
        room_after_seconds: from here on a handshake may be cut to make room. A fixed time, and
            short: a share of the seconds of a handshake would let a client keep all slots that it
            fills once in that time.
    """

    room_after_seconds: float = 0.5
    closing: ClosingBounds = CLOSING


USUAL: Final = ClientBounds()


@final
class Clients:
    """The clients: each is in its handshake or a connection, from its first byte to its last.

    Args:
        handshakes: the clients that have not sent a request yet.
    """

    def __init__(self, handshakes: Deadlines[Handshake]) -> None:
        self.handshakes = handshakes
        self.connections: set[ClientConnection] = set()
        self.per_network = NetworkCounts()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self.handshakes) + len(self.connections)

    def add(self, network: str) -> None:
        """Count a client that is about to begin its handshake."""
        if not (self.connections or self.handshakes):  # also where the only one was shed
            self._empty.clear()
        self.per_network.add(network)

    def left(self, client: Client) -> None:
        """Count a client that is neither in its handshake nor connected any more."""
        self.per_network.add(client.network, -1)
        if not (self.connections or self.handshakes):
            self._empty.set()

    async def wait_empty(self) -> None:
        """Wait until every client has left."""
        await self._empty.wait()

    def abort(self) -> None:
        """Cut every client."""
        for client in (*self.handshakes, *self.connections):
            client.abort()


@final
class Gateway:
    """Serves one listening socket where clients show passwords, and others where they do not.

    Args:
        reactor: shared by the sockets of the loop; closed with the gateway.
        exit_: the way out for connections; closed with the gateway.
        resolver: looks up the targets of datagrams, which leave from this machine.
        public_address: the address at which other networks reach this machine, if known.
        record: is called with the records of each connection that has shown credentials.
        exits: the ways out through devices, if they may attach; closed with the gateway.
        hour: the hour of the access log.
    """

    def __init__(
        self,
        reactor: Reactor,
        meter: Meter,
        exit_: Exit,
        resolver: Resolver,
        policy: Policy,
        limits: ProxyLimits,
        public_address: Address | None = None,
        record: Callable[[Access | Reached | Sent], None] | None = None,
        exits: Ways | None = None,
        bounds: ClientBounds = USUAL,
        hour: Hour = NO_HOUR,
    ) -> None:
        self.limits = limits
        self._room_after_seconds = bounds.room_after_seconds
        self.counters = Counters()
        self._reactor = reactor
        self.closer = Closer(reactor.loop, reactor.poller, bounds.closing)
        allows = RateLimit(limits.datagrams_per_second, reactor.loop.time).allows
        tolerates = RateLimit(DROPPED_PER_SECOND, reactor.loop.time).allows
        handshakes: Deadlines[Handshake] = Deadlines(reactor.loop, limits.handshake_seconds)
        self._clients = Clients(handshakes)
        self._for_handshakes = HandshakeServices(
            reactor=reactor,
            closer=self.closer,
            deadlines=handshakes,
            meter=meter,
            tallies=meter.tallies,
            counters=self.counters,
            requested=self._requested,
            over=self._clients.left,
            record=record,
        )
        self._for_connections = ConnectionServices(
            reactor=reactor,
            closer=self.closer,
            exit=exit_,
            datagrams=DatagramEgress(resolver, policy, allows, tolerates),
            public_address=public_address,
            counters=self.counters,
            tallies=meter.tallies,
            dials=FairSlots[str](limits.dials_waiting),
            associations=FairSlots[str](limits.associations),
            over=self._closed,
            session_lines=SessionLines(SESSION_LINES_MAX),
            record=record,
            exits=exits,
            hour=hour,
        )
        self._acceptors: list[Acceptor[socket.SocketType]] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_listening(self) -> bool:
        """Whether new clients are accepted."""
        return bool(self._acceptors)

    @property
    def connections(self) -> int:
        """Number of connected clients."""
        return len(self._clients)

    @property
    def handshakes(self) -> int:
        """Number of clients without an accepted request yet."""
        return len(self._clients.handshakes)

    @property
    def relays(self) -> int:
        """Number of clients with a TCP connection to their target."""
        return self.counters.open_relays

    @property
    def dialing(self) -> int:
        """Number of clients that wait for their target."""
        return self._for_connections.dials.taken

    @property
    def associations(self) -> int:
        """Number of clients whose datagrams are relayed."""
        return self._for_connections.associations.taken

    @property
    def datagrams_over_rate(self) -> int:
        """Number of datagrams dropped because of their session's rate."""
        return self._for_connections.datagrams.over_rate

    @property
    def pipes_lent(self) -> int:
        """Number of pipes with bytes that their sinks do not take yet."""
        return self._reactor.pipes.lent

    def traffic(self) -> tuple[int, int]:
        """Return the bytes relayed so far, from clients and to them."""
        up, down = self.counters.bytes_up, self.counters.bytes_down
        for connection in self._clients.connections:
            more_up, more_down = connection.traffic
            up += more_up
            down += more_down
        return up, down

    def change_limits(self, limits: ProxyLimits) -> None:
        """Apply other limits from now on; no connected client is cut."""
        if limits.datagrams_per_second != self.limits.datagrams_per_second:
            rate = RateLimit(limits.datagrams_per_second, self._reactor.loop.time)
            self._for_connections.datagrams.allows = rate.allows
        self.limits = limits
        self._for_connections.dials.most = limits.dials_waiting
        self._for_connections.associations.most = limits.associations
        self._clients.handshakes.seconds = limits.handshake_seconds
        self._for_connections.exit.change_seconds(limits.dial_seconds)
        if self._for_connections.exits is not None:
            self._for_connections.exits.change_seconds(limits.dial_seconds)

    def start(self, listener: socket.socket, passwordless: Sequence[socket.socket] = ()) -> None:
        """Begin to accept clients on sockets that listen already; the gateway owns them now.

        Args:
            listener: the socket for clients with the credentials of a session.
            passwordless: the sockets for clients without passwords, in the order of their indexes.
        """
        for index, sock in {PASSWORD_PORT: listener, **dict(enumerate(passwordless))}.items():
            # Its connections inherit both. Urgent data is left out of the stream otherwise.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
            welcome = partial(self._welcome, index)
            # The class in C that `socket.socket` inherits from: the Python part of it costs the
            # same time again to make and to close a socket.
            self._acceptors.append(
                Acceptor(self._reactor.loop, sock, welcome, self._shed, _logger, socket.SocketType)
            )
        self._check_idle_later()

    def stop_accepting(self) -> None:
        """Accept no new client; accepted clients continue to their end."""
        acceptors, self._acceptors = self._acceptors, []
        for acceptor in acceptors:
            acceptor.close()

    async def drain(self, seconds: float) -> int:
        """Wait until every client has left, at most `seconds`; return the number that has not."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._clients.wait_empty()
                await self.closer.wait_closed()
        return self.connections

    def close(self) -> None:
        """Accept no new client, and cut those that are left."""
        self.stop_accepting()
        self._clients.abort()
        self.closer.close_now()
        if self._timer is not None:
            self._timer.cancel()
        self._clients.handshakes.close()
        self._for_connections.exit.close()
        if self._for_connections.exits is not None:
            self._for_connections.exits.close()
        self._reactor.close()

    def _requested(
        self,
        client: Client,
        protocol: ServerProtocol,
        session: LiveSession,
        wants: Wants | None,
        request: Request,
        unread: bool,
    ) -> None:
        """A handshake has come to its request: a connection takes over."""
        connection = ClientConnection(
            self._for_connections, client, protocol, session, wants, request, unread
        )
        self._clients.connections.add(connection)
        try:
            connection.start()
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            connection.fail(error)

    def _closed(self, connection: ClientConnection) -> None:
        """A connection is over."""
        self._clients.connections.discard(connection)
        self._clients.left(connection.client)

    def _welcome(self, port_index: int, sock: socket.SocketType, address: str) -> str:
        """Begin to serve a client, or return why not."""
        network = counted_network(address)
        here, closing = self._clients.per_network, self.closer.per_network
        most = self.limits.connections_per_address
        full = crowded(network, most, here, closing)
        if full:
            self.counters.refused += 1
            return f"{full} has {here[full] + closing[full]} connections"
        total = self.connections + len(self.closer)
        if total >= self.limits.connections_total and not self._shed(1):
            self.counters.refused += 1
            return f"{total} connections are open"
        self._clients.add(network)
        self.counters.accepted += 1
        number = self.counters.accepted
        client = Client(sock, address, network, port_index, number, self._reactor.loop.time())
        Handshake(self._for_handshakes, client).start()
        return ""

    def _shed(self, most: int) -> int:
        """Close refused or unfinished clients, the oldest first. Return the number closed.

        So clients that open connections and send nothing, or nonsense, keep no other client out.
        """
        shed = 0
        while shed < most and (
            self.closer.expire_oldest(self._room_after_seconds)
            or self._clients.handshakes.expire_oldest(self._room_after_seconds)
        ):
            shed += 1
        return shed

    def _check_idle_later(self) -> None:
        pause = self.limits.idle_seconds / IDLE_CHECKS_PER_LIMIT
        self._timer = self._reactor.loop.call_later(pause, self._check_idle)

    def _check_idle(self) -> None:
        since = self._reactor.loop.time() - self.limits.idle_seconds
        for connection in tuple(self._clients.connections):
            connection.abort_if_idle(since)
        self._check_idle_later()
