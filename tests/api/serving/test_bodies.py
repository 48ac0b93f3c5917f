"""Bodies of bytes: handed over piece by piece, and held to their size, their rate and their end."""

import asyncio
import gzip
import hashlib
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import aiohttp
import pytest
from msgspec import Struct
from support.base.waiting import until

from api.http.errors import TransportError
from api.http.limits import ApiLimits, BodyPace, ConnectionTimes
from api.routing.routes import Call, Nothing, Reply, Route
from api.server import HttpServer
from api.serving.bodies import RawBody
from market.events.idempotency import Seal

MIB = 1024 * 1024
GRACE_SECONDS = 0.5  # for senders of the tests


class Taken(Reply, kw_only=True):
    """Data that a handler got from a body."""

    size: int
    sha256: str
    declared: int | None
    pieces: int


class Where(Struct):
    """A query beside a raw body."""

    slowly: bool = False


class Reader:
    """A server with a path for bytes, one for compressed ones too, and one that reads nothing."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.begun = 0
        self.port = 0

    async def take(self, call: Call[RawBody, Where]) -> Taken:
        body, digest = call.body, hashlib.sha256()
        size = pieces = 0
        self.begun += 1
        try:
            async for piece in body.pieces():
                assert piece
                size += len(piece)
                pieces += 1
                digest.update(piece)
                if call.query.slowly and pieces == 1:
                    await asyncio.sleep(2 * GRACE_SECONDS)
        except TransportError as error:
            self.refused.append(error.reason.word)
            raise
        assert await body.read() == b""
        return Taken(
            size=size, sha256=digest.hexdigest(), declared=body.declared_bytes, pieces=pieces
        )

    async def leave(self, call: Call[RawBody, Nothing]) -> Reply:
        return Reply()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


async def nobody(token: str) -> NoReturn:
    raise AssertionError(token)


@pytest.fixture
async def reader(request: pytest.FixtureRequest) -> AsyncIterator[Reader]:
    """A server; a test that is parametrized for it says how slowly bodies may come."""
    reader = Reader()
    pace = getattr(request, "param", BodyPace())
    most = 64 * MIB
    server = HttpServer(
        [
            Route("POST", "/bytes", "Bytes", reader.take, Taken, query=Where, raw_max_bytes=most),
            Route("PUT", "/small", "Few bytes", reader.take, Taken, query=Where, raw_max_bytes=9),
            Route(
                "POST",
                "/packed",
                "Compressed bytes",
                reader.take,
                Taken,
                query=Where,
                raw_max_bytes=most,
                raw_encodings=("gzip",),
            ),
            Route("POST", "/unread", "No bytes", reader.leave, Reply, raw_max_bytes=most),
        ],
        authenticate=nobody,
        authenticate_key=nobody,
        authenticate_worker=nobody,
        is_current=nobody,
        body_max_bytes=1024,
        seal=Seal(b"k" * 40),
        now=lambda: 0,
        limits=ApiLimits(times=ConnectionTimes(pace)),
    )
    server.start(None)
    async with served(server) as reader.port:
        yield reader


@asynccontextmanager
async def served(server: HttpServer) -> AsyncIterator[int]:
    """Hand a server every client of a port."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        async def accept() -> None:
            while True:
                sock, (address, _) = await loop.sock_accept(listener)
                assert server.welcome(sock, address) == ""

        accepting = asyncio.create_task(accept())
        try:
            yield listener.getsockname()[1]
        finally:
            accepting.cancel()
            await asyncio.wait([accepting])
            await server.stop()


async def send(
    reader: Reader, path: str, data: Any, method: str = "POST", **headers: str
) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(auto_decompress=False) as http,
        http.request(method, reader.url + path, data=data, headers=headers) as response,
    ):
        return response.status, await response.json()


async def in_chunks(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def test_bytes_arrive_as_they_are_with_a_length_or_in_chunks(reader: Reader) -> None:
    content = bytes(range(256)) * 2_000
    expected = hashlib.sha256(content).hexdigest()
    for data, declared in (
        (content, len(content)),
        (in_chunks(content[at : at + 7_001] for at in range(0, len(content), 7_001)), None),
    ):
        status, taken = await send(reader, "/bytes", data)
        assert (status, taken["size"], taken["sha256"]) == (200, len(content), expected)
        assert taken["declared"] == declared
    for data in (b"", None, in_chunks(())):
        status, taken = await send(reader, "/bytes", data, **{"Content-Type": "text/anything"})
        assert (status, taken["size"]) == (200, 0)


async def test_no_more_than_a_few_pieces_are_in_memory(reader: Reader) -> None:
    size = 48 * MIB
    piece = bytes(MIB)
    tracemalloc.start()
    try:
        status, taken = await send(reader, "/bytes", in_chunks(piece for _ in range(size // MIB)))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (status, taken["size"]) == (200, size)
    assert taken["pieces"] > 100
    assert most < 12 * MIB


async def test_a_body_over_the_limit_is_refused_with_any_announced_length(reader: Reader) -> None:
    assert (await send(reader, "/small", b"123456789", "PUT"))[0] == 200
    for data in (b"1234567890", in_chunks([b"12345", b"67890"])):
        status, answer = await send(reader, "/small", data, "PUT")
        assert (status, answer["error"]["code"]) == (413, "body_too_large")
        assert " 9 bytes" in answer["error"]["message"]
    assert reader.begun == 2  # a body with too large a declared size is refused before it is read


async def test_a_compressed_body_is_unpacked_where_the_path_allows_it(reader: Reader) -> None:
    content = b"a line of a log\n" * 100_000
    status, taken = await send(
        reader, "/packed", gzip.compress(content), **{"Content-Encoding": "gzip"}
    )
    assert (status, taken["sha256"]) == (200, hashlib.sha256(content).hexdigest())
    assert taken["declared"] is None
    bomb = gzip.compress(bytes(100 * MIB))
    status, answer = await send(reader, "/packed", bomb, **{"Content-Encoding": "gzip"})
    assert (status, answer["error"]["code"]) == (413, "body_too_large")
    status, answer = await send(reader, "/packed", b"no gzip", **{"Content-Encoding": "gzip"})
    assert (status, answer["error"]["code"]) == (400, "bad_request")
    for path, encoding in (("/bytes", "gzip"), ("/packed", "compress"), ("/packed", "gzip, gzip")):
        status, answer = await send(reader, path, b"x", **{"Content-Encoding": encoding})
        assert (status, answer["error"]["code"]) == (415, "unsupported_media_type"), path
    assert (await send(reader, "/bytes", b"x", **{"Content-Encoding": "identity"}))[0] == 200


async def test_a_body_that_is_cut_off_never_looks_whole(reader: Reader) -> None:
    for head in (
        b"Content-Length: 20\r\n\r\n12345",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\n12345",
    ):
        begun = reader.begun
        _, writer = await asyncio.open_connection("127.0.0.1", reader.port)
        writer.write(b"POST /bytes HTTP/1.1\r\nHost: x\r\n" + head)
        await until(lambda begun=begun: reader.begun > begun)
        writer.close()
        await writer.wait_closed()
        await until(lambda: reader.begun == len(reader.refused))
    assert reader.refused == ["bad_request", "bad_request"]


@pytest.mark.parametrize("reader", [BodyPace(GRACE_SECONDS, 100 * MIB)], indirect=True)
async def test_a_sender_is_held_to_a_rate_and_a_handler_is_not(reader: Reader) -> None:
    source, writer = await asyncio.open_connection("127.0.0.1", reader.port)
    writer.write(b"POST /bytes HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345")
    assert b" 408 " in await source.readline()
    writer.close()
    # This handler needs twice the sender's time limit for each piece.
    status, taken = await send(reader, "/bytes?slowly=true", bytes(MIB))
    assert (status, taken["size"]) == (200, MIB)


async def test_a_client_that_waits_to_send_gets_continue(reader: Reader) -> None:
    source, writer = await asyncio.open_connection("127.0.0.1", reader.port)
    head = b"POST /bytes HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    writer.write(head)
    assert await source.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"12345")
    assert b" 200 " in await source.readline()
    writer.close()


async def test_a_body_that_is_not_read_ends_nothing_but_its_connection(reader: Reader) -> None:
    assert (await send(reader, "/unread", b"x" * 100))[0] == 200
    assert (await send(reader, "/bytes", b"x" * 100))[0] == 200
