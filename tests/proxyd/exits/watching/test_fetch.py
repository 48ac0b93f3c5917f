"""A page is read as common programs read it, and judged more strictly."""

import asyncio
import socket
from pathlib import Path

import pytest
from support.base.cases import cases
from support.exits.canaries import serving_tls
from support.targets.targets import serving
from support.targets.tls import make_certificate

from proxyd.exits.watching import fetch as fetching
from proxyd.exits.watching.fetch import Answer, CutError, JunkError, Page, fetch, page_of


async def connected(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


async def fetched(data: bytes) -> Answer:
    """Fetch a page whose answer is these bytes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)
        await writer.drain()

    async with serving(handle) as target:
        page = page_of(f"http://127.0.0.1:{target.port}/a?b=c")
        return await fetch(await connected(target.port), page)


@cases(
    ("url", "page"),
    [
        ("http://a.example", Page("http://a.example", False, "a.example", 80, "/")),
        ("https://a.example/b", Page("https://a.example/b", True, "a.example", 443, "/b")),
        ("http://[::1]:81/?q", Page("http://[::1]:81/?q", False, "::1", 81, "/?q")),
    ],
)
def test_a_page_by_its_url(url: str, page: Page) -> None:
    assert page_of(url) == page
    assert page.is_named is (page.host == "a.example")


@cases("url", ["", "ftp://a.example", "http://", "a.example/b", "http://a:99999"])
def test_a_text_that_is_no_url_of_a_page_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        page_of(url)


@cases(
    ("data", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", 200, b"hi"),
        (b"HTTP/1.0 404 No\r\n\r\nhi", 404, b"hi"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi<script>", 200, b"hi<script>"),
        (
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhi\r\n3\r\n ho\r\n"
                b"0\r\n\r\n"
            ),
            200,
            b"hi ho",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\nmore",
            200,
            b"himore",
        ),
    ],
)
async def test_answers(data: bytes, status: int, body: bytes) -> None:
    assert await fetched(data) == Answer(status, body, "")


async def test_headers_that_lead_elsewhere_are_part_of_an_answer() -> None:
    head = b"HTTP/1.1 301 Moved\r\nDate: now\r\nLocation: https://%b/\r\n%b\r\n"
    truth = await fetched(head % (b"a.example", b"Set-Cookie: id=1\r\n"))
    assert await fetched(head % (b"a.example", b"set-cookie:  id=2\r\nVia: x\r\n")) == truth
    assert await fetched(head % (b"evil.example", b"Set-Cookie: id=1\r\n")) != truth
    assert await fetched(head % (b"a.example", b"Set-Cookie: evil=1\r\n")) != truth
    assert await fetched(head % (b"a.example", b"Set-Cookie: id=1\r\nRefresh: 0\r\n")) != truth


@cases(
    "data",
    [
        b"\x00\x01\x02",
        b"220 mail ready\r\n",
        b"HTTP/1.1 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhi\r\n",
    ],
)
async def test_bytes_that_are_no_answer_are_junk(data: bytes) -> None:
    with pytest.raises(JunkError):
        await fetched(data)


@cases(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
    ],
)
async def test_an_incomplete_answer_is_cut(data: bytes) -> None:
    with pytest.raises(CutError):
        await fetched(data)


async def test_a_page_without_end_is_junk() -> None:
    with pytest.raises(JunkError, match=f"more than {fetching.BODY_MAX_BYTES} bytes"):
        await fetched(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 2 * fetching.BODY_MAX_BYTES)


async def test_a_page_over_tls_has_its_certificate(tmp_path: Path) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
        await writer.drain()

    made = make_certificate(tmp_path)
    async with serving_tls(handle, made.server) as port:
        page = page_of(f"https://localhost:{port}/")
        answer = await fetch(await connected(port), page)
        assert (answer.status, answer.body) == (200, b"hi")
        assert len(answer.certificate) == 64
        assert await fetch(await connected(port), page) == answer


async def test_a_server_without_tls_is_junk() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with serving(handle) as target:
        page = page_of(f"https://127.0.0.1:{target.port}/")
        with pytest.raises(JunkError):
            await fetch(await connected(target.port), page)
