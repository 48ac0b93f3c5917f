"""The connection to a job, for one request at a time, over a socket that is handed in.

The answers of a job are not trusted: its head is bounded, and a connection on which something has
come behind an answer is used no more.
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import TYPE_CHECKING, NamedTuple, Self

from aiohttp import client_exceptions, http_exceptions
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import StreamWriter
from aiohttp.streams import StreamReader

from api.reverse.headers import Headers
from api.reverse.raw_stream import RawStream

if TYPE_CHECKING:
    import socket

LINE_MAX_BYTES = 8 * 1024
FIELD_MAX_BYTES = 16 * 1024  # cookies and policies of large applications
FIELDS_MAX = 128
UNREAD_BYTES = 64 * 1024  # of an answer: no more is read until its client takes them
INTERIM_MAX = 8  # answers with a status of 1xx before the one
SWITCHING = 101
LINGER_SECONDS = 2.0  # for a job that has answered, to take the rest of its request
_COUNT = struct.Struct("i")

# Errors of aiohttp for a connection that breaks, and for an answer that is malformed.
Broken = (OSError, client_exceptions.ClientError, http_exceptions.HttpProcessingError, EOFError)


class NoAnswerError(Exception):
    """The job has closed the connection, or sent no valid answer."""


class Head(NamedTuple):
    """The beginning of an answer; `body` is the rest."""

    status: int
    reason: str
    headers: Headers
    is_chunked: bool
    body: StreamReader


class _Protocol(ResponseHandler):
    """Reads answers for aiohttp; an answer whose body turns to nonsense ends for its reader."""

    body: StreamReader | None = None

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """Raise in the tasks that wait for an answer, or for further bytes of one."""
        super().set_exception(exc, *cause)
        if self.body is not None and not self.body.is_eof():
            self.body.set_exception(exc)


class Upstream:
    """A connection to a job, with one request at a time.

    Args:
        reset: has the closing of a socket be a reset.
    """

    def __init__(
        self,
        protocol: _Protocol,
        transport: asyncio.Transport,
        sock: "socket.socket",
        reset: "Callable[[socket.socket], None]",
    ) -> None:
        self._protocol = protocol
        self._transport = transport
        self._sock = sock
        self._reset = reset
        self._closing: asyncio.TimerHandle | None = None
        self._is_to_be_kept = False
        self._writer = StreamWriter(protocol, asyncio.get_running_loop())

    @classmethod
    async def over(cls, sock: "socket.socket", reset: "Callable[[socket.socket], None]") -> Self:
        """Return a connection to a job over a connected socket, which it owns.

        Raises:
            OSError: it is broken; the socket is closed.
        """
        loop = asyncio.get_running_loop()
        try:
            transport, protocol = await loop.create_connection(lambda: _Protocol(loop), sock=sock)
        except BaseException:
            sock.close()
            raise
        return cls(protocol, transport, sock, reset)

    async def ask(
        self,
        method: str,
        target: str,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        chunked: bool,
        keeps: bool = False,
    ) -> None:
        """Send the head of the request; with `keeps` the connection may serve another one.

        Raises:
            OSError: the connection is broken.
        """
        self._is_to_be_kept = keeps
        self._protocol.body = None
        self._protocol.set_response_params(
            skip_payload=method == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=UNREAD_BYTES,
            max_line_size=LINE_MAX_BYTES,
            max_field_size=FIELD_MAX_BYTES,
            max_headers=FIELDS_MAX,
        )
        lines = [f"{method} {target} HTTP/1.1\r\n".encode()]
        lines += (b"%s: %s\r\n" % header for header in headers)
        await self._writer.write(b"".join((*lines, b"\r\n")))
        if chunked:
            self._writer.enable_chunking()

    async def send(self, pieces: AsyncIterator[bytes]) -> None:
        """Send the body of the request as it comes, no faster than the job takes it.

        Raises:
            OSError: the connection is broken.
        """
        async for piece in pieces:
            await self._writer.write(piece)
            await self._writer.drain()
        await self._writer.write_eof()

    async def answer(self) -> Head:
        """Wait for the answer.

        Raises:
            NoAnswerError: no answer arrived.
        """
        for _ in range(INTERIM_MAX):
            try:
                message, body = await self._protocol.read()
            except Broken as error:
                raise NoAnswerError(type(error).__name__) from error
            if message.code >= 200 or message.code == SWITCHING:
                self._protocol.body = body
                if not (self._protocol.upgraded or self._is_to_be_kept):
                    body.on_eof(self.close)  # bytes behind its answer are not read
                headers = tuple(message.raw_headers)
                return Head(message.code, message.reason or "", headers, message.chunked, body)
        raise NoAnswerError("too many answers before the one")

    @property
    def can_ask_again(self) -> bool:
        """Whether the answer is over, nothing came behind it, and another request may follow."""
        return (
            self._is_to_be_kept
            and self._protocol.is_connected()
            and not self._protocol.should_close
            and not self._transport.is_closing()
            and not self._transport.get_write_buffer_size()
        )

    @property
    def is_upgraded(self) -> bool:
        """Whether the answer ends HTTP on this connection."""
        return self._protocol.upgraded

    def raw(self) -> RawStream:
        """Return the stream of bytes that the job sends after the end of HTTP."""
        stream = RawStream(self._protocol)
        self._protocol.set_parser(stream, None)
        return stream

    async def write(self, data: bytes) -> None:
        """Send bytes after the end of HTTP.

        Raises:
            OSError: the connection is broken.
        """
        await self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        """Close the connection; written bytes are still sent, if the job takes them in time.

        Closing twice is harmless.
        """
        if self._transport.is_closing() or self._closing is not None:
            return
        if self._has_unsent():
            loop = asyncio.get_running_loop()
            self._closing = loop.call_later(LINGER_SECONDS, self._finish)
        else:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection, and drop the bytes that the job has not taken, on the whole way."""
        if self._closing is not None:
            self._closing.cancel()
        # Without it a job that reads nothing would keep the stream that leads to it.
        self._reset(self._sock)
        self._transport.abort()

    def _finish(self) -> None:
        if self._has_unsent():
            self.abort()
        else:
            self._transport.close()

    def _has_unsent(self) -> bool:
        """Return whether anything waits for the job to read."""
        if self._transport.get_write_buffer_size():
            return True
        try:
            queued = ioctl(self._sock, TIOCOUTQ, bytes(_COUNT.size))
        except (OSError, ValueError):  # it is closed
            return False
        return _COUNT.unpack(queued) != (0,)
