"""The proxy's front door: accepts clients, authorises them, dials, and hands over to the relay.

A connection is a small state machine on the event loop: no coroutine and no question to the store
is spent on one whose session is known and whose target is an address.
"""

import asyncio
import errno
import logging
import socket
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from ipaddress import ip_address

from proxyd.closing import Closer, reset
from proxyd.egress.dial import Dial
from proxyd.egress.policy import Policy
from proxyd.egress.resolve import Resolver
from proxyd.meter import LiveSession, Meter
from proxyd.relay import Buffer, Relay
from proxyd.wire.detect import Detecting
from proxyd.wire.events import (
    Address,
    Associate,
    Authenticate,
    Connect,
    Event,
    Failure,
    Refusal,
    ServerProtocol,
    Violation,
)

ACCEPTS_PER_TURN = 64
HANDSHAKE_READ_BYTES = 4096
EXHAUSTED_PAUSE_SECONDS = 0.1
IDLE_CHECKS_PER_LIMIT = 10
REFUSALS_PAUSE_SECONDS = 1.0

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_IPPROTO_TCP = socket.IPPROTO_TCP

_logger = logging.getLogger("gateway")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on connections: times in seconds, numbers of connections open at once."""

    handshake_seconds: float
    dial_seconds: float
    idle_seconds: float
    connections_per_address: int
    connections_total: int
    dials_waiting: int


class Gateway:
    """Serves one listening socket.

    Args:
        meter: knows sessions and counts their bytes.
        resolver: looks names up.
        policy: says which targets may be dialled.
        limits: bounds on connections.
    """

    def __init__(self, meter: Meter, resolver: Resolver, policy: Policy, limits: Limits) -> None:
        self.meter = meter
        self.resolver = resolver
        self.policy = policy
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.buffer = Buffer()
        self.closer = Closer(self.loop)
        self.dialing = 0
        self._connections: set[ClientConnection] = set()
        self._per_address: Counter[str] = Counter()
        self._listener: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._refused = 0
        self._refusals_told_at = -REFUSALS_PAUSE_SECONDS
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def is_listening(self) -> bool:
        """Whether new clients are accepted."""
        return self._listener is not None

    @property
    def connections(self) -> int:
        """How many clients are connected."""
        return len(self._connections)

    def start(self, listener: socket.socket) -> None:
        """Begin to accept clients on a socket that listens already; the gateway owns it now."""
        listener.setblocking(False)
        self._listener = listener
        self.loop.add_reader(listener.fileno(), self._accept)
        self._check_idle_later()

    def stop_accepting(self) -> None:
        """Accept no new client; those that are connected go on."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self.loop.remove_reader(listener.fileno())
            listener.close()
        for connection in tuple(self._connections):
            if not connection.is_relaying:
                connection.dismiss()

    async def drain(self, seconds: float) -> int:
        """Wait until every client has left, at most `seconds`; return how many have not."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._empty.wait()
                await self.closer.wait_closed()
        return self.connections

    def close(self) -> None:
        """Accept no new client, and cut whoever is left."""
        self.stop_accepting()
        for connection in tuple(self._connections):
            connection.abort()
        self.closer.close_now()
        if self._timer is not None:
            self._timer.cancel()

    def forget(self, connection: "ClientConnection") -> None:
        """A connection is over."""
        self._connections.discard(connection)
        self._per_address[connection.address] -= 1
        if self._per_address[connection.address] <= 0:
            del self._per_address[connection.address]
        if not self._connections:
            self._empty.set()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._listener is None:
                return
            try:
                sock, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._cannot_accept(error)
                return
            self._welcome(sock, peer[0])

    def _welcome(self, sock: socket.socket, address: str) -> None:
        total = len(self._connections) + len(self.closer)
        if total >= self.limits.connections_total:
            self._refuse(sock, f"{total} connections are open")
        elif self._per_address[address] >= self.limits.connections_per_address:
            self._refuse(sock, f"{address} has {self._per_address[address]} connections")
        else:
            sock.setblocking(False)
            sock.setsockopt(_IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._per_address[address] += 1
            connection = ClientConnection(self, sock, address, Detecting())
            self._connections.add(connection)
            self._empty.clear()
            connection.start()

    def _refuse(self, sock: socket.socket, reason: str) -> None:
        """Turn a client away; whoever floods us does not flood the log too."""
        reset(sock)
        self._refused += 1
        now = self.loop.time()
        if now >= self._refusals_told_at + REFUSALS_PAUSE_SECONDS:
            _logger.warning("refused %d clients, the last because %s", self._refused, reason)
            self._refused = 0
            self._refusals_told_at = now

    def _cannot_accept(self, error: OSError) -> None:
        """Leave new clients in the queue for a moment, instead of spinning on the same failure."""
        if error.errno not in _OUT_OF_RESOURCES:
            _logger.error("accepting a client failed: %s", error.strerror)
        else:
            _logger.warning("no new client for a moment: %s", error.strerror)
        if self._listener is not None:
            self.loop.remove_reader(self._listener.fileno())
            self.loop.call_later(EXHAUSTED_PAUSE_SECONDS, self._accept_again)

    def _accept_again(self) -> None:
        if self._listener is not None:
            self.loop.add_reader(self._listener.fileno(), self._accept)

    def _check_idle_later(self) -> None:
        pause = self.limits.idle_seconds / IDLE_CHECKS_PER_LIMIT
        self._timer = self.loop.call_later(pause, self._check_idle)

    def _check_idle(self) -> None:
        since = self.loop.time() - self.limits.idle_seconds
        for connection in tuple(self._connections):
            connection.abort_if_idle(since)
        self._check_idle_later()


class State(Enum):
    """Where a client connection is."""

    HANDSHAKE = auto()
    ADMISSION = auto()
    DIALING = auto()
    RELAYING = auto()
    CLOSED = auto()


class ClientConnection:
    """One client, from its first byte to its last; a `MeteredConnection`.

    Args:
        gateway: what all connections share.
        sock: the client's socket, non-blocking; owned from here on.
        address: the client's address, in text.
        protocol: what the client is expected to speak.
    """

    __slots__ = (
        "_deadline",
        "_dial",
        "_fd",
        "_gateway",
        "_protocol",
        "_reading",
        "_relay",
        "_session",
        "_sock",
        "_state",
        "address",
    )

    def __init__(
        self, gateway: Gateway, sock: socket.socket, address: str, protocol: ServerProtocol
    ) -> None:
        self._gateway = gateway
        self._sock = sock
        self._fd = sock.fileno()
        self._protocol: ServerProtocol | None = protocol
        self._state = State.HANDSHAKE
        self._reading = False
        self._session: LiveSession | None = None
        self._dial: Dial | None = None
        self._relay: Relay | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.address = address

    @property
    def is_relaying(self) -> bool:
        """Whether the handshake is over and bytes are relayed."""
        return self._state is State.RELAYING

    def start(self) -> None:
        """Begin to listen to the client, for the time that a handshake may take."""
        gateway = self._gateway
        self._deadline = gateway.loop.call_later(
            gateway.limits.handshake_seconds, self._handshake_timed_out
        )
        self._read()

    def finish(self) -> None:
        """Close it so that everything already counted still arrives."""
        if self._relay is not None:
            self._relay.finish()
        else:
            self._fail(Failure.NOT_ALLOWED)

    def abort(self) -> None:
        """Cut it at once, after giving back what was not delivered."""
        if self._relay is not None:
            self._relay.abort()
        elif self._state is not State.CLOSED:
            self._over()
            reset(self._sock)

    def dismiss(self) -> None:
        """Let it go before it relays: told, if it waits for a target."""
        self._fail(Failure.GENERAL)

    def abort_if_idle(self, since: float) -> None:
        """Cut it if it relays, and moved no byte after `since` (loop time)."""
        if self._relay is not None and self._relay.active_at < since:
            _logger.debug("%s: idle for too long", self.address)
            self._relay.abort()

    # --- handshake -----------------------------------------------------------------------------

    def _readable(self) -> None:
        try:
            self._receive()
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            self._break(error)

    def _receive(self) -> None:
        if self._state is not State.HANDSHAKE or self._protocol is None:
            self._stop_reading()
            return
        try:
            data = self._sock.recv(HANDSHAKE_READ_BYTES)
        except (BlockingIOError, InterruptedError):
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
                self._read()
                return
            self._act(event)

    def _act(self, event: Event) -> None:
        match event:
            case Authenticate(username, password):
                self._state = State.ADMISSION
                self._gateway.meter.admit(username, password, self._decided)
            case Connect(host, port):
                self._state = State.DIALING
                self._start_dial(host, port)
            case Associate():
                self._state = State.DIALING
                self._fail(Failure.COMMAND_NOT_SUPPORTED)
            case Violation(reason):
                _logger.debug("%s: %s", self.address, reason)
                self._close_gently()

    def _decided(self, decision: LiveSession | Refusal) -> None:
        try:
            self._admit(decision)
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            self._break(error)

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

    def _handshake_timed_out(self) -> None:
        _logger.debug("%s: the handshake took too long", self.address)
        self.abort()

    # --- dialing -------------------------------------------------------------------------------

    def _start_dial(self, host: Address | str, port: int) -> None:
        gateway = self._gateway
        self._cancel_deadline()
        if gateway.dialing >= gateway.limits.dials_waiting:
            self._fail(Failure.GENERAL)
            return
        gateway.dialing += 1
        self._dial = Dial(
            gateway.loop,
            gateway.resolver,
            gateway.policy,
            timeout=gateway.limits.dial_seconds,
            done=self._dialed,
        )
        self._dial.start(host, port)

    def _dialed(self, outcome: socket.socket | Failure) -> None:
        self._dial = None
        self._gateway.dialing -= 1
        try:
            self._answer(outcome)
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            self._break(error)

    def _answer(self, outcome: socket.socket | Failure) -> None:
        if isinstance(outcome, Failure):
            self._fail(outcome)
            return
        if self._protocol is None or self._session is None:
            outcome.close()
            return
        host, port = outcome.getsockname()[:2]
        self._protocol.succeed(ip_address(host.partition("%")[0]), port)
        if self._send():
            self._start_relay(self._protocol, self._session, outcome)
        else:
            outcome.close()
            self.abort()

    def _start_relay(
        self, protocol: ServerProtocol, session: LiveSession, target: socket.socket
    ) -> None:
        gateway = self._gateway
        early = protocol.trailing_data()
        if early:
            self._stop_reading()
        self._reading = False
        self._protocol = None
        self._state = State.RELAYING
        self._relay = Relay(
            gateway.loop,
            self._sock,
            target,
            session,
            gateway.buffer,
            gateway.closer,
            self._over,
        )
        self._relay.start(early)

    def _fail(self, failure: Failure) -> None:
        """Tell the client why there is no connection, and close."""
        if self._state is State.DIALING and self._protocol is not None:
            _logger.debug("%s: no connection: %s", self.address, failure.name)
            self._protocol.fail(failure)
            self._close_gently()
        else:
            self.abort()

    def _break(self, error: Exception) -> None:
        """Cut it because of a mistake of ours, which is logged with its traceback."""
        _logger.error("%s: a connection failed and is cut", self.address, exc_info=error)
        self.abort()

    # --- the end -------------------------------------------------------------------------------

    def _close_gently(self) -> None:
        """Send what is left to say, and close once the client has it."""
        if self._state is State.CLOSED:
            return
        sent = self._send()
        self._over()
        if sent:
            self._gateway.closer.close(self._sock)
        else:
            reset(self._sock)

    def _over(self) -> None:
        """Let go of everything but the socket."""
        if self._state is State.CLOSED:
            return
        self._state = State.CLOSED
        self._cancel_deadline()
        if self._relay is None:
            self._stop_reading()
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
            self._gateway.dialing -= 1
        if self._session is not None:
            self._session.connections.discard(self)
        self._protocol = None
        self._relay = None
        self._gateway.forget(self)

    def _read(self) -> None:
        if not self._reading:
            self._reading = True
            self._gateway.loop.add_reader(self._fd, self._readable)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._gateway.loop.remove_reader(self._fd)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

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
