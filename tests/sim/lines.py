"""Lines between machines: bytes that arrive in order, after a while, or not at all.

The product's own code is at the ends. A daemon gets a line as a socket (`SimSocket`, watched by
`SimPoller`) or as a transport of its event loop, with no TLS in between: a line begins with an
empty ClientHello where the product expects one. A daemon that is killed ends its lines, and one
whose machine dies leaves them silent.
"""

import asyncio
import hashlib
import select
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.sim.faults import Weather
from tests.sim.loop import SimLoop, World

if TYPE_CHECKING:
    from tests.sim.process import Life, Process

# The record of a ClientHello with nothing in it.
HELLO = b"\x16\x03\x01\x00\x04\x01\x00\x00\x00"
REFUSED_SECONDS = 0.001
_ENDED = select.EPOLLIN | select.EPOLLRDHUP


class End:
    """One end of a line.

    Args:
        lines: all of them.
        loop: where its bytes are received.
        name: of its draws.
    """

    def __init__(self, lines: "Lines", loop: SimLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.peer: End | None = None
        self.received = bytearray()
        self.has_ended = False
        self.is_closed = False
        # Called when bytes have come, and when the other end is closed.
        self.changed: Callable[[], None] = lambda: None
        self._lines = lines
        self._arrives_at = 0.0
        self._sent = 0

    def send(self, data: bytes) -> None:
        """Send bytes to the other end."""
        if not self.is_closed and self.peer is not None:
            self._lines.world.at(self._when(), self.peer.arrive, data)

    def close(self) -> None:
        """Send no more, and take nothing."""
        if not self.is_closed:
            self.is_closed = True
            self._lines.ends.pop(self, None)
            if self.peer is not None:
                self._lines.world.at(self._when(), self.peer.arrive, b"")

    def arrive(self, data: bytes) -> None:
        """Bytes arrive at the machine; none are the end."""
        if not self.loop.is_dead and not self.is_closed:
            self.loop.call_soon(self._take, data)

    def _take(self, data: bytes) -> None:
        if self.is_closed or self.has_ended:
            return
        self.received += data
        self.has_ended = not data
        self.changed()

    def _when(self) -> float:
        lines = self._lines
        self._sent += 1
        now = lines.world.now
        latency = lines.weather.latency(lines.world.numbers(self.name, self._sent)[0])
        when = lines.until_heard(self.name, now) + latency
        self._arrives_at = max(self._arrives_at, when)
        return self._arrives_at


class SimSocket(socket.socket):
    """An end, as a socket that does not block; it has no descriptor of the kernel.

    Args:
        end: of a line.
        number: in the place of the descriptor.
    """

    def __init__(self, end: End, number: int) -> None:  # no socket of the kernel is opened
        self.end = end
        self.number = number

    def __hash__(self) -> int:
        return self.number

    def fileno(self) -> int:
        return -1 if self.end.is_closed else self.number

    def setblocking(self, flag: bool) -> None:
        """Nothing blocks."""

    def setsockopt(self, *_: Any) -> None:
        """There are no options."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        end = self.end
        if not end.received:
            if end.has_ended:
                return b""
            raise BlockingIOError
        data = bytes(end.received[:size])
        if not flags & socket.MSG_PEEK:
            del end.received[:size]
        return data

    def close(self) -> None:
        self.end.close()


class SimPoller:
    """A `Poller` of one process, over sockets without descriptors."""

    def __init__(self, lines: "Lines") -> None:
        self._lines = lines
        self._watchers: dict[int, Any] = {}

    def watch(self, fd: int, watcher: Any, *, writes: bool = False) -> None:
        """See `Poller.watch`."""
        self._watchers[fd] = watcher
        end = self._lines.sockets[fd].end
        end.changed = lambda: self._ready(fd)
        if end.received or end.has_ended:
            end.loop.call_soon(self._ready, fd)

    def forget(self, fd: int) -> None:
        """See `Poller.forget`."""
        self._watchers.pop(fd, None)

    def release(self, fd: int) -> None:
        """See `Poller.release`."""
        self._watchers.pop(fd, None)

    def close(self) -> None:
        """See `Poller.close`."""
        self._watchers.clear()

    def _ready(self, fd: int) -> None:
        watcher = self._watchers.get(fd)
        sock = self._lines.sockets[fd]
        if watcher is None or sock.end.is_closed:
            return
        try:
            watcher.ready(_ENDED if sock.end.has_ended else select.EPOLLIN)
        except Exception as error:
            self._lines.world.fail(f"a socket of an exit: {error!r}", error)


class _Certificate:
    """The certificate that the other side has shown."""

    def __init__(self, shown: bytes) -> None:
        self._shown = shown

    def getpeercert(self, binary_form: bool = False) -> bytes:
        """See `ssl.SSLObject.getpeercert`."""
        assert binary_form
        return self._shown


class SimTransport(asyncio.Transport):
    """An end, as a transport.

    Args:
        end: of a line.
        protocol: gets its bytes.
        shown: the certificate of the other side.
    """

    def __init__(self, end: End, protocol: Any, shown: bytes | None) -> None:
        super().__init__({} if shown is None else {"ssl_object": _Certificate(shown)})
        self._end = end
        self._protocol = protocol
        self._is_paused = False
        self._is_lost = False
        end.loop.call_soon(self._begin)

    def _begin(self) -> None:
        if not self._is_lost:
            self._protocol.connection_made(self)
            self._end.changed = self._changed
            self._changed()

    def _changed(self) -> None:
        end = self._end
        if self._is_paused or self._is_lost:
            return
        if end.received:
            data = bytes(end.received)
            end.received.clear()
            self._protocol.data_received(data)
        if end.has_ended and not self._protocol.eof_received():
            self._lose()

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._end.close()
            self._end.loop.call_soon(self._protocol.connection_lost, None)

    def write(self, data: Any) -> None:
        self._end.send(bytes(data))

    def close(self) -> None:
        self._lose()

    def abort(self) -> None:
        self._lose()

    def is_closing(self) -> bool:
        return self._is_lost

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self._end.loop.call_soon(self._changed)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol


class Unencrypted:
    """The context of TLS on lines, and the TLS of a connection: bytes pass as they are."""

    def __init__(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    @classmethod
    def wrap_bio(
        cls, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, **_: object
    ) -> "Unencrypted":
        return cls(incoming, outgoing)

    def do_handshake(self) -> None:
        """Take the bytes that stand for a handshake."""
        if self._incoming.pending < len(HELLO):
            raise ssl.SSLWantReadError
        self._incoming.read(len(HELLO))

    def read(self, size: int) -> bytes:
        data = self._incoming.read(size)
        if not data:
            raise ssl.SSLWantReadError
        return data

    def pending(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self._outgoing.write(data)

    def unwrap(self) -> None:
        """End the stream; the end of the line follows."""


class Lines:
    """All lines, and the ways to open one.

    Args:
        world: the time.
        weather: the faults.
        processes: the places of daemons.
    """

    def __init__(self, world: World, weather: Weather, processes: "list[Process]") -> None:
        self.world = world
        self.weather = weather
        self.processes = processes
        self.ends: dict[End, None] = {}
        self.sockets: dict[int, SimSocket] = {}
        # By a word of the names of lines: times without a byte, from and until.
        self.silences: list[tuple[str, float, float]] = []
        # Serves pages to sockets of the kernel, which are connected to nothing.
        self.served: dict[Any, End] = {}
        self.serve: Callable[[End, str], None] = lambda _end, _address: None
        self._opened = 0

    def until_heard(self, name: str, now: float) -> float:
        """Return when bytes of a line move that are sent now."""
        for word, begin, end in self.silences:
            if begin <= now < end and word in name:
                return end
        return now

    def pair(self, here: SimLoop, there: SimLoop, name: str) -> tuple[End, End]:
        """Return the two ends of a new line."""
        self._opened += 1
        one = End(self, here, f"line {name} {self._opened} out")
        other = End(self, there, f"line {name} {self._opened} in")
        one.peer, other.peer = other, one
        self.ends[one] = self.ends[other] = None
        return one, other

    def socket(self, end: End) -> SimSocket:
        """Return an end as a socket."""
        number = 1_000_000 + len(self.sockets)
        sock = self.sockets[number] = SimSocket(end, number)
        return sock

    def dial(self, here: SimLoop, host: str, address: str, name: str) -> End:
        """Connect to the port for devices of the daemon at a host, from an address."""
        life = next((each.serving for each in self.processes if host_of(each.number) == host), None)
        if life is None or life.port is None:
            one, _ = self.pair(here, here, name)
            self.world.after(REFUSED_SECONDS, one.arrive, b"")
            return one
        one, other = self.pair(here, life.loop, name)
        when = self.world.now + self.weather.latency(self.world.numbers(one.name)[0])
        self.world.at(when, self._arrive, life, other, address)
        return one

    def _arrive(self, life: "Life", end: End, address: str) -> None:
        def welcome() -> None:
            port = life.port
            if port is None or not life.is_serving:
                end.close()
                return
            sock = self.socket(end)
            if port.welcome(sock, address):
                sock.close()

        if not life.loop.is_dead:
            life.loop.call_soon(welcome)

    def died(self, loop: SimLoop, *, with_machine: bool) -> None:
        """A process is gone: its lines end, or nothing comes over them any more."""
        for end in [each for each in self.ends if each.loop is loop]:
            if with_machine:
                self.ends.pop(end, None)
                end.is_closed = True
            else:
                end.close()

    # --- calls of event loops --------------------------------------------------------------------

    async def open(
        self, loop: SimLoop, factory: Callable[[], Any], host: str, sock: Any, *, is_tls: bool
    ) -> tuple[SimTransport, Any]:
        """See `loop.create_connection`."""
        protocol, shown = factory(), None
        if sock is None:
            end = self.dial(loop, host, loop.name, f"{loop.name} to {host}")
            await asyncio.sleep(2 * REFUSED_SECONDS)
            if end.has_ended:
                raise ConnectionRefusedError(f"{host} refuses")
            shown = certificate_of(host) if is_tls else None
            end.send(HELLO)
        else:
            end = sock.end if isinstance(sock, SimSocket) else self.served.pop(sock)
        return SimTransport(end, protocol, shown), protocol

    async def accept(self, factory: Callable[[], Any], sock: SimSocket) -> tuple[SimTransport, Any]:
        """See `loop.connect_accepted_socket`."""
        protocol = factory()
        transport = SimTransport(sock.end, protocol, None)
        await asyncio.sleep(0)
        return transport, protocol

    async def connect(self, loop: SimLoop, sock: Any, address: str) -> None:
        """See `loop.sock_connect`: a socket of the kernel stands for one end of a line."""
        one, other = self.pair(loop, loop, f"{loop.name} to {address}")
        self.served[sock] = one
        self.serve(other, address)
        await asyncio.sleep(self.weather.latency(self.world.numbers(one.name)[0]))


def host_of(number: int) -> str:
    """Return where devices find a daemon."""
    return f"20.0.1.{number + 1}"


def certificate_of(host: str) -> bytes:
    """Return the certificate of the daemon at a host."""
    return f"certificate of {host}".encode()


def fingerprint_of(host: str) -> str:
    """Return the SHA-256 of that, in hexadecimal."""
    return hashlib.sha256(certificate_of(host)).hexdigest()
