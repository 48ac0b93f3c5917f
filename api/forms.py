"""Forms with files: multipart/form-data (RFC 7578), bounded while it is read."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from api.codec import File, convert_query
from api.errors import Transport, TransportError
from market.errors import Code, MarketError

MULTIPART = "multipart/form-data"
FIELDS_MAX = 32
FIELD_MAX_BYTES = 64 * 1024
READING_MAX = 16
READING_PER_CLIENT_MAX = 8
WAITING_MAX = 512
BODY_TIMEOUT_SECONDS = 30.0

_Body = TypeVar("_Body", bound=Struct)


class Uploads:
    """Bounds how many forms are in memory at once, of one client and in all; the others wait."""

    def __init__(self) -> None:
        self._waiting = 0
        self._held: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        """Hold a slot.

        Raises:
            MarketError: `too_busy`, when too many wait or none got free in time.
        """
        if self._waiting >= WAITING_MAX:
            raise MarketError(Code.TOO_BUSY)
        self._waiting += 1
        try:
            async with asyncio.timeout(BODY_TIMEOUT_SECONDS), self._changed:
                await self._changed.wait_for(lambda: self._has_room(client))
                self._held[client] += 1
        except TimeoutError as error:
            raise MarketError(Code.TOO_BUSY) from error
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._held[client] -= 1
            self._held += Counter()
            async with self._changed:
                self._changed.notify_all()

    def _has_room(self, client: str) -> bool:
        return self._held.total() < READING_MAX and self._held[client] < READING_PER_CLIENT_MAX


class Form(Generic[_Body]):
    """A form that has not been read.

    Args:
        request: whose body it is.
        kind: what it is read as.
        max_bytes: the largest body.
        uploads: the bound on forms in memory.
        client: the address it comes from.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        kind: type[_Body],
        *,
        max_bytes: int,
        uploads: Uploads,
        client: str,
    ) -> None:
        self._request = request
        self._kind = kind
        self._max_bytes = max_bytes
        self._uploads = uploads
        self._client = client

    @asynccontextmanager
    async def received(self) -> AsyncIterator[_Body]:
        """Read the form; its files should be gone from memory when the block is left.

        Raises:
            MarketError: `invalid_field`, `too_busy`.
            TransportError: it is too large, too slow, broken, or no form.
        """
        request = self._request
        declared = request.headers.get("Content-Type", "")
        kind, options = parse_options_header(declared)  # type: ignore[no-untyped-call]
        if kind != MULTIPART:
            raise TransportError(Transport.UNSUPPORTED_MEDIA_TYPE)
        if (request.content_length or 0) > self._max_bytes:
            raise TransportError(Transport.BODY_TOO_LARGE)
        async with self._uploads.slot(self._client):
            try:
                async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
                    fields = await self._fields(options.get("boundary", ""))
            except TimeoutError as error:
                raise TransportError(Transport.REQUEST_TIMEOUT) from error
            except (MultipartError, UnicodeError) as error:
                message = "The body is not well-formed multipart/form-data."
                raise MarketError(Code.INVALID_FIELD, message) from error
            except (web.RequestPayloadError, ConnectionError) as error:
                raise TransportError(Transport.BAD_REQUEST) from error
            yield convert_query(fields, self._kind)

    async def _fields(self, boundary: str) -> dict[str, str | File]:
        await continued(self._request)
        fields = _Fields(self._kind)
        size = 0
        with PushMultipartParser(
            boundary, max_segment_count=FIELDS_MAX, header_charset="utf8"
        ) as parser:
            async for chunk in self._request.content.iter_any():
                size += len(chunk)
                if size > self._max_bytes:
                    raise TransportError(Transport.BODY_TOO_LARGE)
                for event in parser.parse(chunk):
                    fields.take(event)
        return fields.found


class _Fields:
    """Collects the fields of a form; those that nobody asked for are let go as they come.

    An empty text is an absent one: that is how browsers send what was not filled in.
    """

    def __init__(self, kind: type[Struct]) -> None:
        self.found: dict[str, str | File] = {}
        self._kinds = {each.name: each.type for each in msgspec.structs.fields(kind)}
        self._name = ""
        self._content: bytearray | None = None

    def take(self, event: object) -> None:
        """Take what the parser says: a field begins, goes on, or (None) is over."""
        if isinstance(event, MultipartSegment):
            self._name = event.name or ""
            self._content = bytearray() if self._name in self._kinds else None
        elif isinstance(event, (bytes, bytearray)):
            self._go_on(event)
        elif self._content is not None:
            self._end(self._content)

    def _go_on(self, piece: bytes | bytearray) -> None:
        if self._content is None:
            return
        self._content += piece
        if self._kinds[self._name] is not File and len(self._content) > FIELD_MAX_BYTES:
            message = f"The field {self._name} is too long."
            raise MarketError(Code.INVALID_FIELD, message, field=self._name)

    def _end(self, content: bytearray) -> None:
        if self._kinds[self._name] is File:
            self.found[self._name] = File(content)
        elif content:
            self.found[self._name] = content.decode()
        self._content = None


async def continued(request: web.BaseRequest) -> None:
    """Tell a client that waits for it to go on with its body (RFC 9110, section 10.1.1)."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
