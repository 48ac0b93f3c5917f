"""Files over HTTP, piece by piece: to and from the API, and from where others have put them.

An address that came from somebody else is judged like every target of the proxy, and what was
judged is what is dialled: a device must not be made to ask its owner's own network. So is every
redirection. The token goes to the API and to nobody else.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from contextlib import closing, contextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from proxyctl import __version__
from proxyctl.api import api_address, refusal_of
from proxyctl.protocol.policy import Policy
from proxyctl.words import plain_line
from proxyctl.worker.link import LinkError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PIECE_BYTES: Final = 256 << 10
REDIRECTIONS_MAX: Final = 5
REFUSAL_MAX_BYTES: Final = 64 << 10
# The daemon may hash a file from before its restart again, 5 GiB of it, before it answers.
SECONDS: Final = 60.0
# A sender that gives a byte now and then holds up the job, and the slot of the device with it.
GRACE_SECONDS: Final = 60.0
BYTES_PER_SECOND_MIN: Final = 8 << 10
TOKEN: Final = "X-Worker-Token"  # noqa: S105 - the name of a header
_MOVED: Final = (301, 302, 303, 307, 308)
_OK: Final = (200, 201, 204, 206)
# Mail servers: nothing to fetch there, and much harm to be done.
_BLOCKED_PORTS: Final = (25, 465, 587)
_LOOPBACK: Final = ("127.0.0.0/8", "::1/128")

STRANGERS: Final = Policy(blocked_ports=_BLOCKED_PORTS)


class FetchError(Exception):
    """A file cannot be had from where it should be; the message says why. Again may be in vain."""


class Web:
    """Sends and fetches files for one device.

    Args:
        api: the address of the API.
        token: the worker token of this device.
        strangers: judges the addresses of others.
    """

    def __init__(self, api: str, token: str, strangers: Policy = STRANGERS) -> None:
        self.api = api_address(api)
        self._token = token
        self._host = urlsplit(self.api).netloc
        self._strangers = strangers
        # Where the marketplace keeps files elsewhere, that is as near as the marketplace itself.
        allow = _LOOPBACK if self.api.startswith("http:") else ()
        self._service = Policy(allow=allow, blocked_ports=_BLOCKED_PORTS)
        self._tls = ssl.create_default_context()

    def put(
        self,
        url: str,
        headers: Mapping[str, str],
        read: Callable[[int], bytes],
        size: int,
    ) -> str:
        """Send some bytes; return the tag that the receiver has given them, if any.

        Args:
            url: where to, absolute or a path of the API.
            headers: that the request must have.
            read: returns the next bytes, at most so many; b"" when there are no more.
            size: how many bytes there are.

        Raises:
            LinkError: it may be tried again.
            RefusedError: it is in vain.
            FetchError: the address is not one that this device may ask.
        """
        connection, target, own = self._connection(url)
        try:
            connection.putrequest("PUT", target, skip_accept_encoding=True)
            for name, value in {**own, **headers, "Content-Length": str(size)}.items():
                if name.lower() != "host":
                    connection.putheader(name, value)
            connection.endheaders()
            # One that has answered before it had everything says why.
            with suppress(BrokenPipeError, ConnectionResetError):
                _send(connection, read, size)
            response = connection.getresponse()
            data = response.read(REFUSAL_MAX_BYTES)
            _require_success(response, data, is_api=TOKEN in own)
            return response.getheader("ETag") or ""
        except (OSError, http.client.HTTPException) as error:
            raise LinkError(f"a file cannot be sent: {_reason(error)}") from None
        finally:
            connection.close()

    @contextmanager
    def get(self, url: str, offset: int = 0, *, is_strangers: bool = False) -> Iterator[Body]:
        """Fetch a file within the block.

        Args:
            url: where from, absolute or a path of the API.
            offset: how much of it is here already.
            is_strangers: whether the address comes from somebody else.

        Raises:
            LinkError: it may be tried again.
            RefusedError: the API does not give it.
            FetchError: others do not give it, or the address is not one that may be asked.
        """
        for _ in range(REDIRECTIONS_MAX + 1):
            connection, target, own = self._connection(url, is_strangers=is_strangers)
            with closing(connection):
                response = _asked(connection, target, own, offset)
                if response.status not in _MOVED:
                    if response.status not in _OK:
                        _refuse(response, is_api=TOKEN in own)
                    yield Body(response, 0 if response.status == 200 else offset)
                    return
                url = urljoin(_absolute(self.api, url), response.getheader("Location") or "")
        raise FetchError(f"it leads to another address more than {REDIRECTIONS_MAX} times")

    def _connection(
        self, url: str, *, is_strangers: bool = False
    ) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
        """Return a connection for a URL, its target there, and the headers that we add."""
        absolute = _absolute(self.api, url)
        try:
            parts = urlsplit(absolute)
            port = parts.port or {"http": 80, "https": 443}[parts.scheme]
        except (ValueError, KeyError):
            raise FetchError("its address is not one with http or https") from None
        if not parts.hostname or not absolute.isprintable() or " " in absolute:
            raise FetchError("its address is not one with http or https")
        # To strangers the API is an address like others: nothing is asked in this device's name.
        is_api = (
            not is_strangers and parts.netloc == self._host and absolute.startswith(f"{self.api}/")
        )
        policy = self._strangers if is_strangers else self._service
        own = {"User-Agent": f"proxyctl/{__version__}"}
        if is_api:
            own[TOKEN] = self._token
        tls = self._tls if parts.scheme == "https" else None
        connection = _Judged(parts.hostname, port, None if is_api else policy, tls)
        target = parts.path or "/"
        return connection, f"{target}?{parts.query}" if parts.query else target, own


class Body:
    """What comes of a file.

    Attributes:
        offset: where in the file it begins.
        left: how many bytes are said to come; None where that is not said.
    """

    def __init__(self, response: http.client.HTTPResponse, offset: int) -> None:
        self.offset = offset
        self.left = response.length
        self._response = response

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes.

        Raises:
            LinkError: they end too early.
            FetchError: they come too slowly.
        """
        began, size = time.monotonic(), 0
        while True:
            try:
                piece = self._response.read1(PIECE_BYTES)
            except (OSError, http.client.HTTPException) as error:
                raise LinkError(f"a file broke off: {_reason(error)}") from None
            if not piece:
                break
            size += len(piece)
            yield piece
            if time.monotonic() - began > GRACE_SECONDS + size / BYTES_PER_SECOND_MIN:
                raise FetchError("it comes too slowly")
        if self.left is not None and size < self.left:
            raise LinkError("a file broke off")


class _Judged(http.client.HTTPConnection):
    """A connection to an address that was judged; a policy of None permits every address."""

    def __init__(
        self, host: str, port: int, policy: Policy | None, tls: ssl.SSLContext | None
    ) -> None:
        super().__init__(host, port, timeout=SECONDS)
        self.default_port = 443 if tls is not None else 80  # so that Host has no needless port
        self._policy = policy
        self._context = tls

    def connect(self) -> None:
        """Dial the first permitted address that answers.

        Raises:
            FetchError: none is permitted.
        """
        found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        permitted = [each for each in found if self._permits(each[4][0])]
        if not permitted:
            raise FetchError(f"{self.host} is not an address that may be asked from here")
        failure: OSError | None = None
        for family, kind, protocol, _, address in permitted:
            sock = socket.socket(family, kind, protocol)
            try:
                sock.settimeout(SECONDS)
                sock.connect(address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._context is not None:
                    sock = self._context.wrap_socket(sock, server_hostname=self.host)
            except OSError as error:
                failure = error
                sock.close()
                continue
            self.sock = sock
            return
        assert failure is not None  # noqa: S101 - there was an address, and each has failed
        raise failure

    def _permits(self, address: object) -> bool:
        if self._policy is None:
            return True
        return self._policy.permits(ip_address(str(address).partition("%")[0]), self.port)


def _asked(
    connection: http.client.HTTPConnection, target: str, own: Mapping[str, str], offset: int
) -> http.client.HTTPResponse:
    """Ask for a file, and return the answer's head.

    Raises:
        LinkError: there is none.
    """
    headers = {"Accept-Encoding": "identity", **own}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    try:
        connection.request("GET", target, headers=headers)
        return connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise LinkError(f"a file cannot be fetched: {_reason(error)}") from None


def _send(connection: http.client.HTTPConnection, read: Callable[[int], bytes], size: int) -> None:
    left = size
    while left:
        piece = read(min(PIECE_BYTES, left))
        if not piece:
            # What was announced will not come: the receiver must not wait for it.
            raise LinkError("a file became shorter while it was sent")
        connection.send(piece)
        left -= len(piece)


def _require_success(response: http.client.HTTPResponse, data: bytes, *, is_api: bool) -> None:
    if response.status in _OK:
        return
    error = refusal_of(response.status, data)
    if response.status in (408, 429) or response.status >= 500 or not is_api or not error.code:
        raise LinkError(str(error))
    raise RefusedError(str(error), error.code, response.status)


def _refuse(response: http.client.HTTPResponse, *, is_api: bool) -> None:
    data = b""
    with suppress(OSError, http.client.HTTPException):
        data = response.read(REFUSAL_MAX_BYTES)
    if not is_api:
        if response.status in (408, 429) or response.status >= 500:
            raise LinkError(f"a file cannot be fetched: the answer is {response.status}")
        raise FetchError(f"the answer is {response.status}")
    _require_success(response, data, is_api=True)


def _absolute(api: str, url: str) -> str:
    """Return a URL that may be a path of the API."""
    return f"{api}{url}" if url.startswith("/") and not url.startswith("//") else url


def _reason(error: Exception) -> str:
    return plain_line(str(error)) or type(error).__name__
