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

from market.networks import counted_network
from proxyd.counters import Counters
from proxyd.egress.direct import Dial, Dialer
from proxyd.loop.deadlines import Deadlines
from proxyd.loop.fair_slots import FairSlots
from proxyd.loop.poller import GONE, HUNG_UP, READS, URGENT, Poller
from proxyd.metering.meter import Meter
from proxyd.metering.session import LiveSession
from proxyd.ops.access_log import Access
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
PASSWORD_PORT = -1

_logger = logging.getLogger("gateway")


@dataclass(slots=True)
class Shared:
    """What all connections of a gateway share.

    `public_address` is where clients of other networks reach this machine, if that is known;
    `dials` are places of connections that wait for a target, `associations` of those that relay
    datagrams; sessions compete for both. `relays` counts connections that have a target.
    `record` is told of each connection that has shown credentials, when it is over.
    """

    loop: asyncio.AbstractEventLoop
    poller: Poller
    way: Way
    closer: Closer
    handshakes: Deadlines
    meter: Meter
    dialer: Dialer
    datagrams: Datagrams
    public_address: Address | None
    forget: Callable[["ClientConnection"], None]
    counters: Counters
    dials: FairSlots
    associations: FairSlots
    record: Callable[[Access], None] | None = None
    relays: int = 0


class Transfer(Protocol):
    """What a connection has become once its handshake is over."""

    active_at: float

    @property
    def bytes_up(self) -> int:
        """Bytes delivered from the client."""

    @property
    def bytes_down(self) -> int:
        """Bytes delivered to the client."""

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
        slot: on which of the ports without passwords it came; `PASSWORD_PORT` for the other one.
        number: names it in the log.
    """

    __slots__ = (
        "_began",
        "_dial",
        "_dial_began",
        "_host",
        "_place",
        "_port",
        "_protocol",
        "_reads_on",
        "_reason",
        "_session",
        "_shared",
        "_sock",
        "_state",
        "_transfer",
        "_unread",
        "address",
        "network",
        "number",
        "slot",
    )

    def __init__(
        self,
        shared: Shared,
        sock: socket.socket,
        address: str,
        protocol: ServerProtocol,
        slot: int = PASSWORD_PORT,
        number: int = 0,
    ) -> None:
        self._shared = shared
        self._sock = sock
        self._protocol: ServerProtocol | None = protocol
        self._state = State.HANDSHAKE
        self._unread = False
        self._reads_on = False
        self._session: LiveSession | None = None
        self._dial: Dial | None = None
        self._transfer: Transfer | None = None
        self._began = shared.loop.time()
        self._dial_began = 0.0
        self._host: Address | str = ""
        self._port = 0
        self._place: FairSlots | None = None
        self._reason = ""
        self.address = address
        self.network = counted_network(address)
        self.number = number
        self.slot = slot

    def __str__(self) -> str:
        return f"{self.address} #{self.number}"

    @property
    def traffic(self) -> tuple[int, int]:
        """How many bytes it has relayed so far, from the client and to it."""
        transfer = self._transfer
        return (transfer.bytes_up, transfer.bytes_down) if transfer is not None else (0, 0)

    def start(self) -> None:
        """Begin to listen to the client, for the time that a handshake may take."""
        self._shared.handshakes.add(self)
        self._shared.poller.watch(self._sock.fileno(), self)

    def finish(self) -> None:
        """Close it so that everything already counted still arrives."""
        if self._transfer is not None:
            self._reason = "exhausted"
            self._transfer.finish()
        else:
            self._fail(Failure.NOT_ALLOWED)

    def abort(self) -> None:
        """Cut it at once, after giving back what was not delivered."""
        self._reason = self._reason or "cut"
        if self._transfer is not None:
            self._transfer.abort()
        elif self._state is not State.CLOSED:
            self._over()
            self._shared.poller.forget(self._sock.fileno())
            reset(self._sock)

    def abort_if_idle(self, since: float) -> None:
        """Cut it if it relays, and moved no byte after `since` (loop time)."""
        if self._transfer is not None and self._transfer.active_at < since:
            _logger.debug("%s: idle for too long", self)
            self._reason = "idle"
            self._transfer.abort()

    # --- handshake -----------------------------------------------------------------------------

    def ready(self, events: int) -> None:
        """Act on a change of the client's socket, before it is relayed."""
        if not events & READS:
            return
        self._unread = True
        if events & (HUNG_UP | URGENT):  # then a short read is not the last
            self._reads_on = True
        if self._state is State.HANDSHAKE:
            self._receive()
        elif events & GONE:
            self._lost("client_left", "the client has left")

    def fail(self, error: Exception) -> None:
        """Cut it because of a mistake of ours, which is logged with its traceback."""
        _logger.error("serving a client failed; it is cut", exc_info=error)
        self.abort()

    def timed_out(self) -> None:
        """The handshake took too long."""
        self._lost("timed_out", "the handshake took too long")

    def _lost(self, reason: str, words: str) -> None:
        """Cut it before it relays."""
        _logger.debug("%s: %s", self, words)
        self._shared.counters.handshake_failures[reason] += 1
        self._reason = reason
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
                self._lost("client_left", "the client has left")
                return
            if len(data) < HANDSHAKE_READ_BYTES and not self._reads_on:
                self._unread = False  # what comes next is announced (epoll(7))
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
                self._decide(
                    self._shared.meter.admit(username, password, self.network, self._decided)
                )
            case Identify():
                self._state = State.ADMISSION
                self._decide(
                    self._shared.meter.admit_address(
                        self.slot, self.address, self.network, self._decided
                    )
                )
            case Connect(host, port):
                self._state = State.DIALING
                self._start_dial(host, port)
            case Associate(host, port):
                self._state = State.DIALING
                self._associate(host, port)
            case Violation(reason):
                _logger.debug("%s: %s", self, reason)
                self._shared.counters.handshake_failures["violation"] += 1
                self._reason = "violation"
                self._close_gently()

    def _decide(self, decision: LiveSession | Refusal | None) -> None:
        """Act on a decision, unless it comes later."""
        if decision is not None:
            self._decided(decision)

    def _decided(self, decision: LiveSession | Refusal) -> None:
        try:
            self._admit(decision)
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            self.fail(error)

    def _admit(self, decision: LiveSession | Refusal) -> None:
        if self._state is not State.ADMISSION or self._protocol is None:
            return
        if isinstance(decision, Refusal):
            _logger.debug("%s: credentials refused: %s", self, decision.name)
            self._shared.counters.handshake_failures[decision.name.lower()] += 1
            self._protocol.refuse_credentials(decision)
            self._close_gently()
            return
        self._session = decision
        decision.connections.add(self)
        if self.slot == PASSWORD_PORT:
            self._shared.meter.prove(decision, self.address)
        self._protocol.accept_credentials()
        self._state = State.HANDSHAKE
        self._advance()
        self._receive()

    # --- dialing -------------------------------------------------------------------------------

    def _start_dial(self, host: Address | str, port: int) -> None:
        shared = self._shared
        shared.handshakes.discard(self)
        self._host, self._port = host, port
        if self._session is None or not self._take(shared.dials, self._session):
            self._fail(Failure.GENERAL)
            return
        self._dial_began = shared.loop.time()
        self._dial = Dial(shared.dialer, self._dialed, self._session.id)
        self._dial.start(host, port)

    def _dialed(self, outcome: socket.socket | Failure) -> None:
        dial, self._dial = self._dial, None
        self._give_back()
        self._shared.counters.dials.observe(self._shared.loop.time() - self._dial_began)
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
        relay = Relay(
            shared.way, self._sock, target, session, shared.closer, self._relayed, self.network
        )
        shared.relays += 1
        shared.counters.relays["tcp"] += 1
        self._protocol = None
        self._transfer = relay
        self._state = State.RELAYING
        early = protocol.trailing_data()
        relay.start(
            early,
            protocol.upload_limit(),
            is_upgrade=protocol.is_upgrade(),
            client_unread=self._unread,
            target_unread=target_unread,
        )

    def _relayed(self) -> None:
        self._shared.relays -= 1
        self._over()

    # --- datagrams -----------------------------------------------------------------------------

    def _associate(self, host: Address, port: int) -> None:
        """Open a socket for the client's datagrams, at the address that it has connected to."""
        shared, protocol, session = self._shared, self._protocol, self._session
        shared.handshakes.discard(self)
        if protocol is None or session is None or not self._take(shared.associations, session):
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
            shared.datagrams, self._sock, inner, client, client_port, session, self._over
        )
        shared.counters.relays["udp"] += 1
        self._protocol = None
        self._transfer = association
        self._state = State.RELAYING
        association.start()

    # --- ending --------------------------------------------------------------------------------

    def _fail(self, failure: Failure) -> None:
        """Tell the client why there is no connection, and close."""
        if self._state is State.DIALING and self._protocol is not None:
            _logger.debug("%s: no connection: %s", self, failure.name)
            self._reason = failure.name.lower()
            self._shared.counters.dial_failures[self._reason] += 1
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
            self._shared.closer.close(self._sock, network=self.network)
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
        self._give_back()
        if self._session is not None:
            self._session.connections.discard(self)
            self._account(self._session)
        self._protocol = None
        self._transfer = None
        self._shared.forget(self)

    def _take(self, places: FairSlots, session: LiveSession) -> bool:
        """Take one of the places for this connection; False when there is none for its session."""
        if not places.take(session.id):
            return False
        self._place = places
        return True

    def _give_back(self) -> None:
        """Give back the place that it has, if it has one."""
        if self._place is not None and self._session is not None:
            self._place.give(self._session.id)
            self._place = None

    def _account(self, session: LiveSession) -> None:
        """Count what it has relayed, and have it recorded if that is wanted."""
        shared, transfer = self._shared, self._transfer
        up, down = self.traffic
        shared.counters.bytes_up += up
        shared.counters.bytes_down += down
        if shared.record is not None:
            broken = isinstance(transfer, Relay) and transfer.is_broken
            reason = self._reason or ("reset" if broken else "ended")
            seconds = shared.loop.time() - self._began
            host = str(self._host)
            shared.record(
                Access(
                    self.number,
                    session.id,
                    self.address,
                    host,
                    self._port,
                    up,
                    down,
                    seconds,
                    reason,
                )
            )

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
