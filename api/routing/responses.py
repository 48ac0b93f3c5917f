"""Responses: their headers, and large bodies written in slices as the client reads them."""

from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http import HttpVersion10

from api.http.errors import Failure
from api.routing.lasting import GoesOn, while_read
from api.routing.routes import encode

JSON = "application/json"
PLAIN = "text/plain; charset=utf-8"
CSV = "text/csv; charset=utf-8; header=present"
SERVER = "proxyd"
SLICE_BYTES = 32 * 1024  # a larger body is written in pieces, each after the one before has left

NO_STORE = {"Cache-Control": "no-store"}
# Browsers do not guess another type than the Content-Type.
NO_SNIFF = {"X-Content-Type-Options": "nosniff"}
# Headers of each response that does not replace them. No cache may keep answers: nearly all are
# private, and caches on the way judge by extensions (`usage.csv`). Pages allow it by their own.
_COMMON = {"Server": SERVER, **NO_STORE, **NO_SNIFF}
# The first headers of nearly every response.
_JSON_HEADERS = "".join(
    f"{name}: {value}\r\n" for name, value in {"Content-Type": JSON, **_COMMON}.items()
)
_PHRASES = {int(status): status.phrase for status in HTTPStatus}


class Response(web.StreamResponse):
    """A response whose body is there whole: its head is built once, and leaves with the body.

    aiohttp's own is made for bodies of any kind, which are changed until the last moment, and costs
    a third of a short request for it. A large body is not copied: a page is in memory once, however
    many read it.

    Args:
        status: a status with a body: neither 204 nor 304.
        body: the body; it is left out of the response to HEAD.
        headers: headers beside those that each response has, or in their place; with a
            Content-Type, it is no JSON.
        goes_on: the login of the request; a large body is cut with it.
    """

    def __init__(
        self,
        status: int,
        body: bytes,
        headers: Mapping[str, str],
        goes_on: GoesOn | None = None,
    ) -> None:
        super().__init__(status=status)
        self._content = body
        self._goes_on = goes_on
        is_plain = not ("Content-Type" in headers or headers.keys() & _COMMON.keys())
        self._fields = _JSON_HEADERS if is_plain else ""
        self._request: web.BaseRequest | None = None
        self._closes = False
        if not is_plain:
            headers = {"Content-Type": JSON, **_COMMON, **headers}
        for name, value in headers.items():
            self.add(name, value)

    def add(self, name: str, value: str) -> None:
        """Add a header.

        Raises:
            ValueError: it could be read as more than one.
        """
        if not value.isprintable() or not name.isprintable():
            raise ValueError(f"the header {name!r} has a control character")
        self._fields += f"{name}: {value}\r\n"

    @property
    def keep_alive(self) -> bool:
        """Whether the connection stays open after it."""
        return not self._closes

    def force_close(self) -> None:
        """Close the connection after this answer."""
        self._closes = True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Store the request that it answers; nothing is written before `write_eof`."""
        self._request = request
        self._closes = self._closes or not request.keep_alive
        return request.writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Write it, waiting for the client after each slice of a large body."""
        request = self._request
        assert request is not None and not data  # noqa: S101, PT018 - aiohttp prepares it, and has no data
        writer, head = request.writer, self._head(request)
        body = b"" if request.method == "HEAD" else self._content
        # aiohttp keeps the answer until the next request, perhaps for as long as a client is idle.
        self._content, self._request = b"", None
        if len(body) <= SLICE_BYTES:
            await writer.write_eof(head + body)
            return
        await writer.write(head)
        view = memoryview(body)
        async with while_read(request, self._goes_on):
            for start in range(0, len(view), SLICE_BYTES):
                await writer.write(view[start : start + SLICE_BYTES])
                await writer.drain()  # `write` waits only now and then
            await writer.write_eof()

    def _head(self, request: web.BaseRequest) -> bytes:
        version = request.version
        connection = ""
        if self._closes:
            connection = "" if version == HttpVersion10 else "Connection: close\r\n"
        elif version == HttpVersion10:
            connection = "Connection: keep-alive\r\n"
        return (
            f"HTTP/{version.major}.{version.minor} {self.status} {_PHRASES[self.status]}\r\n"
            f"{self._fields}Content-Length: {len(self._content)}\r\n"
            f"Date: {rfc822_formatted_time()}\r\n{connection}\r\n"
        ).encode()


def refusal(failure: Failure) -> Response:
    """Return the response for a refusal."""
    return Response(failure.status, encode(failure.body), failure.headers)
