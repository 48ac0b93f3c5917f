"""Forms with files: multipart/form-data (RFC 7578), bounded while they are read."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct
from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from api.http.prefer import check_names
from api.routing.codec import File, convert_query
from api.serving.bodies import receive, too_large, unsupported_media_type
from market.base.errors import Code, MarketError
from market.base.slots import SlotBounds, Slots

MULTIPART = "multipart/form-data"
FIELDS_MAX = 32
FIELD_MAX_BYTES = 64 * 1024
READING = SlotBounds(
    total=16,  # with the largest photo of 10 MB that is 160 MB, and its copies
    reserved=4,  # of them, for logged-in users
    per_caller=8,  # half: one caller never has all
    # One photo of the largest size and some smaller ones: the slots above are for small files.
    size_per_caller=16 * 1024 * 1024,
    queue=512,
)
WAITING_SECONDS = 30.0  # about as long as a person waits for a page

_Body = TypeVar("_Body", bound=Struct)


class Uploads:
    """Bounds how many forms are in memory at once, of one caller and in all; the others wait."""

    def __init__(
        self, bounds: SlotBounds = READING, waiting_seconds: float = WAITING_SECONDS
    ) -> None:
        self._slots = Slots(bounds)
        self._waiting_seconds = waiting_seconds

    def slot(
        self, client: str, user_id: str = "", *, size: int = 0
    ) -> AbstractAsyncContextManager[None]:
        """Return a context that holds a slot, and waits for it for a bounded time.

        Args:
            client: the network that the sender is counted by.
            user_id: the logged-in user, "" for no user; the slot also counts for this user.
            size: the bytes that the form has, or may have.

        Raises:
            MarketError: `too_busy`, when too many wait or none got free in time.
        """
        callers = (client, user_id) if user_id else (client,)
        deadline = asyncio.get_running_loop().time() + self._waiting_seconds
        return self._slots.slot(*callers, size=size, is_known=bool(user_id), deadline=deadline)


class Form(Generic[_Body]):
    """A form that has not been read.

    Args:
        kind: the type to read the body as.
        client: the network that its sender is counted by.
        user_id: the sender, "" without a login.
        is_strict: whether a field that `kind` does not have is refused.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        kind: type[_Body],
        *,
        max_bytes: int,
        uploads: Uploads,
        client: str,
        user_id: str,
        is_strict: bool,
    ) -> None:
        self._request = request
        self._kind = kind
        self._max_bytes = max_bytes
        self._uploads = uploads
        self._client = client
        self._user_id = user_id
        self._is_strict = is_strict

    @asynccontextmanager
    async def received(self) -> AsyncIterator[_Body]:
        """Read the form; its files should be gone from memory when the block is left.

        Raises:
            MarketError: `invalid_field`, `too_busy`.
            TransportError: it is over the size limit, slow, broken, or not a form.
        """
        request = self._request
        declared = request.headers.get("Content-Type", "")
        kind, options = parse_options_header(declared)  # type: ignore[no-untyped-call]
        if kind != MULTIPART:
            raise unsupported_media_type(MULTIPART)
        if (request.content_length or 0) > self._max_bytes:
            raise too_large(self._max_bytes)
        size = request.content_length or self._max_bytes
        async with self._uploads.slot(self._client, self._user_id, size=size):
            try:
                fields = await self._fields(options.get("boundary", ""))
            except (MultipartError, UnicodeError) as error:
                message = "The body is not well-formed multipart/form-data."
                raise MarketError(Code.INVALID_FIELD, message) from error
            yield convert_query(fields, self._kind)

    async def _fields(self, boundary: str) -> dict[str, str | File]:
        fields = _Fields(self._kind, is_strict=self._is_strict)
        with PushMultipartParser(
            boundary, max_segment_count=FIELDS_MAX, header_charset="utf8"
        ) as parser:

            def take(piece: bytes) -> None:
                for event in parser.parse(piece):
                    fields.take(event)

            await receive(self._request, self._max_bytes, take)
        return fields.values


class _Fields:
    """Collects the fields of a form; fields unknown to the type are dropped as they arrive.

    An empty text counts as absent: that is how browsers send a field that was not filled in. A
    repeated field is refused, since either could be the right one.
    """

    def __init__(self, kind: type[Struct], *, is_strict: bool = False) -> None:
        self._kind = kind
        self._is_strict = is_strict
        self.values: dict[str, str | File] = {}
        self._seen: set[str] = set()
        self._kinds = {each.name: each.type for each in msgspec.structs.fields(kind)}
        self._name = ""
        self._content: bytearray | None = None

    def take(self, event: object) -> None:
        """Take an event of the parser: a field begins, continues, or (None) ends."""
        if isinstance(event, MultipartSegment):
            self._begin(event.name or "")
        elif isinstance(event, (bytes, bytearray)):
            self._go_on(event)
        elif self._content is not None:
            self._end(self._content)

    def _begin(self, name: str) -> None:
        if self._is_strict:
            check_names((name,), self._kind)
        if name in self._seen:
            message = f"The field {name} is there more than once."
            raise MarketError(Code.INVALID_FIELD, message, field=name)
        self._name = name
        self._content = None
        if name in self._kinds:
            self._seen.add(name)
            self._content = bytearray()

    def _go_on(self, piece: bytes | bytearray) -> None:
        if self._content is None:
            return
        self._content += piece
        if self._kinds[self._name] is not File and len(self._content) > FIELD_MAX_BYTES:
            message = f"The field {self._name} has more than {FIELD_MAX_BYTES} bytes."
            raise MarketError(Code.INVALID_FIELD, message, field=self._name)

    def _end(self, content: bytearray) -> None:
        if self._kinds[self._name] is File:
            self.values[self._name] = File(content)
        elif content:
            self.values[self._name] = content.decode()
        self._content = None
