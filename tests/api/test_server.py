"""Replies of the HTTP server to requests of every kind, well-formed or hostile."""

import asyncio
import gc
import json
import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
from support.base.cases import cases
from support.base.waiting import until
from support.daemons.bounded import api_bounds, bounded
from support.daemons.service import Answer, Service, running_in

from api.accounts.accounts import LoginRequest
from api.http.errors import Failure, Transport, of_transport
from api.http.limits import BodyPace
from api.http.sizes import largest
from api.routing.responses import SLICE_BYTES, refusal
from api.routing.responses import Response as ServerResponse
from api.routing.routes import Call
from api.serving.calls import CallReader
from api.serving.connections import TOO_LONG
from market.accounts.tokens import Claims
from proxyd.loop import clock

LIMIT = largest(LoginRequest) or 0
SECRET = "tell-nobody"  # stands in every hostile request, and in no answer or log line
ENDS = b"Host: x\r\nConnection: close\r\n"
POST = b"POST /auth/login HTTP/1.1\r\n" + ENDS + b"Content-Type: application/json\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
TYPED = b"POST /auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GET = b"GET /healthz HTTP/1.1\r\n" + ENDS
TRANSPORT_CODES = {
    400: {"bad_request"},
    404: {"no_such_path"},
    405: {"method_not_allowed"},
    413: {"body_too_large"},
    415: {"unsupported_media_type"},
}


class Response(NamedTuple):
    """One answer as it stood on the wire."""

    status: int
    headers: dict[str, str]
    body: Any


async def exchange(service: Service, data: bytes) -> bytes:
    """Send bytes and return everything that comes back until the server ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()


async def one_response(reader: asyncio.StreamReader, *, head: bool = False) -> Response:
    start, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if line)
    body = b"" if head else await reader.readexactly(int(headers["Content-Length"]))
    return Response(int(start.split(" ")[1]), headers, json.loads(body) if body else None)


async def responses(service: Service, data: bytes, count: int) -> list[Response]:
    """Send bytes and return that many answers, without waiting for the server to end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    try:
        writer.write(data)
        return [await one_response(reader) for _ in range(count)]
    finally:
        writer.close()


def decided(response: Response) -> None:
    """Check the shape of a refusal by the transport."""
    assert response.headers["Content-Type"] == "application/json"
    assert response.headers["Server"] == "proxyd"
    assert response.body.keys() == {"ok", "error"}
    assert response.body["ok"] is False
    assert response.body["error"].keys() == {"code", "message"}
    assert response.body["error"]["message"]
    assert response.body["error"]["code"] in TRANSPORT_CODES[response.status]


def refused(answer: Answer, status: int, code: str, field: str | None = None) -> None:
    assert answer.status == status, answer.body
    assert answer.body.keys() == {"ok", "error"}
    assert answer.body["ok"] is False
    assert answer.body["error"]["message"]
    assert (answer.code, answer.field) == (code, field)
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Server"] == "proxyd"


def lines_of(caplog: pytest.LogCaptureFixture, *, level: int = logging.INFO) -> list[str]:
    """Return the logged lines; a line must not have a traceback."""
    records = [each for each in caplog.records if each.levelno >= level]
    assert not [each for each in records if each.exc_info], caplog.text
    return [each.getMessage() for each in records]


BROKEN = {
    "not HTTP": b"tell-nobody\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03tell-nobody\r\n\r\n",
    "SOCKS": b"\x05\x01\x02tell-nobody\r\n\r\n",
    "a method alone": b"GET\r\n\r\n",
    "an unknown version": b"GET /tell-nobody HTTP/9.9\r\n" + ENDS + b"\r\n",
    "a version of letters": b"GET /tell-nobody HTTP/x.y\r\n" + ENDS + b"\r\n",
    "four words": b"GET /tell-nobody tell-nobody HTTP/1.1\r\n" + ENDS + b"\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a method that nobody knows": b"TELL-NOBODY /healthz HTTP/1.1\r\n" + ENDS + b"\r\n",
    "a path without a slash": b"GET tell-nobody HTTP/1.1\r\n" + ENDS + b"\r\n",
    "NUL in the path": b"GET /tell-nobody\0 HTTP/1.1\r\n" + ENDS + b"\r\n",
    "a broken IPv6 address": b"GET http://[::1/tell-nobody HTTP/1.1\r\n" + ENDS + b"\r\n",
    "a port of letters": b"GET http://a:tell-nobody/ HTTP/1.1\r\n" + ENDS + b"\r\n",
    "a huge path": b"GET /" + b"tell-nobody" * 10_000 + b" HTTP/1.1\r\n" + ENDS + b"\r\n",
    "lines without CR": b"GET /tell-nobody HTTP/1.1\nHost: x\n\n",
    "no Host": b"GET /healthz HTTP/1.1\r\nConnection: close\r\nX: tell-nobody\r\n\r\n",
    "two Hosts": GET + b"Host: tell-nobody\r\n\r\n",
    "NUL in a header": GET + b"X: tell-nobody\0\r\n\r\n",
    "NUL in a header's name": GET + b"X\0: tell-nobody\r\n\r\n",
    "CR in a header": GET + b"X: tell-nobody\rY: 1\r\n\r\n",
    "a space before the colon": GET + b"X : tell-nobody\r\n\r\n",
    "a space in a name": GET + b"tell nobody: 1\r\n\r\n",
    "no colon": GET + b"tell-nobody\r\n\r\n",
    "no name": GET + b": tell-nobody\r\n\r\n",
    "a folded header": GET + b"X: a\r\n tell-nobody\r\n\r\n",
    "a huge header": GET + b"X: " + b"tell-nobody" * 10_000 + b"\r\n\r\n",
    "a huge name": GET + b"tell-nobody" * 10_000 + b": 1\r\n\r\n",
    "ten thousand headers": GET + b"X: tell-nobody\r\n" * 10_000 + b"\r\n",
    "a length beside chunks": POST
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\ntell-nobody",
    "chunks beside a length": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\ntell-nobody",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 11\r\n\r\ntell-nobody",
    "two lengths in one": POST + b"Content-Length: 2, 11\r\n\r\ntell-nobody",
    "a length below zero": POST + b"Content-Length: -11\r\n\r\ntell-nobody",
    "a length with a plus": POST + b"Content-Length: +11\r\n\r\ntell-nobody",
    "a length of letters": POST + b"Content-Length: tell-nobody\r\n\r\ntell-nobody",
    "a length beyond all": POST + b"Content-Length: " + b"9" * 40 + b"\r\n\r\ntell-nobody",
    "an unknown coding": POST + b"Transfer-Encoding: tell-nobody\r\n\r\n0\r\n\r\n",
    "chunks that are not last": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "a chunk size of letters": CHUNKED + b"tell-nobody\r\n{}\r\n0\r\n\r\n",
    "a chunk size below zero": CHUNKED + b"-2\r\n{}\r\n0\r\n\r\ntell-nobody",
    "a chunk size with 0x": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\ntell-nobody",
    "a chunk size beyond all": CHUNKED + b"f" * 20 + b"\r\ntell-nobody",
    "a chunk longer than its size": CHUNKED + b"2\r\n{}tell-nobody\r\n0\r\n\r\n",
    "a broken chunk to a route without a body": GET
    + b"Transfer-Encoding: chunked\r\n\r\ntell-nobody\r\n{}\r\n0\r\n\r\n",
    "a broken chunk to an unknown path": b"POST /tell-nobody HTTP/1.1\r\n"
    + ENDS
    + b"Transfer-Encoding: chunked\r\n\r\ntell-nobody\r\n{}\r\n0\r\n\r\n",
    "a body that is no gzip": POST
    + b"Content-Encoding: gzip\r\nContent-Length: 11\r\n\r\ntell-nobody",
    "a coding that is not there": POST
    + b"Content-Encoding: br\r\nContent-Length: 11\r\n\r\ntell-nobody",
}


@cases("request_bytes", BROKEN.values())
async def test_a_broken_request_gets_one_answer_and_one_log_line(
    service: Service, caplog: pytest.LogCaptureFixture, request_bytes: bytes
) -> None:
    caplog.set_level(logging.INFO)
    caplog.clear()
    answered = await exchange(service, request_bytes)
    assert answered.count(b"HTTP/1.") == 1
    head, _, body = answered.partition(b"\r\n\r\n")
    assert SECRET.encode() not in answered.lower()
    assert head.count(b"Server: proxyd\r\n") == 1
    reader = asyncio.StreamReader()
    reader.feed_data(answered)
    reader.feed_eof()
    response = await one_response(reader)
    assert response.status == 400
    decided(response)
    assert len(body) < 200
    (line,) = lines_of(caplog)
    assert SECRET not in line.lower()
    assert len(line) < 200
    assert (await service.call("GET", "/healthz")).status == 200


@cases(
    ("target", "status"),
    [
        ("/tell-nobody", 404),
        ("/tell-nobody%00%0d%0aX:%20y", 404),
        ("/%ff%fe", 404),
        ("/%zz", 404),
        ("/healthz/", 404),
        ("//healthz", 404),
        ("/HEALTHZ", 404),
        ("/../../etc/passwd", 404),
        ("/auth%2Flogin?tell-nobody", 404),
        ("/api/marketplace%2fjobs", 404),
        ("/%61pi/marketplace/%6Aobs", 200),
        ("/docs%2Fstart.js", 404),
        ("/auth/login?tell-nobody", 405),
        ("http://tell-nobody/healthz", 200),
        ("/healthz?tell-nobody=%00%ff&&=", 200),
        ("/healthz#tell-nobody", 200),
    ],
)
async def test_an_odd_target_is_a_path_like_any_other(
    service: Service, caplog: pytest.LogCaptureFixture, target: str, status: int
) -> None:
    caplog.set_level(logging.INFO)
    caplog.clear()
    request = f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    (response,) = await responses(service, request, 1)
    assert response.status == status
    assert response.headers["Server"] == "proxyd"
    assert SECRET not in str(response)
    if status != 200:
        decided(response)
    assert lines_of(caplog) == []


async def test_a_request_for_a_proxy_is_refused_with_the_place_of_the_proxy(
    service: Service,
) -> None:
    """Real curl, with the API's address in the place of the proxy's: forwarded, and tunnelled."""
    api = f"http://127.0.0.1:{service.api_port}"
    for words in (
        ("--proxy", f"http://name:{SECRET}@127.0.0.1:{service.api_port}"),
        ("--proxy", api),
        ("--proxy", api, "--proxytunnel"),
    ):
        curl = await asyncio.create_subprocess_exec(
            *("curl", "--silent", "--include", "--suppress-connect-headers", *words),
            *("--write-out", "%{http_code} %{http_connect}", "http://example.com/"),
            stdout=asyncio.subprocess.PIPE,
        )
        printed = (await curl.communicate())[0].decode()
        assert " 421 " in f" {printed.splitlines()[-1]} ", words
        if "--proxytunnel" not in words:
            assert '"code":"misdirected"' in printed
            assert "not the proxy" in printed
        assert SECRET not in printed


async def test_headers_for_proxies_change_nothing_beside_a_path(service: Service) -> None:
    request = GET + b"Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eDp5\r\n\r\n"
    (response,) = await responses(service, request, 1)
    assert response.status == 200


@pytest.mark.parametrize(
    "header",
    [
        b"Host: [::1tell-nobody\r\n",
        b"Host:\r\n",
        b"Host: x\r\nExpect: tell-nobody\r\n",
        b"Host: x\r\nConnection: upgrade\r\nUpgrade: tell-nobody\r\n",
        b"Host: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n",
        b"Host: x\r\nX: \xff\xfetell-nobody\r\n",
        b"Host: x\r\nRange: bytes=tell-nobody\r\n",
        b"Host: x\r\nIf-None-Match: *\r\n",
        b"Host: x\r\nCookie: tell-nobody\r\n",
        b"Host: x\r\nX-Forwarded-For: tell-nobody\r\n",
    ],
)
async def test_odd_headers_change_nothing(
    service: Service, caplog: pytest.LogCaptureFixture, header: bytes
) -> None:
    caplog.set_level(logging.INFO)
    caplog.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    writer.write(b"GET /healthz HTTP/1.1\r\n" + header + b"\r\n")
    first = await one_response(reader)
    assert (first.status, first.body["ok"]) == (200, True)
    assert SECRET not in str(first)
    writer.write(b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await one_response(reader)).status == 404
    writer.close()
    assert lines_of(caplog) == []


async def test_pipelined_requests_are_answered_in_their_order(service: Service) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    two = b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
    three = TYPED + b"Content-Length: 2\r\n\r\n{}"
    found = await responses(service, (one + two + three) * 20, 60)
    assert [each.status for each in found] == [200, 404, 400] * 20


async def test_broken_bytes_after_a_good_request_end_the_connection(service: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    good = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    writer.write(good)
    assert (await one_response(reader)).status == 200
    writer.write(b"tell-nobody\r\n\r\n" + good)
    response = await one_response(reader)
    assert response.status == 400
    decided(response)
    assert await reader.read() == b""
    writer.close()


async def test_http_1_0_is_spoken(service: Service) -> None:
    answered = await exchange(service, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert answered.startswith(b"HTTP/1.0 200 ")
    assert answered.endswith(b'{"ok":true,"service":"proxyd"}\n')


@pytest.mark.parametrize("path", ["/healthz", "/nowhere", "/auth/me", "/openapi.json"])
async def test_an_answer_is_a_line_that_says_first_whether_it_went_well(
    service: Service, path: str
) -> None:
    async with service.http.get(service.url + path) as answer:
        body = await answer.read()
    assert body.endswith(b"}\n")
    assert body.count(b"\n") == 1
    assert path == "/openapi.json" or body.startswith((b'{"ok":true,', b'{"ok":false,"error":{'))


@cases(
    ("headers", "words"),
    [
        ({}, "There is no Authorization header"),
        ({"X-Worker-Token": "x"}, "This path is for people"),
        ({"Authorization": "x"}, "is not the word Bearer"),
        ({"Authorization": "Basic eDp5"}, "is not the word Bearer"),
        ({"Authorization": "Bearer"}, "is not the word Bearer"),
        (
            {"Authorization": "Bearer x.y.z"},
            "malformed, or was not issued by this service; log in again",
        ),
        ({"Authorization": "Bearer " + "x" * 5_000}, "malformed, or was not issued"),
    ],
)
async def test_a_request_without_a_session_token_names_the_mistake(
    service: Service, headers: dict[str, str], words: str
) -> None:
    answer = await service.call("GET", "/auth/me", headers=headers)
    refused(answer, 401, "unauthorized")
    assert words in answer.body["error"]["message"]


async def test_a_request_with_an_old_session_token_is_told_apart(service: Service) -> None:
    person = await service.person()
    await service.call("POST", "/auth/logout", token=person.token)
    answer = await service.call("GET", "/auth/me", token=person.token)
    assert answer.body["error"]["message"] == "The login session has ended; log in again."
    tokens = service.daemon.market.accounts._tokens
    claims = Claims(person.user_id, "x", clock.seconds() - tokens.lifetime_seconds)
    old = tokens.sign(claims, token_id="x")
    answer = await service.call("GET", "/auth/me", token=old)
    assert answer.body["error"]["message"] == "The session token has expired; log in again."


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "There is no X-Worker-Token header"),
        ({"Authorization": "Bearer x"}, "This path is for worker devices"),
        ({"X-Worker-Token": ""}, "was not issued by this service, or was revoked"),
        ({"X-Worker-Token": "x", "Authorization": "Bearer x"}, "was not issued by this service"),
    ],
)
async def test_a_request_without_a_worker_token_names_the_mistake(
    service: Service, headers: dict[str, str], words: str
) -> None:
    answer = await service.call("POST", "/api/worker/offline", headers=headers)
    refused(answer, 401, "worker_unauthorized")
    assert words in answer.body["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        ("GET", "/auth/login", "This path takes POST, not GET."),
        ("PUT", "/api/jobs", "This path takes GET or POST, not PUT."),
        ("POST", "/docs", "This path takes GET, not POST."),
        ("GET", "/api/job", "There is nothing at this path; /docs lists the paths."),
    ],
)
async def test_a_request_to_a_wrong_path_names_the_right_one(
    service: Service, method: str, path: str, words: str
) -> None:
    assert (await service.call(method, path)).body["error"]["message"] == words


async def test_a_request_in_single_bytes_is_a_request(service: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    for byte in TYPED + b"Content-Length: 2\r\n\r\n{}":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0)
    response = await one_response(reader)
    assert (response.status, response.body["error"]["field"]) == (400, "email")
    writer.close()


@pytest.mark.parametrize("path", ["/", "/" + "x" * 9_000])
async def test_a_long_request_is_told_apart_from_a_malformed_one(
    service: Service, path: str
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nX-A: {'x' * 20_000}\r\n\r\n".encode())
    error = (await one_response(reader)).body["error"]
    assert (error["code"], error["message"]) == ("bad_request", TOO_LONG)
    writer.close()


@pytest.mark.parametrize("sent", [b"", b"{", b'{"email": "tell-nobody"'])
async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_no_traceback(
    service: Service, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    caplog.set_level(logging.INFO)
    caplog.clear()
    waiting = 0

    async def reading(*args: Any) -> Call[Any, Any]:
        nonlocal waiting
        waiting += 1
        try:
            return await original(*args)
        finally:
            waiting -= 1

    http = service.daemon.http
    original = http._calls.read
    http._calls = cast(CallReader, SimpleNamespace(read=reading))
    _, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    writer.write(POST + b"Content-Length: 100\r\n\r\n" + sent)
    await until(lambda: waiting == 1)
    writer.close()
    await until(lambda: waiting == 0)
    await asyncio.sleep(0)
    lines = lines_of(caplog)
    assert len(lines) <= 1
    assert SECRET not in str(lines)


async def test_a_client_that_leaves_in_the_middle_of_its_head_is_nothing_to_log(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.clear()
    for part in (b"", b"GET /tell", b"GET /tell-nobody HTTP/1.1\r\nX: "):
        reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
        writer.write(part)
        writer.write_eof()
        await reader.read()
        writer.close()
    assert lines_of(caplog) == []


@cases("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_an_unknown_path_is_404_by_every_method(service: Service, method: str) -> None:
    answer = await service.call(method, "/nowhere")
    assert answer.status == 404
    if method != "HEAD":
        refused(answer, 404, "no_such_path")


@cases(
    ("path", "allowed"),
    [
        ("/healthz", {"GET", "HEAD"}),
        ("/auth/me", {"GET", "HEAD"}),
        ("/auth/login", {"POST"}),
        ("/auth/register", {"POST"}),
        ("/api/bandwidth/create", {"POST"}),
        ("/api/bandwidth/sessions", {"GET", "HEAD"}),
        ("/api/bandwidth/end", {"POST"}),
    ],
)
async def test_another_method_is_405_and_says_which_are_allowed(
    service: Service, path: str, allowed: set[str]
) -> None:
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} - allowed:
        answer = await service.call(method, path)
        refused(answer, 405, "method_not_allowed")
        assert set(answer.headers["Allow"].split(", ")) == allowed


async def test_head_answers_as_get_without_the_body(service: Service) -> None:
    person = await service.person()
    for path in ("/healthz", "/auth/me", "/api/bandwidth/sessions", "/nowhere"):
        got = await service.call("GET", path, token=person.token)
        head = await service.call("HEAD", path, token=person.token)
        assert head.body is None
        assert head.status == got.status
        assert head.headers["Content-Length"] == got.headers["Content-Length"]
        assert head.headers["Content-Type"] == "application/json"


async def test_head_puts_nothing_in_the_way_of_the_next_answer(service: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    writer.write(
        b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert (await one_response(reader, head=True)).status == 200
    assert (await one_response(reader)).status == 404
    writer.close()


@cases(
    "kind",
    [
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain",
        "text/json",
        "application/jsonp",
        "application/xml",
        "tell-nobody",
        "",
    ],
)
async def test_another_content_type_is_415(service: Service, kind: str) -> None:
    body = b'{"email": "a@example.com", "password": "tell-nobody"}'
    answer = await service.call("POST", "/auth/login", raw=body, headers={"Content-Type": kind})
    refused(answer, 415, "unsupported_media_type")
    assert answer.body["error"]["message"].endswith(" Content-Type: application/json.")
    assert SECRET not in str(answer.body)


async def test_a_body_of_no_type_is_415_and_no_body_needs_none(service: Service) -> None:
    body = b'{"email": "a@example.com", "password": "tell-nobody"}'
    ends = b"POST /auth/login HTTP/1.1\r\n" + ENDS
    whole = b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    chunks = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    for sent in (whole, chunks):
        [response] = await responses(service, ends + sent, 1)
        assert (response.status, response.body["error"]["code"]) == (415, "unsupported_media_type")
    me = await service.person()
    assert (await service.call("POST", "/auth/logout", token=me.token)).status == 200


@pytest.mark.parametrize(
    "kind",
    [
        "application/json",
        "application/json; charset=utf-8",
        "Application/JSON",
        "application/json;",
    ],
)
async def test_json_may_be_named_in_any_spelling(service: Service, kind: str) -> None:
    body = b'{"email": "a@example.com", "password": "tell-nobody"}'
    answer = await service.call("POST", "/auth/login", raw=body, headers={"Content-Type": kind})
    refused(answer, 401, "invalid_credentials")


async def test_a_body_as_long_as_the_limit_is_read(service: Service) -> None:
    body = b'{"email": "a", "password": "b"}'
    body += b" " * (LIMIT - len(body))
    refused(await service.call("POST", "/auth/login", raw=body), 401, "invalid_credentials")
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    (response,) = await responses(service, CHUNKED + chunks, 1)
    assert response.status == 401


BODY = b" " * (LIMIT + 1)
TOO_LARGE = {
    "announced and never sent": POST + b"Content-Length: 99999999999\r\n\r\n",
    "announced and sent": POST + b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "in one chunk": CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "in many chunks": CHUNKED + b"400\r\n%s\r\n" % (b" " * 1024) * 1025 + b"0\r\n\r\n",
    "in chunks without end": CHUNKED + b"400\r\n%s\r\n" % (b" " * 1024) * 1025,
}


@pytest.mark.parametrize("request_bytes", TOO_LARGE.values(), ids=TOO_LARGE.keys())
async def test_a_body_over_the_limit_is_413(
    service: Service, caplog: pytest.LogCaptureFixture, request_bytes: bytes
) -> None:
    caplog.set_level(logging.INFO)
    caplog.clear()
    (response,) = await responses(service, request_bytes, 1)
    assert response.status == 413
    decided(response)
    assert len(lines_of(caplog)) <= 1


async def test_a_body_that_unpacks_to_more_than_the_limit_is_413(service: Service) -> None:
    packer = zlib.compressobj(wbits=31)
    bomb = packer.compress(b" " * (50 * LIMIT)) + packer.flush()
    assert len(bomb) < LIMIT
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    (response,) = await responses(service, POST + head + bomb, 1)
    assert response.status == 413
    decided(response)


async def test_the_operator_sets_the_limit_of_a_body(tmp_path: Path) -> None:
    async with running_in(tmp_path, api={"body_max_bytes": 2048}) as service:
        refused(await service.call("POST", "/auth/login", raw=b" " * 2048), 400, "invalid_field")
        refused(await service.call("POST", "/auth/login", raw=b" " * 2049), 413, "body_too_large")


def chunked(body: bytes) -> bytes:
    return b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


def packed(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    sent = packer.compress(body) + packer.flush()
    return b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(sent), sent)


@pytest.mark.parametrize("form", [chunked, packed])
async def test_a_body_that_comes_with_its_head_has_the_same_limit(
    tmp_path: Path, form: Callable[[bytes], bytes]
) -> None:
    """No header says how large these are, and nothing is waited for that could be counted."""
    taken = []
    async with running_in(tmp_path, api={"body_max_bytes": 2048}) as service:
        for size in (2047, 2048, 2049, 60_000):
            (response,) = await responses(service, POST + form(b" " * size), 1)
            taken.append((response.status, response.body["error"]["code"]))
    assert taken == [(400, "invalid_field")] * 2 + [(413, "body_too_large")] * 2


@bounded(api_bounds(body=BodyPace(grace_seconds=0.01)))
async def test_a_body_that_does_not_come_is_not_waited_for_forever(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    (response,) = await responses(service, POST + b"Content-Length: 10\r\n\r\n{", 1)
    assert response.status == 408
    assert response.body["error"]["code"] == "request_timeout"
    assert lines_of(caplog, level=logging.WARNING) == []


async def test_a_head_that_does_not_come_is_not_waited_for_forever(tmp_path: Path) -> None:
    async with running_in(tmp_path, bounds=api_bounds(keepalive_seconds=0.1)) as service:
        for beginning in (b"", b"GET", b"GET /healthz HTTP/1.1\r\nX-Slow: "):
            assert await exchange(service, beginning) == b""


async def test_of_too_many_connections_the_one_that_waits_longest_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxyd.wiring.slices.api_connections_total", lambda *_: 3)
    async with running_in(tmp_path) as service:
        idle = [
            await asyncio.open_connection("127.0.0.1", service.api_port, local_addr=(source, 0))
            for source in ("127.0.0.2", "127.0.0.3", "127.0.0.4")
        ]
        (first, _), *others = idle
        await until(lambda: service.daemon.http.connections == 3)
        (answer,) = await responses(service, GET + b"\r\n", 1)
        assert answer.status == 200
        assert await first.read() == b""
        for reader, writer in others:
            writer.write(GET + b"\r\n")
            assert (await one_response(reader)).status == 200
        for _, writer in idle:
            writer.close()


NOT_JSON = {
    "nothing": b"",
    "spaces": b" \r\n\t",
    "a word": b"tell-nobody",
    "a form": b"email=tell-nobody&password=tell-nobody",
    "an open object": b'{"email": "tell-nobody"',
    "an open text": b'{"email": "tell-nobody',
    "two objects": b'{"email": "a", "password": "tell-nobody"}{}',
    "something behind it": b'{"email": "a", "password": "tell-nobody"} tell-nobody',
    "a comma too many": b'{"email": "a", "password": "tell-nobody",}',
    "single quotes": b"{'email': 'a', 'password': 'tell-nobody'}",
    "a comment": b'{"email": "a", "password": "tell-nobody"} // x',
    "NaN": b'{"email": "a", "password": "tell-nobody", "x": NaN}',
    "a control character": b'{"email": "a\n", "password": "tell-nobody"}',
    "NUL": b'{"email": "a\0", "password": "tell-nobody"}',
    "NUL behind it": b'{"email": "a", "password": "tell-nobody"}\0',
    "an unknown escape": b'{"email": "\\x41", "password": "tell-nobody"}',
    "UTF-16": '{"email": "a", "password": "tell-nobody"}'.encode("utf-16"),
    "invalid UTF-8": b'{"email": "\xff", "password": "tell-nobody"}',
    "invalid UTF-8 in a name": b'{"\xff": 1, "email": "a", "password": "tell-nobody"}',
    "invalid UTF-8 in an unknown field": b'{"x": "\xff", "email": "a", "password": "tell-nobody"}',
    "UTF-8 that is too long": b'{"email": "\xc0\xaf", "password": "tell-nobody"}',
    "a surrogate in UTF-8": b'{"email": "\xed\xa0\x80", "password": "tell-nobody"}',
    "a lone surrogate": b'{"email": "\\ud800", "password": "tell-nobody"}',
    "a lone low surrogate": b'{"email": "\\udc00", "password": "tell-nobody"}',
    "surrogates the wrong way round": b'{"email": "\\udc00\\ud800", "password": "tell-nobody"}',
    "U+0000": b'{"email": "a\\u0000", "password": "tell-nobody"}',
    "U+0000 in a password": b'{"email": "a", "password": "tell-nobody\\u0000"}',
    "deep arrays": b"[" * 7_000,
    "deep objects": b'{"x":' * 1_500,
    "deep and closed": b'{"x":' + b"[" * 3_500 + b"]" * 3_500 + b"}",
    "deep in a field": b'{"email":' + b"[" * 3_500 + b"]" * 3_500 + b', "password": "x"}',
    "an array": b'[{"email": "a", "password": "tell-nobody"}]',
    "a text": b'"tell-nobody"',
    "a number": b"5",
    "null": b"null",
    "true": b"true",
}


@cases("body", NOT_JSON.values())
async def test_a_body_that_is_no_json_object_is_400(
    service: Service, caplog: pytest.LogCaptureFixture, body: bytes
) -> None:
    caplog.set_level(logging.INFO)
    caplog.clear()
    answer = await service.call("POST", "/auth/login", raw=body)
    assert (answer.status, answer.code) == (400, "invalid_field")
    assert SECRET not in str(answer.body)
    assert lines_of(caplog) == []


async def test_u0000_is_refused_in_a_new_account(service: Service) -> None:
    for field in (b"username", b"email", b"password"):
        body = b'{"username": "ada", "email": "ada@example.com", "password": "long enough"'
        body += b', "%s": "ada\\u0000@example.com"}' % field
        answer = await service.call("POST", "/auth/register", raw=body)
        assert (answer.status, answer.code) == (400, "invalid_field")


async def test_text_beyond_the_first_plane_goes_through(service: Service) -> None:
    body = b'{"username": "\\ud83d\\ude00", "email": "\xf0\x9f\x98\x80@example.com",'
    body += b' "password": "\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9\\u00e9"}'
    answer = await service.call("POST", "/auth/register", raw=body)
    assert answer.status == 200
    assert answer.body["user"]["username"] == "😀"
    assert answer.body["user"]["email"] == "😀@example.com"


@pytest.mark.parametrize(
    "query", ["limit=%ff", "cursor=%ff%00", "status=%f0%9f", "%ff=%ff&limit=x"]
)
async def test_a_query_that_is_not_utf_8_is_400(service: Service, query: str) -> None:
    person = await service.person()
    request = f"GET /api/bandwidth/sessions?{query} HTTP/1.1\r\nHost: x\r\n"
    request += f"Authorization: Bearer {person.token}\r\n\r\n"
    (response,) = await responses(service, request.encode(), 1)
    assert response.status == 400
    assert response.body["error"]["code"] == "invalid_field"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/auth/me", None),
        ("GET", "/api/bandwidth/sessions", None),
        ("POST", "/api/bandwidth/create", {"gb": 1}),
        ("POST", "/api/bandwidth/end", {"session_id": "00000000-0000-4000-8000-000000000000"}),
        ("POST", "/auth/login", {"email": "person1@example.com", "password": "tell-nobody"}),
        (
            "POST",
            "/auth/register",
            {"username": "x", "email": "x@example.com", "password": "tell-nobody"},
        ),
    ],
)
async def test_without_its_store_every_route_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str, path: str, body: Any
) -> None:
    async with running_in(tmp_path) as service:
        person = await service.person()
        caplog.set_level(logging.INFO)
        caplog.clear()
        await service.daemon.store.close()
        answer = await service.call(method, path, body, token=person.token)
        refused(answer, 500, "store_unavailable")
        (line,) = lines_of(caplog, level=logging.ERROR)
        assert path in line
        assert SECRET not in line
        assert person.token not in line
        assert (await service.call("GET", "/healthz")).status == 200


async def test_a_mistake_in_the_program_is_500_without_detail(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(**_: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(service.daemon.market.accounts, "login", fail)
    body = {"email": "a@example.com", "password": "b"}
    answer = await service.call("POST", "/auth/login", body)
    refused(answer, 500, "internal_error")
    assert SECRET not in str(answer.body)
    assert "RuntimeError" not in str(answer.body)
    failed = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(failed) == 1
    assert failed[0].exc_info is not None  # the log has the whole error
    assert (await service.call("GET", "/healthz")).status == 200


async def test_a_mistake_while_a_token_is_read_is_500(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: str) -> None:
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr(service.daemon.http._callers, "_authenticate", fail)
    answer = await service.call("GET", "/auth/me", token="x")
    refused(answer, 500, "internal_error")
    assert SECRET not in str(answer.body)


async def test_every_answer_names_the_server_and_no_version(service: Service) -> None:
    person = await service.person()
    answers = [
        await service.call("GET", "/healthz"),
        await service.call("GET", "/auth/me", token=person.token),
        await service.call("GET", "/auth/me"),
        await service.call("GET", "/nowhere"),
        await service.call("PUT", "/healthz"),
        await service.call("POST", "/auth/login", raw=b"{"),
        await service.call("POST", "/auth/login", raw=b"x", headers={"Content-Type": "text/plain"}),
    ]
    assert [each.status for each in answers] == [200, 200, 401, 404, 405, 400, 415]
    for answer in answers:
        assert answer.headers.getall("Server") == ["proxyd"]
        assert answer.headers["Content-Type"] == "application/json"
        for word in ("aiohttp", "Python", "uvloop"):
            assert word.lower() not in str(answer.headers).lower()


@cases("value", ["GET\r\nSet-Cookie: mine=1", "GET\nX: y", "GET\0"])
def test_a_header_that_could_be_read_as_two_is_never_written(value: str) -> None:
    with pytest.raises(ValueError, match="control character"):
        refusal(Failure(405, of_transport(Transport.METHOD_NOT_ALLOWED).body, {"Allow": value}))


async def test_an_idle_connection_keeps_no_body(service: Service) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = (int(line[15:]) for line in head.split(b"\r\n") if line[:15] == b"Content-Length:")
    assert len(await reader.readexactly(length)) > SLICE_BYTES

    def kept() -> list[int]:
        return [len(each._content) for each in gc.get_objects() if isinstance(each, ServerResponse)]

    await until(lambda: max(kept(), default=0) <= SLICE_BYTES, "the body is let go of")
    writer.close()
    await writer.wait_closed()


async def test_no_cache_keeps_private_answers_and_no_browser_guesses_types(
    service: Service,
) -> None:
    me = await service.person(usd="10")
    session = await service.buy(me)
    key = {"name": "x", "scopes": ["wallet:read"]}
    login = {"email": me.email, "password": "long enough"}
    asked: list[tuple[str, str, Any]] = [
        ("POST", "/auth/login", login),
        ("POST", "/auth/login", {**login, "password": "wrong enough"}),
        ("POST", "/api/keys", key),
        ("GET", "/api/wallet", None),
        ("GET", "/auth/logins", None),
        ("GET", "/api/events", None),
        ("GET", f"/api/bandwidth/sessions/{session.id}", None),
        ("GET", "/api/none", None),
        ("GET", "/healthz", None),
    ]
    for method, path, body in asked:
        answer = await service.call(method, path, body, token=me.token)
        assert answer.headers.getall("Cache-Control") == ["no-store"], path
        assert answer.headers.getall("X-Content-Type-Options") == ["nosniff"], path
    auth = {"Authorization": f"Bearer {me.token}"}
    for path in ("/api/usage.csv", "/api/events/stream", "/metrics"):
        async with service.http.get(service.url + path, headers=auth) as response:
            assert response.status == 200, path
            assert response.headers.getall("Cache-Control") == ["no-store"], path
            assert response.headers.getall("X-Content-Type-Options") == ["nosniff"], path


async def test_a_browser_that_opens_the_address_of_the_service_comes_to_the_console(
    service: Service,
) -> None:
    page = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    for method in ("GET", "HEAD"):
        asking = service.http.request(
            method, service.url + "/", headers=page, allow_redirects=False
        )
        async with asking as response:
            assert (response.status, response.headers["Location"]) == (302, "/console")
            assert response.headers["Vary"] == "Accept"
    for accept in ("*/*", "application/json", ""):
        answer = await service.call("GET", "/", headers={"Accept": accept})
        assert answer.body["service"] == "proxyd"
    async with service.http.get(service.url + "/favicon.ico") as response:
        assert (response.status, response.content_type) == (200, "image/svg+xml")
