"""Accepts clients on a listening socket: some in each turn of the loop.

It accepts none while file descriptors are short.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from proxyd.relay.closing import reset
from proxyd.wire.hosts import unmapped

# A few milliseconds of work; a flood of clients must not stop the loop.
ACCEPTS_PER_TURN: Final = 64
EXHAUSTED_PAUSE_SECONDS: Final = 0.1  # instead of spinning: the listener stays readable
# Between log lines about them: a flood must not flood the log too.
REFUSALS_PAUSE_SECONDS: Final = 1.0

_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

# Takes a client by its socket, which does not block, and its address, an IPv4 one even where IPv6
# carries it; or returns why it is turned away.
Sock = TypeVar("Sock", bound=socket.SocketType)
Welcome = Callable[[Sock, str], str]


class Acceptor(Generic[Sock]):
    """Acceptor of one listening socket: passes each client on, until it is closed.

    Args:
        listener: listens already, and is owned from here on.
        shed: closes at most the given number of clients that have not finished, and returns their
            number.
        new_socket: makes a socket of a family, a type, a protocol and a descriptor.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listener: socket.socket,
        welcome: Welcome[Sock],
        shed: Callable[[int], int],
        logger: logging.Logger,
        new_socket: Callable[[int, int, int, int], Sock],
    ) -> None:
        self._loop = loop
        self._listener: socket.socket | None = listener
        self._family, self._type = int(listener.family), int(listener.type)
        self._welcome = welcome
        self._shed = shed
        self._logger = logger
        self._new_socket = new_socket
        self._refused = 0
        self._refusals_told_at = -REFUSALS_PAUSE_SECONDS
        listener.setblocking(False)
        self._begin()

    def close(self) -> None:
        """Stop accepting; closing twice is harmless."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener.fileno())
            listener.close()

    def _begin(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._listener is None:
                return
            try:
                # The code of `accept`, without querying the listener for its family and its type,
                # which socket.py makes members of an enumeration again for every client: 2 % of its
                # cost.
                fd, peer = self._listener._accept()  # type: ignore[attr-defined]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._cannot_accept(error)
                return
            sock = self._new_socket(self._family, self._type, 0, fd)
            sock.setblocking(False)
            reason = self._welcome(sock, unmapped(peer[0]))
            if reason:
                self._refuse(sock, reason)

    def _refuse(self, sock: Sock, reason: str) -> None:
        """Reset a refused client, and log such refusals now and then."""
        reset(sock)
        self._refused += 1
        now = self._loop.time()
        if now >= self._refusals_told_at + REFUSALS_PAUSE_SECONDS:
            words = "refused %d clients, the last because %s"
            self._logger.warning(words, self._refused, reason)
            self._refused = 0
            self._refusals_told_at = now

    def _cannot_accept(self, error: OSError) -> None:
        """Leave new clients in the queue for a moment, instead of spinning on the same failure."""
        if error.errno not in _OUT_OF_RESOURCES:
            self._logger.error("accepting a client failed: %s", error.strerror)
        else:
            shed = self._shed(ACCEPTS_PER_TURN)
            self._logger.warning(
                "no new client for a moment, %d unfinished let go: %s", shed, error.strerror
            )
        if self._listener is not None:
            self._loop.remove_reader(self._listener.fileno())
            self._loop.call_later(EXHAUSTED_PAUSE_SECONDS, self._begin)
