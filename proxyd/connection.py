"""One client of the proxy, from its first byte to its last.

A small state machine on the event loop: no coroutine, no timer and no question to the store is
spent on a connection whose session is known and whose target is an address.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from proxyd.deadlines import Deadlines
from proxyd.egress.dial import Dial, Dialer
from proxyd.limits import Limits
from proxyd.meter import LiveSession, Meter
from proxyd.poller import GONE, READS, Poller
from proxyd.relay.closing import Closer, reset
from proxyd.relay.halfpipe import Way
from proxyd.relay.tcp import Relay
from proxyd.relay.udp import Association, Datagrams, datagram_socket
from proxyd.wire.events import (
    Address,
    Associate,
    Authenticate,
    Connect,
    Event,
    Failure,
    Identify,
    Refusal,
    ServerProtocol,
    Violation,
)
from proxyd.wire.hosts import address_of

HANDSHAKE_READ_BYTES = 4096
PASSWORD_SLOT = -1

_logger = logging.getLogger("gateway")


@dataclass(slots=True)
class Shared:
    """What all connections of a gateway share.

    `public_address` is where clients of other networks reach this machine, if that is known;
    `dialing` counts connections that wait for a target, `associations` those that relay datagrams.
    """

    loop: asyncio.AbstractEventLoop
    poller: Poller
    way: Way
    closer: Closer
    handshakes: Deadlines
    meter: Meter
    dialer: Dialer
    limits: Limits
    datagrams: Datagrams
    public_address: Address | None
    forget: Callable[["ClientConnection"], None]
    dialing: int = 0
    associations: int = 0


class Transfer(Protocol):
    """What a connection has become once its handshake is over."""

    active_at: float

    def finish(self) -> None:
        """Close it so that everything already counted still arrives."""

    def abort(self) -> None:
        """Cut it at once, after giving back what was not delivered."""


class State(Enum):
    """Where a client connection is."""

    HANDSHAKE = auto()
    ADMISSION = auto()
    DIALING = auto()
    RELAYING = auto()
    CLOSED = auto()


class ClientConnection:
    """One client; a `MeteredConnection` and a `Watcher`.

    Args:
        shared: what all connections share.
        sock: the client's socket, non-blocking; owned from here on.
        address: the client's address, in text; an IPv4 address is never mapped.
        protocol: what the client is expected to speak.
        slot: on which of the ports without passwords it came; `PASSWORD_SLOT` for the other one.
    """

    __slots__ = (
        "_dial",
        "_protocol",
        "_session",
        "_shared",
        "_sock",
        "_state",
        "_transfer",
        "_unread",
        "address",
        "slot",
    )

    def __init__(
        self,
        shared: Shared,
        sock: socket.socket,
        address: str,
        protocol: ServerProtocol,
        slot: int = PASSWORD_SLOT,
    ) -> None:
        self._shared = shared
        self._sock = sock
        self._protocol: ServerProtocol | None = protocol
        self._state = State.HANDSHAKE
        self._unread = False
        self._session: LiveSession | None = None
        self._dial: Dial | None = None
        self._transfer: Transfer | None = None
        self.address = address
        self.slot = slot

    def start(self) -> None:
        """Begin to listen to the client, for the time that a handshake may take."""
        self._shared.handshakes.add(self)
        self._shared.poller.watch(self._sock.fileno(), self)

    def finish(self) -> None:
        """Close it so that everything already counted still arrives."""
        if self._transfer is not None:
            self._transfer.finish()
        else:
            self._fail(Failure.NOT_ALLOWED)

    def abort(self) -> None:
        """Cut it at once, after giving back what was not delivered."""
        if self._transfer is not None:
            self._transfer.abort()
        elif self._state is not State.CLOSED:
            self._over()
            self._shared.poller.forget(self._sock.fileno())
            reset(self._sock)

    def abort_if_idle(self, since: float) -> None:
        """Cut it if it relays, and moved no byte after `since` (loop time)."""
        if self._transfer is not None and self._transfer.active_at < since:
            _logger.debug("%s: idle for too long", self.address)
            self._transfer.abort()

    # --- handshake -----------------------------------------------------------------------------

    def ready(self, events: int) -> None:
        """Act on a change of the client's socket, before it is relayed."""
        if not events & READS:
            return
        self._unread = True
        if self._state is State.HANDSHAKE:
            self._receive()
        elif events & GONE:
            _logger.debug("%s: the client has left", self.address)
            self.abort()

    def fail(self, error: Exception) -> None:
        """Cut it because of a mistake of ours, which is logged with its traceback."""
        _logger.error("serving a client failed; it is cut", exc_info=error)
        self.abort()

    def timed_out(self) -> None:
        """The handshake took too long."""
        _logger.debug("%s: the handshake took too long", self.address)
        self.abort()

    def _receive(self) -> None:
        """Read what the client says, and act on it."""
        while self._unread and self._state is State.HANDSHAKE and self._protocol is not None:
            try:
                data = self._sock.recv(HANDSHAKE_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                self._unread = False
                return
            except OSError:
                data = b""
            if not data:
                self.abort()
                return
            self._protocol.receive_data(data)
            self._advance()

    def _advance(self) -> None:
        """Act on what the client said, until it has to say more."""
        while self._state is State.HANDSHAKE and self._protocol is not None:
            event = self._protocol.next_event()
            if not self._send():
                self.abort()
                return
            if event is None:
                return
            self._act(event)

    def _act(self, event: Event) -> None:
        match event:
            case Authenticate(username, password):
                self._state = State.ADMISSION
                self._shared.meter.admit(username, password, self._decided)
            case Identify():
                self._state = State.ADMISSION
                self._shared.meter.admit_address(self.slot, self.address, self._decided)
            case Connect(host, port):
                self._state = State.DIALING
                self._start_dial(host, port)
            case Associate(host, port):
                self._state = State.DIALING
                self._associate(host, port)
            case Violation(reason):
                _logger.debug("%s: %s", self.address, reason)
                self._close_gently()

    def _decided(self, decision: LiveSession | Refusal) -> None:
        try:
            self._admit(decision)
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            self.fail(error)

    def _admit(self, decision: LiveSession | Refusal) -> None:
        if self._state is not State.ADMISSION or self._protocol is None:
            return
        if isinstance(decision, Refusal):
            _logger.debug("%s: credentials refused: %s", self.address, decision.name)
            self._protocol.refuse_credentials(decision)
            self._close_gently()
            return
        self._session = decision
        decision.connections.add(self)
        self._protocol.accept_credentials()
        self._state = State.HANDSHAKE
        self._advance()
        self._receive()

    # --- dialing -------------------------------------------------------------------------------

    def _start_dial(self, host: Address | str, port: int) -> None:
        shared = self._shared
        shared.handshakes.discard(self)
        if shared.dialing >= shared.limits.dials_waiting:
            self._fail(Failure.GENERAL)
            return
        shared.dialing += 1
        self._dial = Dial(shared.dialer, self._dialed)
        self._dial.start(host, port)

    def _dialed(self, outcome: socket.socket | Failure) -> None:
        dial, self._dial = self._dial, None
        self._shared.dialing -= 1
        try:
            self._answer(outcome, target_unread=dial is not None and dial.is_unread)
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            self.fail(error)

    def _answer(self, outcome: socket.socket | Failure, *, target_unread: bool) -> None:
        if isinstance(outcome, Failure):
            self._fail(outcome)
            return
        protocol, session = self._protocol, self._session
        if protocol is not None and session is not None:
            host, port = outcome.getsockname()[:2]
            protocol.succeed(address_of(host), port)
            if self._send():
                self._start_relay(protocol, session, outcome, target_unread=target_unread)
                return
        self._shared.poller.forget(outcome.fileno())
        outcome.close()
        self.abort()

    def _start_relay(
        self,
        protocol: ServerProtocol,
        session: LiveSession,
        target: socket.socket,
        *,
        target_unread: bool,
    ) -> None:
        shared = self._shared
        relay = Relay(shared.way, self._sock, target, session, shared.closer, self._over)
        self._protocol = None
        self._transfer = relay
        self._state = State.RELAYING
        early = protocol.trailing_data()
        relay.start(
            early,
            protocol.upload_limit(),
            client_unread=self._unread,
            target_unread=target_unread,
        )

    # --- datagrams -----------------------------------------------------------------------------

    def _associate(self, host: Address, port: int) -> None:
        """Open a socket for the client's datagrams, at the address that it has connected to."""
        shared, protocol, session = self._shared, self._protocol, self._session
        shared.handshakes.discard(self)
        if protocol is None or session is None or shared.associations >= shared.limits.associations:
            self._fail(Failure.GENERAL)
            return
        arrived_at = self._sock.getsockname()
        here, client = address_of(arrived_at[0]), address_of(self.address)
        inner = datagram_socket(here, scope=arrived_at[3] if here.version == 6 else 0)
        if inner is None:
            self._fail(Failure.GENERAL)
            return
        told = reached_at(here, client, shared.public_address)
        protocol.succeed(told, inner.getsockname()[1])
        if not self._send():
            inner.close()
            self.abort()
            return
        # Behind a translator a client cannot know which port will be seen, nor its own address.
        client_port = port if address_of(str(host)) == client else 0
        association = Association(
            shared.datagrams, self._sock, inner, client, client_port, session, self._disassociated
        )
        shared.associations += 1
        self._protocol = None
        self._transfer = association
        self._state = State.RELAYING
        association.start()

    def _disassociated(self) -> None:
        self._shared.associations -= 1
        self._over()

    # --- ending --------------------------------------------------------------------------------

    def _fail(self, failure: Failure) -> None:
        """Tell the client why there is no connection, and close."""
        if self._state is State.DIALING and self._protocol is not None:
            _logger.debug("%s: no connection: %s", self.address, failure.name)
            self._protocol.fail(failure)
            self._close_gently()
        else:
            self.abort()

    def _close_gently(self) -> None:
        """Send what is left to say, and close once the client has it."""
        if self._state is State.CLOSED:
            return
        sent = self._send()
        self._over()
        if sent:
            self._shared.closer.close(self._sock)
        else:
            self._shared.poller.forget(self._sock.fileno())
            reset(self._sock)

    def _over(self) -> None:
        """Let go of everything but the socket."""
        if self._state is State.CLOSED:
            return
        self._state = State.CLOSED
        self._shared.handshakes.discard(self)
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
            self._shared.dialing -= 1
        if self._session is not None:
            self._session.connections.discard(self)
        self._protocol = None
        self._transfer = None
        self._shared.forget(self)

    def _send(self) -> bool:
        """Send what the protocol has to say; False when the client does not take it at once."""
        if self._protocol is None:
            return False
        data = self._protocol.data_to_send()
        if not data:
            return True
        try:
            return self._sock.send(data) == len(data)
        except OSError:
            return False


def reached_at(here: Address, client: Address, public: Address | None) -> Address:
    """Return where a client finds this machine: not at an address that only we know.

    Args:
        here: the address at which the client's connection has arrived.
        client: the client's.
        public: where clients of other networks reach this machine, if that is known.
    """
    return public if public is not None and client.is_global and not here.is_global else here
