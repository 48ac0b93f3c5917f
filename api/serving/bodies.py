"""Request bodies: read piece by piece, within bounds of size, memory and time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING

from aiohttp import hdrs, web

from api.http.aiohttp_compat import forget_frames
from api.http.errors import Transport, TransportError
from api.serving.connections import connection_of

if TYPE_CHECKING:
    from aiohttp.streams import StreamReader

IDENTITY = "identity"
UNREADABLE = "The body is not what Content-Encoding or Transfer-Encoding says, or has no end."


async def receive(request: web.BaseRequest, most: int, take: Callable[[bytes], None]) -> None:
    """Hand a body over as it comes, and give up on one that comes too slowly.

    Args:
        request: the request.
        most: the largest body, in bytes.
        take: is called with each piece.

    Raises:
        TransportError: it is over the size limit, slow or broken; and the errors of `take`.
    """
    if (request.content_length or 0) > most:
        raise too_large(most)
    began = asyncio.get_running_loop().time()
    size = 0
    try:
        if request.content.is_eof():  # all of it came with the head: there is nothing to wait for
            rest = _rest(request.content, most)
            if rest:
                take(rest)
            return
        connection = connection_of(request)
        pace = connection.times.body
        async with asyncio.timeout(pace.grace_seconds) as patience:
            with connection.receiving():
                await _continue(request)
                async for chunk in request.content.iter_any():
                    size += len(chunk)
                    if size > most:
                        raise too_large(most)
                    earned = pace.grace_seconds + size / pace.bytes_per_second_min
                    patience.reschedule(began + min(earned, pace.timeout_seconds))
                    take(chunk)
    except TimeoutError as error:
        raise TransportError(Transport.REQUEST_TIMEOUT) from error
    except (web.RequestPayloadError, ConnectionError) as error:
        raise _unreadable(error) from error


async def whole(request: web.BaseRequest, most: int, client: str) -> bytes:
    """Return a whole body; it counts for its client's memory until the request is answered.

    Raises:
        TransportError: as `receive`.
        MarketError: `too_busy`, when too many bytes of one network, or of all, are in memory.
    """
    connection = connection_of(request)
    if request.content.is_eof():  # it came with the head, as most do
        try:
            body = _rest(request.content, most)
        except (web.RequestPayloadError, ConnectionError) as error:
            raise _unreadable(error) from error
        if body:
            connection.hold(client, len(body))
        return body
    declared = request.content_length
    if declared is not None and declared <= most:
        connection.expect(client, declared)
    pieces: list[bytes] = []

    def take(piece: bytes) -> None:
        connection.hold(client, len(piece))
        pieces.append(piece)

    await receive(request, most, take)
    return b"".join(pieces)


class RawBody:
    """A body of bytes that its handler reads piece by piece, so that memory holds only one of them.

    Only the time in which the sender is waited for counts: a handler may take as long as it needs
    for a piece, and the sender is not read from meanwhile.

    Args:
        max_bytes: the largest body, in bytes; of a compressed one, once it is unpacked.
        encodings: the values of Content-Encoding that are unpacked.

    Attributes:
        max_bytes: as above.
        declared_bytes: its size by Content-Length; None where the sender does not say it, or sends
            it compressed.

    Raises:
        TransportError: it says that it is too large, or is encoded in another way.
    """

    def __init__(
        self, request: web.BaseRequest, max_bytes: int, encodings: tuple[str, ...] = ()
    ) -> None:
        encoding = request.headers.get(hdrs.CONTENT_ENCODING, IDENTITY).strip().lower()
        if encoding not in (IDENTITY, *encodings):
            raise _wrong_encoding(encodings)
        if (request.content_length or 0) > max_bytes:
            raise too_large(max_bytes)
        self.max_bytes = max_bytes
        self.declared_bytes = request.content_length if encoding == IDENTITY else None
        self._request = request
        self._size = 0
        self._waited_seconds = 0.0
        self._has_begun = False

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the request, for a body that they sign."""
        return self._request.headers

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body, a piece of at most some 100 KB at a time; none of them is empty.

        Raises:
            TransportError: it is over the size limit, slow, broken, or was cut off.
        """
        while piece := await self.read():
            yield piece

    async def read(self) -> bytes:
        """Return the next piece, b"" at the end; raises as `pieces`."""
        content = self._request.content
        try:
            piece = await content.readany() if content.is_eof() else await self._wait()
        except TimeoutError as error:
            raise TransportError(Transport.REQUEST_TIMEOUT) from error
        except (web.RequestPayloadError, ConnectionError) as error:
            raise _unreadable(error) from error
        self._size += len(piece)
        if self._size > self.max_bytes:
            raise too_large(self.max_bytes)
        return piece

    async def _wait(self) -> bytes:
        """Wait for the next piece, for as long as a sender of the least rate may take."""
        request = self._request
        if not self._has_begun:
            self._has_begun = True
            await _continue(request)
        now = asyncio.get_running_loop().time
        began = now()
        connection = connection_of(request)
        pace = connection.times.body
        earned = pace.grace_seconds + self._size / pace.bytes_per_second_min
        patience = earned - self._waited_seconds
        with connection.receiving():
            async with asyncio.timeout(max(patience, 0)):
                piece = await request.content.readany()
        self._waited_seconds += now() - began
        return piece


def _rest(content: "StreamReader", most: int) -> bytes:
    """Return the buffered bytes of a body that has ended; raises as `receive`."""
    rest = content.read_nowait()
    if len(rest) > most:
        raise too_large(most)
    return rest


def too_large(most: int) -> TransportError:
    """Return the refusal of a body of more than `most` bytes."""
    message = f"The request body has more than {most} bytes, the most that this path takes."
    return TransportError(Transport.BODY_TOO_LARGE, message=message)


def unsupported_media_type(expected: str) -> TransportError:
    """Return the refusal of a body of another media type than the path takes."""
    message = f"This path takes a body of Content-Type: {expected}."
    return TransportError(Transport.UNSUPPORTED_MEDIA_TYPE, message=message)


def _unreadable(error: Exception) -> TransportError:
    """Return the refusal of a body that broke off, and free the frames that have read it.

    The reader of the body keeps the error, and its traceback has the frames, which have the pieces.
    As a cycle they would stay in memory until the next collection of garbage, for each client that
    leaves.
    """
    forget_frames(error)
    return TransportError(Transport.BAD_REQUEST, message=UNREADABLE)


def _wrong_encoding(encodings: tuple[str, ...]) -> TransportError:
    message = "This path takes a body without Content-Encoding."
    if encodings:
        message = f"This path takes a body of Content-Encoding: {' or '.join(encodings)}, or none."
    return TransportError(Transport.UNSUPPORTED_MEDIA_TYPE, message=message)


async def _continue(request: web.BaseRequest) -> None:
    """Send "100 Continue" to a client that waits for it (RFC 9110, section 10.1.1)."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
