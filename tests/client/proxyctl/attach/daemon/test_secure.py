"""Work connections under TLS, as the agent opens them."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.base.waiting import until
from support.targets.tls import make_certificate

from proxyctl.attach.daemon.control import secure_door
from proxyctl.attach.relay.relay import End
from proxyctl.exit.carrying.pool import Pool, Room
from proxyctl.protocol.frames import SECURE_TICKETS
from proxyctl.protocol.secure import END, chunked


class Server(asyncio.Protocol):
    """The daemon's end of one connection."""

    def __init__(self) -> None:
        self.received = b""
        self.is_lost = False
        self.transport: asyncio.Transport | None = None
        self.said: Callable[[], None] = lambda: None  # called when something has come

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        self.said()

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Server, int, str]]:
    """Serve one connection; give where, and the fingerprint of the certificate."""
    certificate = make_certificate(folder)
    server, loop = Server(), asyncio.get_running_loop()
    listening = await loop.create_server(lambda: server, "127.0.0.1", 0, ssl=certificate.server)
    pem = certificate.path.read_text()
    try:
        yield (
            server,
            listening.sockets[0].getsockname()[1],
            sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest(),
        )
    finally:
        listening.close()
        if server.transport is not None:
            server.transport.abort()
        await listening.wait_closed()


async def parked(port: int, pin: str, lost: list[int]) -> End:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setblocking(False)
    return await secure_door("127.0.0.1", pin).park(sock, b"a ticket", lambda: lost.append(1))


async def test_a_ticket_is_shown_to_the_daemon(tmp_path: Path) -> None:
    lost: list[int] = []
    async with serving(tmp_path) as (server, port, pin):
        end = await parked(port, pin, lost)
        await until(lambda: server.received == b"a ticket")
        assert not end.is_lost
        end.transport.close()
        await until(lambda: server.is_lost)
        assert server.received == b"a ticket" + END
    await until(lambda: lost == [1])


async def test_an_order_that_the_ticket_brings_finds_its_connection(tmp_path: Path) -> None:
    """The daemon may answer a ticket before the agent's loop reports the end of the handshake."""
    taken: list[Any] = []
    loop = asyncio.get_running_loop()
    async with serving(tmp_path) as (server, port, pin):

        def connect(done: Callable[[socket.socket], None]) -> asyncio.Handle:
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setblocking(False)
            return loop.call_soon(done, sock)

        room = Room(100, loop.time)
        pool = Pool(
            1,
            connect,
            room=room,
            lost=lambda _: None,
            relays=secure_door("127.0.0.1", pin),
            loop=loop,
        )
        server.said = lambda: taken.append(pool.take(SECURE_TICKETS))
        pool.add_tickets(SECURE_TICKETS, (bytes(16),))
        pool.park(1)
        await until(lambda: bool(taken), "the ticket has arrived")
        assert taken[0] is not None
        taken[0].reset()
        pool.close()
        await until(lambda: not pool._opening, "nothing is opened any more")
        assert room._taken == 0


async def test_a_handshake_that_ends_with_its_pool_takes_no_place(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    room = Room(100, loop.time)
    async with serving(tmp_path) as (server, port, pin):

        class Door:
            """Closes the pool in the turn of the loop in which a handshake ends."""

            def begin_park(self, *args: Any) -> Any:
                sock, hello, lost, ready, done = args

                def end(end: End) -> None:
                    pool.close()
                    ready(end)

                return secure_door("127.0.0.1", pin).begin_park(sock, hello, lost, end, done)

        def connect(done: Callable[[socket.socket], None]) -> asyncio.Handle:
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setblocking(False)
            return loop.call_soon(done, sock)

        lost: list[int] = []
        pool = Pool(1, connect, room=room, lost=lost.append, relays=Door(), loop=loop)
        pool.add_tickets(SECURE_TICKETS, (bytes(16),))
        pool.park(1)
        await until(lambda: bool(lost) or room._taken < 0, "the connection is given up")
    assert (len(pool), room._taken, pool._coming()) == (0, 0, 0)
    assert server.received == b""


async def test_another_certificate_sees_no_ticket(tmp_path: Path) -> None:
    lost: list[int] = []
    async with serving(tmp_path) as (server, port, _):
        end = await parked(port, "ab" * 32, lost)
        await until(lambda: end.is_lost, "it is given up")
        assert server.received == b""
    assert lost == [1]


@pytest.mark.parametrize("spoken", [chunked(b"x"), END, END + b"x"])
async def test_a_daemon_that_speaks_before_a_dial_is_cut(tmp_path: Path, spoken: bytes) -> None:
    lost: list[int] = []
    async with serving(tmp_path) as (server, port, pin):
        await parked(port, pin, lost)
        await until(lambda: server.received == b"a ticket")
        assert server.transport is not None
        server.transport.write(spoken)
        await until(lambda: lost == [1], "it is gone")
