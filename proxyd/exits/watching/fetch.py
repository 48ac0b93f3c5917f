"""Fetches one page over an open connection, and returns its comparable answer.

The exit must not be able to distinguish the connection from a buyer's: it sends the request of a
common program. So an answer is read as such a program reads it, and judged more strictly: bytes
that are no answer are junk, and bytes behind its end belong to its body.
"""

import asyncio
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

BODY_MAX_BYTES: Final = 256 * 1024  # it is kept, and sent through a household's line
HEAD_MAX_BYTES: Final = 32 * 1024
READ_BYTES: Final = 64 * 1024
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |$)")
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,8})[^\r\n]*\r\n")
_START: Final = b"HTTP/1."
_LENGTH_DIGITS: Final = 18  # no page is longer, and no more are turned into a number
# Headers that decide the treatment of a body, or lead elsewhere. Others differ between honest ways.
_STEERING: Final = frozenset(
    (b"content-encoding", b"content-type", b"link", b"location", b"refresh", b"set-cookie")
)
_HTTPS_PORT: Final = 443
_HTTP_PORT: Final = 80


class JunkError(Exception):
    """The received bytes are no answer: the message shows how they begin."""


class CutError(Exception):
    """The answer was missing or incomplete."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page by its URL."""

    url: str
    is_tls: bool
    host: str
    port: int
    path: str

    @property
    def is_named(self) -> bool:
        """Whether its host is a name, which can be looked up in several places."""
        try:
            ip_address(self.host)
        except ValueError:
            return True
        return False


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a page: `certificate` is the SHA-256 of the server's, "" without TLS.

    `steering` are the headers that decide the treatment of the body, or lead elsewhere, in order;
    of cookies their names, because every visitor gets other values.
    """

    status: int
    body: bytes
    certificate: str
    steering: tuple[bytes, ...] = ()

    def __str__(self) -> str:
        digest = sha256(self.body).hexdigest()[:16]
        headers = b"; ".join(self.steering).decode("ascii", "replace")
        shown = f" with {headers}" if headers else ""
        return f"status {self.status}{shown}, {len(self.body)} bytes with SHA-256 {digest}…"


def page_of(url: str) -> Page:
    """Return a page.

    Raises:
        ValueError: the text is no URL of one.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected http://… or https://… with a host")
    is_tls = parts.scheme == "https"
    port = parts.port or (_HTTPS_PORT if is_tls else _HTTP_PORT)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Page(url, is_tls, parts.hostname, port, path)


async def fetch(sock: socket.socket, page: Page, heard: Callable[[], None] | None = None) -> Answer:
    """Ask for a page, and read the answer to its end.

    Args:
        sock: connected and non-blocking; owned from here on.
        page: which.
        heard: called when something has come that belongs to an answer.

    Raises:
        JunkError: something else came than an answer.
        CutError: the connection ended before the answer did.
    """
    context = _context() if page.is_tls else None
    writer: asyncio.StreamWriter | None = None
    try:
        name = page.host if page.is_tls else None
        reader, writer = await asyncio.open_connection(
            sock=sock, ssl=context, server_hostname=name, limit=READ_BYTES
        )
        shown = writer.get_extra_info("ssl_object")
        certificate = sha256(shown.getpeercert(binary_form=True)).hexdigest() if shown else ""
        if heard is not None and page.is_tls:
            heard()
        writer.write(_request(page))
        status, body, steering = _parsed(await _rest(reader, heard))
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        raise CutError("the connection ended") from error
    except ssl.SSLError as error:
        raise JunkError(f"TLS: {error.reason or error}") from error
    except OSError as error:  # among them that TLS ended before it had begun
        raise CutError(str(error) or type(error).__name__) from error
    finally:
        if writer is not None:
            writer.transport.abort()
        else:
            sock.close()
    return Answer(status, body, certificate, steering)


def _context() -> ssl.SSLContext:
    """Return a TLS context that takes any certificate: the certificates are compared later."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _request(page: Page) -> bytes:
    """Return the request of a common program."""
    host = f"[{page.host}]" if ":" in page.host else page.host
    is_usual = page.port == (_HTTPS_PORT if page.is_tls else _HTTP_PORT)
    where = host if is_usual else f"{host}:{page.port}"
    return (
        f"GET {page.path} HTTP/1.1\r\nHost: {where}\r\nUser-Agent: curl/8.5.0\r\n"
        "Accept: */*\r\nConnection: close\r\n\r\n"
    ).encode("ascii", "replace")


async def _rest(reader: asyncio.StreamReader, heard: Callable[[], None] | None) -> bytes:
    """Return everything up to the end of the stream.

    Raises:
        JunkError: it is more than a page may be, or does not begin as an answer.
    """
    data = bytearray()
    while more := await reader.read(READ_BYTES):
        data += more
        if not data.startswith(_START[: len(data)]):
            raise JunkError(f"{bytes(data[:40])!r}")
        if len(data) > HEAD_MAX_BYTES + BODY_MAX_BYTES:
            raise JunkError(f"more than {BODY_MAX_BYTES} bytes")
        if heard is not None:
            heard()
    return bytes(data)


def _parsed(data: bytes) -> tuple[int, bytes, tuple[bytes, ...]]:
    """Return the status, the body and the steering headers of an answer.

    Raises:
        JunkError: the bytes are no answer.
        CutError: it is not complete.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    if not end:
        raise CutError(f"the connection ended after {len(data)} bytes")
    lines = head.split(b"\r\n")
    status = _STATUS.match(lines[0])
    if status is None:
        raise JunkError(f"{lines[0][:40]!r}")
    length, is_chunked, steering = None, False, []
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip()
        if name == b"transfer-encoding" and b"chunked" in value.lower():
            is_chunked = True
        elif name == b"content-length" and value.isdigit():
            if len(value) > _LENGTH_DIGITS:
                raise JunkError(f"a length of {len(value)} digits")
            length = int(value)
        elif name in _STEERING:
            shown = value.partition(b"=")[0] if name == b"set-cookie" else value
            steering.append(name + b": " + shown)
    if is_chunked:
        body = _dechunked(body)
    elif length is not None and len(body) < length:
        raise CutError(f"the connection ended after {len(body)} of {length} bytes")
    return int(status[1]), body, tuple(sorted(steering))


def _dechunked(data: bytes) -> bytes:
    """Return the body that was sent in chunks.

    Raises:
        JunkError: these are none.
        CutError: the last ones are missing.
    """
    body, at = bytearray(), 0
    while True:
        size = _CHUNK.match(data, at)
        if size is None:
            if b"\r\n" in data[at:]:
                raise JunkError(f"no chunk: {data[at : at + 40]!r}")
            raise CutError(f"the connection ended after {len(body)} bytes")
        at, length = size.end(), int(size[1], 16)
        if not length:
            return bytes(body) + data[at:].removeprefix(b"\r\n")
        if len(data) < at + length + 2:
            raise CutError(f"the connection ended after {len(body)} bytes")
        body += data[at : at + length]
        at += length + 2
