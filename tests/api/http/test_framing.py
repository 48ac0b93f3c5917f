"""Requests that two programs could frame differently: refused by both parsers of aiohttp.

Each request has another one behind its body; nothing of that may be answered.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp.http_parser
import pytest
from support.base.cases import cases
from support.daemons.service import Service, running_in

BEHIND = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b"2\r\n{}\r\n0\r\n\r\n"


@pytest.fixture(params=["HttpRequestParserC", "HttpRequestParserPy"], ids=["compiled", "pure"])
async def parsed(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Service]:
    """A service whose requests are parsed by this parser of aiohttp."""
    parser = getattr(aiohttp.http_parser, request.param)
    monkeypatch.setattr("aiohttp.web_protocol.HttpRequestParser", parser)
    async with running_in(tmp_path) as service:
        yield service


async def answers(service: Service, *lines: str, version: str = "1.1", cut: int = 0) -> bytes:
    """Return all that is answered to a request with these headers and one behind it.

    With `cut`, the head comes in two pieces, and `cut` is the size of the first one in bytes.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    said = ("Host: x", "Content-Type: application/json", *lines)
    head = "".join(f"{line}\r\n" for line in (f"POST /auth/login HTTP/{version}", *said))
    data = head.encode() + b"\r\n" + BODY + BEHIND
    try:
        for piece in (data[:cut], data[cut:]):
            writer.write(piece)
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


def assert_refused(answered: bytes, status: int, code: str) -> None:
    head, _, body = answered.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 %d " % status), head
    assert json.loads(body)["error"]["code"] == code


@cases(
    "lines",
    [
        ("Transfer-Encoding: gzip, chunked",),
        ("Transfer-Encoding: identity, chunked",),
        ("Transfer-Encoding: xchunked,chunked",),
        ("Transfer-Encoding: ,chunked",),
    ],
)
@cases("cut", [0, 40])
async def test_a_coding_before_chunked_is_refused_and_nothing_behind_it_is_read(
    parsed: Service, lines: tuple[str, ...], cut: int
) -> None:
    assert_refused(await answers(parsed, *lines, cut=cut), 501, "unknown_coding")


@cases(
    "lines",
    [
        ("Transfer-Encoding: chunked, chunked",),
        ("Transfer-Encoding: gzip, chunked, chunked",),
        ("Transfer-Encoding: gzip", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked, gzip",),
        ("Transfer-Encoding: gzip",),
        ("Transfer-Encoding: identity",),
        ("Transfer-Encoding:",),
        ("Transfer-Encoding: chunked", "Content-Length: 2"),
        ("Content-Length: 2", "Transfer-Encoding: chunked"),
        ("Content-Length: 2", "Transfer-Encoding: gzip, chunked"),
    ],
)
async def test_a_request_that_no_server_may_read_is_refused(
    parsed: Service, lines: tuple[str, ...]
) -> None:
    assert_refused(await answers(parsed, *lines), 400, "bad_request")


async def test_http_1_0_has_no_coding(parsed: Service) -> None:
    answered = await answers(parsed, "Transfer-Encoding: chunked", version="1.0")
    assert_refused(answered, 400, "bad_request")


@pytest.mark.parametrize("line", ["GET /healthz", "GET /healthz HTTP/0.9", "GET /healthz HTTP/2.0"])
async def test_other_versions_of_http_are_refused(parsed: Service, line: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", parsed.api_port)
    writer.write(f"{line}\r\nHost: x\r\n\r\n".encode() + BEHIND)
    async with asyncio.timeout(10):
        assert_refused(await reader.read(), 400, "bad_request")
    writer.close()


@pytest.mark.parametrize("coding", ["chunked", "Chunked", " chunked "])
async def test_only_chunks_are_taken_and_the_connection_goes_on(
    parsed: Service, coding: str
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", parsed.api_port)
    head = "POST /auth/login HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Transfer-Encoding:{coding}\r\n\r\n".encode() + BODY + BEHIND)
    async with asyncio.timeout(10):
        assert b'"field":"' in await reader.readuntil(b"}\n"), "the body was read: a field lacks"
        assert (await reader.readuntil(b"}\n")).endswith(b'{"ok":true,"service":"proxyd"}\n')
    writer.close()


async def test_a_refused_request_behind_a_good_one_is_the_last(
    parsed: Service,
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", parsed.api_port)
    bad = b"POST /auth/login HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
    writer.write(BEHIND + bad + BODY + BEHIND)
    async with asyncio.timeout(10):
        answered = await reader.read()
    writer.close()
    assert answered.count(b"HTTP/1.1 200 OK") == 1
    assert answered.count(b"HTTP/1.") == 2
