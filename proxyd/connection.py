"""One admitted client of the proxy, from its request to its last byte.

Theory of operation
-------------------
The life of a client: the gateway accepts it, a `Handshake` brings it to a session and a request,
and a `ClientConnection` takes both over, with the socket and the protocol, which has to answer.

* DIALING: the connection dials the target through its way out (Connect); the client's socket is
  watched only for its loss, and that it may have said more is remembered (`_unread`).
* RELAYING: a `Relay` (Connect) or an `Association` (Associate) moves bytes, and owns the sockets.
* CLOSED: all is let go of, counted and recorded.

    DIALING --target reached, or datagrams bound--> RELAYING --both ends are over--> CLOSED
    DIALING --no target, no slot, client left, session cut---------------------------> CLOSED

There are three ways to have it end. `finish`: the budget is spent, and the bytes that are already
counted still arrive. `abort`: it cuts immediately, and gives back the bytes that were not
delivered. `refuse`: it sends the client the reason for the failure. All end in `_close(ending,
how)`, which runs once; a transfer that ends by itself gets there through `_transfer_closed`.
`_ending` keeps the reason between asking a transfer to end and its end.

`_dial` is set in DIALING alone, and not yet while an exit answers before `dial` has returned;
`_transfer` only in RELAYING. `_slots` is set while the connection holds one of a bounded number of
slots: of dials until there is an outcome, of associations until it is closed.

No coroutine, no timer and no question to the store is spent on a connection whose session is known
and whose target is an address.

The client gets the answer that its target is reached only after a candidate has connected, with the
real bound address.
"""

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from math import inf
from typing import Final, Protocol, final

from market.base.networks import text_of
from proxyd.access import ENDING_OF_FAILURE, UNKNOWN_EXIT, Destinations, Ending, Hour, SessionLines
from proxyd.access_records import Access, Reached, Sent
from proxyd.counters import Counters
from proxyd.egress.exit import Cancellable, Exit
from proxyd.exits.choosing.places import Carried, yields_at
from proxyd.exits.dialling.dial import ExitDial, Via, Ways
from proxyd.exits.dialling.target import TLS_PORT
from proxyd.handshake import Client
from proxyd.loop.fair_slots import FairSlots
from proxyd.loop.poller import GONE, READS, Watcher
from proxyd.loop.reactor import Reactor
from proxyd.metering.exit_share import ExitShare
from proxyd.metering.session import LiveSession, MeteredConnection
from proxyd.metering.tallies import Tallies
from proxyd.relay.closing import Closer, reset
from proxyd.relay.exit_datagrams import ExitWay
from proxyd.relay.first_answer import FirstAnswer
from proxyd.relay.tcp import Relay
from proxyd.relay.udp import NO_HOUR, Association, DatagramEgress, datagram_socket
from proxyd.wire.events import Address, Associate, Connect, Failure, Request, ServerProtocol
from proxyd.wire.hosts import address_of
from proxyd.wire.wants import Wants

_logger = logging.getLogger("gateway")
# As in `relay.halfpipe`: a third less than the method of a socket, which does the same.
_os_write: Final = os.write


@dataclass(frozen=True, slots=True)
class ConnectionServices:
    """Collaborators that all connections of a gateway share.

    `exit` is the way out from this machine, `exits` those through devices, if they may attach.
    `public_address` is where clients of other networks reach this machine, if that is known;
    `dials` are slots of connections that wait for a target, `associations` slots of connections
    that relay datagrams; sessions compete for both. `tallies` count events for buyers, `counters`
    the same events for the operator. `over` is called with each connection that holds nothing but
    its socket any more, `record` with the records of it. `hour` is that of the access log, and
    `session_lines` bounds its lines about datagrams.
    """

    reactor: Reactor
    closer: Closer
    exit: Exit
    datagrams: DatagramEgress
    public_address: Address | None
    counters: Counters
    tallies: Tallies
    dials: FairSlots[str]
    associations: FairSlots[str]
    over: Callable[["ClientConnection"], None]
    session_lines: SessionLines
    record: Callable[[Access | Reached | Sent], None] | None = None
    exits: Ways | None = None
    hour: Hour = NO_HOUR


class Transfer(Protocol):
    """The relay or association of a connection whose request is answered."""

    @property
    def active_at(self) -> float:
        """Time of the last moved byte, or of the start (loop time, seconds)."""

    @property
    def is_broken(self) -> bool:
        """Whether one side has reset it."""

    @property
    def is_half_closed(self) -> bool:
        """Whether one of two streams has ended."""

    @property
    def bytes_up(self) -> int:
        """Bytes delivered from the client."""

    @property
    def bytes_down(self) -> int:
        """Bytes delivered to the client."""

    def finish(self) -> None:
        """Close it so that everything already counted still arrives."""

    def abort(self) -> None:
        """Cut it immediately, after giving back the bytes that were not delivered."""


class ConnectionState(IntEnum):
    """Phase of a connection."""

    DIALING = 0
    RELAYING = 1
    CLOSED = 2


TRANSITIONS: Final = {
    ConnectionState.DIALING: (ConnectionState.RELAYING, ConnectionState.CLOSED),
    ConnectionState.RELAYING: (ConnectionState.CLOSED,),
    ConnectionState.CLOSED: (),
}


class How(Enum):
    """Fate of the client's socket when the connection is closed."""

    RESET = auto()
    AFTER_LAST_BYTES = auto()  # closed once the client has every byte that was sent
    BY_TRANSFER = auto()  # the transfer owns it, and closes it


# Names of this module: a lookup of an enumeration's member costs six times the time (3.11).
_DIALING: Final = ConnectionState.DIALING
_RELAYING: Final = ConnectionState.RELAYING
_CLOSED: Final = ConnectionState.CLOSED
_RESET: Final = How.RESET
_AFTER_LAST_BYTES: Final = How.AFTER_LAST_BYTES
_BY_TRANSFER: Final = How.BY_TRANSFER
_ENDED: Final = Ending.ENDED
_RESET_BY_PEER: Final = Ending.RESET


@final
class ClientConnection(Watcher, MeteredConnection, Carried):
    """Connection of one admitted client.

    Args:
        client: whose socket is owned from here on.
        protocol: waits for the answer to the request.
        wants: selects the exits that it may leave through; None for directly.
        unread: whether its socket may have more to read.
    """

    __slots__ = (
        "_dial",
        "_dial_began",
        "_ending",
        "_protocol",
        "_request",
        "_services",
        "_session",
        "_slots",
        "_state",
        "_target",
        "_transfer",
        "_tried",
        "_unread",
        "_via",
        "_wants",
        "client",
    )

    def __init__(
        self,
        services: ConnectionServices,
        client: Client,
        protocol: ServerProtocol,
        session: LiveSession,
        wants: Wants | None,
        request: Request,
        unread: bool,
    ) -> None:
        self._services = services
        self._protocol = protocol
        self._session = session
        self._wants = wants
        self._request = request
        self._state = _DIALING
        self._unread = unread
        self._dial: Cancellable | None = None
        self._dial_began = 0.0
        self._transfer: Transfer | None = None
        self._slots: FairSlots[str] | None = None
        self._ending: Ending | None = None
        self._via: Via | None = None  # through which exit it has reached its target
        self._target: Reached | None = None  # the record of it, if records are kept
        self._tried: tuple[tuple[str, str], ...] = ()  # the exits of a dial that has failed
        self.client = client

    @property
    def traffic(self) -> tuple[int, int]:
        """The bytes relayed so far, from the client and to it."""
        transfer = self._transfer
        return (transfer.bytes_up, transfer.bytes_down) if transfer is not None else (0, 0)

    def yields_at(self) -> float:
        """See `Carried.yields_at`."""
        transfer = self._transfer
        if transfer is None:  # it is about to begin
            return inf
        return yields_at(transfer.active_at, is_half_closed=transfer.is_half_closed)

    def start(self) -> None:
        """Carry out the client's request."""
        self._session.connections.add(self)
        self._services.reactor.poller.watch(self.client.sock.fileno(), self)
        request, wants = self._request, self._wants
        if wants is not None and wants.direct:
            wants = None
        if isinstance(request, Connect):
            self._start_dial(request, wants)
        else:
            self._associate(request, wants)

    def finish(self) -> None:
        """Close it so that everything already counted still arrives."""
        if self._transfer is not None:
            self._ending = Ending.EXHAUSTED
            self._transfer.finish()
        else:
            self.refuse(Failure.NOT_ALLOWED)

    def abort(self, ending: Ending = Ending.CUT) -> None:
        """Cut it immediately, after giving back the bytes that were not delivered."""
        self._ending = self._ending or ending
        if self._transfer is not None:
            self._transfer.abort()
        else:
            self._close(self._ending, _RESET)

    def refuse(self, failure: Failure) -> None:
        """Send the client the reason for the failure, and close."""
        if self._state is not _DIALING:
            self.abort()
            return
        _logger.debug("%s: no connection: %s", self.client, failure.name)
        ending = ENDING_OF_FAILURE[failure]
        self._services.counters.dial_failures[ending] += 1
        self._services.tallies.refuse(self._session.id, ending)
        self._protocol.fail(failure)
        self._close(ending, _AFTER_LAST_BYTES if self._send() else _RESET)

    def abort_if_idle(self, since: float) -> None:
        """Cut it if it relays, and moved no byte after `since` (loop time)."""
        if self._transfer is not None and self._transfer.active_at < since:
            _logger.debug("%s: idle for too long", self.client)
            self._ending = Ending.IDLE
            self._transfer.abort()

    def ready(self, events: int) -> None:
        """Note that the client has sent more, or has left, before the relay begins."""
        if not events & READS:
            return
        self._unread = True
        if events & GONE:
            _logger.debug("%s: the client has left", self.client)
            self._services.counters.handshake_failures[Ending.CLIENT_LEFT] += 1
            self.abort(Ending.CLIENT_LEFT)

    def fail(self, error: Exception) -> None:
        """Cut the connection because of a fault in this program, and log the traceback."""
        _logger.error("serving a client failed; it is cut", exc_info=error)
        self.abort()

    def _to(self, state: ConnectionState) -> None:
        assert state in TRANSITIONS[self._state]  # noqa: S101 - half a connection helps nobody
        self._state = state

    # --- dialing -------------------------------------------------------------------------------

    def _start_dial(self, request: Connect, wants: Wants | None) -> None:
        """Dial the target, through exits if the client wants them."""
        services, session = self._services, self._session
        exits, limited = services.exits, session.limited
        if limited is not None and request.port not in limited.ports:
            self.refuse(Failure.LIMITED)
            return
        if wants is not None and exits is None:
            self.refuse(Failure.NO_EXIT)  # rather than from where it did not ask to be
            return
        if not self._take(services.dials):
            self.refuse(Failure.GENERAL)
            return
        self._dial_began = services.reactor.loop.time()
        dial: Cancellable
        if wants is None or exits is None:
            dial = services.exit.dial(request.host, request.port, session.id, self._dialed)
        else:
            dial = exits.dial(wants, session, request.host, request.port, self._dialed_by_exit)
        if self._slots is not None:  # it has not answered yet
            self._dial = dial

    def _dialed_by_exit(
        self, outcome: socket.SocketType | Failure, target_unread: bool, via: Via | None
    ) -> None:
        """Handle the outcome of a dial through exits."""
        self._via = via
        if via is not None:
            via.attached.begin(self, via.place)
        elif self._dial is not None:
            self._note_tried(self._dial)
        self._dialed(outcome, target_unread)

    def _dialed(self, outcome: socket.SocketType | Failure, target_unread: bool) -> None:
        """Handle the outcome of a dial: a connection, or a failure."""
        services = self._services
        self._dial = None
        self._give_back()
        services.counters.dials.observe(services.reactor.loop.time() - self._dial_began)
        try:
            if isinstance(outcome, Failure):
                self.refuse(outcome)
            else:
                self._reached(outcome, target_unread)
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            self.fail(error)

    def _reached(self, target: socket.SocketType, target_unread: bool) -> None:
        """Notify the client that its target is connected, and relay."""
        services, protocol, client, via = self._services, self._protocol, self.client, self._via
        share = None
        if via is None:
            host, source_port = target.getsockname()[:2]
            protocol.succeed(address_of(host), source_port)
        else:
            share = self._session.share_of(via.attached.device_id)
            share.pace = via.pace
            source_port = via.port
            protocol.succeed(via.address, source_port, via.headers)
        if not self._send():
            services.reactor.poller.forget(target.fileno())
            target.close()
            self.abort()
            return
        relay = Relay(
            services.reactor,
            client.sock,
            target,
            self._session,
            services.closer,
            self._relay_closed,
            client.network,
            share,
        )
        request = self._request
        if via is not None and isinstance(request, Connect) and request.port == TLS_PORT:
            relay.judge(FirstAnswer(via.fault, via.proof))
        services.counters.open_relays += 1
        services.counters.relays["tcp"] += 1
        services.tallies.begin(self._session.id)
        self._transfer = relay
        self._to(_RELAYING)
        if services.record is not None:
            self._target = self._reaching(target, source_port)
            services.record(self._target)
        early, upload_limit = protocol.hand_over()
        relay.start(early, upload_limit, client_unread=self._unread, target_unread=target_unread)

    # --- datagrams -----------------------------------------------------------------------------

    def _associate(self, request: Associate, wants: Wants | None) -> None:
        """Relay datagrams, through an exit if the client wants one."""
        services = self._services
        exits = services.exits
        if self._session.limited is not None:  # the ports of datagrams are not known beforehand
            self.refuse(Failure.LIMITED)
            return
        if wants is not None and exits is None:
            self.refuse(Failure.NO_EXIT)
            return
        if not self._take(services.associations):
            self.refuse(Failure.GENERAL)
            return
        if wants is None or exits is None:
            self._open_association(request, None, None)
            return
        dial = exits.associate(wants, self._session, self._exit_associated)
        if self._state is _DIALING:  # it has not answered yet
            self._dial = dial

    def _exit_associated(
        self, outcome: socket.SocketType | Failure, _unread: bool, via: Via | None
    ) -> None:
        """Handle the outcome of an order to carry datagrams."""
        self._dial = None
        if isinstance(outcome, Failure) or via is None:
            self.refuse(outcome if isinstance(outcome, Failure) else Failure.GENERAL)
            return
        services, session, wants, request = (
            self._services,
            self._session,
            self._wants,
            self._request,
        )
        assert wants is not None  # noqa: S101 - or no exit was asked
        assert isinstance(request, Associate)  # noqa: S101 - the same
        self._via = via
        via.attached.begin(self, via.place)
        share = session.share_of(via.attached.device_id)
        share.pace = via.pace
        ports = frozenset((TLS_PORT,)) if wants.tls_only else frozenset(via.ports)
        way = ExitWay(
            services.reactor,
            services.closer,
            outcome,
            session,
            share,
            ports,
            looks_up=wants.dns_at_exit,
        )
        try:
            self._open_association(request, way, share)
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            self.fail(error)
        if self._transfer is None:  # it did not come to that
            way.abort()

    def _open_association(
        self, request: Associate, way: ExitWay | None, share: ExitShare | None
    ) -> None:
        """Open a socket for the client's datagrams, at the address that it has connected to."""
        services, protocol, sock = self._services, self._protocol, self.client.sock
        arrived_at = sock.getsockname()
        here, address = address_of(arrived_at[0]), address_of(self.client.address)
        inner = datagram_socket(here, scope=arrived_at[3] if here.version == 6 else 0)
        if inner is None:
            self.refuse(Failure.GENERAL)
            return
        protocol.succeed(reached_at(here, address, services.public_address), inner.getsockname()[1])
        if not self._send():
            inner.close()
            self.abort()
            return
        # Behind a translator a client cannot know which port will be seen, nor its own address.
        client_port = request.port if address_of(str(request.host)) == address else 0
        record, destinations = services.record, None
        if record is not None:
            self._target = self._reaching(None, 0 if self._via is None else self._via.port)
            destinations = Destinations(self._target, record, services.session_lines)
        association = Association(
            services.reactor,
            services.closer,
            services.datagrams,
            sock,
            inner,
            address,
            client_port,
            self._session,
            self._transfer_closed,
            way,
            share,
            destinations,
            services.hour,
        )
        services.counters.relays["udp"] += 1
        services.tallies.begin(self._session.id)
        self._transfer = association
        self._to(_RELAYING)
        if record is not None and self._target is not None:
            record(self._target)
        association.start()

    # --- ending --------------------------------------------------------------------------------

    def _relay_closed(self) -> None:
        """Close, because the relay has released both sockets."""
        self._services.counters.open_relays -= 1
        self._transfer_closed()

    def _transfer_closed(self) -> None:
        """Close, because the transfer is over: it has ended, or this connection has ended it."""
        is_broken = self._transfer is not None and self._transfer.is_broken
        ending = self._ending or (_RESET_BY_PEER if is_broken else _ENDED)
        self._close(ending, _BY_TRANSFER)

    def _close(self, ending: Ending, how: How) -> None:
        """Release everything, count and record the relayed bytes; only the first call counts."""
        if self._state is _CLOSED:
            return
        self._to(_CLOSED)
        services, client, session = self._services, self.client, self._session
        if self._dial is not None:
            self._note_tried(self._dial)
            self._dial.cancel()
            self._dial = None
        self._give_back()
        session.connections.discard(self)
        up, down = self.traffic
        if self._via is not None:
            self._via.attached.end(self)
        self._transfer = None
        services.counters.bytes_up += up
        services.counters.bytes_down += down
        if services.record is not None:
            self._record(services.record, up, down, ending)
        services.over(self)
        if how is _AFTER_LAST_BYTES:
            services.closer.close(client.sock, network=client.network)
        elif how is _RESET:
            services.reactor.poller.forget(client.sock.fileno())
            reset(client.sock)

    def _note_tried(self, dial: Cancellable) -> None:
        """Keep the exits of a dial that ends without a connection, for the record."""
        if isinstance(dial, ExitDial):
            self._tried = dial.tried
        elif self._wants is not None and not self._wants.direct:
            self._tried = ((UNKNOWN_EXIT, ""),)

    def _reaching(self, target: socket.SocketType | None, source_port: int) -> Reached:
        """Return the record of a target.

        Args:
            target: the socket that is connected to it; None for an association, or without one.
            source_port: the port that the target sees; 0 where it is unknown.
        """
        client, request, via = self.client, self._request, self._via
        host, port = "", 0
        addresses: tuple[str, ...] = ()
        is_name = False
        if isinstance(request, Connect):
            host, port = _host_of(request), request.port
            is_name = isinstance(request.host, str)
        exit_ = exit_address = seen_address = ""
        if via is not None:
            # As it was seen here: the exit's own statement is no evidence.
            exit_, exit_address = via.attached.device_id, text_of(via.attached.address)
            # One address is mostly the same object: Python code compares two.
            if via.address is not via.attached.address and via.address != via.attached.address:
                seen_address = text_of(via.address)
            if is_name:
                addresses = tuple([text_of(each) for each in via.targets])
        elif target is not None and is_name:
            addresses = peer_of(target)
        return Reached(
            client.number,
            self._session.id,
            client.address,
            "udp" if target is None else "tcp",
            host,
            port,
            addresses,
            source_port,
            exit_,
            exit_address,
            seen_address,
        )

    def _record(
        self,
        record: Callable[[Access | Reached | Sent], None],
        up: int,
        down: int,
        ending: Ending,
    ) -> None:
        client = self.client
        target = self._target
        if target is None:
            target = self._reaching(None, 0)
        record(
            Access(
                client.number,
                target.session_id,
                client.address,
                target.host,
                target.port,
                up,
                down,
                self._services.reactor.loop.time() - client.began,
                ending,
                target.exit,
                target.exit_address,
                self._tried,
            )
        )

    def _take(self, slots: FairSlots[str]) -> bool:
        """Take one of the slots for this connection; False when its session gets no slot."""
        if not slots.take(self._session.id):
            return False
        self._slots = slots
        return True

    def _give_back(self) -> None:
        """Free the slot, if the connection has one."""
        if self._slots is not None:
            self._slots.give(self._session.id)
            self._slots = None

    def _send(self) -> bool:
        """Send the output of the protocol; False when the socket does not take all of it now."""
        output = self._protocol.data_to_send()
        if not output:
            return True
        try:
            return _os_write(self.client.sock.fileno(), output) == len(output)
        except OSError:
            return False


def _host_of(request: Connect) -> str:
    """Return the name or the address of a target, in text."""
    host = request.host
    return host if isinstance(host, str) else text_of(host)


def peer_of(target: socket.SocketType) -> tuple[str, ...]:
    """Return the address that a socket is connected to; nothing if the target has reset it."""
    try:
        return (target.getpeername()[0],)
    except OSError:
        return ()


def reached_at(here: Address, client: Address, public: Address | None) -> Address:
    """Return the address where a client reaches this machine: the public one from outside.

    Args:
        here: the address at which the client's connection has arrived.
        client: the client's.
        public: where clients of other networks reach this machine, if that is known.
    """
    return public if public is not None and client.is_global and not here.is_global else here
