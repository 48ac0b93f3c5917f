"""Bounds on a stranger's answer as a whole: the timeout of a socket bounds only each single read.

A sender of one byte now and then would hold a slot of the device, and the job could not be stopped.
"""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import http.client
    import ssl
    from collections.abc import Callable, Mapping

# For a handshake, and for a head: the daemon may hash a file of 5 GiB before it answers.
HEAD_SECONDS: Final = 90.0
# A sender that gives a byte now and then holds up the job, and the slot of the device with it.
GRACE_SECONDS: Final = 60.0
BYTES_PER_SECOND_MIN: Final = 8 << 10
_LOOK_SECONDS: Final = 0.25


class Watch:
    """Shuts a connected socket down once its answer is too late; within the block.

    Args:
        sock: stays open until the block has ended.
        is_over: says that nothing is waited for any more; called from another thread.
        seconds: after which nothing is waited for either.

    Attributes:
        is_cut: whether it has shut the socket down. The last bytes that were read may be incomplete
            then.
    """

    def __init__(
        self, sock: socket.socket, is_over: Callable[[], bool], seconds: float = float("inf")
    ) -> None:
        self.is_cut = False
        self._sock = sock
        self._is_over = is_over
        self._until = time.monotonic() + seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="watch", daemon=True)

    def __enter__(self) -> Watch:  # noqa: PYI034 - Python 3.9 has no Self
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            if self._is_over() or time.monotonic() > self._until:
                self.is_cut = True
                with suppress(OSError):  # the peer may have closed it
                    # Not the method of an SSLSocket, which takes its TLS from under the reader.
                    socket.socket.shutdown(self._sock, socket.SHUT_RDWR)
                return


class Pace:
    """The speed of a body, measured from its beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._size = 0

    def add(self, size: int) -> None:
        """Count bytes that have come."""
        self._size += size

    def is_too_slow(self) -> bool:
        """Return whether fewer bytes have come than a sender must send."""
        most = GRACE_SECONDS + self._size / BYTES_PER_SECOND_MIN
        return time.monotonic() - self._began > most


def head_of(
    connection: http.client.HTTPConnection,
    sock: socket.socket,
    target: str,
    headers: Mapping[str, str],
    is_over: Callable[[], bool],
) -> http.client.HTTPResponse:
    """Send a GET request, and return the answer after its head; the caller closes the answer.

    The connection does not close an answer that ends with it.

    Args:
        connection: connected.
        sock: of the connection, which forgets it with such an answer.
        target: of the request.
        headers: of the request.
        is_over: see `Watch`.

    Raises:
        TimeoutError: the head takes longer than `HEAD_SECONDS`, or `is_over`.
        OSError: the connection breaks.
        HTTPException: the answer is not HTTP.
    """
    with Watch(sock, is_over, HEAD_SECONDS) as watch:
        connection.request("GET", target, headers=dict(headers))
        response = connection.getresponse()
    if watch.is_cut:  # the head may be half of one
        response.close()
        raise TimeoutError("the answer takes too long")
    return response


def encrypted(
    sock: socket.socket, context: ssl.SSLContext, host: str, is_over: Callable[[], bool]
) -> ssl.SSLSocket:
    """Return a socket with TLS over this one; this one is closed after a failure.

    Raises:
        OSError: the peer is not the host, or its handshake takes too long.
    """
    try:
        sock = wrapped = context.wrap_socket(
            sock, server_hostname=host, do_handshake_on_connect=False
        )
        with Watch(wrapped, is_over, HEAD_SECONDS):
            wrapped.do_handshake()
    except BaseException:
        sock.close()
        raise
    return wrapped
