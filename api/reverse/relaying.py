"""A request on its way to a job, and the answer on its way back, both as they come."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from http import HTTPStatus
from typing import Any, cast

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion10

from api.reverse.headers import length_of
from api.reverse.raw_stream import RawStream
from api.reverse.streams import Stream
from api.reverse.upstream import Broken, Head, Upstream
from api.serving.connections import Request

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
UPGRADED = (b"Connection: Upgrade\r\n", b"Upgrade: websocket\r\n")
REASON_MAX_CHARACTERS = 100
_BODILESS = frozenset((204, 304))


class Answered(web.StreamResponse):
    """An answer that was sent already.

    Args:
        keeps: whether another request may follow on the connection.
    """

    def __init__(self, status: int, *, keeps: bool) -> None:
        super().__init__(status=status)
        self._keeps = keeps

    @property
    def keep_alive(self) -> bool:
        """Whether another request may follow."""
        return self._keeps

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send nothing: the head is sent already."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Send nothing: the end is sent already. it was."""


async def body_of(request: Request, stream: Stream) -> AsyncIterator[bytes]:
    """Yield a request's body as it comes.

    Raises:
        RequestPayloadError: the client breaks off in it, or frames it wrongly.
    """
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(CONTINUE)
    with request.connection.receiving():
        while piece := await request.content.readany():
            stream.received(len(piece))
            yield piece


async def send_body(request: Request, upstream: Upstream, stream: Stream) -> None:
    """Send a request's body as it comes; where it breaks off, nothing may look whole.

    A job that has enough of it may still answer.
    """
    try:
        await upstream.send(body_of(request, stream))
    except web.RequestPayloadError:
        upstream.abort()
    except Broken:
        pass


async def pass_back(
    request: Request,
    head: Head,
    headers: Iterable[tuple[bytes, bytes]],
    stream: Stream,
) -> web.StreamResponse:
    """Pass an answer of the job on; if it breaks off, break off the client's connection."""
    writer, version = request.writer, request.version
    has_body = request.method != "HEAD" and head.status not in _BODILESS
    length = None if head.is_chunked or head.status == 204 else length_of(head.headers)
    keeps = request.keep_alive and version != HttpVersion10 and request.content.is_eof()
    lines = [b"%s: %s\r\n" % header for header in headers]
    if length is not None:
        lines.append(b"Content-Length: %d\r\n" % length)
    elif has_body and version == HttpVersion10:
        keeps = False
    elif has_body:
        lines.append(b"Transfer-Encoding: chunked\r\n")
    if not keeps:
        lines.append(b"Connection: close\r\n")
    await writer.write(first_line(head) + b"".join(lines) + b"\r\n")
    if has_body and length is None and version != HttpVersion10:
        writer.enable_chunking()
    try:
        if has_body:
            while piece := await head.body.readany():
                await writer.write(piece)
                await writer.drain()
                stream.sent(len(piece))
        await writer.write_eof()
    except Broken:
        break_off(request)
        keeps = False
    return Answered(head.status, keeps=keeps)


def first_line(head: Head) -> bytes:
    """Return the status line; the reason that a job gives may be any text."""
    reason = head.reason[:REASON_MAX_CHARACTERS]
    if not (reason.isascii() and reason.isprintable()):
        reason = ""
    if not reason and head.status in _PHRASES:
        reason = _PHRASES[head.status]
    return f"HTTP/1.1 {head.status} {reason}\r\n".encode()


def break_off(request: Request) -> None:
    """Break off an incomplete answer, so that it does not look complete."""
    if request.transport is not None:
        request.transport.abort()


async def become_raw(
    request: Request,
    upstream: Upstream,
    head: Head,
    headers: Iterable[tuple[bytes, bytes]],
    stream: Stream,
) -> web.StreamResponse:
    """Pass bytes on both ways, after an answer that ends HTTP, until one side is done."""
    lines = [b"%s: %s\r\n" % header for header in headers]
    await request.writer.write(first_line(head) + b"".join((*lines, *UPGRADED)) + b"\r\n")
    from_client = RawStream(request.protocol)
    request.protocol.set_parser(cast(Any, from_client))  # typed by the one that aiohttp has
    there = asyncio.create_task(_forward(from_client, upstream, stream))
    back = asyncio.create_task(_return(upstream.raw(), request.writer, stream))
    try:
        await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (there, back):
            task.cancel()
        await asyncio.gather(there, back, return_exceptions=True)
        upstream.close()
    return Answered(head.status, keeps=False)


async def _forward(source: RawStream, upstream: Upstream, stream: Stream) -> None:
    with contextlib.suppress(*Broken):
        while data := await source.read():
            await upstream.write(data)
            stream.received(len(data))


async def _return(source: RawStream, writer: AbstractStreamWriter, stream: Stream) -> None:
    with contextlib.suppress(*Broken):
        while data := await source.read():
            await writer.write(data)
            await writer.drain()
            stream.sent(len(data))


_PHRASES = {int(status): status.phrase for status in HTTPStatus}
