"""Request bodies: read piece by piece, within bounds of size, memory and time."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from aiohttp import web

from api.connections import connection_of
from api.errors import Transport, TransportError

if TYPE_CHECKING:
    from aiohttp.streams import StreamReader

BODY_TIMEOUT_SECONDS = 30.0
GRACE_SECONDS = 5.0  # before the rate below counts: a slow start is no attack
BYTES_PER_SECOND_MIN = 16 * 1024  # 131 kbit/s: less than any mobile network of today

UNREADABLE = "The body is not what Content-Encoding or Transfer-Encoding says, or has no end."


async def receive(request: web.BaseRequest, most: int, take: Callable[[bytes], None]) -> None:
    """Hand a body over as it comes, and give up on one that comes too slowly.

    Args:
        request: the request.
        most: the largest body, in bytes.
        take: is called with each piece.

    Raises:
        TransportError: it is too large, too slow or broken; and whatever `take` raises.
    """
    if (request.content_length or 0) > most:
        raise too_large(most)
    began = asyncio.get_running_loop().time()
    size = 0
    try:
        if request.content.is_eof():  # all of it came with the head: there is nothing to wait for
            _take_rest(request.content, most, take)
            return
        async with asyncio.timeout(GRACE_SECONDS) as patience:
            with connection_of(request).receiving():
                await _continue(request)
                async for chunk in request.content.iter_any():
                    size += len(chunk)
                    if size > most:
                        raise too_large(most)
                    earned = GRACE_SECONDS + size / BYTES_PER_SECOND_MIN
                    patience.reschedule(began + min(earned, BODY_TIMEOUT_SECONDS))
                    take(chunk)
    except TimeoutError as error:
        raise TransportError(Transport.REQUEST_TIMEOUT) from error
    except (web.RequestPayloadError, ConnectionError) as error:
        raise TransportError(Transport.BAD_REQUEST, message=UNREADABLE) from error


async def whole(request: web.BaseRequest, most: int, client: str) -> bytes:
    """Return a whole body; it counts for its client's memory until the request is answered.

    Raises:
        TransportError: as `receive`.
        MarketError: `too_busy`, when too many bytes of one network, or of all, are in memory.
    """
    connection = connection_of(request)
    declared = request.content_length
    if declared is not None and declared <= most:
        connection.expect(client, declared)
    pieces: list[bytes] = []

    def take(piece: bytes) -> None:
        connection.hold(client, len(piece))
        pieces.append(piece)

    await receive(request, most, take)
    return b"".join(pieces)


def _take_rest(content: "StreamReader", most: int, take: Callable[[bytes], None]) -> None:
    """Hand over what has come of a body that has ended; raises as `receive`."""
    rest = content.read_nowait()
    if len(rest) > most:
        raise too_large(most)
    if rest:
        take(rest)


def too_large(most: int) -> TransportError:
    """Return the refusal of a body of more than so many bytes."""
    message = f"The request body has more than {most} bytes, the most that this path takes."
    return TransportError(Transport.BODY_TOO_LARGE, message=message)


def unsupported_media_type(expected: str) -> TransportError:
    """Return the refusal of a body of another media type than the path takes."""
    message = f"This path takes a body of Content-Type: {expected}."
    return TransportError(Transport.UNSUPPORTED_MEDIA_TYPE, message=message)


async def _continue(request: web.BaseRequest) -> None:
    """Tell a client that waits for it to send its body (RFC 9110, section 10.1.1)."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
