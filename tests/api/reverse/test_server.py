"""Apps through their door, over real sockets: admission, and the requests that pass."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
from msgspec.structs import replace
from support.base.cases import cases
from support.base.waiting import until
from support.workers.apps import APP, DOMAIN, KEY, Door, Job, door, jobs, say

from api.http.limits import ApiLimits
from api.reverse.kept import KeptBounds
from api.reverse.server import LAST_OPEN_SECONDS, OPEN_SECONDS

BEARER = {"Authorization": f"Bearer {KEY}"}
OTHER = "01998f00-0000-7000-8000-00000000000b"
OK = b"HTTP/1.1 200 OK\r\n"
FOLLOWED = {
    "Sec-Fetch-Site": "same-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}


class Browser:
    """A client of one app that keeps no cookies by itself."""

    def __init__(self, opened: Door, host: str, http: aiohttp.ClientSession) -> None:
        self.port = opened.port
        self.host = f"{host}:{opened.port}"
        self.http = http

    async def ask(
        self, target: str = "/", method: str = "GET", **options: object
    ) -> tuple[int, dict[str, list[str]], bytes]:
        """Ask, and return the status, the headers by their names in lower case, and the body."""
        headers = {"Host": self.host, **options.pop("headers", BEARER)}  # type: ignore[dict-item]
        async with self.http.request(
            method,
            f"http://127.0.0.1:{self.port}{target}",
            headers=headers,
            allow_redirects=False,
            **options,  # type: ignore[arg-type]
        ) as answer:
            told: dict[str, list[str]] = {}
            for name, value in answer.headers.items():
                told.setdefault(name.lower(), []).append(value)
            return answer.status, told, await answer.read()

    def head(self, method: str = "GET", target: str = "/", *lines: str) -> bytes:
        """Return the head of a request with the key, byte by byte."""
        fields = (f"Host: {self.host}", f"Authorization: Bearer {KEY}", *lines)
        return "\r\n".join((f"{method} {target} HTTP/1.1", *fields, "", "")).encode()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield session


@pytest.fixture
async def opened() -> AsyncIterator[Door]:
    async with door() as made:
        yield made


@pytest.fixture
async def job() -> AsyncIterator[Job]:
    async with jobs() as (made,):
        yield made


@pytest.fixture
async def browser(opened: Door, job: Job, http: aiohttp.ClientSession) -> Browser:
    return Browser(opened, opened.offer(job), http)


# --- admission --------------------------------------------------------------------------------


async def test_a_key_in_the_address_becomes_a_cookie_of_only_the_app(
    browser: Browser, job: Job
) -> None:
    status, told, _ = await browser.ask(f"/lab?a=1&key={KEY}&b=2", headers={})
    assert (status, told["location"]) == (303, [f"http://{browser.host}/lab?a=1&b=2"])
    (cookie,) = told["set-cookie"]
    assert cookie == f"proxyd-app={KEY}; Path=/; HttpOnly; SameSite=Lax"
    assert told["cache-control"] == ["no-store"]
    assert told["referrer-policy"] == ["no-referrer"]
    assert job.asked == []
    shown = {"Cookie": f"theme=dark; proxyd-app={KEY}; proxyd-replica=x; _xsrf=2|a"}
    status, _, body = await browser.ask("/lab?a=1", headers=shown)
    assert (status, body) == (200, b"/lab?a=1")
    assert KEY not in str(job.asked)
    assert job.headers()["cookie"] == "theme=dark; _xsrf=2|a"


async def test_an_address_with_two_slashes_leads_to_no_other_host(browser: Browser) -> None:
    _, told, _ = await browser.ask(f"//evil.example/x?key={KEY}", headers={})
    assert told["location"] == [f"http://{browser.host}//evil.example/x"]


async def test_the_cookie_of_a_secure_door_belongs_only_to_it(
    job: Job, http: aiohttp.ClientSession
) -> None:
    async with door(public_url="https://apps.test") as made:
        browser = Browser(made, made.offer(job), http)
        _, told, _ = await browser.ask(f"/?key={KEY}", headers={})
        (cookie,) = told["set-cookie"]
        assert cookie == f"__Host-proxyd-app={KEY}; Path=/; HttpOnly; SameSite=Lax; Secure"
        status, _, _ = await browser.ask("/", headers={"Cookie": f"proxyd-app={KEY}"})
        assert status == 401
        status, _, _ = await browser.ask("/", headers={"Cookie": f"__Host-proxyd-app={KEY}"})
        assert (status, job.headers()["x-forwarded-proto"]) == (200, "https")


async def test_a_program_shows_the_key_as_a_bearer_token(browser: Browser, job: Job) -> None:
    status, _, body = await browser.ask("/v1/models?key=mine")
    assert (status, body) == (200, b"/v1/models?key=mine")
    assert "authorization" not in job.headers()


async def test_a_key_that_is_shown_twice_does_not_reach_the_job(browser: Browser, job: Job) -> None:
    for target, headers in ((f"/?key={KEY}", BEARER), (f"/?key={KEY}&a=1&key={KEY}", {})):
        assert (await browser.ask(target, "POST", headers=headers))[0] == 200
    assert [each.split(b" ")[1] for each in job.asked] == [b"/", b"/?a=1"]
    assert KEY not in str(job.asked)


async def test_a_jobs_own_credentials_pass(browser: Browser, job: Job) -> None:
    headers = {"Cookie": f"proxyd-app={KEY}", "Authorization": "token its-own"}
    assert (await browser.ask("/", headers=headers))[0] == 200
    assert job.headers()["authorization"] == "token its-own"
    assert "cookie" not in job.headers()


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": f"Bearer {KEY[:-1]}x"},
        {"Authorization": f"Basic {KEY}"},
        {"Cookie": "proxyd-app=wrong"},
        {"Cookie": f"other={KEY}"},
        {"Cookie": "proxyd-app=\xff"},
    ],
)
async def test_no_visitor_comes_in_without_the_key(
    browser: Browser, opened: Door, job: Job, headers: dict[str, str]
) -> None:
    status, told, body = await browser.ask("/", headers=headers)
    assert status == 401
    assert b"key is missing or wrong" in body
    assert told["content-type"] == ["text/html; charset=utf-8"]
    assert told["content-security-policy"] == ["default-src 'none'"]
    assert (job.asked, opened.asked) == ([], [])


async def test_an_app_that_is_not_there_looks_like_a_wrong_key(
    browser: Browser, opened: Door
) -> None:
    wrong = await browser.ask("/", headers={})
    browser.host = f"{OTHER}.{DOMAIN}"
    assert (await browser.ask())[2] == wrong[2]
    for host in ("apps.test", f"x.{APP}.apps.test", f"{APP}.other.test", "a b", "[::1]:8"):
        browser.host = host
        assert (await browser.ask())[0] in (400, 404)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://{host}"}, 200),
        ({"Origin": "http://evil.apps.test"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        (FOLLOWED, 200),
        ({**FOLLOWED, "Sec-Fetch-Dest": "iframe"}, 403),
        ({**FOLLOWED, "Sec-Fetch-Dest": "iframe", "Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
async def test_pages_of_other_apps_cannot_use_the_cookie(
    browser: Browser, headers: dict[str, str], status: int
) -> None:
    told = {name: value.format(host=browser.host) for name, value in headers.items()}
    shown = {"Cookie": f"proxyd-app={KEY}", **told}
    assert (await browser.ask("/", headers=shown))[0] == status
    assert (await browser.ask("/", headers={**BEARER, **told}))[0] == 200


async def test_a_new_key_ends_the_connections_of_the_last_one(
    browser: Browser, opened: Door, job: Job
) -> None:
    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await job.head(reader)
        writer.write(OK + b"Content-Length: 100\r\n\r\nhalf of it")
        await reader.read()

    job.answer = hangs
    reader, writer = await asyncio.open_connection("127.0.0.1", browser.port)
    writer.write(browser.head())
    await reader.readuntil(b"half of it")
    opened.offer(job, key="another")
    opened.server.forget(APP)
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
    writer.close()
    await until(lambda: len(opened.server.streams) == 0)
    assert (await browser.ask())[0] == 401
    job.answer = job.echo
    assert (await browser.ask(headers={"Authorization": "Bearer another"}))[0] == 200


async def hanging(browser: Browser, job: Job) -> "asyncio.Task[bytes]":
    """Send a request that waits for its reply. Return the task that ends with the reply."""

    async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await job.head(reader)
        await reader.read()

    job.answer = hangs
    # By hand: the library asks again when its connection is cut.
    asking = asyncio.create_task(say(browser.port, browser.head()))
    await until(lambda: len(job.asked) == 1)
    return asking


async def test_a_sweep_ends_the_apps_that_another_daemon_has_closed(
    browser: Browser, opened: Door, job: Job
) -> None:
    asking = await hanging(browser, job)
    assert await opened.server.sweep() == 0
    del opened.apps[APP]
    assert await opened.server.sweep() == 1
    assert await asking == b""


async def test_a_stream_in_which_nothing_moves_is_ended(
    job: Job, http: aiohttp.ClientSession
) -> None:
    async with door(idle_seconds=0.01) as made:
        asking = await hanging(Browser(made, made.offer(job), http), job)
        await until(made.server.sweep)
        assert await asking == b""


# --- traffic that passes -------------------------------------------------------------------------


async def test_a_request_reaches_the_job_as_it_was_sent(browser: Browser, job: Job) -> None:
    async def counts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await job.head(reader)
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        body = await reader.readexactly(length)
        writer.write(OK + b"Content-Length: %d\r\nX-Own: 1\r\n\r\n" % len(body) + body)

    job.answer = counts
    sent = bytes(range(256)) * 4000
    headers = {
        **BEARER,
        "Content-Encoding": "gzip",
        "X-Forwarded-For": "203.0.113.9",
        "X_Forwarded_For": "203.0.113.9",
        "X-Real-IP": "203.0.113.9",
        "Forwarded": "for=203.0.113.9",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "1",
        "TE": "trailers",
        "X-Own": "yes",
    }
    status, told, body = await browser.ask(
        "/a%2Fb/../c;d?e=%20&f=%C3%A4", "PUT", data=sent, headers=headers
    )
    assert (status, body, told["x-own"]) == (200, sent, ["1"])
    seen = job.headers()
    assert job.asked[0].startswith(b"PUT /")
    assert seen["content-encoding"] == "gzip"
    assert (seen["host"], seen["x-forwarded-host"]) == (browser.host, browser.host)
    assert (seen["x-forwarded-for"], seen["x-forwarded-proto"]) == ("127.0.0.1", "http")
    assert (seen["connection"], seen["x-own"]) == ("close", "yes")
    assert not {"x_forwarded_for", "x-real-ip", "forwarded", "x-hop", "te"} & seen.keys()


async def test_bytes_stream_both_ways_as_they_come(
    browser: Browser, opened: Door, job: Job
) -> None:
    """The job answers each piece before the next one is sent, so neither way is collected."""

    async def repeats(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await job.head(reader)
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n")
        while size := int(await reader.readline(), 16):
            piece = await reader.readexactly(size + 2)
            writer.write(b"%x\r\n" % size + piece)
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    job.answer = repeats
    told: asyncio.Queue[bytes] = asyncio.Queue()

    async def pieces() -> AsyncIterator[bytes]:
        for number in range(5):
            yield b"piece %d" % number
            assert await told.get() == b"piece %d" % number

    async with browser.http.post(
        f"http://127.0.0.1:{browser.port}/",
        data=pieces(),
        headers={"Host": browser.host, **BEARER},
    ) as answer:
        async for piece in answer.content.iter_any():
            told.put_nowait(piece)
    assert job.headers()["transfer-encoding"] == "chunked"
    traffic = opened.server.streams.traffic(APP)
    assert (traffic.requests, traffic.received, traffic.sent) == (1, 35, 35)


async def test_a_client_that_does_not_read_makes_the_job_wait(browser: Browser, job: Job) -> None:
    written = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await job.head(reader)
        writer.write(OK + b"\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()
            written += 65_536

    job.answer = endless
    _, writer = await asyncio.open_connection("127.0.0.1", browser.port, limit=1024)
    writer.write(browser.head())
    before = -1
    while before != written or not written:
        before = written
        await asyncio.sleep(0.2)
    assert written < 64 * 1024 * 1024
    writer.transport.abort()


async def test_continue_is_sent_before_the_body_is_requested(browser: Browser, job: Job) -> None:
    async def takes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await job.head(reader)
        assert b"xpect" not in head
        writer.write(OK + b"Content-Length: 3\r\n\r\n" + await reader.readexactly(3))

    job.answer = takes
    reader, writer = await asyncio.open_connection("127.0.0.1", browser.port)
    writer.write(browser.head("POST", "/", "Content-Length: 3", "Expect: 100-continue"))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"abc")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(OK)
    assert await reader.readexactly(3) == b"abc"
    writer.close()


async def test_answers_without_a_body_have_none(browser: Browser, job: Job) -> None:
    job.says(OK + b"Content-Length: 12\r\nETag: x\r\n\r\n")
    status, told, body = await browser.ask("/", "HEAD")
    assert (status, told["content-length"], body) == (200, ["12"], b"")
    job.says(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (await browser.ask())[0] == 204
    job.says(b"HTTP/1.1 304 Not Modified\r\nETag: x\r\n\r\n")
    assert (await browser.ask())[0] == 304
    job.says(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", OK + b"Content-Length: 2\r\n\r\nok")
    assert (await browser.ask())[2] == b"ok"


async def test_a_client_of_http_1_0_is_answered_until_the_end(browser: Browser, job: Job) -> None:
    job.says(OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
    head = browser.head().replace(b"HTTP/1.1", b"HTTP/1.0")
    answer = await say(browser.port, head)
    assert answer.startswith(OK)
    assert b"ransfer-" not in answer
    assert answer.endswith(b"\r\n\r\nok")


async def test_messages_of_a_web_socket_pass_both_ways(
    browser: Browser, opened: Door, http: aiohttp.ClientSession
) -> None:
    seen: list[dict[str, str]] = []

    async def echo(request: aiohttp.web.Request) -> aiohttp.web.WebSocketResponse:
        seen.append(dict(request.headers))
        socket = aiohttp.web.WebSocketResponse(protocols=("kernel",), max_msg_size=0)
        await socket.prepare(request)
        async for message in socket:
            await socket.send_bytes(message.data)
        return socket

    app = aiohttp.web.Application()
    app.router.add_get("/api/kernels/1/channels", echo)
    runner = aiohttp.web.AppRunner(app)
    await runner.setup()
    await aiohttp.web.TCPSite(runner, "127.0.0.1", 0).start()
    listening = Job()
    listening.port = runner.addresses[0][1]
    host = opened.offer(listening)
    url = f"ws://127.0.0.1:{opened.port}/api/kernels/1/channels"
    headers = {"Host": host, "Origin": f"http://{host}", "Cookie": f"proxyd-app={KEY}"}
    try:
        async with http.ws_connect(
            url, headers=headers, protocols=("kernel",), max_msg_size=0
        ) as socket:
            assert socket.protocol == "kernel"
            for size in (0, 1, 125, 70_000, 3_000_000):
                sent = bytes([size % 251]) * size
                await socket.send_bytes(sent)
                assert await socket.receive_bytes() == sent
            assert opened.server.streams.of(APP) == 1
            traffic = opened.server.streams.traffic(APP)
            assert min(traffic.received, traffic.sent) > 3_070_126
        await until(lambda: len(opened.server.streams) == 0)
        assert seen[0]["Sec-WebSocket-Protocol"] == "kernel"
        assert "Cookie" not in seen[0]
        # Browsers let any page open a WebSocket, and send the cookie.
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await http.ws_connect(url, headers={**headers, "Origin": "http://evil.apps.test"})
        assert refused.value.status == 403
        async with http.ws_connect(url, headers=headers) as socket:
            opened.server.forget(APP)
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSED
    finally:
        await runner.cleanup()


# --- traffic that does not pass ------------------------------------------------------------------


async def test_a_job_cannot_speak_for_the_door_or_for_its_neighbours(
    browser: Browser, job: Job
) -> None:
    job.says(
        b"HTTP/1.1 200 \xff\x01\r\n"
        b"Set-Cookie: proxyd-app=mine\r\n"
        b"Set-Cookie: Proxyd-App=mine\r\n"
        b"Set-Cookie: proxyd-replica=mine\r\n"
        b"Set-Cookie: =proxyd-app=mine\r\n"
        b"Set-Cookie: nameless\r\n"
        b"Set-Cookie: a=1; Domain=apps.test; Path=/x; HttpOnly\r\n"
        b"Strict-Transport-Security: max-age=1; includeSubDomains\r\n"
        b"Clear-Site-Data: *\r\n"
        b'Alt-Svc: h2="evil:443"\r\n'
        b"NEL: {}\r\nReport-To: {}\r\n"
        b"X-Accel-Redirect: /internal\r\nX-Sendfile: /etc/passwd\r\n"
        b"X-Reproxy-URL: http://10.0.0.1/\r\nX-Accel-Buffering: no\r\n"
        b"Connection: X-Mine\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\n"
        b"Upgrade: h2c\r\nProxy-Authenticate: Basic\r\n"
        b"Service-Worker-Allowed: /\r\nX-Latin: caf\xe9\r\n"
        b"Content-Length: 2\r\n\r\nok"
    )
    raw = await say(browser.port, browser.head("GET", "/", "Connection: close"))
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 200 OK"
    assert sorted(lines[1:]) == [
        b"Connection: close",
        b"Content-Length: 2",
        b"Service-Worker-Allowed: /",
        b"Set-Cookie: a=1; HttpOnly; Path=/x",
        b"X-Accel-Buffering: no",
        b"X-Latin: caf\xe9",
    ]
    assert body == b"ok"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"no answer at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
        b"HTTP/1.1 999999 OK\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
    ],
)
async def test_a_malformed_answer_is_reported(browser: Browser, job: Job, said: bytes) -> None:
    job.says(said)
    status, _, body = await browser.ask()
    assert status == 502
    assert b"No answer" in body


@pytest.mark.parametrize(
    "said",
    [
        OK + b"Content-Length: 10\r\n\r\nhalf",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
)
async def test_an_answer_that_breaks_off_does_not_look_whole(
    browser: Browser, job: Job, said: bytes
) -> None:
    job.says(said)
    with pytest.raises(aiohttp.ClientError):
        await browser.ask()


async def test_an_answer_that_turns_to_nonsense_does_not_look_whole(
    browser: Browser, job: Job
) -> None:
    read = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await job.head(reader)
        writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await read.wait()
        writer.write(b"zz\r\nevil\r\n0\r\n\r\n")
        await reader.read()

    job.answer = answer
    reader, writer = await asyncio.open_connection("127.0.0.1", browser.port)
    writer.write(browser.head())
    told = await reader.readuntil(b"hello\r\n")
    read.set()
    with contextlib.suppress(ConnectionError):
        told += await reader.read()
    assert told.endswith(b"hello\r\n")
    writer.close()


async def test_nothing_behind_an_answer_is_taken_for_another_one(
    browser: Browser, job: Job
) -> None:
    job.says(OK + b"Content-Length: 2\r\n\r\nok" + OK + b"Content-Length: 4\r\n\r\nevil")
    reader, writer = await asyncio.open_connection("127.0.0.1", browser.port)
    for _ in range(2):
        writer.write(browser.head())
        assert b"Content-Length: 2" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(2) == b"ok"
    writer.close()
    assert job.connections == 2


async def test_a_connection_to_a_job_serves_one_request_after_the_other(
    browser: Browser, job: Job, opened: Door
) -> None:
    job.answer = job.keep
    for number in range(3):
        assert (await browser.ask(f"/{number}"))[2] == b"/%d" % number
    assert job.connections == 1
    assert "connection" not in job.headers()
    assert (await browser.ask("/", "POST", data=b"paid"))[0] == 200
    assert (job.connections, job.headers()["connection"]) == (2, "close")
    opened.server.forget(APP)
    assert (await browser.ask())[0] == 200
    assert job.connections == 3


async def test_a_kept_connection_is_only_for_the_same_app_and_key(
    browser: Browser, job: Job, opened: Door, http: aiohttp.ClientSession
) -> None:
    job.answer = job.keep
    assert (await browser.ask())[0] == 200
    other = Browser(opened, opened.offer(job, app_id=OTHER), http)
    now = opened.apps[APP].targets
    opened.apps[OTHER] = replace(opened.apps[OTHER], targets=now)  # the same job, by its deploy
    assert (await other.ask())[0] == 200
    assert job.connections == 2
    opened.offer(job, key="n" * 43)
    opened.server._known.forget(APP)
    assert (await browser.ask(headers={"Authorization": "Bearer " + "n" * 43}))[0] == 200
    assert job.connections == 3


async def test_a_kept_connection_that_the_job_closes_fails_no_request(
    browser: Browser, job: Job
) -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await job.echo(reader, writer)
        await job.head(reader)  # and closes without an answer

    job.answer = once
    for number in range(3):
        assert (await browser.ask(f"/{number}"))[2] == b"/%d" % number
    assert job.connections == 3


async def test_bytes_behind_an_answer_end_a_kept_connection(
    browser: Browser, job: Job, opened: Door
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await job.echo(reader, writer)
        writer.write(OK + b"Content-Length: 4\r\n\r\nevil")
        await reader.read()

    job.answer = answer
    assert (await browser.ask())[2] == b"/"
    kept = [each for idle in opened.server._kept._idle.values() for each in idle]
    await until(lambda: not any(each.can_ask_again for each in kept))
    assert (await browser.ask())[2] == b"/"
    assert job.connections == 2


async def test_few_connections_are_kept_and_not_for_long(
    browser: Browser, job: Job, opened: Door
) -> None:
    job.answer = job.keep
    opened.server._kept.bounds = KeptBounds(per_replica=2, idle_seconds=0.05)
    for answer in await asyncio.gather(*(browser.ask() for _ in range(5))):
        assert answer[0] == 200
    assert len(opened.server._kept) <= 2
    await until(lambda: len(opened.server._kept) == 0)
    before = job.connections
    assert (await browser.ask())[0] == 200
    assert job.connections == before + 1


@cases(
    ("lines", "body"),
    [
        (("Content-Length: 5", "Transfer-Encoding: chunked"), b"0\r\n\r\n"),
        (("Content-Length: 5", "Content-Length: 6"), b"hello"),
        (("Content-Length: +5",), b"hello"),
        (("Transfer-Encoding: chunked, identity",), b"0\r\n\r\n"),
        (("Transfer-Encoding: xchunked",), b"0\r\n\r\n"),
        (("Transfer-Encoding : chunked",), b"0\r\n\r\n"),
        (("X: a", " folded: b"), b""),
        (("Host: other.test",), b""),
    ],
)
async def test_a_request_that_could_be_read_in_two_ways_is_refused(
    browser: Browser, job: Job, lines: tuple[str, ...], body: bytes
) -> None:
    answer = await say(browser.port, browser.head("POST", "/", *lines) + body + b"GET /evil")
    assert answer.split(b" ", 2)[1] == b"400"
    assert job.asked == []


async def test_a_coding_before_chunked_is_refused(browser: Browser, job: Job) -> None:
    head = browser.head("POST", "/", "Transfer-Encoding: gzip, chunked")
    answer = await say(browser.port, head + b"0\r\n\r\nGET /evil")
    assert answer.split(b" ", 2)[1] == b"501"
    assert job.asked == []


async def test_a_request_inside_a_body_stays_in_it(browser: Browser, job: Job) -> None:
    inside = b"GET /evil HTTP/1.1\r\nHost: x\r\n\r\n"
    bodies = []

    async def reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await job.head(reader)
        bodies.append(await reader.readexactly(len(inside)))
        writer.write(OK + b"Content-Length: 0\r\n\r\n")

    job.answer = reads
    head = browser.head("POST", "/", f"Content-Length: {len(inside)}")
    reader, writer = await asyncio.open_connection("127.0.0.1", browser.port)
    for _ in range(2):
        writer.write(head + inside)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(OK)
    writer.close()
    assert bodies == [inside, inside]
    assert [each.split(b" ")[1] for each in job.asked] == [b"/", b"/"]


async def test_a_client_that_breaks_off_is_broken_off_at_the_job(
    browser: Browser, opened: Door, job: Job
) -> None:
    ended = asyncio.Event()

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await job.head(reader)
        with contextlib.suppress(ConnectionError):
            while await reader.read(100):
                pass
        ended.set()

    job.answer = waits
    _, writer = await asyncio.open_connection("127.0.0.1", browser.port)
    writer.write(browser.head("POST", "/", "Content-Length: 100") + b"half")
    await until(lambda: job.connections == 1)
    writer.transport.abort()
    await ended.wait()
    await until(lambda: len(opened.server.streams) == 0)


async def stalled(writer: asyncio.StreamWriter) -> None:
    """Wait until the written bytes wait, and do not move."""
    before = -1
    while (size := writer.transport.get_write_buffer_size()) != before or not size:
        before = size
        await asyncio.sleep(0.2)


async def test_a_job_that_answers_and_does_not_read_keeps_no_stream(
    browser: Browser, opened: Door, job: Job
) -> None:
    is_full, is_over = asyncio.Event(), asyncio.Event()

    async def refuses_to_read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await job.head(reader)
        await is_full.wait()
        writer.write(OK + b"Content-Length: 2\r\n\r\nno")
        await is_over.wait()

    job.answer = refuses_to_read
    _, writer = await asyncio.open_connection("127.0.0.1", browser.port)
    size = 64 << 20  # more than all kernels' buffers on the way
    writer.write(browser.head("POST", "/", f"Content-Length: {size}") + bytes(size))
    await stalled(writer)
    is_full.set()
    await until(lambda: [each.fileno() for each in opened.streams] == [-1])
    writer.transport.abort()
    await until(lambda: len(opened.server.streams) == 0)
    is_over.set()


@pytest.mark.parametrize("target", ["http://evil/", "*", "/a b", "/\xe4", "/" + "x" * 9_000])
async def test_only_paths_are_passed_on(browser: Browser, job: Job, target: str) -> None:
    answer = await say(browser.port, browser.head("GET", target).replace(b"\xc3\xa4", b"\xe4"))
    assert answer.split(b" ", 2)[1] == b"400"
    assert job.asked == []


async def test_a_head_that_is_too_long_is_refused_in_words(browser: Browser) -> None:
    answer = await say(browser.port, browser.head("GET", "/" + "x" * 9_000))
    assert answer.split(b" ", 2)[1] == b"400"
    assert b"Content-Type: text/html" in answer
    assert b"The address or a header of the request is too long." in answer


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/html,*/*;q=0.8", "text/html; charset=utf-8"),
        ("*/*", "text/html; charset=utf-8"),
        ("application/json, text/plain, */*", "application/json"),
    ],
)
async def test_a_refusal_is_a_page_or_json_as_the_client_wants(
    opened: Door, http: aiohttp.ClientSession, accept: str, kind: str
) -> None:
    browser = Browser(opened, opened.offer(), http)
    head = browser.head("GET", "/", f"Accept: {accept}", "Connection: close")
    said = (await say(browser.port, head)).decode()
    assert said.startswith("HTTP/1.1 503 ")
    assert f"Content-Type: {kind}\r\n" in said
    body = said.partition("\r\n\r\n")[2]
    if kind == "application/json":
        assert json.loads(body)["error"]["code"] == "not_ready"
    assert "Load the page again in a moment." in body


async def test_methods_of_proxies_are_not_passed_on(browser: Browser, job: Job) -> None:
    for method in ("TRACE", "CONNECT"):
        answer = await say(browser.port, browser.head(method), until_end=False)
        assert answer.split(b" ")[1] in (b"400", b"405")
    assert job.asked == []


# --- which replica -------------------------------------------------------------------------------


async def test_another_replica_is_asked_while_nothing_was_sent(
    opened: Door, http: aiohttp.ClientSession
) -> None:
    async with jobs(3) as made:
        browser = Browser(opened, opened.offer(*made), http)
        opened.unreached = {"job-1": "away", "job-2": "refused"}
        status, _, body = await browser.ask("/", "POST", data=b"once")
        assert (status, body) == (200, b"/")
        assert [each[1] for each in opened.asked] == ["job-1", "job-2", "job-3"]
        assert opened.asked[0] == ("device-1", "job-1", 1, 8888)


async def test_only_a_harmless_request_is_sent_twice(
    opened: Door, http: aiohttp.ClientSession
) -> None:
    async with jobs(2) as (first, second):
        browser = Browser(opened, opened.offer(first, second), http)
        first.says(b"")
        assert (await browser.ask())[0] == 200
        assert (await browser.ask("/", "POST", data=b"paid"))[0] == 502
        assert (await browser.ask("/", "POST"))[0] == 502
        assert len(second.asked) == 1


async def test_the_replica_with_the_fewest_streams_is_asked(
    opened: Door, http: aiohttp.ClientSession
) -> None:
    async with jobs(2) as (first, second):
        browser = Browser(opened, opened.offer(first, second), http)

        async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await first.head(reader)
            await reader.read()

        first.answer = hangs
        asking = asyncio.create_task(browser.ask())
        await until(lambda: len(first.asked) == 1)
        for _ in range(2):
            assert (await browser.ask())[0] == 200
        assert (len(first.asked), len(second.asked)) == (1, 2)
        asking.cancel()
        await asyncio.wait([asking])


async def test_a_visitor_of_a_replica_comes_to_it_again(
    opened: Door, http: aiohttp.ClientSession
) -> None:
    async with jobs(2) as (first, second):
        browser = Browser(opened, opened.offer(first, second, stays=True), http)
        _, told, _ = await browser.ask()
        (cookie,) = told["set-cookie"]
        assert cookie.startswith("proxyd-replica=job-1; Path=/; HttpOnly")
        kept = {**BEARER, "Cookie": "proxyd-replica=job-2"}
        assert (await browser.ask(headers=kept))[0] == 200
        assert (len(first.asked), len(second.asked)) == (1, 1)
        opened.unreached = {"job-2": "gone"}
        assert (await browser.ask(headers=kept))[0] == 200
        assert len(first.asked) == 2


async def test_replicas_that_have_come_meanwhile_are_asked(
    opened: Door, http: aiohttp.ClientSession
) -> None:
    async with jobs(4) as made:
        browser = Browser(opened, opened.offer(*made), http)
        now = opened.apps[APP]
        opened.apps[APP] = replace(now, targets=now.targets[:3])
        assert (await browser.ask())[0] == 200
        opened.apps[APP] = replace(now, targets=now.targets[3:])  # a rollout has ended
        opened.unreached = dict.fromkeys(("job-1", "job-2", "job-3"), "gone")
        assert (await browser.ask("/", "POST", data=b"once"))[0] == 200
        assert len(made[3].asked) == 1


async def test_a_machine_that_hangs_gets_less_time_where_there_is_another(
    opened: Door, http: aiohttp.ClientSession
) -> None:
    async with jobs(2) as made:
        browser = Browser(opened, opened.offer(*made), http)
        opened.unreached = {"job-1": "timeout"}
        assert (await browser.ask())[0] == 200
        assert opened.seconds == [OPEN_SECONDS, LAST_OPEN_SECONDS]


@pytest.mark.parametrize(
    ("reason", "status"),
    [("away", 502), ("refused", 503), ("gone", 503), ("timeout", 504), ("busy", 503)],
)
async def test_the_reason_of_an_unreachable_job_is_shown(
    browser: Browser, opened: Door, reason: str, status: int
) -> None:
    opened.unreached = {APP: reason}
    answer = await browser.ask()
    assert answer[0] == status
    assert ("retry-after" in answer[1]) == (status == 503)


async def test_an_app_that_is_not_ready_names_the_time_to_come_again(
    browser: Browser, opened: Door
) -> None:
    opened.offer()
    status, told, body = await browser.ask()
    assert (status, told["retry-after"]) == (503, ["5"])
    assert b"Not ready yet" in body


def _said(answer: tuple[int, dict[str, list[str]], bytes]) -> tuple[int, bytes]:
    return answer[0], answer[2]


async def test_an_ended_app_is_not_shown_as_starting(browser: Browser, opened: Door) -> None:
    wrong = await browser.ask("/", headers={})
    assert (await browser.ask())[0] == 200  # so it is known for a moment
    del opened.apps[APP]
    opened.unreached = {APP: "gone"}  # its device has ended it
    assert _said(await browser.ask()) == _said(wrong)
    opened.offer()
    opened.server.forget(APP)
    assert (await browser.ask())[0] == 503  # it waits for a machine, and that is known
    del opened.apps[APP]
    assert _said(await browser.ask()) == _said(wrong)


# --- paths, ports, bounds ------------------------------------------------------------------------


async def test_without_a_domain_an_app_is_a_path(job: Job, http: aiohttp.ClientSession) -> None:
    async with door("") as made:
        made.offer(job)
        browser = Browser(made, "127.0.0.1", http)
        prefix = f"/apps/{APP}"
        status, told, _ = await browser.ask(f"{prefix}/lab?key={KEY}", headers={})
        assert (status, told["location"]) == (303, [f"{prefix}/lab"])
        assert told["set-cookie"] == [f"proxyd-app={KEY}; Path={prefix}/; HttpOnly; SameSite=Lax"]
        assert (await browser.ask(f"{prefix}/lab?x=1"))[2] == b"/lab?x=1"
        assert job.headers()["x-forwarded-prefix"] == prefix
        status, told, _ = await browser.ask(f"{prefix}?x=1")
        assert (status, told["location"]) == (303, [f"{prefix}/?x=1"])
        assert (await browser.ask("/lab"))[0] == 404
        job.says(
            b"HTTP/1.1 302 Found\r\nLocation: /tree\r\nService-Worker-Allowed: /\r\n"
            b"Set-Cookie: a=1; Path=/b\r\nSet-Cookie: c=2\r\nContent-Length: 0\r\n\r\n"
        )
        _, told, _ = await browser.ask(f"{prefix}/")
        assert told["location"] == [f"{prefix}/tree"]
        assert told["set-cookie"] == [f"a=1; Path={prefix}/b", f"c=2; Path={prefix}/"]
        assert "service-worker-allowed" not in told


async def test_another_port_has_an_address_of_its_own(
    browser: Browser, opened: Door, job: Job
) -> None:
    assert (await browser.ask())[0] == 200
    browser.host = f"{APP}-8888.{DOMAIN}"
    assert (await browser.ask())[0] == 200
    browser.host = f"{APP}-22.{DOMAIN}"
    assert (await browser.ask())[0] == 404
    assert {each[3] for each in opened.asked} == {8888}


async def test_the_streams_of_an_app_are_bounded(job: Job, http: aiohttp.ClientSession) -> None:
    async with door(streams_per_app=2) as made:
        browser = Browser(made, made.offer(job), http)

        async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await job.head(reader)
            await reader.read()

        job.answer = hangs
        asking = [asyncio.create_task(browser.ask()) for _ in range(2)]
        await until(lambda: made.server.streams.of(APP) == 2)
        status, told, _ = await browser.ask()
        assert (status, told["retry-after"]) == (503, ["2"])
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)
        await until(lambda: len(made.server.streams) == 0)


async def test_the_connections_of_a_network_are_bounded(
    job: Job, http: aiohttp.ClientSession
) -> None:
    async with door(limits=ApiLimits(connections=100, connections_per_network=2)) as made:
        browser = Browser(made, made.offer(job), http)

        async def hangs(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await job.head(reader)
            await reader.read()

        job.answer = hangs
        asking = [asyncio.create_task(browser.ask()) for _ in range(2)]
        await until(lambda: made.server.streams.of(APP) == 2)
        assert await say(made.port, browser.head()) == b""
        for each in asking:
            each.cancel()
        await asyncio.wait(asking)


@pytest.mark.usefixtures("no_time_for_rates")
async def test_strangers_do_not_ask_the_store_as_often_as_they_like(
    job: Job, http: aiohttp.ClientSession
) -> None:
    async with door(limits=ApiLimits(requests_per_second=1)) as made:
        browser = Browser(made, made.offer(job), http)
        assert (await browser.ask())[0] == 200
        for number in range(3):
            browser.host = f"{OTHER[:-1]}{number}.{DOMAIN}"
            last = await browser.ask()
        assert last[0] == 429
        browser.host = f"{APP}.{DOMAIN}"
        assert (await browser.ask())[0] == 200


async def test_a_door_that_drains_takes_no_request(browser: Browser, opened: Door) -> None:
    opened.server.drain()
    status, told, _ = await browser.ask()
    assert (status, told["retry-after"]) == (503, ["2"])
