"""A client's handshake: from its first byte to its request, as an admitted session.

Theory of operation
-------------------
One `Handshake` owns the client's socket, the protocol that its first byte has chosen, and a place
among the deadlines. It is in one of five states (`TRANSITIONS` has the arrows):

* READING: the client has to say more. `ready` reads, and runs the loop below.
* PAUSED: the client has said as much as one turn of the loop reads (`READS_PER_TURN`); `_go_on`
  continues in the next turn, after all others and after the deadlines.
* ADMISSION: the meter looks the client up in the store. Nothing is read meanwhile; arriving bytes
  wait in the kernel, and the handshake remembers that some have arrived.
* HANDED_OVER: there is a session and a request, and both went to `requested`, with the socket.
* CLOSED: it was refused, has left, took too long, or was cut.

`_run` is the only loop: take the protocol's next event, send the protocol's bytes, act. With no
event left it reads and feeds, and returns when there is nothing to read, or when it has read enough
for one turn. No step calls it again: a
decision that is known at once is returned by the meter, and the same loop goes on; one that is not
comes back through `_decided`, which starts the loop anew.

epoll is edge-triggered: an event is reported once. A reader that stops early must remember that
data may be left (`_unread`). A read that fills less than it could has emptied the queue, and the
next bytes cause an event (epoll(7)); unless the peer has hung up or sent urgent data, which shorten
a read without emptying the queue, and were announced already (`_reads_on`).
"""

import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, final

from proxyd.access import ENDING_OF_REFUSAL, Ending
from proxyd.access_records import Access
from proxyd.counters import Counters
from proxyd.loop.deadlines import Deadlines, Expiring
from proxyd.loop.poller import GONE, HUNG_UP, READS, URGENT, Watcher
from proxyd.loop.reactor import Reactor
from proxyd.metering.admission import Admitter
from proxyd.metering.session import LiveSession, MeteredConnection
from proxyd.metering.tallies import Tallies
from proxyd.relay.closing import Closer, reset
from proxyd.wire.detect import detect
from proxyd.wire.events import (
    Authenticate,
    Event,
    Identify,
    Refusal,
    Request,
    ServerProtocol,
    Violation,
)
from proxyd.wire.wants import SEPARATOR, Wants, WantsError, split, wanted

# More than nearly all that clients of SOCKS5 say at once; up to 512 bytes, 33 of them its own for
# each text, Python has memory in a pool, which costs a fifth less of the read than malloc(3)'s.
READ_BYTES: Final = 512 - 33
# After a read that was filled: a head of HTTP, mostly.
LONG_READ_BYTES: Final = 4096
# Of long reads: with the first one they are more than the largest head of HTTP. A client without
# credentials that says more must not keep the loop from all others.
READS_PER_TURN: Final = 4
PASSWORD_PORT: Final = -1
# As in `relay.halfpipe`: a third less than the methods of a socket, which do the same.
_os_read: Final = os.read
_os_write: Final = os.write

_logger = logging.getLogger("gateway")


@dataclass(eq=False, slots=True)
class Client:
    """A connected client.

    `sock` does not block. `address` is in text, an IPv4 one never mapped; `network` is the key of
    its connection count. `port_index` says on which of the ports without passwords it came;
    `PASSWORD_PORT` for the other one. `number` names it in the log. `began` is loop time, seconds.
    """

    sock: socket.SocketType
    address: str
    network: str
    port_index: int
    number: int
    began: float

    # The constructor that `dataclass` writes is not compiled.
    def __init__(
        self,
        sock: socket.SocketType,
        address: str,
        network: str,
        port_index: int,
        number: int,
        began: float,
    ) -> None:
        self.sock = sock
        self.address = address
        self.network = network
        self.port_index = port_index
        self.number = number
        self.began = began

    def __str__(self) -> str:
        return f"{self.address} #{self.number}"


class HandshakeState(IntEnum):
    """State of a handshake."""

    READING = 0
    PAUSED = 1
    ADMISSION = 2
    HANDED_OVER = 3
    CLOSED = 4


TRANSITIONS: Final = {
    HandshakeState.READING: (
        HandshakeState.PAUSED,
        HandshakeState.ADMISSION,
        HandshakeState.HANDED_OVER,
        HandshakeState.CLOSED,
    ),
    HandshakeState.PAUSED: (HandshakeState.READING, HandshakeState.CLOSED),
    HandshakeState.ADMISSION: (HandshakeState.READING, HandshakeState.CLOSED),
    HandshakeState.HANDED_OVER: (),
    HandshakeState.CLOSED: (),
}


@dataclass(frozen=True, slots=True)
class HandshakeServices:
    """Objects that all handshakes of a gateway share.

    `requested` takes over a client, with its protocol (which waits for `succeed` or `fail`), its
    session, its wishes for an exit (None: directly), its request, and whether its socket may have
    more to read. `over` is called with each client that is not handed over, when it has let go of
    everything but its socket. `record` is called with each that had shown credentials by then.
    `tallies` count clients that were refused for their wishes.
    """

    reactor: Reactor
    closer: Closer
    deadlines: Deadlines["Handshake"]
    meter: Admitter
    tallies: Tallies
    counters: Counters
    requested: Callable[[Client, ServerProtocol, LiveSession, Wants | None, Request, bool], None]
    over: Callable[[Client], None]
    record: Callable[[Access], None] | None = None


# Names of this module: a lookup of an enumeration's member costs six times that (3.11).
_READING: Final = HandshakeState.READING
_PAUSED: Final = HandshakeState.PAUSED
_ADMISSION: Final = HandshakeState.ADMISSION
_HANDED_OVER: Final = HandshakeState.HANDED_OVER
_CLOSED: Final = HandshakeState.CLOSED


@final
class Handshake(Watcher, Expiring, MeteredConnection):
    """Handshake of one client until its request; a `MeteredConnection` after its admission.

    Args:
        client: whose socket is owned from here on.
    """

    __slots__ = (
        "_parameters",
        "_protocol",
        "_reads_on",
        "_services",
        "_session",
        "_state",
        "_unread",
        "_wants",
        "client",
    )

    def __init__(self, services: HandshakeServices, client: Client) -> None:
        self._services = services
        self._protocol: ServerProtocol | None = None  # until the first byte
        self._parameters = b""  # the text behind the user name
        self._session: LiveSession | None = None  # until it is admitted
        self._wants: Wants | None = None
        self._state = _READING
        self._unread = False
        self._reads_on = False
        self.client = client

    def start(self) -> None:
        """Begin to listen to the client, for the time that a handshake may take."""
        self._services.deadlines.add(self)
        self._services.reactor.poller.watch(self.client.sock.fileno(), self)

    def finish(self) -> None:
        """The session's last byte is spent: there is nothing to finish yet."""
        self.abort()

    def abort(self, ending: Ending = Ending.CUT) -> None:
        """Cut it without delay."""
        self._close(ending, after_last_bytes=False)

    def timed_out(self) -> None:
        """The handshake took too long."""
        self._lost(Ending.TIMED_OUT)

    def fail(self, error: Exception) -> None:
        """Cut the client because of a fault in this program, and log the traceback."""
        _logger.error("serving a client failed; it is cut", exc_info=error)
        self.abort()

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if not events & READS:
            return
        self._unread = True
        if events & (HUNG_UP | URGENT):
            self._reads_on = True
        if self._state is _READING:
            if self._receive(READ_BYTES):
                self._run()
        elif events & GONE:
            self._lost(Ending.CLIENT_LEFT)

    def _to(self, state: HandshakeState) -> None:
        assert state in TRANSITIONS[self._state]  # noqa: S101 - half a handshake helps nobody
        self._state = state

    # --- the loop ------------------------------------------------------------------------------

    def _run(self) -> None:
        """Act on the client's events until more bytes, or a decision of the store, are needed.

        A client that sends more than one turn reads is read again in the next turn.
        """
        protocol = self._protocol
        if protocol is None:
            return
        reads = 0
        while True:
            event = protocol.next_event()
            output = protocol.data_to_send()
            if output and not self._send(output):
                self.abort()
                return
            if event is None:
                if not self._unread:
                    return
                if reads == READS_PER_TURN:
                    self._to(_PAUSED)
                    self._services.reactor.loop.call_soon(self._go_on)
                    return
                reads += 1
                if not self._receive(LONG_READ_BYTES):
                    return
            elif not self._act(protocol, event):
                return

    def _go_on(self) -> None:
        """Continue after a pause; the client may be gone, or cut, meanwhile."""
        if self._state is not _PAUSED:
            return
        try:
            self._to(_READING)
            if self._receive(LONG_READ_BYTES):
                self._run()
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            self.fail(error)

    def _receive(self, most: int) -> bool:
        """Read, and feed the protocol; False when there is nothing to read, or the client is gone.

        The first byte chooses the protocol.
        """
        try:
            data = _os_read(self.client.sock.fileno(), most)
        except (BlockingIOError, InterruptedError):
            self._unread = False
            return False
        except OSError:
            data = b""
        if not data:
            self._lost(Ending.CLIENT_LEFT)
            return False
        if len(data) < most and not self._reads_on:
            self._unread = False
        protocol = self._protocol
        if protocol is None:
            is_required = self.client.port_index == PASSWORD_PORT
            protocol = self._protocol = detect(data[0], password_required=is_required)
        protocol.receive_data(data)
        return True

    def _act(self, protocol: ServerProtocol, event: Event) -> bool:
        """Act on an event; False when the loop has to stop."""
        client, meter = self.client, self._services.meter
        decision: LiveSession | Refusal | None
        if isinstance(event, Authenticate):
            username = event.username
            if SEPARATOR in username:
                username, self._parameters = split(username)
            decision = meter.admit(username, event.password, client.network, self._decided)
        elif isinstance(event, Identify):
            decision = meter.admit_address(
                client.port_index, client.address, client.network, self._decided
            )
        elif isinstance(event, Violation):
            _logger.debug("%s: %s", client, event.reason)
            self._refuse(Ending.VIOLATION)
            return False
        else:
            self._hand_over(protocol, event)
            return False
        if decision is None:  # `_decided` will be called with it
            self._to(_ADMISSION)
            return False
        return self._admit(protocol, decision)

    # --- admission -----------------------------------------------------------------------------

    def _decided(self, decision: LiveSession | Refusal) -> None:
        """The store has answered; the client may have left meanwhile."""
        protocol = self._protocol
        if self._state is not _ADMISSION or protocol is None:
            return
        try:
            self._to(_READING)
            if self._admit(protocol, decision):
                self._run()
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            self.fail(error)

    def _admit(self, protocol: ServerProtocol, decision: LiveSession | Refusal) -> bool:
        """Admit the client, so that it can send its request; else close it and return False.

        The wishes are judged last: only buyers learn the mistakes in their wishes.
        """
        if isinstance(decision, Refusal):
            self._refuse_credentials(protocol, decision, "")
            return False
        self._wants = decision.wants
        if self._parameters:
            try:
                self._wants = wanted(self._parameters, decision.wants)
            except WantsError as error:
                self._services.tallies.refuse(decision.id, ENDING_OF_REFUSAL[Refusal.PARAMETERS])
                self._refuse_credentials(protocol, Refusal.PARAMETERS, error.message)
                return False
        self._session = decision
        decision.connections.add(self)
        if self.client.port_index == PASSWORD_PORT:
            self._services.meter.prove(decision, self.client.address)
        protocol.accept_credentials()
        return True

    def _refuse_credentials(self, protocol: ServerProtocol, refusal: Refusal, words: str) -> None:
        _logger.debug("%s: credentials refused: %s %s", self.client, refusal.name, words)
        protocol.refuse_credentials(refusal, words)
        self._refuse(ENDING_OF_REFUSAL[refusal])

    # --- ending --------------------------------------------------------------------------------

    def _hand_over(self, protocol: ServerProtocol, request: Request) -> None:
        """Hand the client over to `requested`, which answers its request."""
        session, services = self._session, self._services
        assert session is not None  # noqa: S101 - a request that nobody pays for must not go on
        self._to(_HANDED_OVER)
        services.deadlines.discard(self)
        session.connections.discard(self)
        services.requested(self.client, protocol, session, self._wants, request, self._unread)

    def _refuse(self, ending: Ending) -> None:
        """Send the protocol's refusal to the client, and close it."""
        self._services.counters.handshake_failures[ending] += 1
        output = self._protocol.data_to_send() if self._protocol is not None else b""
        self._close(ending, after_last_bytes=not output or self._send(output))

    def _lost(self, ending: Ending) -> None:
        """Cut a client that has left, or takes too long."""
        _logger.debug("%s: the handshake is over: %s", self.client, ending)
        self._services.counters.handshake_failures[ending] += 1
        self.abort(ending)

    def _send(self, output: bytes) -> bool:
        """Send; False when the client does not take it in one call."""
        try:
            return _os_write(self.client.sock.fileno(), output) == len(output)
        except OSError:
            return False

    def _close(self, ending: Ending, *, after_last_bytes: bool) -> None:
        """Release everything, and the socket now or once the client has the bytes sent."""
        if self._state in (_HANDED_OVER, _CLOSED):
            return
        self._to(_CLOSED)
        services, client, session = self._services, self.client, self._session
        services.deadlines.discard(self)
        if session is not None:
            session.connections.discard(self)
            if services.record is not None:
                seconds = services.reactor.loop.time() - client.began
                services.record(
                    Access(client.number, session.id, client.address, "", 0, 0, 0, seconds, ending)
                )
        services.over(client)
        if after_last_bytes:
            services.closer.close(client.sock, network=client.network)
        else:
            services.reactor.poller.forget(client.sock.fileno())
            reset(client.sock)
