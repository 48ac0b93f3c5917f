"""Datagrams through an exit: their way over its work connection, and their count.

Theory of operation
-------------------
A work connection is a stream. Each datagram on it stands behind a length of two bytes and the
header that a client's datagrams also have (RFC 1928, section 7): on the way out it has the
destination, on the way back the sender.

Bytes that a stream does not take would wait, and a datagram that comes late is worth less than
none. So the kernel keeps little that is not sent yet (`UNSENT_MAX_BYTES`), and so do we; of more
the oldest are dropped, as in any full queue. Dropped ones were not counted.

A datagram's payload is counted when the kernel has its first byte: from then on all of it has to
go, since the next datagram could not be found otherwise. Bytes that had not left this machine when
the connection broke are given back: `_marks` says for each datagram at which byte of the stream it
ends.

The exit is not trusted: a malformed datagram ends everything, and the bytes of the exit are counted
by the same rules as the bytes of targets here. A datagram costs the same work at any size, so a
turn of the loop has a number of them; nothing more is read while whole ones wait.
"""

import socket
from collections import deque
from typing import Final, Protocol, final

from proxyd.loop.poller import READS, WRITABLE, Watcher
from proxyd.loop.reactor import Reactor
from proxyd.metering.exit_share import ExitShare
from proxyd.metering.in_transit import InTransit
from proxyd.metering.session import LiveSession
from proxyd.relay.closing import Closer, close_with_reset, unsent
from proxyd.wire.datagram import header, unwrap
from proxyd.wire.events import Address

READ_BYTES: Final = 64 * 1024
READS_PER_TURN: Final = 4
# A millisecond or two. Four reads have 218 of 1,200 bytes, as QUIC sends them, but 21,000 without a
# payload.
DATAGRAMS_PER_TURN: Final = 256
LENGTH_BYTES: Final = 2
DATAGRAM_MAX_BYTES: Final = 65_535  # with its header: the largest value of its length
# At 20 Mbit/s a twentieth of a second: an older datagram is useless.
UNSENT_MAX_BYTES: Final = 128 * 1024
WAITING_MAX_BYTES = 128 * 1024
WAITING_OVERHEAD_BYTES: Final = 128  # memory of one datagram beside its payload
MARKS_MAX: Final = 1024  # more datagrams are rarely unsent; the way then queries the kernel

_IPPROTO_TCP: Final = socket.IPPROTO_TCP
_TCP_NOTSENT_LOWAT: Final = socket.TCP_NOTSENT_LOWAT


class Receiver(Protocol):
    """The owner of the datagrams."""

    __slots__ = ()

    def arrived(self, host: Address, port: int, payload: memoryview) -> None:
        """Take a datagram that a target has sent, according to the exit."""

    def went(self, size: int) -> None:
        """Count `size` bytes of payload as sent; a negative size counts lost bytes."""

    def lost(self) -> None:
        """Handle the loss of the exit, or its violation of the protocol."""

    def fail(self, error: BaseException) -> None:
        """Report an error in this program."""


@final
class ExitWay(Watcher, InTransit):
    """The way of one association's datagrams through an exit.

    `ports` are the only ones of targets, if there are any; `looks_up` says that names are the
    exit's to look up.

    Args:
        closer: takes over the connection when it ends in order.
        sock: the work connection, watched already; owned from here on.
        ports: the permitted ports of targets.
        looks_up: whether the exit looks names up.
    """

    # More than 12 fields: the waiting bytes, the kernel's bytes, and the received bytes of one
    # stream.
    __slots__ = (
        "_closer",
        "_is_closed",
        "_is_due",
        "_is_watching_writes",
        "_marked",
        "_marks",
        "_reactor",
        "_read",
        "_receiver",
        "_rest",
        "_session",
        "_share",
        "_sock",
        "_waiting",
        "_waiting_bytes",
        "_written",
        "looks_up",
        "ports",
    )

    def __init__(
        self,
        reactor: Reactor,
        closer: Closer,
        sock: socket.SocketType,
        session: LiveSession,
        share: ExitShare,
        ports: frozenset[int],
        *,
        looks_up: bool,
    ) -> None:
        self._reactor = reactor
        self._closer = closer
        self._sock = sock
        self._session = session
        self._share = share
        self._receiver: Receiver | None = None
        self._read = b""  # of datagrams that have not come whole yet, or wait for the next turn
        self._rest = b""  # of a datagram whose beginning the kernel has
        self._waiting: deque[tuple[bytes, int]] = deque()  # whole ones, with the payload's size
        self._waiting_bytes = 0
        self._written = 0  # bytes given to the kernel
        self._marks: deque[tuple[int, int]] = deque()  # their ends, and counted bytes
        self._marked = 0  # the sum of these bytes
        self._is_watching_writes = False
        self._is_due = False
        self._is_closed = False
        self.ports = ports
        self.looks_up = looks_up

    def start(self, receiver: Receiver) -> None:
        """Begin.

        Raises:
            OSError: the connection has broken; it is still to be closed.
        """
        self._receiver = receiver
        self._sock.setsockopt(_IPPROTO_TCP, _TCP_NOTSENT_LOWAT, UNSENT_MAX_BYTES)
        self._reactor.poller.watch(self._sock.fileno(), self)
        self._turn()  # bytes that came with the exit's answer were reported to the watcher before

    def is_in_time(self) -> bool:
        """Return whether the exit may continue now; it must not go faster than its owner allows."""
        return self._share.allowance(self) > 0

    def send(self, host: Address | str, port: int, payload: bytes | memoryview) -> None:
        """Send a datagram, or keep it for a moment; a datagram that cannot be kept is dropped."""
        size = len(payload)
        head = header(host, port)
        length = len(head) + size
        if length > DATAGRAM_MAX_BYTES:
            return
        start = length.to_bytes(LENGTH_BYTES, "big") + head
        if self._rest or self._waiting or not self._write(start, payload):
            self._keep(start + payload, size)

    def finish(self) -> None:
        """Close the connection so that everything counted still arrives."""
        if not self._close():
            return
        if self._rest:  # its missing part cannot follow
            _, size = self._marks.pop()
            self._marked -= size
            self._give_back(size)
        left = self.unsent()
        self._share.forget(self)
        self._closer.close(self._sock, payer=self._share, size=left)

    def abort(self) -> None:
        """Close the connection without delay; bytes still on this machine are given back."""
        if not self._close():
            return
        close_with_reset(self._sock)
        left = self.unsent()
        self._share.forget(self)
        self._give_back(left)
        self._reactor.poller.forget(self._sock.fileno())
        self._sock.close()

    def unsent(self) -> int:
        """See `InTransit.unsent`: of a datagram that has not left whole, all is."""
        gone = self._written - unsent(self._sock, ended=False)
        marks = self._marks
        while marks and marks[0][0] <= gone:
            self._marked -= marks.popleft()[1]
        return self._marked

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if events & WRITABLE:
            self._flush()
        if events & READS and not self._is_due:
            self._turn()

    def fail(self, error: Exception) -> None:
        """See `Watcher.fail`."""
        if self._receiver is not None:
            self._receiver.fail(error)

    def _close(self) -> bool:
        """Drop all waiting datagrams; return False if that was done before."""
        if self._is_closed:
            return False
        self._is_closed = True
        self._waiting.clear()
        self._read = b""
        return True

    def _give_back(self, size: int) -> None:
        if self._receiver is not None:
            self._receiver.went(-size)
        self._share.refund(size)

    # --- out -----------------------------------------------------------------------------------

    def _keep(self, data: bytes, size: int) -> None:
        """Keep a datagram until the kernel takes more; the oldest make room for it."""
        self._waiting.append((data, size))
        self._waiting_bytes += len(data) + WAITING_OVERHEAD_BYTES
        while self._waiting_bytes > WAITING_MAX_BYTES:
            oldest, _ = self._waiting.popleft()
            self._waiting_bytes -= len(oldest) + WAITING_OVERHEAD_BYTES
        if not self._is_watching_writes:
            self._is_watching_writes = True
            self._reactor.poller.watch_writes(self._sock.fileno())

    def _flush(self) -> None:
        """Write the waiting bytes, as far as the kernel takes them."""
        if self._rest and not self._write_rest():
            return
        while self._waiting and not self._is_closed:
            data, size = self._waiting.popleft()
            self._waiting_bytes -= len(data) + WAITING_OVERHEAD_BYTES
            if not (self._session.affords(size, self._receiver) and self.is_in_time()):
                continue  # the budget was there when it came
            head = len(data) - size
            if not self._write(data[:head], memoryview(data)[head:]):
                self._waiting.appendleft((data, size))
                self._waiting_bytes += len(data) + WAITING_OVERHEAD_BYTES
                return
            if self._rest:
                return

    def _write(self, start: bytes, payload: bytes | memoryview) -> bool:
        """Write a datagram, and count it; False when the kernel takes nothing of it now.

        The session must afford it. The last byte of the budget closes the connection.
        """
        if self._is_closed:
            return True
        try:
            sent = self._sock.sendmsg((start, payload))
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._lose()
            return True
        size = len(payload)
        total = len(start) + size
        if sent < total:
            self._rest = (start + payload)[sent:]
            if not self._is_watching_writes:
                self._is_watching_writes = True
                self._reactor.poller.watch_writes(self._sock.fileno())
        self._marks.append((self._written + total, size))
        self._marked += size
        self._written += sent
        if len(self._marks) > MARKS_MAX:
            self.unsent()
        if self._receiver is not None:
            self._receiver.went(size)
        if size:
            self._session.take(size, self._receiver)
            self._share.deliver(size, self)
        return True

    def _write_rest(self) -> bool:
        """Write the rest of a datagram; False if some of it is still unwritten."""
        try:
            sent = self._sock.send(self._rest)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._lose()
            return False
        self._written += sent
        self._rest = self._rest[sent:]
        return not self._rest

    # --- back ----------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Hand over a number of datagrams; if more may be left, continue in the next turn."""
        was_due, self._is_due = self._is_due, False
        left = DATAGRAMS_PER_TURN
        try:
            if was_due and self._read:  # perhaps whole ones, which the last turn has left
                left = self._take(self._read, left)
            for _ in range(READS_PER_TURN):
                if self._is_closed or not left:
                    break
                data = self._receive()
                if not data:
                    return
                left = self._take(self._read + data if self._read else data, left)
        except Exception as error:  # noqa: BLE001 - logged there; half an association helps nobody
            self.fail(error)
            return
        if not self._is_closed:
            self._is_due = True
            self._reactor.loop.call_soon(self._turn)

    def _receive(self) -> bytes:
        """Read once; return nothing if there is nothing to read, or the exit is lost."""
        try:
            data = self._sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            data = b""
        if not data:
            self._lose()
        return data

    def _take(self, data: bytes, most: int) -> int:
        """Hand over datagrams that are whole, `most` at most, and keep the rest of the bytes.

        Returns:
            The number of datagrams that may still be handed over.
        """
        view, at, end = memoryview(data), 0, len(data)
        while most and end - at >= LENGTH_BYTES:
            after = at + LENGTH_BYTES + (data[at] << 8 | data[at + 1])
            if after > end:
                break
            datagram = unwrap(view[at + LENGTH_BYTES : after])
            if datagram is None or isinstance(datagram.host, str):
                self._lose()
                return 0
            payload = datagram.payload
            assert isinstance(payload, memoryview)  # noqa: S101 - a part of one
            if self._receiver is not None:
                self._receiver.arrived(datagram.host, datagram.port, payload)
            if self._is_closed:
                return 0
            at = after
            most -= 1
        self._read = data[at:]
        return most

    def _lose(self) -> None:
        if self._receiver is not None:
            self._receiver.lost()
