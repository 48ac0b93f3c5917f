"""Work connections under TLS, as sockets like any other.

Theory of operation
-------------------
A relay moves bytes between sockets; a pool keeps them, and another process may be handed one. So
each work connection under TLS is joined to a pair of sockets on this machine: the event loop speaks
TLS with the exit and passes the stream on to one of the pair (`Seal`), and the other one is the
work connection.

The pair is TCP: a relay asks the kernel for facts that only TCP has, and a reset has to go through.
Under TLS the stream is in chunks (`proxyctl.protocol.secure`), so that one way may end alone; a
connection that is lost without the end of its stream is a reset.

A chunk costs work whatever its size, and a read may bring eighty thousand of one byte. So the parts
of one read are passed on in one write, and a stream whose chunks are small on average is broken
(`ChunkDebt`).

The loop does not look at a socket that has ended, or that it has stopped reading. So it is watched
beside the loop from then on: when a relay closes its socket, the connection with the exit ends,
even if bytes from the exit are still to come (`_Watch`).

TLS costs exactness: a byte counts when the pair has it. The bytes that the pair and the loop hold
then, some hundred kilobytes at most, are not given back when the exit is lost.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Final, cast, final

from proxyctl.protocol.secure import END, ChunkError, ChunkReader, chunked
from proxyd.loop.poller import GONE, Poller

WAITING_MAX_BYTES: Final = 64 * 1024  # each way, in the loop: a few TLS records
PAIR_BYTES: Final = 64 * 1024  # of each socket of the pair; the kernel doubles it

# A chunk takes about a microsecond, however few bytes it has. A read of 256 KiB in chunks of this
# size has four thousand of them, and is not held against a stream.
CHUNK_COST_BYTES: Final = 64
# 16,384 chunks of one byte, as they may come at once from a device that had to wait: ten or twenty
# milliseconds.
DEBT_MAX_BYTES: Final = 1024 * 1024
# 16,384 chunks of one byte in each second: two hundredths of a core. A terminal has some tens, and
# a fast source of small messages some thousands.
DEBT_PAID_PER_SECOND: Final = 1024 * 1024

_RESET: Final = struct.pack("ii", 1, 0)
_AT_ONCE: Final = -1  # of TCP_LINGER2: a closed socket does not wait for the end of the other side


@final
class ChunkDebt:
    """Cost of a stream's chunks, as far as neither its bytes nor the time have paid for it.

    Args:
        now: a steady clock, in seconds.
    """

    __slots__ = ("_bytes", "_now", "_paid_at")

    def __init__(self, now: Callable[[], float]) -> None:
        self._bytes = 0.0
        self._now = now
        self._paid_at = now()

    def most(self, size: int) -> int:
        """Return how many chunks may be in `size` bytes that have come now."""
        now = self._now()
        self._bytes = max(self._bytes - (now - self._paid_at) * DEBT_PAID_PER_SECOND, 0.0)
        self._paid_at = now
        return int(DEBT_MAX_BYTES - self._bytes + size) // CHUNK_COST_BYTES

    def charge(self, chunks: int, size: int) -> bool:
        """Add the cost of chunks with `size` bytes in all; return False when it is too much."""
        self._bytes = max(self._bytes + chunks * CHUNK_COST_BYTES - size, 0.0)
        return self._bytes <= DEBT_MAX_BYTES


class Seal(asyncio.Protocol):
    """One work connection under TLS, and the socket of the pair that stands for it.

    `received` and `sent` are bytes of its stream, from the exit and to it.

    Args:
        transport: speaks TLS; this is its protocol from here on.
        sock: the other socket of the pair, non-blocking; owned by the seal.
        poller: watches it when the loop does not.
        over: called once, when both are gone.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        sock: socket.socket,
        poller: Poller,
        over: Callable[["Seal"], None],
    ) -> None:
        self._transport = transport
        self._sock = sock
        self._over = over
        self._reader = ChunkReader()
        self._debt = ChunkDebt(asyncio.get_running_loop().time)
        self._side = _Side(self, _Watch(poller, sock.fileno(), self))
        self._is_lost = False
        self.received = self.sent = 0

    async def start(self) -> None:
        """Begin to pass bytes on.

        Raises:
            OSError: the pair broke.
        """
        self._transport.set_write_buffer_limits(WAITING_MAX_BYTES)
        self._transport.set_protocol(self)
        if self._transport.is_closing():
            self._is_lost = True
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: self._side, sock=self._sock)
        except BaseException:
            self._sock.close()
            self._transport.abort()
            raise
        if self._is_lost:
            self._side.reset(self._sock)

    def abort(self) -> None:
        """Cut both connections."""
        self._transport.abort()
        self._side.reset(self._sock)

    # --- from the exit -------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Pass the stream on to the relay.

        The connection is reset if the bytes are no stream, or one of too many small chunks.
        """
        had_ended = self._reader.has_ended
        most = self._debt.most(len(data))
        try:
            parts = list(islice(self._reader.receive_data(data), most + 1))
        except ChunkError:
            self.abort()
            return
        stream = b"".join(parts)
        if len(parts) > most or not self._debt.charge(len(parts), len(stream)):
            self.abort()
            return
        if stream:
            self.received += len(stream)
            self._side.write(stream)
        if self._reader.has_ended and not had_ended:
            self._side.end()
            self._close_if_ended()

    def eof_received(self) -> bool:
        """Close the connection."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - of the loop
        """Handle the loss of the exit: a reset, unless both directions had ended."""
        if self._is_lost:
            return
        self._is_lost = True
        if not (self._reader.has_ended and self._side.has_ended):
            self._side.reset(self._sock)
        if self._side.is_lost:
            self._over(self)

    def pause_writing(self) -> None:
        """Stop reading from the relay for now."""
        self._side.pause()

    def resume_writing(self) -> None:
        """Continue reading."""
        self._side.resume()

    # --- from the relay ------------------------------------------------------------------------

    def side_said(self, data: bytes) -> None:
        """Pass the relay's bytes on."""
        self.sent += len(data)
        self._write(chunked(data))

    def pause(self) -> None:
        """Stop reading from the exit, because the relay takes nothing."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Continue reading."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def side_ended(self) -> None:
        """Pass on the end of the relay's stream."""
        self._write(END)
        self._close_if_ended()

    def side_lost(self) -> None:
        """Handle the loss of the relay: a reset, unless both streams had ended."""
        if self._is_lost:
            self._over(self)
        elif self._side.has_ended:
            self._transport.close()  # in order: bytes before the end still arrive
        else:
            self._transport.abort()

    def side_gone(self) -> None:
        """The relay has closed its socket: pass on the bytes that are left in it, and finish."""
        if self._side.has_ended:
            self._side.drop()
        else:
            self._side.resume()  # it ends, or breaks; the pair bounds the bytes that are left

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def _close_if_ended(self) -> None:
        if self._reader.has_ended and self._side.has_ended:
            self._transport.close()
            self._side.close()


class _Side(asyncio.Protocol):
    """The one of the pair that a seal passes on to.

    Args:
        watch: watches it when the loop does not.
    """

    def __init__(self, seal: Seal, watch: "_Watch") -> None:
        self.has_ended = False
        self.is_lost = False
        self._seal = seal
        self._watch = watch
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's inherits from nothing
        self._transport.set_write_buffer_limits(WAITING_MAX_BYTES)

    def data_received(self, data: bytes) -> None:
        """Pass the bytes of the relay on."""
        self._seal.side_said(data)

    def eof_received(self) -> bool:
        """Pass on the end of the relay's stream; the other direction continues."""
        self.has_ended = True
        self._seal.side_ended()
        if self._watch.is_gone:
            self.drop()
        else:
            self._watch.start()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on a reset, or finish."""
        self.is_lost = True
        self._watch.stop()
        if exc is not None:
            self.has_ended = False
        self._seal.side_lost()

    def pause_writing(self) -> None:
        """Stop reading from the exit for now."""
        self._seal.pause()

    def resume_writing(self) -> None:
        """Continue reading."""
        self._seal.resume()

    def write(self, data: bytes) -> None:
        """Hand bytes of the exit to the relay."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def end(self) -> None:
        """Hand the end of the exit's stream to the relay."""
        if self._transport is not None and not self._transport.is_closing():
            with suppress(OSError):  # its socket breaks just now, and says so next
                self._transport.write_eof()

    def pause(self) -> None:
        """Stop reading, unless the stream has ended and only the present bytes are left."""
        if self._watch.is_gone:
            return
        if self._transport is not None and not self._transport.is_closing():
            self._watch.start()
            with suppress(RuntimeError):  # it has read everything already
                self._transport.pause_reading()

    def resume(self) -> None:
        """Continue reading."""
        if self._transport is not None and not self._transport.is_closing():
            with suppress(RuntimeError):
                self._transport.resume_reading()

    def close(self) -> None:
        """Close it; written bytes still arrive."""
        if self._transport is not None:
            self._transport.close()

    def drop(self) -> None:
        """Close it and drop its bytes: its other end is closed."""
        if self._transport is not None:
            self._transport.abort()

    def reset(self, sock: socket.socket) -> None:
        """Close it so that the relay sees a reset."""
        if self._transport is not None and not self.is_lost:
            reset_on_close(sock)
            self._transport.abort()


class _Watch:
    """Notices that the other end of a socket is closed.

    Args:
        fd: the socket, whose events the loop does not report; its owner closes it.
    """

    def __init__(self, poller: Poller, fd: int, seal: Seal) -> None:
        self.is_gone = False
        self._poller = poller
        self._fd = fd
        self._seal = seal
        self._is_watching = False
        self._is_over = False

    def start(self) -> None:
        """Begin; beginning twice is harmless."""
        if not (self._is_watching or self._is_over):
            try:
                self._poller.watch(self._fd, self)
            except OSError:  # the process ends, or has too many open
                self._seal.abort()
            else:
                self._is_watching = True

    def stop(self) -> None:
        """Stop watching, before the socket is closed."""
        self._is_over = True
        if self._is_watching:
            self._is_watching = False
            self._poller.release(self._fd)

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if events & GONE and self._is_watching and not self.is_gone:
            self.is_gone = True
            self._seal.side_gone()

    def fail(self, error: Exception) -> None:  # noqa: ARG002 - the poller logs none of them
        """See `Watcher.fail`."""
        self._seal.abort()


def reset_on_close(sock: socket.socket) -> None:
    """Reset the connection when the socket is closed, and drop unsent bytes; harmless twice."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Return two TCP sockets of this machine that are connected to each other, non-blocking.

    Raises:
        OSError: there is no descriptor or port, or another program connected first.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PAIR_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PAIR_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        near = socket.socket()
        try:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PAIR_BYTES)
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PAIR_BYTES)
            near.connect(listener.getsockname())  # on one machine this connects without a wait
            listener.settimeout(1.0)
            far, address = listener.accept()
        except BaseException:
            near.close()
            raise
    if address != near.getsockname():
        near.close()
        far.close()
        raise OSError("another program has connected to the port of a pair")
    for each in (near, far):
        each.setblocking(False)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, _AT_ONCE)
    return near, far
