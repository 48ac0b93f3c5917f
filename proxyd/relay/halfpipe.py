"""One direction of a relay: reads within the session's budget, and writes the bytes on.

Theory of operation
-------------------
Small reads are copied. A read of 16 KiB or more marks the stream as bulk: from then on its bytes
are spliced through a pipe and never reach this process (splice(2)). Bytes that the sink does not
take wait in memory (`_pending`) or in a pipe (`_pipe`), never in both. Meanwhile nothing more is
read: a slow sink slows its source down.

A byte is taken from the session's budget before it is read, counted as delivered when the kernel
has it for the sink, and given back if neither will happen. Without budget the half-pipe waits for
the session to call `_resume`. Where an exit carries the bytes, its share counts delivered and
refunded bytes, and counts them at the session; and the half-pipe waits for the share where the exit
goes no faster.

epoll is edge-triggered: an event is reported once, so unfinished work has to be remembered. Six
flags do that:

* `_unread`: the source may have something to read. Set by its events; cleared when a read found
  nothing, or less than it could take, which empties the queue (epoll(7)).
* `_hung_up`: the source has ended or is lost, or may have before this half watched it. Then a short
  read is not the last, and reading goes on to the end of the stream. Set by such an event; cleared
  when a read finds nothing.
* `_urgent`: urgent data has come. Reads and splices stop at its mark, so a short one is not the
  last either. Never cleared.
* `_spliceable`: cleared for good by urgent data, or where splice(2) does not take the sockets.
* `_bulk`: the last read was large: the next goes through a pipe. Set by a large copy; cleared by a
  small splice.
* `_scheduled`: there is a turn to come (`Turns`), and no second one is requested. Set by `_resume`,
  cleared by `turn`.

Impossible combinations: `_bulk` without `_spliceable`; `_urgent` with either; `_hung_up` without
`_unread` before the end of the stream. While `_scheduled`, events only set flags, and `turn` acts
on them.

The end: the source's end of stream is passed on by a shutdown of the sink (`announced`), unless the
other half has also ended, and the close announces both ends. A sink that takes no more (`gave_up`)
ends its half; whether it was a reset (`was_reset`) decides how the other side is closed.
"""

import errno
import os
import socket
from typing import TYPE_CHECKING, Final, Protocol, final

from proxyd.loop.pipes import WIDE_PIPE_BYTES, Pipe
from proxyd.loop.poller import GONE, HUNG_UP, URGENT
from proxyd.loop.reactor import Reactor
from proxyd.loop.turns import Mover
from proxyd.metering.exit_share import ExitShare
from proxyd.metering.in_transit import InTransit
from proxyd.metering.session import LiveSession
from proxyd.relay.closing import unsent
from proxyd.relay.path import fit_to_path

if TYPE_CHECKING:
    from collections.abc import Callable

# Enough for the bytes that arrive between two turns of the loop, and only a fraction of a
# millisecond for one connection (4 x 64 KiB) before the others have theirs.
READS_PER_TURN: Final = 4
# A stream that is served a little longer keeps its ends awake and costs half (see `turns`), which
# bounds a slice by time; this bounds one stream's part of a slice.
SPLICES_PER_TURN: Final = 8
SPLICE_FROM_BYTES: Final = 16 * 1024  # a read of this size makes further ones likely
# Size of one read that is copied: a little less than the size that malloc(3) would give back to
# the system each time it is freed (from 64 KiB on, its overhead included).
COPY_MAX_BYTES: Final = 60 * 1024
# A page: below it the two calls and the pipe of a splice cost more than the copy that they save.
COPY_BELOW_BYTES: Final = 4 * 1024
# At once when a stream turns to bulk, and then about once in a fraction of a second at full speed:
# a path may change, and asking costs two system calls.
FIT_EVERY_BYTES: Final = 64 * 1024 * 1024
# Bytes that a client may send beyond the body of its request before it is cut. It must be read, or
# the close would be a reset and the answer lost; it is not paid for, so it must be bounded.
SWALLOW_MAX_BYTES: Final = 256 * 1024
# More than any stream, and `min` works on it; from 2 ** 62 on compiled arithmetic is no longer C's.
UNLIMITED: Final = 1 << 61

# Names of this module: looking them up in another costs a tenth of the call.
_os_read: Final = os.read
_os_write: Final = os.write
_SPLICE_FLAGS: Final = os.SPLICE_F_MOVE | os.SPLICE_F_NONBLOCK
_NOT_SPLICEABLE: Final = (errno.EINVAL, errno.ENOSYS, errno.EPERM)


class Owner(Protocol):
    """The relay that a half-pipe belongs to."""

    __slots__ = ()

    is_closed: bool

    def fail(self, error: Exception) -> None:
        """Cut both sides because of a fault in this program."""

    def broken(self, source: socket.SocketType) -> None:
        """Handle the reset of one side."""

    def half_ended(self) -> None:
        """Handle the end of one direction."""

    def is_last(self, half: "HalfPipe") -> bool:
        """Return whether the other direction has ended already."""

    def was_reset(self, source: socket.SocketType) -> bool:
        """Return whether writing to a side has shown that it reset the connection."""


@final
class _Nobody(Owner):
    """Owner of a half-pipe after its relay was closed: it does nothing."""

    is_closed = True

    def fail(self, error: Exception) -> None:
        """See `Owner.fail`."""

    def broken(self, source: socket.SocketType) -> None:
        """See `Owner.broken`."""

    def half_ended(self) -> None:
        """See `Owner.half_ended`."""

    def is_last(self, half: "HalfPipe") -> bool:  # noqa: ARG002 - as the protocol has it
        """See `Owner.is_last`."""
        return True

    def was_reset(self, source: socket.SocketType) -> bool:  # noqa: ARG002 - as the protocol has it
        """See `Owner.was_reset`."""
        return False


_NOBODY: Final = _Nobody()


@final
class HalfPipe(Mover, InTransit):
    """One direction of a relay, from a source to a sink.

    `ended` says that nothing more will come this way: the source's stream has ended and the sink
    knows (it was `announced`, or is when it is closed), or (`gave_up`) the sink takes no more,
    perhaps because it `was_reset`. `first` judges the first bytes. `delivered` counts bytes;
    `active_at` is when the last of them moved, or when the relay began (loop time, seconds).
    """

    # More than 12 fields: they are one state, which every read and write touches; an object for a
    # part of it would be one more hop for each byte's way.

    __slots__ = (
        "_bulk",
        "_early",
        "_fit_at",
        "_hung_up",
        "_left",
        "_owner",
        "_pending",
        "_pipe",
        "_reactor",
        "_scheduled",
        "_session",
        "_share",
        "_short_sink",
        "_short_source",
        "_sink",
        "_sink_fd",
        "_source",
        "_source_fd",
        "_spliceable",
        "_unread",
        "_urgent",
        "_watches_writes",
        "active_at",
        "announced",
        "delivered",
        "ended",
        "first",
        "gave_up",
        "was_reset",
    )

    def __init__(
        self,
        owner: Owner,
        reactor: Reactor,
        source: socket.SocketType,
        sink: socket.SocketType,
        session: LiveSession,
        share: ExitShare | None,
    ) -> None:
        self._owner: Owner = owner
        self._reactor = reactor
        self._source = source
        self._sink = sink
        self._source_fd = source.fileno()
        self._sink_fd = sink.fileno()
        self._session = session
        self._share = share
        self._early = b""
        self._left = UNLIMITED
        self._pending = b""
        self._pipe: Pipe | None = None
        self._unread = False
        self._hung_up = False
        self._urgent = False
        self._scheduled = False
        self._bulk = False
        self._spliceable = True
        self._fit_at = 0
        self._short_source = False
        self._short_sink = False
        self._watches_writes = False
        self.active_at = reactor.loop.time()
        self.announced = False
        self.delivered = 0
        self.ended = False
        self.first: Callable[[bytes], bool] | None = None
        self.gave_up = False
        self.was_reset = False

    @property
    def refundable(self) -> int:
        """The bytes that may still be given back: none once the sink takes no more."""
        return 0 if self.gave_up else self.delivered

    @property
    def has_to_write(self) -> bool:
        """Whether bytes wait until the sink takes more."""
        return len(self._pending) > 0 or self._pipe is not None

    @property
    def has_read_all(self) -> bool:
        """Whether it waits for nothing but further bytes of its source, a few at a time."""
        is_busy = self._unread or self._scheduled or self._bulk or self.ended
        return not (is_busy or self.has_to_write)

    def start(self, early: bytes, limit: int | None, *, unread: bool) -> None:
        """Begin.

        Args:
            early: bytes already read from the source, and not yet taken from the budget.
            limit: how many bytes may follow it; None for any number. More is read and dropped.
            unread: whether the source may have something to read now.
        """
        self._early = early
        # The end may have been reported to the watcher before us; it is not reported twice.
        self._unread = self._hung_up = unread
        if limit is not None:
            self._left = limit
        if early or unread:
            self._pump()

    def leave(self) -> None:
        """Forget the relay, which is closed: each would keep the other until a collection.

        The collector's work grows with all connections that are open, and stops the loop.
        """
        self._owner = _NOBODY

    def source_ready(self, events: int) -> None:
        """Handle an event of the source: bytes to read, its end, or a reset."""
        if self.ended:
            if events & GONE:
                self._owner.broken(self._source)
            return
        self._unread = True
        if events & HUNG_UP:
            self._hung_up = True
        if events & URGENT:  # splice stops before urgent data, and a read is short there
            self._urgent = True
            self._bulk = self._spliceable = False
        if self._pending or self._pipe is not None:
            return
        if self._bulk:
            self._resume()
        elif not self._scheduled:
            self._pump()

    def sink_ready(self) -> None:
        """Continue writing: the sink may take more."""
        if self._pipe is not None:
            self._resume()
        elif self._pending and self._drain() and not self._scheduled:
            self._pump()

    def turn(self) -> None:
        """Move the bytes that waited for their turn; see `Mover.turn`."""
        self._scheduled = False
        owner = self._owner  # `leave` replaces it, perhaps in this turn
        if self.ended or owner.is_closed:
            return
        try:
            if self._drain():
                self._pump()
        except Exception as error:  # noqa: BLE001 - logged there; half a connection helps nobody
            owner.fail(error)

    def stop(self) -> None:
        """Stop moving bytes, and give back the bytes that were taken and not written.

        Written bytes that have not left are no longer counted here: they are refunded, handed over
        to the closer of the sink, or left to the kernel.
        """
        self._source_fd = self._sink_fd = -1  # the sockets may be closed soon, and others opened
        if self._share is not None:
            self._share.stop_waiting(self._resume)
            self._share.forget(self)
        else:
            self._session.forget(self)
        self._session.stop_waiting(self._resume)
        self._unread = False
        self._early = b""
        waiting = len(self._pending)
        self._pending = b""
        if self._pipe is not None:
            waiting = self._pipe.fill
            self._reactor.pipes.give(self._pipe)
            self._pipe = None
        if waiting:
            self._session.give_back(waiting)

    def unsent(self) -> int:
        """Return the number of delivered bytes that have not left this machine."""
        return min(unsent(self._sink, ended=self.announced), self.refundable)

    def refund(self) -> None:
        """Give back the bytes that have not left this machine; the sink must still be open."""
        lost = self.unsent()
        self.delivered -= lost
        if self._share is not None:
            self._share.refund(lost)
        else:
            self._session.refund(lost)

    # --- reading -------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Move available bytes, for one turn; the rest waits, so that all streams get theirs."""
        for _ in range(SPLICES_PER_TURN if self._bulk else READS_PER_TURN):
            if not self._move():
                return
        self._resume()

    def _resume(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._reactor.turns.add(self)

    def _move(self) -> bool:
        """Read once, and write the bytes on; False when nothing is left to do for now."""
        if not (self._unread or self._early) or self.ended:
            return False
        if self._left <= 0 and not self._early:
            return self._swallow()
        allowance = self._session.allowance(self)
        share = self._share if allowance > 0 else None
        if share is not None:
            allowance = min(allowance, share.allowance(self))
        if allowance <= 0:
            self._wait(share)
            return False
        if self._early:
            return self._copy_early(allowance)
        most = min(allowance, self._left)
        try:
            pipe = self._reactor.pipes.take(wide=self._short_sink) if self._bulk else None
            return self._copy(most) if pipe is None else self._splice(pipe, most)
        except (BlockingIOError, InterruptedError):
            self._unread = self._hung_up = False
        except OSError:
            self._owner.broken(self._source)
        return False

    def _wait(self, share: ExitShare | None) -> None:
        """Wait for budget; a source that was reset meanwhile ends its relay.

        Args:
            share: the share that has refused it; None if the session has. That is not asked again:
                a moment later it may allow some, and a share without a pace knows nothing to wait
                for.
        """
        if self._hung_up and self._source.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._owner.broken(self._source)
        elif share is not None:
            share.wait(self._resume)
        else:
            self._session.wait(self._resume)

    def _copy(self, most: int) -> bool:
        """Read and write on; False when the source has no more for now.

        By os.read and os.write, because they cost a third less than the methods of a socket, and a
        piece of memory for each read is made faster than a view of one that is there.
        """
        want = min(most, COPY_MAX_BYTES)
        data = _os_read(self._source_fd, want)
        size = len(data)
        if size == 0:
            self._end()
            return False
        if size < want and not (self._hung_up or self._urgent):
            self._unread = False
        if self.first is not None and not self._is_first_right(data):
            return False
        self._bulk = size >= SPLICE_FROM_BYTES and self._spliceable
        self._left -= size
        self._session.take(size, self)
        return self._write(data) and self._unread

    def _is_first_right(self, data: bytes) -> bool:
        """Judge the first bytes: wrong ones break the relay, and are neither counted nor sent."""
        first, self.first = self.first, None
        if first is None or first(data):
            return True
        self._owner.broken(self._source)
        return False

    def _copy_early(self, allowance: int) -> bool:
        size = min(allowance, len(self._early))
        data = self._early[:size]
        if self.first is not None and not self._is_first_right(data):
            return False
        self._early = self._early[size:]
        self._session.take(size, self)
        return self._write(data)

    def _splice(self, pipe: Pipe, most: int) -> bool:
        """Move bytes through an empty pipe; False when there is nothing more to do for now."""
        source, pipes = self._source_fd, self._reactor.pipes
        want = min(most, WIDE_PIPE_BYTES)
        try:
            size = os.splice(source, pipe.write_fd, want, flags=_SPLICE_FLAGS)
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
        self._left -= size
        self._session.take(size, self)
        if self.delivered >= self._fit_at:
            self._fit_at = self.delivered + FIT_EVERY_BYTES
            self._short_source = fit_to_path(self._source, was_short=self._short_source)
            self._short_sink = fit_to_path(self._sink, was_short=self._short_sink)
        pipe.fill = size
        self._pipe = pipe
        return self._drain_pipe(pipe)

    def _swallow(self) -> bool:
        """Read and drop bytes that may not follow; they are unpaid and bounded."""
        try:
            size = self._source.recv_into(self._reactor.buffer)
        except (BlockingIOError, InterruptedError):
            self._unread = False
            return False
        except OSError:
            self._owner.broken(self._source)
            return False
        if size == 0:
            self._end()
            return False
        self._left -= size
        if self._left < -SWALLOW_MAX_BYTES:
            self._owner.broken(self._source)
            return False
        return True

    # --- writing -------------------------------------------------------------------------------

    def _write(self, data: bytes) -> bool:
        """Write taken bytes; False when some of them have to wait, or the sink is gone."""
        try:
            sent = _os_write(self._sink_fd, data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._session.give_back(len(data))
            self._give_up(error)
            return False
        if sent < len(data):
            self._pending = data[sent:]
            self._watch_writes()
        self._count(sent)
        return not self._pending and not self._owner.is_closed

    def _drain(self) -> bool:
        """Write the waiting bytes; False when some still wait, or the sink is gone."""
        if self._pipe is not None:
            return self._drain_pipe(self._pipe)
        while self._pending:
            try:
                sent = _os_write(self._sink_fd, self._pending)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError as error:
                self._give_up(error)
                return False
            self._pending = self._pending[sent:]
            self._count(sent)
        return not self._owner.is_closed

    def _drain_pipe(self, pipe: Pipe) -> bool:
        """Write the bytes in the pipe; False when some have to wait, or the sink is gone."""
        sink = self._sink_fd
        while True:
            try:
                sent = os.splice(pipe.read_fd, sink, pipe.fill, flags=_SPLICE_FLAGS)
            except (BlockingIOError, InterruptedError):
                self._watch_writes()
                return False
            except OSError as error:
                self._give_up(error)
                return False
            pipe.fill -= sent
            if pipe.fill == 0:
                self._pipe = None
                self._reactor.pipes.give(pipe)
                self._count(sent)
                return not self._owner.is_closed
            self._count(sent)

    def _watch_writes(self) -> None:
        poller = self._reactor.poller
        if not self._watches_writes or poller.is_apart(self._sink_fd):
            self._watches_writes = True
            poller.watch_writes(self._sink_fd)

    def _count(self, sent: int) -> None:
        if sent:
            self.delivered += sent
            self.active_at = self._reactor.loop.time()
            if self._share is not None:
                self._share.deliver(sent, self)
            else:
                self._session.deliver(sent, self)

    # --- ending --------------------------------------------------------------------------------

    def _end(self) -> None:
        """Pass the end of the source's stream on; one that follows a reset is no end in order."""
        if self._owner.was_reset(self._source):
            self._owner.broken(self._source)
            return
        self.ended = True
        if not self._owner.is_last(self):
            try:
                self._sink.shutdown(socket.SHUT_WR)
                self.announced = True
            except OSError:
                pass  # the sink may be gone; its own half finds out
        self._owner.half_ended()

    def _give_up(self, error: OSError) -> None:
        """Stop, because the sink takes no more; let its remaining bytes leave before it closes.

        A peer that had ended its stream before it reset answers EPIPE; then that end was in order.
        """
        self.stop()
        self.refund()
        self.ended = self.gave_up = True
        self.was_reset = error.errno == errno.ECONNRESET
        self._owner.half_ended()
