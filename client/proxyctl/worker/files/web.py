"""Files over HTTP, piece by piece: to and from the API, and from where others have put them.

`outward.py` dials the addresses of strangers and every redirection: a device asks nothing of its
owner's own network for a stranger. The token goes only to the API.
"""

from __future__ import annotations

import http.client
import ssl
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin, urlsplit

from proxyctl import __version__
from proxyctl.api import api_address, refusal_of
from proxyctl.words import plain_line
from proxyctl.worker.base.link import LinkError, RefusedError
from proxyctl.worker.base.watch import HEAD_SECONDS, Pace, Watch, encrypted, head_of
from proxyctl.worker.network.outward import ForbiddenError, anywhere, is_loopback

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping
    from urllib.parse import SplitResult

    from proxyctl.worker.network.outward import Dial, Outward

PIECE_BYTES: Final = 256 << 10
REDIRECTIONS_MAX: Final = 5
REFUSAL_MAX_BYTES: Final = 64 << 10
# The daemon may hash a file from before its restart again, 5 GiB of it, before it answers.
SECONDS: Final = 60.0
TOKEN: Final = "X-Worker-Token"  # noqa: S105 - the name of a header
_MOVED: Final = (301, 302, 303, 307, 308)
_OK: Final = (200, 201, 204, 206)


class FetchError(Exception):
    """A file is not available where it should be; the message says why. A retry may be useless."""


class Web:
    """Sends and fetches files for one device.

    Args:
        token: the worker token of this device.
    """

    def __init__(self, api: str, token: str, outward: Outward) -> None:
        self.api = api_address(api)
        self._token = token
        self._host = urlsplit(self.api).netloc
        self._outward = outward
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
            read: returns the next bytes, at most the given number; b"" when there are no more.
            size: how many bytes there are.

        Raises:
            LinkError: it may be tried again; also when the answer takes longer than `HEAD_SECONDS`.
            RefusedError: a retry is useless.
            FetchError: the address is not one that this device may ask.
        """
        connection, target, own = self._connection(url)
        try:
            connection.connect()
            sock = connection.sock  # a response keeps it, and the connection may not
            connection.putrequest("PUT", target, skip_accept_encoding=True)
            for name, value in {**own, **headers, "Content-Length": str(size)}.items():
                if name.lower() != "host":
                    connection.putheader(name, value)
            connection.endheaders()
            # A server that answers before it has everything gives the reason.
            with suppress(BrokenPipeError, ConnectionResetError):
                _send(connection, read, size)
            with (
                Watch(sock, lambda: False, HEAD_SECONDS) as watch,
                connection.getresponse() as response,
            ):
                data = response.read(REFUSAL_MAX_BYTES)
            if watch.is_cut:  # the data may be half of an answer
                raise LinkError("a file cannot be sent: the answer takes too long")
            _require_success(response, data, is_api=TOKEN in own)
            return response.getheader("ETag") or ""
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LinkError(f"a file cannot be sent: {_reason(error)}") from None
        finally:
            connection.close()

    @contextmanager
    def get(
        self,
        url: str,
        offset: int = 0,
        *,
        is_strangers: bool = False,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[Body]:
        """Fetch a file within the block.

        Args:
            url: where from, absolute or a path of the API.
            offset: how much of it is here already.
            is_strangers: whether the address comes from a stranger.
            is_stopped: returns whether the file is not wanted any more.

        Raises:
            LinkError: it may be tried again.
            RefusedError: the API does not give it.
            FetchError: another server does not give it, or the guard forbids the address.
        """
        for _ in range(REDIRECTIONS_MAX + 1):
            connection, target, own = self._connection(
                url, is_strangers=is_strangers, is_stopped=is_stopped
            )
            with closing(connection):
                sock = _connected(connection)
                with _asked(connection, sock, target, own, offset, is_stopped) as response:
                    if response.status not in _MOVED:
                        begin = 0 if response.status == 200 else offset
                        body = Body(response, begin, is_strangers=is_strangers)
                        with body.watch(sock, is_stopped):
                            if response.status not in _OK:
                                _refuse(response, is_api=TOKEN in own)
                            yield body
                        return
                    url = _following(_absolute(self.api, url), response)
        raise FetchError(f"it leads to another address more than {REDIRECTIONS_MAX} times")

    def _connection(
        self,
        url: str,
        *,
        is_strangers: bool = False,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[_Connection, str, dict[str, str]]:
        """Return a connection for a URL, its target there, and the headers that we add."""
        absolute = _absolute(self.api, url)
        parts, port = _parts_of(absolute)
        # To strangers the API is an address like others: the request carries no token of this
        # device.
        is_api = (
            not is_strangers and parts.netloc == self._host and absolute.startswith(f"{self.api}/")
        )
        if is_api:
            dial: Dial = anywhere
        else:
            dial = self._outward.dial if is_strangers else self._dial_store
        own = {"User-Agent": f"proxyctl/{__version__}"}
        if is_api:
            own[TOKEN] = self._token
        tls = self._tls if parts.scheme == "https" else None
        connection = _Connection(parts.hostname or "", port, dial, tls, is_stopped)
        target = parts.path or "/"
        return connection, f"{target}?{parts.query}" if parts.query else target, own

    def _dial_store(self, host: str, port: int, seconds: float) -> socket.socket:
        """Connect to a file store of the marketplace; it may be on loopback if the API is."""
        if self.api.startswith("http:") and is_loopback(host):
            return anywhere(host, port, seconds)
        return self._outward.dial(host, port, seconds)


class Body:
    """The body of an answer with a file.

    Attributes:
        offset: where in the file it begins.
        left: the number of announced bytes; None if the server announces none.
        pace: of the received bytes.
    """

    def __init__(
        self, response: http.client.HTTPResponse, offset: int, *, is_strangers: bool
    ) -> None:
        self.offset = offset
        self.left = response.length
        self.pace = Pace()
        self._response = response
        self._is_strangers = is_strangers

    def watch(self, sock: socket.socket, is_stopped: Callable[[], bool]) -> Watch:
        """Return a watch over the rest of the reply, which comes through this socket."""
        return Watch(sock, lambda: is_stopped() or self.pace.is_too_slow())

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes.

        Raises:
            LinkError: they end too early, or come too slowly from the marketplace.
            FetchError: they come too slowly from a stranger.
        """
        size = 0
        while True:
            try:
                piece = self._response.read1(PIECE_BYTES)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._require_pace()
                raise LinkError(f"a file broke off: {_reason(error)}") from None
            if not piece:
                break
            size += len(piece)
            self.pace.add(len(piece))
            yield piece
            self._require_pace()
        if self.left is not None and size < self.left:
            self._require_pace()
            raise LinkError("a file broke off")

    def _require_pace(self) -> None:
        if not self.pace.is_too_slow():
            return
        if self._is_strangers:
            raise FetchError("it comes too slowly")
        raise LinkError("a file comes too slowly")  # no buyer is to blame for that


class _Connection(http.client.HTTPConnection):
    """A connection over a socket of `dial`."""

    def __init__(
        self,
        host: str,
        port: int,
        dial: Dial,
        tls: ssl.SSLContext | None,
        is_stopped: Callable[[], bool],
    ) -> None:
        super().__init__(host, port, timeout=SECONDS)
        self.default_port = 443 if tls is not None else 80  # so that Host has no needless port
        self._dial = dial
        self._context = tls
        self._is_stopped = is_stopped

    def connect(self) -> None:
        """Connect.

        Raises:
            FetchError: the device refuses the place.
            OSError: the place does not answer.
        """
        try:
            sock = self._dial(self.host, self.port, SECONDS)
        except ForbiddenError as error:
            raise FetchError(str(error)) from None
        if self._context is not None:
            sock = encrypted(sock, self._context, self.host, self._is_stopped)
        self.sock = sock


def require_address(url: str) -> None:
    """Raise `FetchError` if a stranger's URL is not one that files are fetched from."""
    _parts_of(url)


def _parts_of(url: str) -> tuple[SplitResult, int]:
    """Return the parts of an absolute URL, and its port."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        raise FetchError("its address is not one with http or https") from None
    if not parts.hostname or not url.isprintable() or " " in url:
        raise FetchError("its address is not one with http or https")
    return parts, port


def _connected(connection: _Connection) -> socket.socket:
    """Connect, and return the socket, which an answer keeps and the connection may not.

    Raises:
        FetchError: the device refuses the place.
        LinkError: the place does not answer.
    """
    try:
        connection.connect()
    except (OSError, ValueError) as error:  # a name beyond the limits of names is a ValueError
        raise LinkError(f"a file cannot be fetched: {_reason(error)}") from None
    return connection.sock


def _following(url: str, response: http.client.HTTPResponse) -> str:
    """Return the address that an answer leads to."""
    try:
        return urljoin(url, response.getheader("Location") or "")
    except ValueError:
        raise FetchError("it redirects to a malformed address") from None


def _asked(
    connection: http.client.HTTPConnection,
    sock: socket.socket,
    target: str,
    own: Mapping[str, str],
    offset: int,
    is_stopped: Callable[[], bool],
) -> http.client.HTTPResponse:
    """Ask for a file, and return the answer's head; the caller closes the answer.

    Raises:
        LinkError: no answer came in time.
        FetchError: the address has characters beyond ASCII.
    """
    headers = {"Accept-Encoding": "identity", **own}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    try:
        return head_of(connection, sock, target, headers, is_stopped)
    except UnicodeError:
        raise FetchError("its address has characters beyond ASCII") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise LinkError(f"a file cannot be fetched: {_reason(error)}") from None


def _send(connection: http.client.HTTPConnection, read: Callable[[int], bytes], size: int) -> None:
    left = size
    while left:
        piece = read(min(PIECE_BYTES, left))
        if not piece:
            # The announced bytes will not come: the receiver must not wait for them.
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
    if not is_api:
        if response.status in (408, 429) or response.status >= 500:
            raise LinkError(f"a file cannot be fetched: the answer is {response.status}")
        raise FetchError(f"the answer is {response.status}")
    data = b""
    with suppress(OSError, http.client.HTTPException, ValueError):
        data = response.read(REFUSAL_MAX_BYTES)
    _require_success(response, data, is_api=True)


def _absolute(api: str, url: str) -> str:
    """Return a URL that may be a path of the API."""
    return f"{api}{url}" if url.startswith("/") and not url.startswith("//") else url


def _reason(error: Exception) -> str:
    return plain_line(str(error)) or type(error).__name__
