"""Clients of the proxy that read as fast as they can, until they are cut."""

import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from support.daemons.process import Api, proxied

RESET = struct.pack("ii", 1, 0)


class Download(threading.Thread):
    """A client that reads as fast as it can, until it is cut.

    Args:
        daemon: whose proxy it uses.
        proxy: credentials, as the API gives them.
        port: of a target that sends without a request.
    """

    def __init__(self, daemon: Api, proxy: dict[str, Any], port: int) -> None:
        super().__init__()
        self.daemon_process = daemon
        self.received = 0
        self.is_over = False
        self._socket = proxied(daemon, proxy, port)
        self._socket.settimeout(60)

    def run(self) -> None:
        with self._socket:
            try:
                while data := self._socket.recv(262_144):
                    self.received += len(data)
            except OSError:
                pass
        self.is_over = True

    def close(self) -> None:
        """End it from the client's side.

        The close is a reset: after a shutdown the client announces no more room for the bytes under
        way, and a close after everything was read sends nothing at all. A daemon that had filled
        all the room would ask for a minute whether there is some again.
        """
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self._socket.shutdown(socket.SHUT_RDWR)

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has closed its connection; one that was never started closes it here."""
        if self.ident is None:
            self._socket.close()
        else:
            super().join(timeout)


@contextmanager
def downloading(
    daemons: Iterable[Api], proxy: dict[str, Any], port: int
) -> Iterator[list[Download]]:
    """Have one client of each daemon read, of those named twice two, until the test ends it.

    Args:
        daemons: whose proxies are used.
        proxy: credentials, as the API gives them.
        port: of a target that sends without a request.
    """
    made: list[Download] = []
    try:
        for each in daemons:
            made.append(Download(each, proxy, port))
        for each in made:
            each.start()
        yield made
    finally:
        for each in made:
            each.close()
        for each in made:
            each.join()


def received(downloads: Iterable[Download]) -> int:
    """Return how many bytes they have read by now, all together."""
    return sum(each.received for each in downloads)


def completed(downloads: Iterable[Download]) -> int:
    """Wait until the last download is cut. Return the number of bytes that all have read."""
    joined = [*downloads]
    for each in joined:
        each.join()
    return received(joined)
