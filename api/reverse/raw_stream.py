"""Bytes of a connection after the end of HTTP, for one reader.

Both sides of aiohttp hand such bytes to a parser (`set_parser`); this one keeps them as they are.
"""

import asyncio
from typing import Protocol

UNREAD_MAX_BYTES = 64 * 1024  # at most this waits, and one more read of the socket


class Readable(Protocol):
    """A connection whose reading can be paused."""

    def pause_reading(self) -> None:
        """Stop reading."""

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Read on."""


class RawStream:
    """Bytes that have arrived and were not read.

    Args:
        connection: on which it comes; it waits while there is much.
    """

    def __init__(self, connection: Readable) -> None:
        self._connection = connection
        self._parts: list[bytes] = []
        self._size = 0
        self._is_paused = False
        self._is_over = False
        self._arrival = asyncio.Event()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take arrived bytes; called by aiohttp. The result lets it continue."""
        self._parts.append(bytes(data))
        self._size += len(data)
        if self._size > UNREAD_MAX_BYTES and not self._is_paused:
            self._is_paused = True
            self._connection.pause_reading()
        self._arrival.set()
        return False, b""

    def feed_eof(self) -> None:
        """Note the end of the input; called by aiohttp."""
        self._is_over = True
        self._arrival.set()

    async def read(self) -> bytes:
        """Return the bytes that have arrived; b"" at the end."""
        while not self._parts and not self._is_over:
            self._arrival.clear()
            await self._arrival.wait()
        data = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        if self._is_paused and not self._is_over:
            self._is_paused = False
            self._connection.resume_reading()
        return data
