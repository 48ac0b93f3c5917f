"""Closes sockets so that what was given to the kernel still arrives.

A plain close answers data that nobody will read with a reset, and a reset makes the peer lose the
last bytes it was sent. So a socket is closed in two steps: the end of stream is announced, and only
when the peer has acknowledged everything (or after a while) is the socket given up.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import suppress

PATIENCE_SECONDS = 5.0
POLL_SECONDS = 0.02
DISCARD_MAX_BYTES = 256 * 1024
DISCARD_CHUNK_BYTES = 64 * 1024

_RESET = struct.pack("ii", 1, 0)


def unacknowledged(sock: socket.socket, *, ended: bool) -> int:
    """Return how many bytes given to the kernel the peer has not acknowledged (Linux, tcp(7)).

    Args:
        sock: a TCP socket, not closed.
        ended: whether its end of stream was announced, which counts as one byte there.
    """
    try:
        answer = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except OSError:
        return 0
    (waiting,) = struct.unpack("i", answer)
    return max(waiting - 1, 0) if ended else int(waiting)


def reset(sock: socket.socket) -> None:
    """Close a socket with a reset: the peer learns that the stream is cut, not finished."""
    with suppress(OSError):  # the peer may have reset it already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    sock.close()


class Closer:
    """Owns sockets from the decision to close them until they are closed.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._closing: set[_Closing] = set()
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._closing)

    def close(self, sock: socket.socket, *, with_reset: bool = False) -> None:
        """Close a socket once its peer has everything; then with a reset, if that is wanted."""
        closing = _Closing(self._loop, sock, self._closed, with_reset=with_reset)
        self._closing.add(closing)
        self._empty.clear()
        closing.step()

    async def wait_closed(self) -> None:
        """Wait until every socket is closed; each has its own limit of patience."""
        await self._empty.wait()

    def close_now(self) -> None:
        """Close what is left, without waiting."""
        for closing in tuple(self._closing):
            closing.finish()

    def _closed(self, closing: "_Closing") -> None:
        self._closing.discard(closing)
        if not self._closing:
            self._empty.set()


class _Closing:
    __slots__ = (
        "_deadline",
        "_discarded",
        "_done",
        "_ended",
        "_loop",
        "_sock",
        "_timer",
        "_with_reset",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        done: Callable[["_Closing"], None],
        *,
        with_reset: bool,
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._done = done
        self._with_reset = with_reset
        self._deadline = loop.time() + PATIENCE_SECONDS
        self._discarded = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ended = not with_reset and _announce_end(sock)

    def step(self) -> None:
        """Look whether the peer has everything; if not, look again soon."""
        self._timer = None
        peer_ended = self._discard()
        everything = unacknowledged(self._sock, ended=self._ended) == 0
        enough = peer_ended or self._with_reset or self._discarded >= DISCARD_MAX_BYTES
        if (everything and enough) or self._loop.time() >= self._deadline:
            self.finish()
        else:
            self._timer = self._loop.call_later(POLL_SECONDS, self.step)

    def finish(self) -> None:
        """Close the socket."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._with_reset:
            reset(self._sock)
        else:
            self._sock.close()
        self._done(self)

    def _discard(self) -> bool:
        """Throw away what the peer still sends; say whether it has ended."""
        while self._discarded < DISCARD_MAX_BYTES:
            try:
                data = self._sock.recv(DISCARD_CHUNK_BYTES)
            except BlockingIOError:
                return False
            except OSError:
                return True
            if not data:
                return True
            self._discarded += len(data)
        return False


def _announce_end(sock: socket.socket) -> bool:
    try:
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        return False
    return True
