"""Responses: their headers, and large ones in slices that leave as their client takes them."""

from aiohttp import web

from api.aiohttp_compat import PrivateResponse
from api.errors import Failure
from api.routes import encode

JSON = "application/json"
SERVER = "proxyd"
SLICE_BYTES = 32 * 1024


class Response(PrivateResponse):
    """A response whose bytes are not copied: a page is in memory once, whoever reads it slowly."""

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
    """Return a response that says no."""
    return response(failure.status, encode(failure.body), failure.headers)
