"""The stream of a work connection under TLS: chunks, whose end differs from a loss.

TLS ends both ways at once, and a stream of TCP does not. So the stream goes in chunks, each behind
a length of two bytes, and a length of 0 is its end; the other way goes on. A connection that ends
without it is broken. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# With its length and TLS's own byte for the type, a chunk fills one record of TLS (RFC 8446, 5.1).
CHUNK_MAX_BYTES: Final = 16_384 - 2
END: Final = b"\0\0"
_LENGTH: Final = 2


class ChunkError(Exception):
    """Bytes behind the end of a stream."""


def chunked(data: bytes | bytearray | memoryview) -> bytes:
    """Return a part of a stream as it is sent."""
    view = memoryview(data)
    parts: list[bytes | memoryview] = []
    for at in range(0, len(view), CHUNK_MAX_BYTES):
        part = view[at : at + CHUNK_MAX_BYTES]
        parts += (len(part).to_bytes(_LENGTH, "big"), part)
    return b"".join(parts)


class ChunkReader:
    """Takes bytes as they come, and gives the stream; `has_ended` says that no more will come."""

    def __init__(self) -> None:
        self.has_ended = False
        self._rest = b""  # the first half of a length
        self._left = 0  # of the chunk that has begun

    def receive_data(self, data: bytes) -> Iterator[memoryview]:
        """Take bytes; yield parts of the stream.

        Raises:
            ChunkError: while it yields: something comes behind the end.
        """
        view, at = memoryview(self._rest + data if self._rest else data), 0
        self._rest = b""
        while at < len(view):
            if self.has_ended:
                raise ChunkError
            if not self._left:
                if len(view) - at < _LENGTH:
                    self._rest = bytes(view[at:])
                    return
                self._left = view[at] << 8 | view[at + 1]
                at += _LENGTH
                self.has_ended = not self._left
                continue
            part = view[at : at + self._left]
            at += len(part)
            self._left -= len(part)
            yield part
