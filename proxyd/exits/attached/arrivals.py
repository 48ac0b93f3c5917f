"""Arrivals at the exits' port: control and work connections, which differ by the first byte.

A control connection begins with TLS's 0x16, and is handed to the event loop, which speaks TLS. A
work connection begins with `W` and a ticket, and stays in the proxy's own poller, where it waits
for a target and is relayed later. Until either has said enough, it is an arrival, with bounds.
"""

import logging
import socket
from dataclasses import dataclass
from struct import Struct
from typing import Final, final

from market.base.networks import NetworkCounts, counted_network, crowded
from proxyctl.protocol.frames import CALL, CALL_NUMBER_BYTES, PREFACE, WORK
from proxyd.counters import ExitCounters
from proxyd.exits.attached.controls import Controls
from proxyd.exits.attached.handshakes import Handshakes
from proxyd.exits.attached.loaner import Loaner
from proxyd.exits.attached.origins import Origins
from proxyd.exits.attached.roster import Roster
from proxyd.exits.attached.work import Work
from proxyd.limits import ExitLimits
from proxyd.loop.deadlines import Deadlines, Expiring
from proxyd.loop.poller import HUNG_UP, READS, Watcher
from proxyd.loop.reactor import Reactor, for_loop

# Of one network, for each exit that it may have: twice the connections that one exit has waiting,
# because each is replaced. Their first bytes come within a round trip.
ARRIVALS_PER_EXIT: Final = 32
# The networks of attached exits keep a quarter of all places for arrivals: strangers from elsewhere
# must not keep out the work connections of these exits.
RESERVED_DIVISOR: Final = 4
CALL_BYTES: Final = len(CALL) + CALL_NUMBER_BYTES

_TLS: Final = b"\x16"
# Carriers forget silent connections after five minutes and more; a keep-alive each minute is rarely
# lost on the way, and a connection that is no older was alive when the exit opened it.
KEEPALIVE_SECONDS: Final = 60
KEEPALIVE_PAUSE_SECONDS: Final = 10
KEEPALIVE_TRIES: Final = 3
# A ClientHello is in one record, and has one to two kilobytes with keys for the time after quanta.
HELLO_MAX_BYTES: Final = 8192
_HELLO_HEAD: Final = Struct("!BHHBBH")  # type, version and length of the record; of the message
_RECORD_HEAD_BYTES: Final = 5
_MESSAGE_HEAD_BYTES: Final = 4
_CLIENT_HELLO: Final = 1
_PREFACE_BYTES: Final = PREFACE.size
_MSG_PEEK: Final = socket.MSG_PEEK

_logger = logging.getLogger("exits")


@dataclass(frozen=True, slots=True)
class ArrivalTimes:
    """The time that a connection has for its first message.

    Attributes:
        seconds: the time for 33 bytes that come in one piece.
        room_after_seconds: a flood that keeps all slots is answered by closing the oldest; one this
            old is not slow.
    """

    seconds: float = 10.0
    room_after_seconds: float = 0.5


USUAL: Final = ArrivalTimes()


@final
class Arrivals:
    """Accepts connections, within bounds, and holds each until its kind is known.

    Args:
        counters: count the connections that are closed.
        arriving: counts arrivals by their networks; `controls` also count there.
    """

    def __init__(
        self,
        reactor: Reactor,
        limits: ExitLimits,
        counters: ExitCounters,
        roster: Roster,
        origins: Origins,
        loaner: Loaner,
        controls: Controls,
        arriving: NetworkCounts,
        work: Work,
        times: ArrivalTimes = USUAL,
    ) -> None:
        self._room_after_seconds = times.room_after_seconds
        self._reactor = reactor
        self._limits = limits
        self._counters = counters
        self._roster = roster
        self._origins = origins
        self._loaner = loaner
        self._controls = controls
        self._arriving = arriving
        self._work = work
        self._silent: Deadlines[Arrival] = Deadlines(reactor.loop, times.seconds)
        self._handshakes: Handshakes[Arrival] = Handshakes(reactor.loop, self._begin_handshake)

    def __len__(self) -> int:
        """Return the number of connections without a message, in a handshake, or not attached."""
        return len(self._silent) + len(self._handshakes) + self._controls.strangers

    def change_limits(self, limits: ExitLimits) -> None:
        """Apply other limits from now on."""
        self._limits = limits

    def close(self) -> None:
        """Close all of them and all connections under TLS; twice is harmless."""
        for arrival in tuple(self._silent):
            self.reject(arrival, "stopping")
        self._handshakes.close()
        self._controls.close()
        self._silent.close()

    def welcome(self, sock: socket.SocketType, address: str) -> str:
        """Accept a connection, or return the reason of its refusal."""
        network, limits = counted_network(address), self._limits
        most = ARRIVALS_PER_EXIT * limits.exits_per_network
        full = crowded(network, most, self._arriving)
        if full:
            self._counters.arrivals_refused["network"] += 1
            return f"{full} has {self._arriving[full]} connections that have said nothing"
        # The total is `len(self)`, in one look-up.
        if self._arriving.total >= self._places_for(network) and not self.shed(1):
            self._counters.arrivals_refused["total"] += 1
            return f"{len(self)} connections have said nothing"
        self._arriving.add(network)
        arrival = Arrival(self, sock, address, network)
        self._silent.add(arrival)
        try:
            self._reactor.poller.watch(sock.fileno(), arrival)
        except OSError as error:  # the kernel watches no more sockets
            self.forget(arrival)
            return f"it cannot be watched: {error.strerror}"
        return ""

    def _places_for(self, network: str) -> int:
        """Return the number of arrivals below which a network may add one more."""
        most = self._limits.arrivals
        return most if self._roster.per_network[network] else most - most // RESERVED_DIVISOR

    def shed(self, most: int) -> int:
        """Close connections without a whole hello, the oldest first. Return their number.

        An unfinished handshake makes room as a silent connection does.
        """
        shed = 0
        while shed < most and self._silent.expire_oldest(self._room_after_seconds):
            shed += 1
        old = self._reactor.loop.time() - self._room_after_seconds
        while shed < most and (arrival := self._handshakes.oldest(old)) is not None:
            self._cut_handshake(arrival)
            shed += 1
        while shed < most and self._controls.cut_oldest(old):
            shed += 1
        return shed

    # --- its first bytes -----------------------------------------------------------------------

    def forget(self, arrival: "Arrival") -> None:
        """Stop counting a connection: its kind is known, or it is closed."""
        self._silent.discard(arrival)
        self._arriving.add(arrival.network, -1)

    def reject(self, arrival: "Arrival", reason: str) -> None:
        """Close a connection, and count the refusal."""
        self._counters.arrivals_refused[reason] += 1
        self.forget(arrival)
        self._reactor.poller.forget(arrival.sock.fileno())
        arrival.sock.close()

    def admit(self, arrival: "Arrival", attachment: int, number: int, ticket: bytes) -> None:
        """Put a work connection with a valid ticket into the pool of its exit; reject any other."""
        attached, _ = self._roster.by_number.get(attachment, (None, None))
        if attached is None:
            attached = self._loaner.find(attachment)
        if attached is None or not attached.pool.tickets.admits(number, ticket):
            self.reject(arrival, "ticket")
            return
        try:
            attached.pool.park(number, arrival.sock)
        except OSError:
            self.reject(arrival, "broken")
        else:
            self.forget(arrival)

    def called(self, arrival: "Arrival", number: bytes) -> None:
        """Pass on a call through an exit: see `origins.py`."""
        called = self._origins.take_call(number)
        if called is None:
            self.reject(arrival, "ticket")
            return
        self.forget(arrival)
        self._reactor.poller.forget(arrival.sock.fileno())
        arrival.sock.close()
        called(arrival.address)

    # --- handshakes ----------------------------------------------------------------------------

    def secure(self, arrival: "Arrival") -> None:
        """Start TLS on the event loop, for a connection that has sent a ClientHello."""
        if self._handshakes.full_network(arrival.network, self._limits.exits_per_network):
            self.reject(arrival, "network")
            return
        self.forget(arrival)
        self._reactor.poller.release(arrival.sock.fileno())
        self._arriving.add(arrival.network)
        self._handshakes.add(arrival)

    def _begin_handshake(self, arrival: "Arrival") -> None:
        arrival.sock = sock = for_loop(arrival.sock)
        self._work.run(self._shake_hands(arrival, sock), lambda: self._drop_handshake(arrival))

    async def _shake_hands(self, arrival: "Arrival", sock: socket.socket) -> None:
        try:
            await self._controls.shake_hands(sock, arrival.address, arrival.network)
        finally:
            self._end_handshake(arrival)

    def _drop_handshake(self, arrival: "Arrival") -> None:
        """Close a connection whose handshake ends here, if the loop has not closed it."""
        self._end_handshake(arrival)
        arrival.sock.close()

    def _end_handshake(self, arrival: "Arrival") -> None:
        """Stop counting a handshake; a second call does nothing."""
        if self._handshakes.end(arrival):
            self._arriving.add(arrival.network, -1)

    def _cut_handshake(self, arrival: "Arrival") -> None:
        """End a handshake that takes long, to make room."""
        self._counters.arrivals_refused["slow"] += 1
        self._handshakes.cut(arrival)
        self._arriving.add(arrival.network, -1)


def prepare(listener: socket.socket) -> None:
    """Set the options of a listening socket that its connections inherit (Linux).

    They are those of work connections, which may wait long and then carry streams.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)  # or a byte is left out
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_PAUSE_SECONDS)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_TRIES)


def hello_size(data: bytes) -> int | None:
    """Return the size of the record that is a whole ClientHello (RFC 8446, section 4.1.2).

    Returns:
        0 while some of it is missing; None for other bytes, or for more than clients send.
    """
    if len(data) < _HELLO_HEAD.size:
        return 0
    kind, _, record, message, high, low = _HELLO_HEAD.unpack_from(data)
    size = _RECORD_HEAD_BYTES + record
    is_whole = _MESSAGE_HEAD_BYTES + (high << 16 | low) <= record
    if kind != _TLS[0] or message != _CLIENT_HELLO or not is_whole or size > HELLO_MAX_BYTES:
        return None
    return size if len(data) >= size else 0


@final
class Arrival(Watcher, Expiring):
    """A connection whose kind is not known yet.

    Args:
        sock: owned from here on.
        network: it is counted by this.
    """

    __slots__ = ("_arrivals", "_read", "address", "network", "sock")

    def __init__(
        self, arrivals: Arrivals, sock: socket.SocketType, address: str, network: str
    ) -> None:
        self._arrivals = arrivals
        self._read = b""
        self.sock = sock
        self.address = address
        self.network = network

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if not events & READS:
            return
        try:
            if not self._read and self.sock.recv(1, _MSG_PEEK) == _TLS:
                self._greet(has_ended=bool(events & HUNG_UP))
                return
            self._read += self.sock.recv(_PREFACE_BYTES - len(self._read))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._arrivals.reject(self, "broken")
            return
        if self._read[:1] == CALL:
            self._call(has_ended=bool(events & HUNG_UP))
        elif self._read[:1] != WORK or (events & HUNG_UP):
            self._arrivals.reject(self, "garbage" if self._read[:1] else "broken")
        elif len(self._read) == _PREFACE_BYTES:
            _, attachment, number, ticket = PREFACE.unpack(self._read)
            self._arrivals.admit(self, attachment, number, ticket)

    def _greet(self, *, has_ended: bool) -> None:
        """Wait for the ClientHello; before it, the connection gives way like a silent one."""
        size = hello_size(self.sock.recv(HELLO_MAX_BYTES, _MSG_PEEK))
        if size is None or (not size and has_ended):
            self._arrivals.reject(self, "tls")
        elif size:
            self._arrivals.secure(self)

    def _call(self, *, has_ended: bool) -> None:
        """Handle a call through an exit."""
        if len(self._read) == CALL_BYTES:
            self._arrivals.called(self, self._read[len(CALL) :])
        elif has_ended or len(self._read) > CALL_BYTES:
            self._arrivals.reject(self, "garbage")

    def timed_out(self) -> None:
        """Close the connection: its time is over; see `Expiring.timed_out`."""
        self._arrivals.reject(self, "slow")

    def fail(self, error: Exception) -> None:
        """Close the connection because of a fault in this program, and log the traceback."""
        _logger.error("serving an exit failed; it is cut", exc_info=error)
        self._arrivals.reject(self, "error")
