"""Files as responses: whole or one range (RFC 9110, section 14), and never shown in a browser."""

import asyncio
import logging
import re
from urllib.parse import quote

from aiohttp import hdrs, web

from api.http.errors import Transport, TransportError
from api.routing.lasting import GoesOn, while_read
from api.routing.routes import Download
from api.serving.connections import connection_of
from proxyctl.protocol.jobspec import download_name
from storage.blobs.base import BlobError, Content

# Two pieces of each download are in memory: one is sent while the next one is read.
PIECE_BYTES = 256 * 1024
BYTES = "application/octet-stream"

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_DIGITS_MAX = 18  # of a position in a range: any file's size is below it
_logger = logging.getLogger("api")


async def send(
    request: web.BaseRequest,
    download: Download,
    client: str,
    headers: dict[str, str],
    goes_on: GoesOn | None,
) -> web.StreamResponse:
    """Send a file, or the requested range of it, and close it.

    Args:
        request: the request for it.
        download: the file.
        client: the network whose memory is counted.
        headers: further headers.
        goes_on: the login of the request; the file is cut with it.

    Raises:
        TransportError: `range_not_satisfiable`.
        MarketError: `too_busy`.
    """
    content = download.content
    try:
        start, end = _range(request, download)
        is_part = (start, end) != (0, content.size_bytes)
        response = web.StreamResponse(
            status=206 if is_part else 200, headers={**headers, **_headers(download)}
        )
        response.content_length = end - start
        if is_part:
            response.headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{end - 1}/{content.size_bytes}"
        connection_of(request).hold(client, 2 * min(PIECE_BYTES, end - start))
        await response.prepare(request)
        if request.method != hdrs.METH_HEAD:
            async with while_read(request, goes_on):
                await _send(request, response, content, start, end)
        return response
    finally:
        content.close()


async def _send(
    request: web.BaseRequest, response: web.StreamResponse, content: Content, start: int, end: int
) -> None:
    """Send a range; after an error the connection is cut, so that no partial file looks whole."""
    try:
        piece = await content.read(start, min(PIECE_BYTES, end - start))
        while start < end:
            start += len(piece)
            if not piece:
                raise BlobError("the file is shorter than it was")
            # The next piece is read while this one leaves.
            reading = asyncio.create_task(content.read(start, min(PIECE_BYTES, end - start)))
            try:
                await response.write(piece)
            finally:
                piece = await reading
        await response.write_eof()
    except ConnectionError:
        _logger.debug("the client left in the middle of a download")
        _break_off(request, response)
    except BlobError as error:
        _logger.error("%s: the download broke off: %s", request.path, error)
        _break_off(request, response)


def _break_off(request: web.BaseRequest, response: web.StreamResponse) -> None:
    response.force_close()
    if request.transport is not None:
        request.transport.abort()


def _headers(download: Download) -> dict[str, str]:
    name = download_name(download.name)
    plain = re.sub(r"[^ !#-\[\]-~]", "_", name)  # quoted-string: without quotes and backslashes
    return {
        hdrs.CONTENT_TYPE: BYTES,
        hdrs.CONTENT_DISPOSITION: (
            f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
        ),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        hdrs.CACHE_CONTROL: "no-store",
        hdrs.ACCEPT_RANGES: "bytes",
        hdrs.ETAG: f'"{download.etag}"',
    }


def _range(request: web.BaseRequest, download: Download) -> tuple[int, int]:
    """Return the requested part of a file: its first byte, and the end.

    A header that is not one range is ignored, as is one for another state of the file.

    Raises:
        TransportError: `range_not_satisfiable`.
    """
    size = download.content.size_bytes
    match = _RANGE.fullmatch(request.headers.get(hdrs.RANGE, "").strip())
    condition = request.headers.get(hdrs.IF_RANGE)
    if match is None or condition not in (None, f'"{download.etag}"'):
        return 0, size
    first, last = match.groups()
    if (not first and not last) or max(len(first), len(last)) > _DIGITS_MAX:
        return 0, size
    if not first:
        start, end = max(size - int(last), 0), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < int(first):
            return 0, size
    if start >= size:
        headers: dict[str, str] = {hdrs.CONTENT_RANGE: f"bytes */{size}"}
        raise TransportError(Transport.RANGE_NOT_SATISFIABLE, headers)
    return start, end
