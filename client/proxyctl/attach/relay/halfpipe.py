"""One direction of a relay on Linux: reads, and writes it on, by copies or by splice(2).

Theory of operation
-------------------
Small reads are copied. When a stream turns out to be bulk, its bytes are spliced through a pipe and
never reach this process. Bytes that the sink does not take wait in
memory (`_pending`) or in a pipe (`_pipe`), never in both. The half reads nothing more meanwhile: a
slow sink slows its source down.

epoll is edge-triggered, so the half remembers unfinished work in flags:

* `_unread`: the source may have something to read. Cleared when a read found nothing, or less than
  it could take, which empties the queue (epoll(7)).
* `_hung_up`: the source has ended or is lost; then a short read is not the last. Cleared when a
  read finds nothing.
* `_urgent`: urgent data has come. Reads and splices stop at its mark, so a short one is not the
  last either, and a splice does not get past it. Never cleared.
* `_is_gone`: the source is broken, or has ended and was sent an end; see `is_stuck`.
* `_bulk`: the last read was large: the next goes through a pipe.
* `_short_source`, `_short_sink`: the sockets are fitted to a short path (`path.py`).
* `_spliceable`: cleared for good by urgent data, or where splice(2) does not take the sockets.
  Never set without os.splice, which Python has from 3.10 on.
* `_is_held`: the limit of the rate is reached, and nothing is read until a timer says so.
* `_is_scheduled`: there is a turn to come (`Poller.move`). While there is, events only set flags.

The end: a source's end of stream is passed on by a shutdown of the sink. A sink that takes no more
(`gave_up`) ends its half, and the other side's last bytes are still delivered: a peer may reset a
connection while bytes are written to it, and its last bytes still arrive. Then it is closed as it
was: by a reset, if writing has shown one (`was_reset`).
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from proxyctl.attach.network.sniff import LOOKED_AT_BYTES
from proxyctl.attach.relay.path import fit_to_path
from proxyctl.attach.relay.pipes import PIPE_BYTES, Pipe, PipePool
from proxyctl.attach.relay.poller import GONE, HUNG_UP, URGENT, Poller

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from proxyctl.attach.relay.relays import Meter

# Enough for the bytes that arrive between two turns of the loop, and a fraction of a millisecond.
READS_PER_TURN: Final = 4
SPLICES_PER_TURN: Final = 8  # of one stream in a slice (`poller.SLICE_SECONDS`)
SPLICE_FROM_BYTES: Final = 16 * 1024  # such a large read means that more is likely to come
# The largest read for a copy: malloc(3) returns larger blocks to the system each time that they are
# freed (from 64 KiB on, its overhead included).
COPY_MAX_BYTES: Final = 60 * 1024
# A page: below it the two calls and the pipe of a splice cost more than the copy that they save.
COPY_BELOW_BYTES: Final = 4 * 1024
# At once when a stream turns to bulk, and then about once in a fraction of a second at full speed:
# a path may change, and asking costs two system calls.
FIT_EVERY_BYTES: Final = 64 * 1024 * 1024

_splice: Final = getattr(os, "splice", None)
_SPLICE_FLAGS: Final = 1 | 2  # SPLICE_F_MOVE, SPLICE_F_NONBLOCK
_NOT_SPLICEABLE: Final = (errno.EINVAL, errno.ENOSYS, errno.EPERM)


class Shared(NamedTuple):
    """Objects that all relays share."""

    poller: Poller
    pipes: PipePool
    loop: asyncio.AbstractEventLoop


class Joined(Protocol):
    """The relay that a half-pipe is half of."""

    is_over: bool
    moved_at: float

    def abort(self) -> None:
        """Reset both sockets immediately."""

    def half_ended(self) -> None:
        """Handle the end of one direction."""

    def other(self, half: HalfPipe) -> HalfPipe:
        """Return the half that goes the other way."""

    def broken(self, half: HalfPipe) -> None:
        """The source of a half was reset."""


class HalfPipe:
    """One direction of a relay, from a source to a sink; see the module.

    `ended` says that nothing more will come this way: the source's stream has ended, or (`gave_up`)
    the sink takes no more, perhaps because it `was_reset`.

    Args:
        said: called once, with the first bytes from the source; None if they are not needed.
    """

    # More than 12 fields: they are one state, which every read and write touches.
    __slots__ = (
        "_bulk",
        "_fit_in",
        "_hung_up",
        "_is_gone",
        "_is_held",
        "_is_scheduled",
        "_meter",
        "_pending",
        "_pipe",
        "_relay",
        "_said",
        "_shared",
        "_short_sink",
        "_short_source",
        "_sink",
        "_sink_fd",
        "_source",
        "_source_fd",
        "_spliceable",
        "_unread",
        "_urgent",
        "ended",
        "gave_up",
        "was_reset",
    )

    def __init__(
        self,
        relay: Joined,
        shared: Shared,
        source: socket.socket,
        sink: socket.socket,
        meter: Meter,
        said: Callable[[bytes], None] | None,
    ) -> None:
        self._relay = relay
        self._shared = shared
        self._source = source
        self._sink = sink
        self._source_fd = source.fileno()
        self._sink_fd = sink.fileno()
        self._meter = meter
        self._said = said
        self._pending = b""
        self._pipe: Pipe | None = None
        self._unread = False
        self._hung_up = False
        self._is_gone = False
        self._urgent = False
        self._bulk = False
        self._fit_in = 0
        self._short_source = False
        self._short_sink = False
        self._spliceable = _splice is not None
        self._is_held = False
        self._is_scheduled = False
        self.ended = False
        self.gave_up = False
        self.was_reset = False

    def source_ready(self, events: int) -> None:
        """The source has something to read, has ended, or is broken."""
        if self.ended:
            if events & GONE:
                self._relay.broken(self)
            return
        self._unread = True
        if events & HUNG_UP:
            self._hung_up = True
        if events & URGENT:
            self._urgent = True
            self._bulk = self._spliceable = False
        if events & GONE:
            self._is_gone = True
        if self._is_waiting():
            return
        if self._bulk:
            self._resume()
        elif not self._is_scheduled:
            self._pump()

    def is_stuck(self) -> bool:
        """Return whether the source is gone, and its last bytes wait for the sink."""
        return self._is_gone and self._is_waiting()

    def sink_ready(self) -> None:
        """The sink may take more."""
        if self._pipe is not None:
            self._resume()
        elif self._pending and self._drain() and not self._is_scheduled:
            self._pump()

    def turn(self) -> None:
        """See `Mover.turn`."""
        self._is_scheduled = False
        if not self.ended and not self._relay.is_over and self._drain():
            self._pump()

    def fail(self) -> None:
        """See `Mover.fail`."""
        self._relay.abort()

    def stop(self) -> None:
        """Move nothing any more; waiting bytes are dropped."""
        self._source_fd = self._sink_fd = -1  # the sockets may be closed soon, and others opened
        self._unread = False
        self._pending = b""
        if self._pipe is not None:
            self._shared.pipes.give(self._pipe)
            self._pipe = None

    # --- reading -------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Move bytes for one turn; the rest waits for the next turn, after other streams."""
        for _ in range(SPLICES_PER_TURN if self._bulk else READS_PER_TURN):
            if not self._move():
                return
        self._resume()

    def _resume(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._shared.poller.move(self)

    def _move(self) -> bool:
        """Read once and write on; False when there is nothing more to do for now."""
        if not self._unread or self.ended or self._is_waiting():
            return False
        try:
            pipe = self._shared.pipes.take() if self._bulk else None
            return self._copy() if pipe is None else self._splice(pipe)
        except (BlockingIOError, InterruptedError):
            self._unread = self._hung_up = False
        except OSError:
            self._relay.broken(self)
        return False

    def _is_waiting(self) -> bool:
        return bool(self._pending) or self._pipe is not None or self._is_held

    def _copy(self) -> bool:
        data = os.read(self._source_fd, COPY_MAX_BYTES)
        size = len(data)
        if size == 0:
            self._end()
            return False
        if size < COPY_MAX_BYTES and not (self._hung_up or self._urgent):
            self._unread = False
        self._bulk = size >= SPLICE_FROM_BYTES and self._spliceable
        if self._said is not None:
            self._said(data[:LOOKED_AT_BYTES])
            self._said = None
        written = self._write(data)
        return self._count(size) and written and self._unread

    def _splice(self, pipe: Pipe) -> bool:
        """Move bytes through an empty pipe; False when there is nothing more to do for now."""
        assert _splice is not None  # noqa: S101 - else nothing is bulk
        if self._fit_in <= 0:
            self._fit_in = FIT_EVERY_BYTES
            self._short_source = fit_to_path(self._source, was_short=self._short_source)
            self._short_sink = fit_to_path(self._sink, was_short=self._short_sink)
        pipes = self._shared.pipes
        try:
            most = min(self._meter.most(), PIPE_BYTES)
            size = _splice(self._source_fd, pipe.write_fd, most, flags=_SPLICE_FLAGS)
        except OSError as error:
            pipes.give(pipe)
            if error.errno not in _NOT_SPLICEABLE:
                raise
            self._bulk = self._spliceable = False
            return True
        if size == 0:
            pipes.give(pipe)
            self._end()
            return False
        self._bulk = size >= COPY_BELOW_BYTES
        self._fit_in -= size
        pipe.fill = size
        self._pipe = pipe
        drained = self._drain_pipe(pipe)
        return self._count(size) and drained

    def _count(self, size: int) -> bool:
        """Count bytes that were read; return False if no more may be read now."""
        relay, loop = self._relay, self._shared.loop
        relay.moved_at = loop.time()
        seconds = self._meter.count(size)
        if relay.is_over:  # the meter may cut everything
            return False
        if seconds:
            self._is_held = True
            loop.call_later(seconds, self._go_on)
        return not self._is_held

    def _go_on(self) -> None:
        """The limit of the rate lets more through."""
        self._is_held = False
        if not self._relay.is_over and not self._is_scheduled:
            self._pump()

    # --- writing -------------------------------------------------------------------------------

    def _write(self, data: bytes) -> bool:
        """Write bytes that were read; return False if some have to wait, or the sink is gone."""
        try:
            sent = os.write(self._sink_fd, data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._give_up(error)
            return False
        if sent < len(data):
            self._pending = data[sent:]
            return False
        return True

    def _drain(self) -> bool:
        """Write the waiting bytes; False when some still wait, or the sink is gone."""
        if self._pipe is not None:
            return self._drain_pipe(self._pipe)
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._sink_fd, self._pending) :]
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._give_up(error)
            return False
        return True

    def _drain_pipe(self, pipe: Pipe) -> bool:
        """Write the bytes in the pipe; return False if some have to wait, or the sink is gone."""
        assert _splice is not None  # noqa: S101 - else there is no pipe
        try:
            while pipe.fill:
                pipe.fill -= _splice(pipe.read_fd, self._sink_fd, pipe.fill, flags=_SPLICE_FLAGS)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._give_up(error)
            return False
        self._pipe = None
        self._shared.pipes.give(pipe)
        return True

    # --- ending --------------------------------------------------------------------------------

    def _end(self) -> None:
        """Pass on the end of the source's stream; an end after a reset is not an orderly end."""
        other = self._relay.other(self)
        if other.was_reset:
            self._relay.broken(self)
            return
        self.ended = True
        if other.gave_up or not other.ended:  # otherwise the close passes on this end
            with suppress(OSError):  # the sink may be gone; its own half finds out
                self._sink.shutdown(socket.SHUT_WR)
        self._relay.half_ended()

    def _give_up(self, error: OSError) -> None:
        """Stop a half whose sink takes no more; the sink's last bytes are still delivered.

        A peer that had ended its stream before it reset answers EPIPE; then that end was in order.
        """
        self.stop()
        self.ended = self.gave_up = True
        self.was_reset = error.errno == errno.ECONNRESET
        self._relay.half_ended()
