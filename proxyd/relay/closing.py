"""Closes sockets so that bytes given to the kernel still arrive.

A plain close answers unread data with a reset, and a reset makes the peer lose the last bytes it
was sent. So a socket is closed in two steps: the end of stream is announced, and only when the peer
has acknowledged everything (or takes nothing more for a while) is it given up.

Theory of operation
-------------------
`Closer.close` takes a socket over, in any state, and a `_Closing` goes through these steps with it:

1. If a session has paid for bytes that may not have left this machine, it joins the payer's
   `closings`, so that a cut or a settlement finds them.
2. The end of the stream is announced (shutdown(2)), unless the close should be a reset.
3. Bytes that the peer still sends are read and dropped, up to `DISCARD_MAX_BYTES`: unread data
   turns a close into a reset.
4. It waits until the peer has acknowledged all (`TIOCOUTQ` is 0) and has ended its own stream. The
   kernel has no event for an acknowledgement, so the closer queries it at growing intervals.
5. `finish`: a plain close when all is acknowledged. Otherwise, or if a reset is wanted, SO_LINGER 0
   makes the close a reset, and the bytes that had not left this machine are refunded.

Waiting ends at the latest `patience_seconds` (`ClosingBounds`) after the peer has last acknowledged
something; where a session is used up, `used_up_seconds` after the start however it trickles,
because the session is settled only when nothing of it is on its way. A connection that is dead on
both sides (TCP_CLOSE) is finished without a wait.

Two queries find the lost bytes: the unacknowledged bytes (the peer may have them) decide how to
close, the unsent bytes (it cannot have them) are refunded.
"""

import asyncio
import fcntl
import logging
import socket
import struct
import termios
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, final

from market.base.networks import NetworkCounts
from proxyd.loop.poller import Poller, Watcher
from proxyd.metering.in_transit import Closing, Payer

FIRST_LOOK_SECONDS: Final = 0.02  # most peers have acknowledged within a round trip
LONGEST_PAUSE_SECONDS: Final = 0.5  # the intervals double up to this; asking costs two system calls
# Most bytes of a peer under way; a peer that sends more gets a reset.
DISCARD_MAX_BYTES: Final = 256 * 1024
DISCARD_CHUNK_BYTES: Final = 64 * 1024

SIOCOUTQNSD: Final = 0x894B
TCP_CLOSE: Final = 7
_RESET: Final = struct.pack("ii", 1, 0)

_logger = logging.getLogger("relay")


@dataclass(frozen=True, slots=True)
class ClosingBounds:
    """The waits for the peer of a socket that is being closed.

    Attributes:
        patience_seconds: after the last acknowledgement; several retransmissions of a peer that
            lives (tcp(7)).
        used_up_seconds: in all, where a session is used up; a reader that trickles could hold a
            bill open for ever otherwise.
    """

    patience_seconds: float = 5.0
    used_up_seconds: float = 300.0


USUAL: Final = ClosingBounds()


def unacknowledged(sock: socket.SocketType, *, ended: bool) -> int:
    """Return the number of sent bytes that the peer has not acknowledged (Linux, tcp(7)).

    Args:
        sock: a TCP socket, not closed; a connection that was reset still answers.
        ended: whether its end of stream was announced, which counts as one byte there.
    """
    return _queued(sock, termios.TIOCOUTQ, ended=ended)


def unsent(sock: socket.SocketType, *, ended: bool) -> int:
    """Return the number of bytes that never left the kernel. See `unacknowledged`."""
    return _queued(sock, SIOCOUTQNSD, ended=ended)


def is_dead(sock: socket.SocketType) -> bool:
    """Return whether a connection is over on both sides, so that nothing can arrive (tcp(7))."""
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE
    except OSError:
        return True


def close_with_reset(sock: socket.SocketType) -> None:
    """Close a socket with a reset, so that the peer sees a cut stream, not a finished one.

    The kernel may use the call to send on; query `unsent` afterwards, not before.
    """
    with suppress(OSError):  # the peer may have reset it already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def reset(sock: socket.SocketType) -> None:
    """Close a socket with a reset."""
    close_with_reset(sock)
    sock.close()


@final
class Closer:
    """Owns sockets from the decision to close them until they are closed.

    `per_network` counts the clients' sockets by network.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, poller: Poller, bounds: ClosingBounds = USUAL
    ) -> None:
        self.bounds = bounds
        self._loop = loop
        self._poller = poller
        self.per_network = NetworkCounts()
        self._closing: set[_Closing] = set()
        self._unpaid: dict[_Closing, float] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._closing)

    def close(
        self,
        sock: socket.SocketType,
        *,
        payer: Payer | None = None,
        size: int = 0,
        ended: bool = False,
        with_reset: bool = False,
        network: str = "",
    ) -> None:
        """Close a socket once its peer has everything.

        Args:
            sock: the socket, owned from here on.
            payer: the payer of the bytes on their way.
            size: at most how many bytes of it were paid for.
            ended: whether its end of stream was announced already.
            with_reset: end with a reset instead of the end of stream.
            network: the network whose sockets are counted, if it is a client's.
        """
        closing = _Closing(
            self,
            self._loop,
            self._poller,
            sock,
            payer,
            size,
            ended=ended,
            with_reset=with_reset,
            network=network,
        )
        self._closing.add(closing)
        self._empty.clear()
        if network:
            self.per_network.add(network)
        if payer is None:
            self._unpaid[closing] = self._loop.time()
        closing.start()

    def expire_oldest(self, seconds: float) -> bool:
        """Close the refused connection that waits longest: no session pays for it.

        Args:
            seconds: the least time that it has waited for its peer.

        Returns:
            Whether there was one.
        """
        closing = next(iter(self._unpaid), None)
        if closing is None or self._unpaid[closing] + seconds > self._loop.time():
            return False
        closing.finish()
        return True

    async def wait_closed(self) -> None:
        """Wait until every socket is closed; each has its own limit of patience."""
        await self._empty.wait()

    def close_now(self) -> None:
        """Close the remaining sockets, without waiting."""
        for closing in tuple(self._closing):
            closing.finish()

    def closed(self, closing: "_Closing") -> None:
        """Note that a socket is closed."""
        self._closing.discard(closing)
        self._unpaid.pop(closing, None)
        if closing.network:
            self.per_network.add(closing.network, -1)
        if not self._closing:
            self._empty.set()


@final
class _Closing(Watcher, Closing):
    """Socket that is being closed; see the steps above."""

    # More than 12 fields: the awaited event, its deadline, and the payer are one state of one
    # socket.
    __slots__ = (
        "_closer",
        "_deadline",
        "_discarded",
        "_ended",
        "_latest",
        "_loop",
        "_pause",
        "_payer",
        "_peer_ended",
        "_poller",
        "_reading",
        "_size",
        "_sock",
        "_timer",
        "_waiting",
        "_with_reset",
        "network",
    )

    def __init__(
        self,
        closer: Closer,
        loop: asyncio.AbstractEventLoop,
        poller: Poller,
        sock: socket.SocketType,
        payer: Payer | None,
        size: int,
        *,
        ended: bool,
        with_reset: bool,
        network: str,
    ) -> None:
        self._closer = closer
        self._loop = loop
        self._poller = poller
        self._sock = sock
        self._payer = payer
        self._size = size
        self._with_reset = with_reset
        self.network = network
        self._ended = ended
        self._peer_ended = False
        self._reading = False
        self._discarded = 0
        self._waiting = 0
        self._pause = FIRST_LOOK_SECONDS
        self._deadline = loop.time() + closer.bounds.patience_seconds
        self._latest = loop.time() + closer.bounds.used_up_seconds
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Announce the end, and watch the reaction of the peer."""
        if self._payer is not None:
            self._payer.closings.add(self)
            if waiting := self.unsent():
                self._payer.may_wait(self, waiting)
        if not self._with_reset:
            with suppress(OSError):  # the peer may be gone
                self._sock.shutdown(socket.SHUT_WR)
                self._ended = True
        self._waiting = unacknowledged(self._sock, ended=self._ended)
        self._reading = True
        self._poller.watch(self._sock.fileno(), self)
        self._discard()
        self._look()

    def unsent(self) -> int:
        """Return the number of paid bytes that have not left this machine."""
        return min(unsent(self._sock, ended=self._ended), self._size)

    def finish(self) -> None:
        """Close the socket; bytes that a reset takes from the peer are not paid for."""
        self._poller.forget(self._sock.fileno())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        cut = self._with_reset or unacknowledged(self._sock, ended=self._ended) > 0
        if cut:
            close_with_reset(self._sock)
        if self._payer is not None:
            self._payer.closings.discard(self)
            self._payer.forget(self)
            if cut:
                self._payer.refund(self.unsent())
        self._sock.close()
        self._closer.closed(self)

    def abort(self) -> None:
        """See `Closing.abort`."""
        self.finish()

    def _look(self) -> None:
        """Close if the peer has everything; if not, check again, at growing intervals."""
        self._timer = None
        waiting = unacknowledged(self._sock, ended=self._ended)
        now = self._loop.time()
        if waiting < self._waiting:
            self._waiting = waiting
            self._deadline = now + self._closer.bounds.patience_seconds
        everything = waiting == 0 and (self._peer_ended or self._with_reset or not self._reading)
        if everything or now >= self._deadline or self._holds_up(now) or is_dead(self._sock):
            self.finish()
        else:
            self._timer = self._loop.call_later(self._pause, self._look)
            self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)

    def _holds_up(self, now: float) -> bool:
        """Return whether a peer that takes a little at a time has kept a bill open too long."""
        return now >= self._latest and self._payer is not None and self._payer.is_used_up

    def ready(self, _events: int) -> None:
        """See `Watcher.ready`."""
        if self._reading and not self._discard():
            if self._timer is not None:
                self._timer.cancel()
            self._look()

    def fail(self, error: Exception) -> None:
        """See `Watcher.fail`."""
        _logger.error("closing a connection failed; it is cut", exc_info=error)
        self.finish()

    def _discard(self) -> bool:
        """Drop further bytes of the peer, up to a limit; return False if no more can come."""
        while self._discarded < DISCARD_MAX_BYTES:
            try:
                data = self._sock.recv(DISCARD_CHUNK_BYTES)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                break
            self._discarded += len(data)
            if not data:
                self._peer_ended = True
                break
        self._reading = False
        return False


def _queued(sock: socket.SocketType, question: int, *, ended: bool) -> int:
    try:
        answer = fcntl.ioctl(sock.fileno(), question, b"\0\0\0\0")
    except OSError:
        return 0
    (waiting,) = struct.unpack("i", answer)
    return max(waiting - 1, 0) if ended else int(waiting)
