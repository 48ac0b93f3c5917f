"""The relay: two half-pipes between a client and its target, every byte metered.

Each half takes bytes from the session's budget, reads at most that many, and writes them on; what
the sink does not take waits, and nothing more is read meanwhile. The end of one stream is passed on
while the other goes on; a reset is passed on as a reset, after what came before it.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from proxyd.closing import Closer, reset, unacknowledged
from proxyd.meter import LiveSession

BUFFER_BYTES = 256 * 1024


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
        "_loop",
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
        self._loop = loop
        self._client = client
        self._target = target
        self._session = session
        self._closer = closer
        self._closed = closed
        self._up = HalfPipe(self, loop, client, target, session, buffer)
        self._down = HalfPipe(self, loop, target, client, session, buffer)
        self.active_at = loop.time()
        self.is_closed = False

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

    def finish(self) -> None:
        """Close both sides so that everything already counted still arrives."""
        if self._release():
            self._closer.close(self._client)
            self._closer.close(self._target)
            self._closed()

    def abort(self) -> None:
        """Cut both sides at once; what they did not acknowledge goes back to the budget."""
        if self._release():
            self._up.refund()
            self._down.refund()
            reset(self._client)
            reset(self._target)
            self._closed()

    def half_ended(self) -> None:
        """One stream has ended in order; when both have, the relay is over."""
        if not (self._up.ended and self._down.ended and self._release()):
            return
        if self._up.gave_up or self._down.gave_up:
            self._closer.close(self._client)
            self._closer.close(self._target)
        else:
            self._client.close()
            self._target.close()
        self._closed()

    def broken(self, source: socket.socket) -> None:
        """One side was reset: give back what it did not get, and reset the other after the rest."""
        if not self._release():
            return
        other = self._target if source is self._client else self._client
        to_source = self._down if source is self._client else self._up
        to_source.refund()
        source.close()
        self._closer.close(other, with_reset=True)
        self._closed()

    def _release(self) -> bool:
        """Stop both halves; False when that has been done before."""
        if self.is_closed:
            return False
        self.is_closed = True
        self._up.stop()
        self._down.stop()
        return True


class HalfPipe:
    """One direction of a relay: from a source to a sink.

    `ended` says that nothing more will come this way: the source's stream has ended and the sink
    knows, or (`gave_up`) the sink takes no more. `delivered` counts bytes.
    """

    __slots__ = (
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
        self.delivered = 0
        self.ended = False
        self.gave_up = False

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

    def refund(self) -> None:
        """Give back what the sink has not acknowledged; the socket must still be open."""
        lost = min(unacknowledged(self._sink, ended=self.ended), self.delivered)
        self.delivered -= lost
        self._session.refund(lost)

    def _readable(self) -> None:
        allowance = self._session.available
        if allowance <= 0:
            self._pause_reading()
            self._session.wait(self._resume_reading)
            return
        try:
            size = self._read(allowance)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._relay.broken(self._source)
            return
        if size == 0:
            self._end()
            return
        self._session.take(size)
        self._write(self._buffer.view[:size])

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
        except OSError:
            self._session.give_back(len(data))
            self._give_up()
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
            sent = self._sink.send(self._pending)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._give_up()
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
        """Pass the end of the source's stream on."""
        self._pause_reading()
        self.ended = True
        with suppress(OSError):  # the sink may be gone; its own half finds out
            self._sink.shutdown(socket.SHUT_WR)
        self._relay.half_ended()

    def _give_up(self) -> None:
        """The sink takes no more; what it still has to say is let through before it is closed."""
        self.stop()
        self.refund()
        self.ended = self.gave_up = True
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
