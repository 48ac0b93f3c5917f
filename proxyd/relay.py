"""The relay: two half-pipes between a client and its target, every byte metered.

Each half reads at most what the session's budget has left, takes that from the budget, and writes
it on; what the sink does not take waits, and nothing more is read meanwhile. The end of one stream
is passed on while the other goes on; a reset is passed on as a reset, after what came before it.

A byte counts when the kernel has it, and is given back if the connection breaks before it has left
this machine.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from proxyd.closing import Closer, reset, unsent
from proxyd.meter import LiveSession

BUFFER_BYTES = 256 * 1024
READS_PER_TURN = 4

_logger = logging.getLogger("relay")


class Buffer:
    """The memory that every half-pipe of a loop reads into; what is read is written on at once."""

    def __init__(self, size: int = BUFFER_BYTES) -> None:
        self.bytes = bytearray(size)
        self.view = memoryview(self.bytes)


class Relay:
    """Two connected sockets, until both streams have ended or one is broken.

    The relay owns both sockets from here on.

    Args:
        loop: the event loop.
        client: the client's socket, non-blocking.
        target: the target's socket, non-blocking.
        session: whose bytes are spent.
        buffer: memory to read into, shared.
        closer: takes over sockets whose last bytes are still on their way.
        closed: called once, when the relay has let go of both sockets.
    """

    __slots__ = (
        "_client",
        "_closed",
        "_closer",
        "_down",
        "_session",
        "_target",
        "_up",
        "active_at",
        "is_closed",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: socket.socket,
        target: socket.socket,
        session: LiveSession,
        buffer: Buffer,
        closer: Closer,
        closed: Callable[[], None],
    ) -> None:
        self._client = client
        self._target = target
        self._session = session
        self._closer = closer
        self._closed = closed
        self._up = HalfPipe(self, loop, client, target, session, buffer)
        self._down = HalfPipe(self, loop, target, client, session, buffer)
        self.active_at = loop.time()
        self.is_closed = False
        session.in_transit.add(self)

    @property
    def bytes_up(self) -> int:
        """Bytes delivered from the client to the target."""
        return self._up.delivered

    @property
    def bytes_down(self) -> int:
        """Bytes delivered from the target to the client."""
        return self._down.delivered

    def start(self, early: bytes) -> None:
        """Begin; `early` is what the client sent ahead of the connection to the target."""
        self._up.start(early)
        if not self.is_closed:
            self._down.start(b"")

    def unsent(self) -> int:
        """Return how many counted bytes have not left this machine."""
        return self._up.unsent() + self._down.unsent()

    def finish(self) -> None:
        """Close both sides so that everything already counted still arrives."""
        if self._release():
            self._close_later(self._client, self._down)
            self._close_later(self._target, self._up)
            self._closed()

    def abort(self) -> None:
        """Cut both sides at once; what has not left this machine goes back to the budget."""
        if self._release():
            self._up.refund()
            self._down.refund()
            reset(self._client)
            reset(self._target)
            self._closed()

    def fail(self, error: Exception) -> None:
        """Cut both sides because of a mistake of ours, which is logged with its traceback."""
        _logger.error("a relay failed and is cut", exc_info=error)
        self.abort()

    def half_ended(self) -> None:
        """Nothing more comes one way; when the other way is over too, so is the relay."""
        if not (self._up.ended and self._down.ended and self._release()):
            return
        if self._up.gave_up or self._down.gave_up:
            self._close_later(self._client, self._down)
            self._close_later(self._target, self._up)
        else:
            self._client.close()
            self._target.close()
        self._closed()

    def was_reset(self, source: socket.socket) -> bool:
        """Say whether writing to a side has shown that it reset the connection."""
        return (self._down if source is self._client else self._up).was_reset

    def broken(self, source: socket.socket) -> None:
        """One side was reset: give back what did not leave for it; reset the other in its turn."""
        if not self._release():
            return
        if source is self._client:
            other, to_source, to_other = self._target, self._down, self._up
        else:
            other, to_source, to_other = self._client, self._up, self._down
        to_source.refund()
        source.close()
        self._close_later(other, to_other, with_reset=True)
        self._closed()

    def _close_later(
        self, sock: socket.socket, half: "HalfPipe", *, with_reset: bool = False
    ) -> None:
        self._closer.close(sock, payer=self._session, size=half.refundable, with_reset=with_reset)

    def _release(self) -> bool:
        """Stop both halves; False when that has been done before."""
        if self.is_closed:
            return False
        self.is_closed = True
        self._session.in_transit.discard(self)
        self._up.stop()
        self._down.stop()
        return True


class HalfPipe:
    """One direction of a relay: from a source to a sink.

    `ended` says that nothing more will come this way: the source's stream has ended and the sink
    knows, or (`gave_up`) the sink takes no more, perhaps because it `was_reset`. `delivered` counts
    bytes.
    """

    __slots__ = (
        "_announced",
        "_buffer",
        "_early",
        "_loop",
        "_pending",
        "_reading",
        "_relay",
        "_session",
        "_sink",
        "_sink_fd",
        "_source",
        "_source_fd",
        "_writing",
        "delivered",
        "ended",
        "gave_up",
        "was_reset",
    )

    def __init__(
        self,
        relay: Relay,
        loop: asyncio.AbstractEventLoop,
        source: socket.socket,
        sink: socket.socket,
        session: LiveSession,
        buffer: Buffer,
    ) -> None:
        self._relay = relay
        self._loop = loop
        self._source = source
        self._sink = sink
        self._source_fd = source.fileno()
        self._sink_fd = sink.fileno()
        self._session = session
        self._buffer = buffer
        self._early = b""
        self._pending = b""
        self._reading = False
        self._writing = False
        self._announced = False
        self.delivered = 0
        self.ended = False
        self.gave_up = False
        self.was_reset = False

    @property
    def refundable(self) -> int:
        """How many bytes may still be given back: none once the sink has given up on us."""
        return 0 if self.gave_up else self.delivered

    def start(self, early: bytes) -> None:
        """Begin, with bytes that were read already and not yet taken from the budget."""
        self._early = early
        if early:
            self._readable()
        else:
            self._resume_reading()

    def stop(self) -> None:
        """Watch neither socket any more; bytes that were taken and not written go back."""
        self._pause_reading()
        self._session.stop_waiting(self._resume_reading)
        if self._writing:
            self._loop.remove_writer(self._sink_fd)
            self._writing = False
        if self._pending:
            size = len(self._pending)
            self._pending = b""
            self._session.give_back(size)

    def unsent(self) -> int:
        """Return how many delivered bytes have not left this machine."""
        return min(unsent(self._sink, ended=self._announced), self.refundable)

    def refund(self) -> None:
        """Give back what has not left this machine; the sink must still be open."""
        lost = self.unsent()
        self.delivered -= lost
        self._session.refund(lost)

    def _readable(self) -> None:
        """Move what has come, and see an error that came behind it.

        The loop tells of an error once, perhaps together with data; so reading goes on until the
        socket has nothing, or is watched anew for its next turn.
        """
        try:
            for _ in range(READS_PER_TURN):
                if not self._move():
                    return
            if self._reading:
                self._loop.remove_reader(self._source_fd)
                self._loop.add_reader(self._source_fd, self._readable)
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            self._relay.fail(error)

    def _move(self) -> bool:
        """Read once and write on; False when there is nothing more to read for now."""
        allowance = self._session.available
        if allowance <= 0:
            self._pause_reading()
            self._session.wait(self._resume_reading)
            return False
        try:
            size = self._read(allowance)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            self._relay.broken(self._source)
            return False
        if size == 0:
            self._end()
            return False
        self._session.take(size)
        self._write(self._buffer.view[:size])
        return self._reading

    def _read(self, allowance: int) -> int:
        """Read into the buffer, at most `allowance` bytes; what came early comes first."""
        if not self._early:
            buffer = self._buffer.bytes
            return self._source.recv_into(buffer, min(allowance, len(buffer)))
        size = min(allowance, len(self._early), len(self._buffer.bytes))
        self._buffer.view[:size] = self._early[:size]
        self._early = self._early[size:]
        return size

    def _write(self, data: memoryview) -> None:
        try:
            sent = self._sink.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._session.give_back(len(data))
            self._give_up(error)
            return
        if sent < len(data):
            self._pending = bytes(data[sent:])
            self._pause_reading()
            self._loop.add_writer(self._sink_fd, self._writable)
            self._writing = True
        elif not self._reading:
            self._resume_reading()
        self._count(sent)

    def _writable(self) -> None:
        try:
            self._write_pending()
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            self._relay.fail(error)

    def _write_pending(self) -> None:
        try:
            sent = self._sink.send(self._pending)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._give_up(error)
            return
        self._pending = self._pending[sent:]
        if not self._pending:
            self._loop.remove_writer(self._sink_fd)
            self._writing = False
            self._resume_reading()
        self._count(sent)

    def _count(self, sent: int) -> None:
        if sent:
            self.delivered += sent
            self._relay.active_at = self._loop.time()
            self._session.deliver(sent)

    def _end(self) -> None:
        """Pass the end of the source's stream on; one that follows a reset is no end in order."""
        if self._relay.was_reset(self._source):
            self._relay.broken(self._source)
            return
        self._pause_reading()
        self.ended = True
        with suppress(OSError):  # the sink may be gone; its own half finds out
            self._sink.shutdown(socket.SHUT_WR)
            self._announced = True
        self._relay.half_ended()

    def _give_up(self, error: OSError) -> None:
        """The sink takes no more; what it still has to say is let through before it is closed.

        A peer that had ended its stream before it reset answers EPIPE; then that end was in order.
        """
        self.stop()
        self.refund()
        self.ended = self.gave_up = True
        self.was_reset = error.errno == errno.ECONNRESET
        self._relay.half_ended()

    def _resume_reading(self) -> None:
        if self._early:
            self._loop.call_soon(self._read_early)
        elif not self._reading and not self.ended:
            self._reading = True
            self._loop.add_reader(self._source_fd, self._readable)

    def _read_early(self) -> None:
        if not self._relay.is_closed and not self._pending:
            self._readable()

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._source_fd)
