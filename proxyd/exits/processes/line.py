"""A line between two processes of one machine: messages whole and in order, some with a descriptor.

The socket is a Unix one of the kind that keeps messages apart (SOCK_SEQPACKET, unix(7)), so nothing
has to be put together, and a descriptor (SCM_RIGHTS) cannot come with the wrong message. Messages
that the other process does not take yet wait here, within a bound. A process that hangs until the
bound is reached loses its line, and makes another one when it is back.
"""

import array
import errno
import logging
import os
import socket
import struct
from collections import deque
from typing import Final, Protocol, final

from msgspec import DecodeError

from proxyd.loop.poller import READS, WRITABLE, Watcher
from proxyd.loop.reactor import Reactor

# Some milliseconds of work; then it is others' turn.
MESSAGES_PER_TURN: Final = 64
# Unsent messages to the other process, about 20,000: twice the number for all waiting dials of a
# process and for the ends of these dials.
WAITING_MAX_BYTES: Final = 4 * 1024 * 1024

_INT_BYTES: Final = 4
_ANCILLARY_BYTES: Final = socket.CMSG_LEN(_INT_BYTES)
_SOL_SOCKET: Final = socket.SOL_SOCKET
_SCM_RIGHTS: Final = socket.SCM_RIGHTS
_MSG_CMSG_CLOEXEC: Final = socket.MSG_CMSG_CLOEXEC
_MSG_TRUNC: Final = socket.MSG_TRUNC
_NO_SIGNAL: Final = socket.MSG_NOSIGNAL
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)
_GONE: Final = (errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN)
_NO_DESCRIPTOR: Final = -1
_logger = logging.getLogger("exits")


class LineEnd(Protocol):
    """Owner of one end of a line."""

    __slots__ = ()

    def take(self, data: memoryview, descriptor: int) -> None:
        """Act on a message; a descriptor (or -1) is owned from here on.

        Args:
            data: the message, in memory that is reused after this returns.
            descriptor: the descriptor of a socket that came with the message.

        Raises:
            DecodeError: the other side says nonsense; the line is over then.
        """

    def lose(self) -> None:
        """Note that the line is over, and closed."""


@final
class Line(Watcher):
    """One line.

    Args:
        sock: connected, does not block, and is owned from here on.
        waiting_max_bytes: the most bytes of messages that the other side has not taken.
    """

    __slots__ = (
        "_end",
        "_fd",
        "_is_watching_writes",
        "_reactor",
        "_size",
        "_sock",
        "_waiting",
        "_waiting_max_bytes",
    )

    def __init__(
        self,
        reactor: Reactor,
        sock: socket.SocketType,
        end: LineEnd,
        waiting_max_bytes: int = WAITING_MAX_BYTES,
    ) -> None:
        self._waiting_max_bytes = waiting_max_bytes
        self._reactor = reactor
        self._sock: socket.SocketType | None = sock
        self._fd = sock.fileno()
        self._end = end
        self._waiting: deque[tuple[bytes, socket.SocketType | None]] = deque()
        self._size = 0
        self._is_watching_writes = False
        reactor.poller.watch(self._fd, self)

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._sock is not None

    @property
    def waiting(self) -> int:
        """Number of messages that the other process has not taken."""
        return len(self._waiting)

    def send(self, message: bytes, sock: socket.SocketType | None = None) -> bool:
        """Send a message, now or as soon as the other process takes it.

        `LineEnd.lose` reports the end of the line later, never inside this call.

        Args:
            message: the bytes of the message.
            sock: goes to the other process with it, and is closed here in any case; the poller must
                not watch it any more.

        Returns:
            Whether it was sent, or waits.
        """
        if self._sock is None:
            if sock is not None:
                sock.close()
            return False
        if self._waiting or not self._sent(message, sock):
            return self._keep(message, sock)
        return True

    def close(self) -> None:
        """Receive nothing more, and close the waiting connections; closing twice is harmless."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        self._reactor.poller.forget(self._fd)
        sock.close()
        while self._waiting:
            _, sent = self._waiting.popleft()
            if sent is not None:
                sent.close()

    # --- sending -------------------------------------------------------------------------------

    def _sent(self, message: bytes, sock: socket.SocketType | None) -> bool:
        """Send a message now; False when there is no room for it.

        A message that the kernel refuses for good counts as sent: the other side does not get it.
        When that has died, the end of the line is an event; when too many descriptors are on their
        way (ETOOMANYREFS), it waits in vain, and says so.
        """
        assert self._sock is not None  # noqa: S101 - the callers have looked
        try:
            if sock is None:
                self._sock.send(message, _NO_SIGNAL)
            else:
                rights = array.array("i", (sock.fileno(),))
                ancillary = [(_SOL_SOCKET, _SCM_RIGHTS, rights)]
                self._sock.sendmsg([message], ancillary, _NO_SIGNAL)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            if error.errno not in _GONE:
                _logger.warning("a message to another process is lost: %s", error.strerror)
        if sock is not None:
            sock.close()
        return True

    def _keep(self, message: bytes, sock: socket.SocketType | None) -> bool:
        if self._size + len(message) > self._waiting_max_bytes:
            _logger.warning("a process does not read its messages; its line is cut")
            if sock is not None:
                sock.close()
            self._break()
            return False
        self._waiting.append((message, sock))
        self._size += len(message)
        if not self._is_watching_writes:
            self._is_watching_writes = True
            self._reactor.poller.watch_writes(self._fd)
        return True

    def _flush(self) -> None:
        while self._waiting and self._sock is not None:
            message, sock = self._waiting[0]
            if not self._sent(message, sock):
                return
            self._waiting.popleft()
            self._size -= len(message)

    def _break(self) -> None:
        """Shut the line down, so that both sides notice its end."""
        if self._sock is not None:
            try:
                self._sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                _logger.debug("a line is over already")

    # --- events --------------------------------------------------------------------------------

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if events & WRITABLE:
            self._flush()
        if events & READS:
            self._read()

    def fail(self, error: Exception) -> None:
        """End the line because of a fault in this program, and log the traceback."""
        _logger.error("a line between processes failed; it is cut", exc_info=error)
        self._over()

    def _read(self) -> None:
        """Take the messages that have come; a later turn takes the rest, with no new event."""
        view = self._reactor.view
        for _ in range(MESSAGES_PER_TURN):
            if self._sock is None:
                return
            try:
                size, ancillary, flags, _address = self._sock.recvmsg_into(
                    [view], _ANCILLARY_BYTES, _MSG_CMSG_CLOEXEC
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._over()
                return
            descriptor = _descriptor(ancillary)
            if not size or flags & _MSG_TRUNC:  # its end, or a message that is too long
                if descriptor >= 0:
                    os.close(descriptor)
                self._over()
                return
            try:
                self._end.take(view[:size], descriptor)
            except DecodeError as error:
                _logger.error("another process says nonsense; its line is cut: %s", error)
                self._over()
                return
        self._reactor.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - it is logged there, as the poller does
            self.fail(error)

    def _over(self) -> None:
        if self._sock is not None:
            self.close()
            self._end.lose()


def _descriptor(ancillary: list[tuple[int, int, bytes]]) -> int:
    """Return the descriptor that has come with a message; -1 for none."""
    for level, kind, data in ancillary:
        if (level, kind) == (_SOL_SOCKET, _SCM_RIGHTS) and len(data) >= _INT_BYTES:
            return array.array("i", data[:_INT_BYTES])[0]
    return _NO_DESCRIPTOR


def is_ours(sock: socket.SocketType) -> bool:
    """Return whether a process of this user is at the other end: no other user gets messages."""
    shown = sock.getsockopt(_SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(shown)
    return bool(uid == os.getuid())
