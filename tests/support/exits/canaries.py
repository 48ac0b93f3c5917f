"""Pages that everybody gets alike, and exits that lie about them."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from proxyctl.protocol.frames import Dial, Dialled, DialOutcome
from support.exits.device import Device, Obey, carry
from support.targets.targets import Handler, serving
from support.targets.tls import make_certificate

BODY = b"<html><body>the same for everybody</body></html>\n"
OTHER = "127.0.0.2"  # a device may leave from there
EVIL = BODY.replace(b"</body>", b"<script src=//evil></script></body>")


@dataclass
class Pages:
    """Two pages by HTTP and one by HTTPS, with the content `body`; `asked` counts all requests.

    Visitors from the address `OTHER` get `others`, if these are set; and their answers stop in the
    middle until `stalls` is set, if there is that.
    """

    http: int = 0
    other: int = 0
    https: int = 0
    body: bytes = BODY
    asked: int = 0
    varies: bool = False
    others: bytes = b""
    stalls: asyncio.Event | None = None

    @property
    def urls(self) -> list[str]:
        return [
            f"http://127.0.0.1:{self.http}/page",
            f"http://127.0.0.1:{self.other}/other?x=1",
            f"https://127.0.0.1:{self.https}/",
        ]

    @property
    def ports(self) -> list[int]:
        return [self.http, self.other, self.https]

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        body = self.body + (str(self.asked).encode() if self.varies else b"")
        if writer.get_extra_info("peername")[0] == OTHER:
            body = self.others or body
            if self.stalls is not None:
                writer.write(answer(body)[:40])
                await self.stalls.wait()
                return
        writer.write(answer(body))
        await writer.drain()


def answer(body: bytes) -> bytes:
    """Return an answer of a server that closes after it."""
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@asynccontextmanager
async def serving_pages(folder: Path) -> AsyncIterator[Pages]:
    """Serve the pages."""
    pages = Pages()
    certificate = make_certificate(folder)
    async with serving(pages.answer) as http, serving(pages.answer) as other:
        async with serving_tls(pages.answer, certificate.server) as port:
            pages.http, pages.other, pages.https = http.port, other.port, port
            yield pages


@asynccontextmanager
async def serving_tls(handler: Handler, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Serve over TLS, and yield the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def saying(data: bytes, *, when: Callable[[Dial], bool] = lambda _: True) -> Obey:
    """Connect nowhere: report a connection, answer the first bytes with invented ones, and end."""

    async def obey(device: Device, dial: Dial) -> None:
        if not when(dial):
            await carry(device, dial)
            return
        loop = asyncio.get_running_loop()
        with device.take(dial.number) as work:
            device.send(Dialled(dial.number, DialOutcome.CONNECTED, 0, None, 0))
            await loop.sock_recv(work, 65_536)
            await loop.sock_sendall(work, data)

    return obey


async def swallow(device: Device, dial: Dial) -> None:
    """Report a connection, read everything, and answer nothing: a black hole."""
    loop = asyncio.get_running_loop()
    with device.take(dial.number) as work:
        device.send(Dialled(dial.number, DialOutcome.CONNECTED, 0, None, 0))
        while await loop.sock_recv(work, 65_536):
            pass


def leading_to(
    port: int, when: Callable[[Dial], bool]
) -> Callable[[Device, Dial], Awaitable[None]]:
    """Carry some orders to another port than the ordered one."""

    async def obey(device: Device, dial: Dial) -> None:
        host = dial.host if not isinstance(dial.host, str) else "127.0.0.1"
        await carry(device, dial._replace(port=port if when(dial) else dial.port, host=host))

    return obey
