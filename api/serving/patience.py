"""An answer that may be minutes in coming: spaces before it keep its connection open.

Proxies and routers on the way close a connection on which nothing has come for a minute. JSON may
begin with spaces (RFC 8259, section 2), so clients need no change for it.
"""

import logging
from typing import TYPE_CHECKING

from aiohttp import hdrs, web
from aiohttp.http import HttpVersion10

from api.http.request_id import HEADER, current
from api.routing.responses import JSON, NO_SNIFF, NO_STORE, SERVER

if TYPE_CHECKING:
    from api.serving.connections import Request

SPACE = b" "
# Buffered bytes reach no client in time (nginx reads this header).
_UNBUFFERED = "X-Accel-Buffering"

_logger = logging.getLogger("api")


class Patience:
    """The response to a held request, once a space of it has been sent.

    By then its status has also been sent: an error after that breaks the connection off, and the
    client repeats its request.
    """

    __slots__ = ("_request", "_response")

    def __init__(self, request: "Request") -> None:
        self._request = request
        self._response: web.StreamResponse | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the response has begun."""
        return self._response is not None

    async def send_space(self) -> None:
        """Send a space; a client of HTTP/1.0, which reads no response in pieces, gets none.

        Raises:
            ConnectionError: the client has left.
        """
        request, response = self._request, self._response
        if request.version == HttpVersion10:
            return
        if response is None:
            kind = {hdrs.CONTENT_TYPE: JSON, hdrs.SERVER: SERVER, _UNBUFFERED: "no"}
            headers = {**kind, **NO_STORE, **NO_SNIFF}
            response = web.StreamResponse(headers={**headers, HEADER: current.get()})
            response.enable_chunked_encoding()
            self._response = response
            await response.prepare(request)
        await response.write(SPACE)

    async def finish(self, body: bytes) -> web.StreamResponse:
        """Send the rest of the response, which must have begun."""
        response = self._response
        assert response is not None  # noqa: S101 - see above
        try:
            await response.write(body)
            await response.write_eof()
        except ConnectionError:
            _logger.debug("the client left before the answer to a request that was held")
            return self.break_off()
        return response

    def break_off(self) -> web.StreamResponse:
        """End the connection in the middle of the response, so that it does not look whole."""
        response = self._response
        assert response is not None  # noqa: S101 - see above
        response.force_close()
        if self._request.transport is not None:
            self._request.transport.abort()
        return response
