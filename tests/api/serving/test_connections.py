"""One address that does its worst takes nothing from another: places, memory, patience."""

import asyncio
import contextlib
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.base.cases import cases
from support.base.waiting import until
from support.clients.siege import BUNDLE, TRICKS, Besieger
from support.daemons.bounded import api_bounds
from support.daemons.service import Service, running_in, settings_for
from support.targets.tls import make_certificate

from api.http.limits import BodyPace
from api.serving import connections

BESIEGER, ANOTHER = "127.0.0.2", "127.0.0.3"
PLACES = 16
QUICK_SHUTDOWN = api_bounds(shutdown_seconds=0.1)

JSON = b"Content-Type: application/json\r\n"
POST = b"POST /auth/login HTTP/1.1\r\nHost: x\r\n" + JSON


@contextlib.asynccontextmanager
async def client_at(
    address: str, tls: ssl.SSLContext | None
) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(local_addr=(address, 0), ssl=tls if tls is not None else True)
    async with aiohttp.ClientSession(connector=connector) as http:
        yield http


Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Open = Callable[..., Awaitable[Opened]]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Return a function that opens a connection to the API and sends some bytes."""
    writers: list[asyncio.StreamWriter] = []

    async def open_one(
        service: Service, source: str = BESIEGER, *, sent: bytes = b"", buffer: int = 0
    ) -> Opened:
        sock = socket.socket()
        sock.setblocking(False)
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.bind((source, 0))
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", service.api_port))
        except ConnectionResetError:
            sock.close()
            raise
        reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
        writers.append(writer)
        writer.write(sent)
        return reader, writer

    yield open_one
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)


async def is_refused(opening: Awaitable[Opened]) -> bool:
    """Say whether a client is turned away: at once, or before anything comes."""
    try:
        reader, _ = await opening
    except ConnectionResetError:
        return True
    return await is_cut(reader)


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Wait until nothing more comes; say whether nothing came at all."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


# uvloop leaves the besieger's sockets of broken handshakes to the collector of garbage.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("by_tls", [False], ids=["HTTP"])
async def test_under_siege_another_address_gets_every_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_tls: bool
) -> None:
    monkeypatch.setattr("proxyd.wiring.slices.api_connections_total", lambda *_: PLACES)
    settings: dict[str, Any] = {"limits": {"requests_per_second": 100}}
    trusting = None
    if by_tls:
        certificate = make_certificate(tmp_path)
        settings["api"] = {
            "tls_cert": str(certificate.path),
            "tls_key": str(tmp_path / "key.pem"),
        }
        trusting = ssl.create_default_context(cafile=str(certificate.path))
    async with running_in(tmp_path, **settings) as service:
        besieger = Besieger(service.api_port, BESIEGER, trusting)
        url = f"{'https' if by_tls else 'http'}://127.0.0.1:{service.api_port}"
        async with besieger.standing(PLACES):
            await until(lambda: len(besieger.begun) == len(TRICKS), "every trick is played")
            again = 1 if by_tls else 2 * PLACES
            await until(lambda: besieger.begun["reads_nothing"] >= again, "again and again")
            for _ in range(25):
                # Another connection each time: it must get a place of its own.
                async with client_at(ANOTHER, trusting) as http:
                    for path in ("/healthz", "/readyz", "/api/marketplace/jobs", "/docs/start.js"):
                        async with http.get(url + path) as answer:
                            assert answer.status == 200
                            await answer.read()
    gc.collect()


async def test_a_client_that_does_not_read_is_cut_when_it_is_time(
    tmp_path: Path, opened: Open
) -> None:
    async with running_in(tmp_path, limits={"api_stall_seconds": 1.0}) as service:
        http = service.daemon.http
        _, writer = await opened(service, sent=BUNDLE * 6, buffer=4096)
        writer.transport.pause_reading()
        await until(lambda: http.connections == 1, "it is let in")
        await until(lambda: http.connections == 0, "it is cut")


async def test_a_client_that_takes_a_byte_now_and_then_is_cut(tmp_path: Path, opened: Open) -> None:
    bounds = api_bounds(sweep_seconds=0.05, read_bytes_per_second_min=1_000_000)
    async with running_in(tmp_path, bounds=bounds, limits={"api_stall_seconds": 0.5}) as service:
        http = service.daemon.http
        reader, _writer = await opened(service, sent=BUNDLE * 6, buffer=4096)
        await until(lambda: http.connections == 1, "it is let in")
        while http.connections:
            await reader.read(1)
            await asyncio.sleep(0.02)


async def test_a_client_that_reads_slowly_and_reads_on_gets_everything(
    tmp_path: Path, opened: Open
) -> None:
    stall_seconds, bounds = 1.0, api_bounds(sweep_seconds=0.05)
    async with running_in(
        tmp_path, bounds=bounds, limits={"api_stall_seconds": stall_seconds}
    ) as service:
        reader, writer = await opened(service, sent=BUNDLE, buffer=65_536)
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])
        taken = 0
        while taken < size:
            taken += len(await reader.read(size // 100))
            await asyncio.sleep(2 * stall_seconds / 100)  # its own pace, twice the time in all
        assert taken == size
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_a_page_is_in_memory_once_however_many_do_not_read_it(
    tmp_path: Path, opened: Open
) -> None:
    async with running_in(tmp_path, bounds=QUICK_SHUTDOWN) as service:
        http = service.daemon.http
        clients = [await opened(service, sent=BUNDLE, buffer=4096) for _ in range(20)]
        for _, writer in clients:
            writer.transport.pause_reading()
        server = http._server
        await until(lambda: len(server.unread) == 20, "all wait for their clients")
        for connection in server.slots:
            assert connection._waiting_bytes <= 2 * connections.UNREAD_MAX_BYTES


async def test_a_network_has_its_share_of_connections_and_makes_room_for_itself(
    tmp_path: Path,
    opened: Open,
) -> None:
    async with running_in(tmp_path, limits={"api_connections_per_network": 3}) as service:
        http = service.daemon.http
        first, *_ = [await opened(service) for _ in range(3)]
        other, _ = await opened(service, ANOTHER)
        await until(lambda: http.connections == 4)
        reader, _ = await opened(service, sent=b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await is_cut(first[0])
        assert http.connections == 4
        assert not other.at_eof()


async def test_a_client_that_is_being_served_makes_room_for_no_other(
    tmp_path: Path, opened: Open
) -> None:
    async with running_in(tmp_path, limits={"api_connections_per_network": 2}) as service:
        http, leave = service.daemon.http, asyncio.Event()
        [health] = [each.handler.__self__ for each in http.routes if each.path == "/readyz"]
        why_not = health._why_not_ready

        async def waiting() -> str:
            await leave.wait()
            return await why_not()

        health._why_not_ready = waiting
        asked = b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"
        served = [await opened(service, sent=asked) for _ in range(2)]
        await until(lambda: sum(each._at_work for each in http._server.slots) == 2)
        assert await is_refused(opened(service))
        leave.set()
        for reader, _writer in served:
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_a_client_that_sends_nothing_of_its_body_makes_room(
    tmp_path: Path, opened: Open
) -> None:
    bounds = api_bounds(stalled_seconds=0.05, shutdown_seconds=0.1)
    async with running_in(
        tmp_path, bounds=bounds, limits={"api_connections_per_network": 2}
    ) as service:
        http = service.daemon.http
        begun = POST + b"Content-Length: 50\r\n\r\n{"
        stuck = [await opened(service, sent=begun) for _ in range(2)]
        await until(lambda: all(each.can_leave for each in http._server.slots))
        await until(lambda: http.connections == 2)
        reader, _ = await opened(service, sent=b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await is_cut(stuck[0][0])


async def test_a_trusted_proxy_is_not_bounded_like_one_client(tmp_path: Path, opened: Open) -> None:
    settings = {
        "api": {"trusted_proxies": [f"{BESIEGER}/32"]},
        "limits": {"api_connections_per_network": 2, "requests_per_second": 3},
    }
    async with running_in(tmp_path, **settings) as service:
        clients = [await opened(service) for _ in range(20)]
        await until(lambda: service.daemon.http.connections == 20)
        for number, (reader, writer) in enumerate(clients):
            forwarded = f"X-Forwarded-For: 192.0.2.{number}\r\n\r\n"
            writer.write(b"GET /docs HTTP/1.1\r\nHost: x\r\n" + forwarded.encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")


async def test_the_memory_of_bodies_that_do_not_end_is_bounded(
    tmp_path: Path, opened: Open
) -> None:
    half = 512 * 1024
    limits = {"api_bytes_per_network": 2 * half, "api_bytes_total": 3 * half}
    head = (
        b"POST /api/assistant/chat HTTP/1.1\r\nHost: x\r\n"
        + JSON
        + b"Content-Length: %d\r\n\r\n" % half
    )
    begun = head + b" " * (half - 1)
    async with running_in(tmp_path, bounds=QUICK_SHUTDOWN, limits=limits) as service:
        memory = service.daemon.http._server.memory
        held = [await opened(service, sent=begun) for _ in range(2)]
        await until(lambda: memory.total == 2 * (half - 1))
        reader, _ = await opened(service, sent=head)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 429")
        await opened(service, ANOTHER, sent=begun)
        await until(lambda: memory.total == 3 * (half - 1))
        reader, _ = await opened(service, "127.0.0.4", sent=head)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 429")
        for _, writer in held:
            writer.transport.abort()
        await until(lambda: memory.total == half - 1, "what is gone is counted no more")


async def test_a_body_that_trickles_is_not_waited_for(tmp_path: Path, opened: Open) -> None:
    bounds = api_bounds(body=BodyPace(grace_seconds=0.1))
    begun = POST + b"Content-Length: 5000\r\n\r\n"
    async with running_in(tmp_path, bounds=bounds) as service:
        reader, writer = await opened(service, sent=begun)
        answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        while not answer.done():
            writer.write(b" ")
            await asyncio.sleep(0.01)
        assert (await answer).startswith(b"HTTP/1.1 408")


async def test_a_head_without_end_is_refused(service: Service, opened: Open) -> None:
    reader, writer = await opened(service, sent=b"GET / HTTP/1.1\r\nHost: x\r\n")
    answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
    lines = 0
    while not answer.done() and lines < 100:
        lines += 1
        writer.write(b"X-%d: %s\r\n" % (lines, b"x" * 1024))
        await asyncio.sleep(0.005)
    assert lines < 100
    assert (await answer).startswith(b"HTTP/1.0 400")


async def test_requests_behind_one_that_is_not_read_are_not_read_either(
    tmp_path: Path, opened: Open
) -> None:
    async with running_in(tmp_path, bounds=QUICK_SHUTDOWN) as service:
        lines = b"X: %s\r\n" % (b"x" * 8_000) * 7
        request = b"GET / HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n"
        _, writer = await opened(service, sent=BUNDLE * 2 + request * 100, buffer=4096)
        writer.transport.pause_reading()
        server = service.daemon.http._server
        await until(lambda: len(server.unread) == 1)
        (connection,) = server.slots
        await until(lambda: connection.queued >= connections.QUEUED_MAX)
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert connection.queued < 10


@cases(
    "sent, has_answer",
    [
        (b"", False),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", True),
        (b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n", True),
        (POST + b"Content-Length: 130000\r\n\r\n" + b"z" * 120_000, False),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", False),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\nzz\r\n", True),
    ],
)
async def test_a_lost_connection_leaves_the_memory_without_a_collection_of_garbage(
    tmp_path: Path, opened: Open, sent: bytes, has_answer: bool
) -> None:
    async with running_in(tmp_path, bounds=QUICK_SHUTDOWN) as service:
        server = service.daemon.http._server
        gc.collect()
        gc.disable()
        try:
            reader, writer = await opened(service, sent=sent)
            if has_answer:
                await reader.readuntil(b"\r\n\r\n")
            elif sent:
                await until(lambda: any(each._incoming.is_read for each in server.slots))
            await until(lambda: any(each._wire for each in server.slots), "it is open")
            writer.transport.abort()
            await until(lambda: _connections_in_memory() == 0, "nothing refers to it")
        finally:
            gc.enable()


def _connections_in_memory() -> int:
    return sum(isinstance(each, connections.Connection) for each in gc.get_objects())


async def test_queued_requests_of_a_lost_connection_leave_the_memory_at_once(
    tmp_path: Path, opened: Open
) -> None:
    """The frames of the broken answer refer to the connection until garbage is collected."""
    async with running_in(tmp_path, bounds=QUICK_SHUTDOWN) as service:
        request = b"GET / HTTP/1.1\r\nHost: x\r\nX-Large: %s\r\n\r\n" % (b"x" * 8_000)
        _, writer = await opened(service, sent=BUNDLE + request * 100, buffer=4096)
        writer.transport.pause_reading()
        server = service.daemon.http._server
        await until(lambda: any(each.queued for each in server.slots))
        (connection,) = server.slots
        writer.transport.abort()
        await until(lambda: not len(server.slots), "the connection is lost")
        assert connection.queued == 0


async def test_the_bounds_are_those_of_the_last_reload(tmp_path: Path, opened: Open) -> None:
    async with running_in(tmp_path) as service:
        url = str(service.daemon.settings.storage.url)
        service.daemon.reload(settings_for(url, limits={"api_connections_per_network": 1}))
        first, _ = await opened(service)
        await until(lambda: service.daemon.http.connections == 1)
        await opened(service)
        assert await is_cut(first)


@pytest.mark.usefixtures("no_time_for_rates")
async def test_a_refused_client_that_asks_on_waits_for_each_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("api.http.rate.sleep", _noting(slept))
    async with running_in(tmp_path, limits={"requests_per_second": 2}) as service:
        answers = [await service.call("GET", "/nowhere") for _ in range(20)]
        statuses = [answer.status for answer in answers]
        assert statuses.count(429) == len(statuses) - statuses.count(404)
        assert 5 <= len(slept) < statuses.count(429)
        assert (await service.call("GET", "/docs/start.js")).status == 429
        assert (await service.call("GET", "/healthz")).status == 200


def _noting(slept: list[float]) -> Any:
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        slept.append(seconds)
        await sleep(0)

    return note
