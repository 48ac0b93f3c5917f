"""The HTTP side of the proxy's port, over real sockets: tunnels, pages, and refusals in words."""

import asyncio
from base64 import b64encode
from pathlib import Path

import pytest
from support.base.cases import cases
from support.base.ports import closed_port, silent_port
from support.base.waiting import until
from support.clients.socks import GREETING, Client, credentials, request
from support.clients.story import buy
from support.daemons.service import Bought, Service, running_in
from support.targets import targets

PAGE = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
TUNNEL = b"HTTP/1.1 200 Connection established\r\n\r\n"


def basic(username: str, password: str) -> bytes:
    """Return the header that shows credentials."""
    shown = b64encode(f"{username}:{password}".encode())
    return b"Proxy-Authorization: Basic " + shown + b"\r\n"


def asked(line: str, bought: Bought | None, *headers: str) -> bytes:
    """Return a head; its Host is not looked at."""
    shown = b"" if bought is None else basic(bought.username, bought.password)
    others = "".join(f"{header}\r\n" for header in headers)
    return f"{line} HTTP/1.1\r\nHost: proxied\r\n".encode() + shown + others.encode() + b"\r\n"


async def answer_to(service: Service, sent: bytes) -> bytes:
    """Send, and return everything that comes back; a reset is an error."""
    client = await Client.open(service.proxy_port)
    await client.send(sent)
    async with asyncio.timeout(10):
        answer = await client.rest()
    await client.close()
    return answer


async def head(client: Client) -> bytes:
    """Read the head of an answer."""
    return await client.reader.readuntil(b"\r\n\r\n")


async def challenge(client: Client) -> bytes:
    """Read the complete question for credentials."""
    answer = await head(client)
    (size,) = (
        int(line.partition(b": ")[2])
        for line in answer.split(b"\r\n")
        if line.startswith(b"Content-Length")
    )
    return answer + await client.receive(size)


def serving_a_page(seen: list[bytes]) -> targets.Handler:
    """Return the handler of a target that answers one request, and notes all that it got."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readuntil(b"\r\n\r\n")
        seen.append(data)
        writer.write(PAGE)
        writer.close()

    return handle


# --- tunnels -------------------------------------------------------------------------------------


@cases("size", [1, 100_000])
async def test_a_tunnel_carries_and_counts_every_byte(service: Service, size: int) -> None:
    buyer, bought = await buy(service)
    payload = targets.pattern(size)
    async with targets.sink(b"thanks") as target:
        line = f"CONNECT 127.0.0.1:{target.port}"
        client = await Client.open(service.proxy_port)
        await client.send(asked(line, bought) + payload)
        client.end()
        assert await client.rest() == TUNNEL + b"thanks"
        await client.close()
    assert bytes(target.data) == payload
    assert (await service.session(buyer, bought))["bytes_used"] == size + len(b"thanks")


async def test_a_byte_per_segment_is_understood(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.echo() as target:
        client = await Client.open(service.proxy_port)
        for byte in asked(f"CONNECT localhost:{target.port}", bought):
            await client.send(bytes((byte,)))
            await asyncio.sleep(0.0005)  # the daemon reads this byte by itself
        assert await head(client) == TUNNEL
        await client.send(b"hello")
        assert await client.receive(5) == b"hello"
        await client.close()


async def test_a_tunnel_reaches_ipv6(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.echo("::1") as target:
        client = await Client.open(service.proxy_port)
        await client.send(asked(f"CONNECT [::1]:{target.port}", bought) + b"hello")
        assert await head(client) == TUNNEL
        assert await client.receive(5) == b"hello"
        await client.close()


@cases("host", ["[::ffff:127.0.0.1]", "LOCALHOST.", "127.0.0.1"])
async def test_a_tunnel_reaches_ipv4_by_each_of_its_names(service: Service, host: str) -> None:
    _, bought = await buy(service)
    async with targets.echo() as target:
        client = await Client.open(service.proxy_port)
        await client.send(asked(f"CONNECT {host}:{target.port}", bought) + b"hello")
        assert await head(client) == TUNNEL
        assert await client.receive(5) == b"hello"
        await client.close()


async def test_a_tunnel_whose_client_ended_carries_a_megabyte_back(service: Service) -> None:
    buyer, bought = await buy(service)
    page = targets.pattern(1_000_000)
    async with targets.sink(page) as target:
        client = await Client.open(service.proxy_port)
        await client.send(asked(f"CONNECT 127.0.0.1:{target.port}", bought) + b"question")
        client.end()
        assert await client.rest() == TUNNEL + page
        await client.close()
    assert bytes(target.data) == b"question"
    used = (await service.session(buyer, bought))["bytes_used"]
    assert used == len(b"question") + len(page)


async def test_a_reset_is_passed_on_through_a_tunnel(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.echo() as target:
        client = await Client.open(service.proxy_port)
        await client.send(asked(f"CONNECT 127.0.0.1:{target.port}", bought) + b"hello")
        assert await head(client) == TUNNEL
        assert await client.receive(5) == b"hello"
        client.reset()
        await until(lambda: target.resets == 1, "the target is told")
        await client.close()


async def test_socks5_is_spoken_on_the_same_port(service: Service) -> None:
    _, bought = await buy(service)
    async with targets.echo() as target:
        client = await Client.open(service.proxy_port)
        shown = credentials(bought.username, bought.password)
        await client.send(GREETING + shown + request("127.0.0.1", target.port) + b"hello")
        assert (await client.receive(14))[:5] == b"\x05\x02\x01\x00\x05"
        assert await client.receive(5) == b"hello"
        await client.close()


# --- pages ---------------------------------------------------------------------------------------


async def test_a_page_is_fetched_and_every_byte_counted(service: Service) -> None:
    buyer, bought = await buy(service)
    seen: list[bytes] = []
    async with targets.serving(serving_a_page(seen)) as target:
        line = f"GET http://me:secret@127.0.0.1:{target.port}/page?x=y"
        answer = await answer_to(service, asked(line, bought, "Accept: */*", "Keep-Alive: 5"))
    assert answer == PAGE
    host = f"Host: 127.0.0.1:{target.port}"
    expected = ("GET /page?x=y HTTP/1.1", host, "Accept: */*", "Connection: close", "", "")
    assert seen == ["\r\n".join(expected).encode()]
    used = (await service.session(buyer, bought))["bytes_used"]
    assert used == len(seen[0]) + len(PAGE)


async def test_a_client_that_ends_behind_its_request_gets_its_page(service: Service) -> None:
    _, bought = await buy(service)
    seen: list[bytes] = []
    async with targets.serving(serving_a_page(seen)) as target:
        client = await Client.open(service.proxy_port)
        await client.send(asked(f"GET http://127.0.0.1:{target.port}/", bought))
        client.end()
        assert await client.rest() == PAGE
        await client.close()
    assert len(seen) == 1


async def test_a_body_goes_up(service: Service) -> None:
    _, bought = await buy(service)
    body = targets.pattern(300_000)
    received = bytearray()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        received.extend(await reader.readexactly(len(body)))
        writer.write(PAGE)
        writer.close()

    async with targets.serving(handle) as target:
        line = f"POST http://localhost:{target.port}/"
        sent = asked(line, bought, f"Content-Length: {len(body)}") + body
        assert await answer_to(service, sent) == PAGE
    assert received == body


async def test_bytes_behind_a_request_never_reach_its_target(service: Service) -> None:
    _, bought = await buy(service)
    received = bytearray()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            received.extend(data)
            if received.endswith(b"hello"):
                writer.write(PAGE)

    async with targets.serving(handle) as target:
        first = asked(f"POST http://127.0.0.1:{target.port}/", bought, "Content-Length: 5")
        second = asked("GET http://other.example/", bought)
        client = await Client.open(service.proxy_port)
        await client.send(first + b"he")
        await until(lambda: received.endswith(b"he"), "the body has begun")
        await client.send(b"llo")
        assert await client.receive(len(PAGE)) == PAGE
        await client.send(second * 1000)
        client.end()
        assert await client.rest() == b""
        await client.close()
    assert received.count(b"HTTP/1.1") == 1
    assert received.endswith(b"hello")


async def test_bytes_behind_a_request_in_its_segment_do_not_reach_its_target(
    service: Service,
) -> None:
    _, bought = await buy(service)
    async with targets.sink(PAGE) as target:
        first = asked(f"POST http://127.0.0.1:{target.port}/", bought, "Content-Length: 5")
        client = await Client.open(service.proxy_port)
        await client.send(first + b"hello" + asked("GET http://other.example/", bought))
        client.end()
        assert await client.rest() == PAGE
        await client.close()
    assert target.data.endswith(b"hello")


async def test_a_quota_ends_a_page_at_its_last_byte(service: Service) -> None:
    buyer, bought = await buy(service, quota=1000)
    async with targets.source(5000) as target:
        answer = await answer_to(service, asked(f"GET http://127.0.0.1:{target.port}/", bought))
    sent = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\nConnection: close\r\n\r\n"
    assert len(answer) == 1000 - len(sent)
    assert (await service.session(buyer, bought))["bytes_used"] == 1000


UPGRADE = ("Connection: Upgrade", "Upgrade: websocket")


async def test_a_websocket_without_connect_gets_the_ordinary_answer(service: Service) -> None:
    """The target never gets the Upgrade, and answers as a server that does not know it."""
    _, bought = await buy(service)
    seen: list[bytes] = []
    async with targets.serving(serving_a_page(seen)) as target:
        request = asked(f"GET http://127.0.0.1:{target.port}/", bought, *UPGRADE)
        assert await answer_to(service, request) == PAGE
    assert b"pgrade" not in b"".join(seen)
    assert b"\r\nConnection: close\r\n" in b"".join(seen)


@cases(
    "answer",
    [
        PAGE,
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 1",
        b"HTTP/1.0 101 \r\n\r\n" + PAGE,
        b"nonsense",
    ],
)
async def test_no_answer_to_an_upgrade_lets_the_next_request_reach_the_target(
    service: Service, answer: bytes
) -> None:
    _, bought = await buy(service)
    received = bytearray()
    may_end = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        if answer != PAGE:
            writer.write_eof()
        received.extend(await reader.read())
        may_end.set()

    async with targets.serving(handle) as target:
        client = await Client.open(service.proxy_port)
        await client.send(asked(f"GET http://127.0.0.1:{target.port}/", bought, *UPGRADE))
        assert await client.receive(len(answer)) == answer
        await client.send(asked("GET http://other.example/", bought))
        client.end()
        await asyncio.wait_for(may_end.wait(), 10)
        await client.close()
    assert received.count(b"HTTP/1.1") == 1
    assert b"Proxy-Authorization" not in received


# --- credentials ---------------------------------------------------------------------------------


@cases("line", ["CONNECT 127.0.0.1:{}", "GET http://127.0.0.1:{}/"])
async def test_a_client_without_credentials_is_asked_on_the_same_connection(
    service: Service, line: str
) -> None:
    _, bought = await buy(service)
    seen: list[bytes] = []
    async with targets.serving(serving_a_page(seen)) as target:
        client = await Client.open(service.proxy_port)
        for _ in range(2):
            await client.send(asked(line.format(target.port), None))
            assert (await challenge(client)).startswith(b"HTTP/1.1 407 ")
        assert target.accepted == 0
        await client.send(asked(line.format(target.port), bought))
        if line.startswith("CONNECT"):
            assert await head(client) == TUNNEL
            await client.send(b"GET / HTTP/1.1\r\n\r\n")
        assert await client.rest() == PAGE
        await client.close()


async def test_a_client_that_never_shows_credentials_is_closed(service: Service) -> None:
    answer = await answer_to(service, asked("CONNECT 127.0.0.1:80", None) * 50)
    assert answer.count(b"HTTP/1.1 407 ") == 3
    assert answer.count(b"Connection: close") == 1


async def test_a_client_that_shows_no_credentials_in_time_is_cut(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"handshake_seconds": 2.0}) as service:
        client = await Client.open(service.proxy_port)
        await client.send(asked("CONNECT 127.0.0.1:80", None))
        await challenge(client)
        with pytest.raises(ConnectionError):
            await client.rest()
        await client.close()


@cases("behind", [0, 100_000])
async def test_a_wrong_password_is_refused_and_closed(service: Service, behind: int) -> None:
    _, bought = await buy(service)
    wrong = Bought(bought.id, bought.username, "wrong", 0)
    answer = await answer_to(service, asked("CONNECT 127.0.0.1:80", wrong) + bytes(behind))
    assert answer.startswith(b"HTTP/1.1 407 ")
    assert b"\r\nProxy-Authenticate: Basic realm=" in answer
    assert answer.endswith(b"wrong.\n")


async def test_an_exhausted_or_ended_session_is_forbidden(service: Service) -> None:
    buyer, small = await buy(service, quota=5)
    ended = await service.buy(buyer)
    async with targets.echo() as target:
        client = await Client.open(service.proxy_port)
        await client.send(asked(f"CONNECT 127.0.0.1:{target.port}", small) + b"hello")
        await client.rest()
        await client.close()
    await service.call("POST", "/api/bandwidth/end", {"session_id": ended.id}, token=buyer.token)
    for bought, words in ((small, b"quota"), (ended, b"ended")):
        answer = await answer_to(service, asked("CONNECT 127.0.0.1:80", bought))
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"error=http_request_denied" in answer
        assert words in answer


async def test_clients_with_too_many_connections_are_asked_to_wait(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"connections_per_session": 1}) as service:
        _, bought = await buy(service)
        async with targets.echo() as target:
            line = f"CONNECT 127.0.0.1:{target.port}"
            client = await Client.open(service.proxy_port)
            await client.send(asked(line, bought))
            assert await head(client) == TUNNEL
            answer = await answer_to(service, asked(line, bought))
            assert answer.startswith(b"HTTP/1.1 429 ")
            assert b"\r\nRetry-After: " in answer
            await client.close()


# --- failures ------------------------------------------------------------------------------------


@cases("behind", [0, 100_000])
@cases("line", ["CONNECT {}:{}", "POST http://{}:{}/"])
@cases(
    ("host", "port", "status", "error"),
    [
        ("10.0.0.1", 80, 403, "destination_ip_prohibited"),
        ("127.0.0.1", 25, 403, "destination_ip_prohibited"),
        ("[::ffff:10.0.0.1]", 80, 403, "destination_ip_prohibited"),
        ("127.255.255.255", 80, 502, "destination_ip_unroutable"),
        ("nosuch.invalid", 80, 502, "dns_error"),
    ],
)
async def test_a_failure_is_complete_and_the_stream_ends_in_order(
    service: Service, line: str, host: str, port: int, status: int, error: str, behind: int
) -> None:
    _, bought = await buy(service)
    length = () if line.startswith("CONNECT") else (f"Content-Length: {behind}",)
    answer = await answer_to(
        service, asked(line.format(host, port), bought, *length) + bytes(behind)
    )
    answered, _, body = answer.partition(b"\r\n\r\n")
    assert answered.startswith(f"HTTP/1.1 {status} ".encode())
    assert f"\r\nProxy-Status: proxyd; error={error}; details=".encode() in answered
    assert f"\r\nContent-Length: {len(body)}\r\n".encode() in answered
    assert answered.endswith(b"\r\nConnection: close")


async def test_a_target_that_refuses_is_a_bad_gateway(service: Service) -> None:
    _, bought = await buy(service)
    with closed_port() as port:
        answer = await answer_to(service, asked(f"GET http://127.0.0.1:{port}/", bought))
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"error=connection_refused" in answer


async def test_a_target_that_never_answers_is_a_gateway_timeout(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"dial_seconds": 0.2}) as service:
        _, bought = await buy(service)
        with silent_port() as port:
            answer = await answer_to(service, asked(f"CONNECT 127.0.0.1:{port}", bought))
        assert answer.startswith(b"HTTP/1.1 504 ")


@cases(
    ("sent", "status", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1:1080\r\n\r\n", 400, b"This is a proxy"),
        (b"GET https://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", 400, b"CONNECT"),
        (b"TRACE http://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", 405, b"method"),
        (b"GET " + b"x" * 20_000, 414, b"too long"),
        (b"GET http://a.example/ HTTP/1.1\r\nX: " + b"x" * 20_000, 431, b"too large"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, b"HTTP/1.1"),
        (b"hello\n", 400, b"HTTP"),
    ],
)
@cases("behind", [0, 100_000])
async def test_a_request_that_is_not_served_is_refused_in_words(
    service: Service, sent: bytes, status: int, words: bytes, behind: int
) -> None:
    answer = await answer_to(service, sent + bytes(behind))
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert words in answer.partition(b"\r\n\r\n")[2]


async def test_no_answer_contains_a_version_or_the_request(service: Service) -> None:
    for sent in (
        asked("CONNECT secret.example:25x", None),
        asked("CONNECT secret.example:25", None),
    ):
        client = await Client.open(service.proxy_port)
        await client.send(sent)
        answer = await challenge(client)
        await client.close()
        assert b"Server:" not in answer
        assert b"secret" not in answer
