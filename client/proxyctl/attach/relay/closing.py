"""Closes sockets so that bytes which the system has accepted still arrive (Linux).

A reset makes the other side lose the last bytes that it was sent, and a close that leaves something
unread is a reset. So the earlier bytes are delivered before a reset is sent. Bytes that a sender
still has under way to a closed socket are read and dropped.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from proxyctl.attach.relay.poller import FAILED
from proxyctl.attach.relay.relay import RESET

if TYPE_CHECKING:
    import asyncio

    from proxyctl.attach.relay.poller import Poller

# The wait since the other side's last acknowledgement: several retransmissions of one that lives
# (tcp(7)).
PATIENCE_SECONDS: Final = 5.0
FIRST_LOOK_SECONDS: Final = 0.02  # most have acknowledged within a round trip
LONGEST_PAUSE_SECONDS: Final = 0.5  # pauses are doubled up to this; each look is a system call
LEAVING_MAX_SOCKETS: Final = 64  # beyond it the oldest is closed as it is
# Most bytes of a sender on their way to a closed socket.
DISCARDED_MAX_BYTES: Final = 256 * 1024
DISCARD_CHUNK_BYTES: Final = 60 * 1024


class Closer:
    """Closes sockets that a poller watches."""

    def __init__(self, poller: Poller, loop: asyncio.AbstractEventLoop) -> None:
        self.poller = poller
        self.loop = loop
        self._leaving: dict[_Leaving, None] = {}

    def close(self, sock: socket.socket) -> None:
        """Close a socket; the system sends the bytes that it holds."""
        self.poller.forget(sock.fileno())
        sock.close()

    def reset(self, sock: socket.socket) -> None:
        """Close a socket immediately by a reset."""
        self.poller.forget(sock.fileno())
        reset_socket(sock)

    def close_later(self, sock: socket.socket, *, with_reset: bool) -> None:
        """Close a socket when the other side has acknowledged everything, or takes no more.

        Args:
            sock: it is owned from here on.
            with_reset: end with a reset instead of the end of the stream.
        """
        if with_reset and not _unacknowledged(sock):
            self.reset(sock)
            return
        if len(self._leaving) >= LEAVING_MAX_SOCKETS:
            next(iter(self._leaving)).finish()
        leaving = _Leaving(self, sock, with_reset=with_reset)
        self._leaving[leaving] = None
        leaving.start()

    def cut(self) -> None:
        """Close all waiting sockets immediately."""
        for leaving in tuple(self._leaving):
            leaving.finish()

    def closed(self, leaving: _Leaving) -> None:
        """Forget a socket that is closed."""
        self._leaving.pop(leaving, None)


class _Leaving:
    """Socket that is closed as soon as all written bytes are acknowledged.

    The system reports no event for an acknowledgement, so the program asks at growing intervals.

    Args:
        sock: it is owned from here on.
        with_reset: end with a reset instead of the end of the stream.
    """

    __slots__ = (
        "_closer",
        "_deadline",
        "_discarded",
        "_has_ended",
        "_pause",
        "_sock",
        "_timer",
        "_waiting",
        "_with_reset",
    )

    def __init__(self, closer: Closer, sock: socket.socket, *, with_reset: bool) -> None:
        self._closer = closer
        self._sock = sock
        self._with_reset = with_reset
        self._discarded = 0
        self._has_ended = False
        self._pause = FIRST_LOOK_SECONDS
        self._waiting = 0
        self._deadline = closer.loop.time() + PATIENCE_SECONDS
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Announce the end, and watch the reaction of the other side."""
        if not self._with_reset:
            with suppress(OSError):  # the other side may be gone
                self._sock.shutdown(socket.SHUT_WR)
        self._waiting = _unacknowledged(self._sock)
        self._closer.poller.replace(self._sock.fileno(), self)
        if self._discard():
            self._look()
        else:
            self.finish()

    def finish(self) -> None:
        """Close the socket; by a reset, if something is not acknowledged."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._with_reset or _unacknowledged(self._sock) > self._has_announced:
            self._closer.reset(self._sock)
        else:
            self._closer.close(self._sock)
        self._closer.closed(self)

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if events & FAILED or not self._discard():
            self.finish()

    def fail(self) -> None:
        """See `Watcher.fail`."""
        self.finish()

    @property
    def _has_announced(self) -> int:
        return 0 if self._with_reset else 1  # an end of stream counts as a byte

    def _look(self) -> None:
        self._timer = None
        waiting, now = _unacknowledged(self._sock), self._closer.loop.time()
        if waiting < self._waiting:
            self._waiting = waiting
            self._deadline = now + PATIENCE_SECONDS
        is_heard = waiting == 0 and (self._with_reset or self._has_ended)
        if is_heard or now >= self._deadline:
            self.finish()
            return
        self._timer = self._closer.loop.call_later(self._pause, self._look)
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)

    def _discard(self) -> bool:
        """Drop further bytes of the other side, up to a limit; False if it is gone."""
        while self._discarded < DISCARDED_MAX_BYTES and not self._has_ended:
            try:
                data = self._sock.recv(DISCARD_CHUNK_BYTES)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError:
                return False
            self._discarded += len(data)
            self._has_ended = not data
        self._has_ended = True
        return True


def reset_socket(sock: socket.socket) -> None:
    """Close a socket so that the other side sees a reset, and not an end in order."""
    with suppress(OSError):  # the other side may have reset it already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


def _unacknowledged(sock: socket.socket) -> int:
    """Return how many bytes the other side has not acknowledged; its end counts as one (tcp(7))."""
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except OSError:
        return 0
    (waiting,) = struct.unpack("i", answer)
    return int(waiting)
