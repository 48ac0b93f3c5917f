"""Tricks that one address can play on the API for any length of time, each on many connections."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

HEAD = "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n\r\n"
BUNDLE = b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"
BOUNDARY = "multipart/form-data; boundary=frontier"
AGAIN_SECONDS = 0.05  # before a connection that was cut is made anew
SMALL_BUFFER = 4096

Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Besieger:
    """One address that attacks in every way at the same time; `begun` counts the connections of
    each.

    Args:
        port: the API's.
        source: the address.
        tls: for an API that speaks TLS.
    """

    def __init__(self, port: int, source: str, tls: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._source = source
        self._tls = tls
        self.begun: Counter[str] = Counter()
        self._connecting: set[asyncio.Task[Opened]] = set()

    @contextlib.asynccontextmanager
    async def standing(self, each: int) -> AsyncIterator[None]:
        """Keep each trick up on `each` connections within."""
        tasks = [
            asyncio.create_task(self._again(trick))
            for trick in TRICKS.values()
            for _ in range(each)
        ]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in await asyncio.gather(*self._connecting, return_exceptions=True):
                if not isinstance(each, BaseException):
                    each[1].transport.abort()
            await asyncio.sleep(0)

    async def _again(self, trick: "Trick") -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                async with self._connected() as (reader, writer):
                    self.begun[trick.__name__] += 1
                    await trick(reader, writer)
            await asyncio.sleep(AGAIN_SECONDS)

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[Opened]:
        # A task that is cancelled in the middle of a handshake would leave its socket open.
        connecting = asyncio.create_task(self._connect())
        self._connecting.add(connecting)
        connecting.add_done_callback(self._forget_failed)
        reader, writer = await asyncio.shield(connecting)
        self._connecting.discard(connecting)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    def _forget_failed(self, connecting: "asyncio.Task[Opened]") -> None:
        if connecting.cancelled() or connecting.exception() is not None:
            self._connecting.discard(connecting)

    async def _connect(self) -> Opened:
        sock = socket.socket()
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self._source, 0))
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self._port))
            name = "localhost" if self._tls is not None else None
            return await asyncio.open_connection(sock=sock, ssl=self._tls, server_hostname=name)
        except BaseException:
            sock.close()
            raise


Trick = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def gone(writer: asyncio.StreamWriter) -> None:
    """Read nothing, until the server has cut the connection."""
    writer.transport.pause_reading()
    while not writer.transport.is_closing():
        writer.write(b"")
        await asyncio.sleep(0.5)
        with contextlib.suppress(OSError):
            error = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if error:
                return


async def reads_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(BUNDLE * 6)
    await gone(writer)


async def trickles_a_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = HEAD.format(path="/auth/login", kind="application/json", size=5_000)
    await _trickle(head.encode(), reader, writer)


async def trickles_a_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _trickle(b"GET /healthz HTTP/1.1\r\nX-Slow: ", reader, writer)


async def keeps_the_last_byte(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = HEAD.format(path="/api/assistant/chat", kind="application/json", size=1024 * 1024)
    writer.write(head.encode() + b" " * (1024 * 1024 - 1))
    await writer.drain()
    await reader.read()


async def keeps_the_last_byte_of_a_photo(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    size = 9_000_000
    writer.write(
        HEAD.format(path="/api/assistant/analyze-image", kind=BOUNDARY, size=size).encode()
    )
    writer.write(b'--frontier\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n')
    for _ in range(size // 65_536 - 1):
        writer.write(bytes(65_536))
        await writer.drain()
    await reader.read()


async def sends_huge_heads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    lines = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 8_000) for number in range(7))
    writer.write(BUNDLE + (b"GET / HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n") * 60)
    await gone(writer)


async def guesses_passwords(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = json.dumps({"email": "ada@example.com", "password": "wrong password"})
    head = HEAD.format(path="/auth/login", kind="application/json", size=len(body))
    while True:
        writer.write((head + body).encode())
        head_of_answer = await reader.readuntil(b"\r\n\r\n")
        length = head_of_answer.partition(b"Content-Length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))


async def _trickle(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(head)
    while not reader.at_eof():
        writer.write(b"x")
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await reader.read(4096)


TRICKS = {
    trick.__name__: trick
    for trick in (
        reads_nothing,
        trickles_a_body,
        trickles_a_head,
        keeps_the_last_byte,
        keeps_the_last_byte_of_a_photo,
        sends_huge_heads,
        guesses_passwords,
    )
}
