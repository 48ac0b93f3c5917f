"""The agent's requests to the marketplace's API, over connections that are kept open.

Each thread that asks has a connection for itself, taken from a small pool. A request that could
not be sent over a connection that had been idle is sent once more over a new one: the daemon, or
a proxy before it, may have closed the idle one.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode, urlsplit

from proxyctl import __version__
from proxyctl.api import ApiError, api_address, object_of, refusal_of
from proxyctl.words import OwnerError, plain_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REPLY_MAX_BYTES: Final = 16 << 20  # a few jobs with their payloads
_SECONDS: Final = 20.0
_SPACES_SECONDS: Final = 50.0  # between two spaces of an answer that is long in coming
_IDLE_MAX: Final = 4  # connections kept; more are closed after their request
_RETRY_AFTER_MAX_SECONDS: Final = 300.0
# A caller that retries after a shorter outage waits for a few seconds at most.
_OUTAGE_SECONDS: Final = 5.0


class LinkError(OwnerError):
    """The daemon cannot be reached, or it answered nothing that could be understood: try again.

    Attributes:
        after: seconds that the daemon asks to wait for; 0 if it did not.
        is_silence: nothing came for too long, on a connection that looked sound.
    """

    def __init__(self, message: str, after: float = 0.0, *, is_silence: bool = False) -> None:
        super().__init__(message)
        self.after = after
        self.is_silence = is_silence


class RefusedError(ApiError):
    """The daemon refused a request, and would refuse it again.

    Attributes:
        status: of HTTP.
    """

    def __init__(self, message: str, code: str, status: int) -> None:
        super().__init__(message, code)
        self.status = status

    @property
    def is_gone(self) -> bool:
        """Whether the request was about an attempt that this device does not hold any more."""
        return self.code in ("job_not_found", "attempt_not_current")

    @property
    def is_revoked(self) -> bool:
        """Whether the token was revoked, or was never one."""
        return self.status == http.client.UNAUTHORIZED


@dataclass(frozen=True)
class Address:
    """Address of the API."""

    is_tls: bool
    host: str
    port: int
    prefix: str

    @property
    def place(self) -> str:
        """Host and port, as they are written for people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Outage:
    """Tracks whether the marketplace is away, and calls back when it has returned.

    Every thread that asks tries again after a wait of its own, of up to a minute. The first answer
    after an outage tells that all of them may try now.

    Args:
        now: seconds that only grow.
        seconds: a shorter outage causes no call.

    Attributes:
        callback: is called in the thread that was answered first, and must not block.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, seconds: float = _OUTAGE_SECONDS
    ) -> None:
        self._seconds = seconds
        self.callback: Callable[[], None] = _nobody
        self._now = now
        self._lock = threading.Lock()
        self._since: float | None = None

    def failed(self) -> None:
        """Note a request that got no answer."""
        with self._lock:
            if self._since is None:
                self._since = self._now()

    def answered(self) -> None:
        """Note an answer. A single answer among failures is no return of the marketplace."""
        with self._lock:
            since, self._since = self._since, None
        if since is not None and self._now() - since >= self._seconds:
            self.callback()


class Link:
    """Asks the API of one marketplace as one device.

    Args:
        api: its address, as `api_address` returns it.
        token: the worker token of this device.
        seconds: to wait for each part of a reply.
        outage_seconds: a shorter outage causes no call.
    """

    def __init__(
        self,
        api: str,
        token: str,
        *,
        seconds: float = _SECONDS,
        outage_seconds: float = _OUTAGE_SECONDS,
    ) -> None:
        self._seconds = seconds
        self._outage = Outage(seconds=outage_seconds)
        self.api = api_address(api)
        self._address = _address_of(self.api)
        self._headers = {
            "Accept": "application/json",
            "Prefer": "handling=strict",
            "User-Agent": f"proxyctl/{__version__}",
            "X-Worker-Token": token,
        }
        self._tls = ssl.create_default_context() if self._address.is_tls else None
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._polling: http.client.HTTPConnection | None = None
        self._is_closed = False

    def on_return(self, callback: Callable[[], None]) -> None:
        """Register a function to call whenever the marketplace answers again after an outage.

        It is called in the thread that was answered first, and must not block.
        """
        self._outage.callback = callback

    def get(self, path: str) -> dict[str, Any]:
        """Return the reply of the API; raises as `post` does."""
        return self._ask("GET", path, None, {}, self._seconds)

    def post(
        self, path: str, fields: Mapping[str, Any], *, seconds: float | None = None
    ) -> dict[str, Any]:
        """Send a request with a JSON body, and return the reply's.

        Args:
            path: of the resource, like `/api/worker/sync`.
            fields: of the body.
            seconds: to wait for each part of the reply; None for as long as for others.

        Raises:
            LinkError: it may be tried again.
            RefusedError: a retry is useless.
        """
        data = json.dumps(fields).encode()
        headers = {"Content-Type": "application/json"}
        most = self._seconds if seconds is None else seconds
        return self._ask("POST", path, data, headers, most)

    def post_raw(
        self, path: str, query: Mapping[str, str | int], data: bytes | memoryview
    ) -> dict[str, Any]:
        """Send bytes as they are, and return the reply; raises as `post` does."""
        target = f"{path}?{urlencode(query)}"
        headers = {"Content-Type": "application/octet-stream"}
        return self._ask("POST", target, data, headers, self._seconds)

    def poll(
        self, path: str, fields: Mapping[str, Any], wait_s: float, is_stale: Callable[[], bool]
    ) -> dict[str, Any]:
        """Send a request that the daemon may hold for `wait_s`; `interrupt` ends it early.

        Args:
            path: of the resource.
            fields: of the body.
            wait_s: that the daemon may take, in seconds; it sends spaces meanwhile.
            is_stale: returns whether the caller no longer wants the answer; its result must change
                before `interrupt` is called.

        Raises:
            LinkError: it may be tried again; also when it was interrupted.
            RefusedError: a retry is useless.
        """
        headers = {"Content-Type": "application/json"}
        data = json.dumps(fields).encode()
        silence = min(wait_s, _SPACES_SECONDS)
        return self._ask("POST", path, data, headers, self._seconds + silence, is_stale)

    def interrupt(self) -> None:
        """End the request of `poll` that is under way, in another thread."""
        with self._lock:
            connection = self._polling
            if connection is not None and connection.sock is not None:
                # Not `SSLSocket.shutdown`: that lets go of the encryption first, and the other
                # thread may be about to send the token just then.
                with suppress(OSError):
                    socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the unused connections, and keep none from here on."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _ask(
        self,
        method: str,
        target: str,
        data: bytes | memoryview | None,
        headers: Mapping[str, str],
        seconds: float,
        is_stale: Callable[[], bool] | None = None,
    ) -> dict[str, Any]:
        try:
            status, reply, after = self._exchange(method, target, data, headers, seconds, is_stale)
        except LinkError:
            if is_stale is None or not is_stale():  # else it was ended from here
                self._outage.failed()
            raise
        if status >= http.client.INTERNAL_SERVER_ERROR:
            self._outage.failed()
        else:
            self._outage.answered()
        if status == http.client.OK:
            fields = object_of(reply)
            if fields is None:
                raise LinkError(f"{self._address.place} did not answer as a marketplace does")
            return fields
        error = refusal_of(status, reply)
        # No status in between is final: a proxy that has lost its daemon answers 502 or 504.
        if status in (http.client.REQUEST_TIMEOUT, http.client.TOO_MANY_REQUESTS) or status >= 500:
            raise LinkError(str(error), after)
        if not error.code:
            raise LinkError(
                f"{self._address.place} answered {status}, and not as a marketplace does"
            )
        raise RefusedError(str(error), error.code, status)

    def _exchange(
        self,
        method: str,
        target: str,
        data: bytes | memoryview | None,
        headers: Mapping[str, str],
        seconds: float,
        is_stale: Callable[[], bool] | None,
    ) -> tuple[int, bytes, float]:
        connection, is_fresh = self._take(seconds)
        while True:
            is_asked = False
            try:
                if is_stale is not None:
                    self._begin_poll(connection, is_stale)
                connection.request(
                    method, self._address.prefix + target, data, {**self._headers, **headers}
                )
                is_asked = True
                with connection.getresponse() as response:
                    reply = response.read(REPLY_MAX_BYTES + 1)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # Every earlier request on this connection was answered: only an idle end can be the
                # cause.
                is_idle_end = isinstance(
                    error, (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)
                )
                if is_fresh or not is_idle_end or (is_stale is not None and is_stale()):
                    raise LinkError(
                        f"{self._address.place} cannot be reached: {_reason(error)}",
                        is_silence=is_asked and isinstance(error, TimeoutError),
                    ) from None
                connection, is_fresh = self._connection(seconds), True
                continue
            finally:
                if is_stale is not None:
                    self._end_poll()
            break
        if len(reply) > REPLY_MAX_BYTES:
            connection.close()
            raise LinkError(f"{self._address.place} answered with more than can be taken")
        after = _seconds_of(response.getheader("Retry-After"))
        self._give_back(connection, will_close=response.will_close)
        return response.status, reply, after

    def _take(self, seconds: float) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            return self._connection(seconds), True
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        return connection, False

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        address = self._address
        if self._tls is not None:
            return http.client.HTTPSConnection(
                address.host, address.port, timeout=seconds, context=self._tls
            )
        return http.client.HTTPConnection(address.host, address.port, timeout=seconds)

    def _give_back(self, connection: http.client.HTTPConnection, *, will_close: bool) -> None:
        with self._lock:
            keep = not will_close and not self._is_closed and len(self._idle) < _IDLE_MAX
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()

    def _begin_poll(
        self, connection: http.client.HTTPConnection, is_stale: Callable[[], bool]
    ) -> None:
        if connection.sock is None:
            connection.connect()
        with self._lock:
            self._polling = connection
            if is_stale():  # before there was anything that could be interrupted
                raise ConnectionAbortedError("it was interrupted")

    def _end_poll(self) -> None:
        with self._lock:
            self._polling = None


def _address_of(api: str) -> Address:
    parts = urlsplit(api)
    is_tls = parts.scheme == "https"
    assert parts.hostname is not None  # noqa: S101 - `api_address` has seen to it
    return Address(is_tls, parts.hostname, parts.port or (443 if is_tls else 80), parts.path)


def _nobody() -> None:
    pass


def _reason(error: Exception) -> str:
    return plain_line(str(error)) or type(error).__name__


def _seconds_of(text: str | None) -> float:
    """Return the seconds of `Retry-After`; 0 for another form (RFC 9110, section 10.2.3)."""
    if text is None or not text.isdigit():
        return 0.0
    return min(float(text), _RETRY_AFTER_MAX_SECONDS)
