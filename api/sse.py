"""Server-sent events (WHATWG HTML, section 9.2): a response that arrives piece by piece."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from aiohttp import web

from api.routes import Event

CONTENT_TYPE = "text/event-stream"
WRITE_SECONDS = 30.0  # for one event; a client that has not read it by then is gone

_logger = logging.getLogger("api")
_encoder = msgspec.json.Encoder()


async def send(
    request: web.BaseRequest,
    events: AsyncGenerator[Event, None],
    headers: dict[str, str],
) -> web.StreamResponse:
    """Send events until there are no more, or the client leaves or stops reading.

    An error before the first event is raised, so that it is answered like any other; after that
    the status has been sent, and an error can only break the response off.
    """
    response = web.StreamResponse(
        headers={
            **headers,
            "Content-Type": CONTENT_TYPE,
            "Cache-Control": "no-store",
            "X-Accel-Buffering": "no",
        }
    )
    async with aclosing(events):
        first = await anext(events)
        await response.prepare(request)
        try:
            await _write(response, encoded(first))
            async for event in events:
                await _write(response, encoded(event))
            await response.write_eof()
        except ConnectionError:
            _logger.debug("the client left in the middle of an event stream")
            _break_off(request, response)
        except Exception:
            _logger.exception("%s %s: the event stream broke off", request.method, request.path)
            _break_off(request, response)
    return response


def encoded(event: Event) -> bytes:
    """Return an event as it is sent; JSON has no line breaks of its own."""
    if event.data is None:
        return b"id: " + event.id.encode() + b"\n\n" if event.id else b":\n\n"
    name = b"event: " + event.name.encode() + b"\n"
    if event.id:
        name += b"id: " + event.id.encode() + b"\n"
    return name + b"data: " + _encoder.encode(event.data) + b"\n\n"


async def _write(response: web.StreamResponse, data: bytes) -> None:
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write(data)
    except TimeoutError as error:
        raise ConnectionResetError("the client does not read") from error


def _break_off(request: web.BaseRequest, response: web.StreamResponse) -> None:
    response.force_close()
    if request.transport is not None:
        request.transport.abort()
