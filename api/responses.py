"""Responses: their headers, and large bodies written in slices as the client reads them."""

from aiohttp import web

from api.aiohttp_compat import PrivateResponse
from api.errors import Failure
from api.routes import encode

JSON = "application/json"
SERVER = "proxyd"
SLICE_BYTES = 32 * 1024  # a larger body is written in pieces, each after the one before has left


class Response(PrivateResponse):
    """A response whose body is not copied: a page is in memory once, however many read it."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Write the body, waiting for the client after each slice of a large one."""
        body = self.body
        is_large = isinstance(body, bytes) and len(body) > SLICE_BYTES
        if not isinstance(body, bytes) or not is_large or self.has_no_body:
            await super().write_eof(data)
            return
        view = memoryview(body)
        for start in range(0, len(view), SLICE_BYTES):
            await self.write(view[start : start + SLICE_BYTES])
        await web.StreamResponse.write_eof(self)


def response(status: int, body: bytes, headers: dict[str, str]) -> Response:
    """Return a response; it is JSON unless its headers say otherwise."""
    return Response(
        status=status, body=body, headers={"Content-Type": JSON, "Server": SERVER, **headers}
    )


def refusal(failure: Failure) -> Response:
    """Return the response for a refusal."""
    return response(failure.status, encode(failure.body), failure.headers)
