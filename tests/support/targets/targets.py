"""Servers that a proxied connection reaches: they count the bytes that they see."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

PATTERN = bytes(range(251)) * 261  # 251 is prime: a lost or repeated block shows
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def pattern(size: int) -> bytes:
    """Return the first `size` bytes that a `source` sends."""
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


class Target:
    """A TCP server on loopback.

    `received` and `sent` count bytes over all of its connections; `ended` counts streams that
    clients ended in order, `resets` those that broke.
    """

    def __init__(self) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.received = 0
        self.sent = 0
        self.accepted = 0
        self.ended = 0
        self.resets = 0
        self.data = bytearray()

    @asynccontextmanager
    async def serving(self, handler: Handler, host: str) -> AsyncIterator["Target"]:
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            self.accepted += 1
            try:
                await handler(reader, writer)
            except ConnectionError:
                self.resets += 1
            finally:
                tasks.discard(task)
                writer.close()

        server = await asyncio.start_server(serve, host, 0)
        self.host, self.port = server.sockets[0].getsockname()[:2]
        try:
            yield self
        finally:
            server.close()
            for task in tuple(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def read(self, reader: asyncio.StreamReader) -> bytes:
        """Read once, counting."""
        data = await reader.read(65_536)
        self.received += len(data)
        if not data:
            self.ended += 1
        return data

    async def write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Write, counting."""
        writer.write(data)
        self.sent += len(data)
        await writer.drain()


@asynccontextmanager
async def echo(host: str = "127.0.0.1") -> AsyncIterator[Target]:
    """Serve an echo of the bytes sent; ends when the client ends."""
    target = Target()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await target.read(reader):
            await target.write(writer, data)

    async with target.serving(handle, host):
        yield target


@asynccontextmanager
async def sink(answer: bytes = b"") -> AsyncIterator[Target]:
    """Serve nothing until the client has ended, then `answer`; keep its bytes in `data`."""
    target = Target()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await target.read(reader):
            target.data += data
        await target.write(writer, answer)

    async with target.serving(handle, "127.0.0.1"):
        yield target


@asynccontextmanager
async def source(size: int | None) -> AsyncIterator[Target]:
    """Serve `size` bytes of the pattern and end; None never ends."""
    target = Target()

    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = size
        while left is None or left > 0:
            block = PATTERN if left is None else PATTERN[:left]
            await target.write(writer, block)
            left = None if left is None else left - len(block)

    async with target.serving(handle, "127.0.0.1"):
        yield target


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Target]:
    """Serve with a handler of the test."""
    target = Target()
    async with target.serving(handler, "127.0.0.1"):
        yield target
