"""Server-sent events (WHATWG HTML, section 9.2): a response that arrives piece by piece."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal

import msgspec
from aiohttp import hdrs, web
from msgspec import Struct

from api.routing.lasting import GoesOn
from api.routing.routes import Event

CONTENT_TYPE = "text/event-stream"
BYE = "bye"

_logger = logging.getLogger("api")
_encoder = msgspec.json.Encoder()


class ByeEvent(Struct):
    """The stream ends. After `draining` connect again; after `logged_out` log in first.

    `logged_out` is also for an API key that was revoked, has expired, or does not permit the
    address of its reader any more.
    """

    reason: Literal["draining", "logged_out"]


async def send(
    request: web.BaseRequest,
    events: AsyncGenerator[Event, None],
    headers: dict[str, str],
    write_seconds: float,
) -> web.StreamResponse:
    """Send events until none is left, or the client leaves or stops reading.

    An error before the first event is raised, so that it is answered like any other; after that
    the status has been sent, and an error can only break the response off. HEAD is answered with
    the status and the headers of GET (RFC 9110, section 9.3.2), and the events are closed.

    Args:
        request: the request for them.
        events: the events.
        headers: further headers.
        write_seconds: for one event (`event_write_seconds` of `api.http.limits`).
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
        if request.method == hdrs.METH_HEAD:
            await events.aclose()
            await response.prepare(request)
            return response
        await response.prepare(request)
        try:
            await _write(response, encoded(first), write_seconds)
            async for event in events:
                await _write(response, encoded(event), write_seconds)
            await response.write_eof()
        except ConnectionError:
            _logger.debug("the client left in the middle of an event stream")
            _break_off(request, response)
        except Exception:
            _logger.exception("%s %s: the event stream broke off", request.method, request.path)
            _break_off(request, response)
    return response


async def while_current(
    events: AsyncGenerator[Event, None], goes_on: GoesOn
) -> AsyncGenerator[Event, None]:
    """Yield events until none is left, or their reader may not read any more.

    Args:
        events: the events; they are closed at the end.
        goes_on: the login or key of the reader, checked however fast or slow the events come.
    """
    clock = asyncio.get_running_loop().time
    check_at = clock() + goes_on.check_seconds
    coming: asyncio.Task[Event] | None = None
    async with aclosing(events):
        try:
            while True:
                coming = coming or asyncio.create_task(_next(events))
                await asyncio.wait({coming}, timeout=max(check_at - clock(), 0))
                if clock() >= check_at:
                    if not await goes_on.check():
                        yield Event(BYE, ByeEvent("logged_out"))
                        return
                    check_at = clock() + goes_on.check_seconds
                if coming.done():
                    event, coming = coming.result(), None
                    yield event
        except StopAsyncIteration:
            return
        finally:
            if coming is not None:
                await _end(coming)


async def _end(coming: asyncio.Task[Event]) -> None:
    """Cancel the task of the next event, and wait for its end.

    The task owns the events until it has ended: closing them before that is an error. So a further
    cancellation, of a daemon that stops while a client goes, is handed on to the task.
    """
    cancelled: asyncio.CancelledError | None = None
    while not coming.done():
        coming.cancel()
        try:
            await asyncio.wait({coming})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await anext(events)


def encoded(event: Event) -> bytes:
    """Return an event as it is sent; JSON has no line breaks of its own."""
    if event.data is None:
        return b"id: " + event.id.encode() + b"\n\n" if event.id else b":\n\n"
    name = b"event: " + event.name.encode() + b"\n"
    if event.id:
        name += b"id: " + event.id.encode() + b"\n"
    return name + b"data: " + _encoder.encode(event.data) + b"\n\n"


async def _write(response: web.StreamResponse, data: bytes, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await response.write(data)
    except TimeoutError as error:
        raise ConnectionResetError("the client does not read") from error


def _break_off(request: web.BaseRequest, response: web.StreamResponse) -> None:
    response.force_close()
    if request.transport is not None:
        request.transport.abort()
