"""Reads a job's request to its way out from the first bytes of a connection, without I/O.

No more of either than programs inside use: CONNECT without authentication, and plain HTTP requests
with the whole address, one on each connection.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, NamedTuple, Union
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from proxyctl.protocol.addresses import Address

    Host = Union[Address, str]

HEAD_MAX_BYTES: Final = 16 << 10  # of an HTTP request; browsers and clients of packages need less
_SOCKS_VERSION: Final = 5
_CONNECT: Final = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_HTTP_PORT: Final = 80

SOCKS_METHOD: Final = b"\x05\x00"
SOCKS_NO_METHOD: Final = b"\x05\xff"
SOCKS_DONE: Final = b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
HTTP_DONE: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"


class AskingError(Exception):
    """Bytes that are no request, or a request that is not served here."""


class Wish(NamedTuple):
    """The target of a connection.

    Attributes:
        host: an address, or a name.
        port: of the target.
        head: the first bytes for the target.
    """

    host: Host
    port: int
    head: bytes = b""


def socks_greeting_size(data: bytes) -> int:
    """Return the size of the greeting, from its first two bytes."""
    return 2 + data[1]


def socks_accepts(greeting: bytes) -> bool:
    """Return whether a client goes without authentication."""
    return greeting[0] == _SOCKS_VERSION and 0 in greeting[2:]


def socks_request_size(data: bytes) -> int:
    """Return the size of the request, from its first five bytes.

    Raises:
        AskingError: the bytes are no request.
    """
    size = {_IPV4: 10, _IPV6: 22, _NAME: 7 + data[4]}.get(data[3])
    if data[0] != _SOCKS_VERSION or size is None:
        raise AskingError("no SOCKS5 request")
    return size


def socks_wish(request: bytes) -> Wish:
    """Return where a whole request wants to go.

    Raises:
        AskingError: it wants something else than a connection.
    """
    if request[1] != _CONNECT:
        raise AskingError("SOCKS5: only CONNECT is served")
    port = int.from_bytes(request[-2:], "big")
    if request[3] == _NAME:
        return Wish(_host(request[5:-2].decode("ascii", "replace")), port)
    return Wish(ip_address(request[4:-2]), port)


def socks_refusal(code: int) -> bytes:
    """Return the reply with a code of RFC 1928, section 6."""
    return bytes((_SOCKS_VERSION, code)) + SOCKS_DONE[2:]


def http_refusal(status: str, words: str) -> bytes:
    """Return a whole response."""
    body = f"{words}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def http_wish(head: bytes) -> tuple[bool, Wish]:
    """Return whether a request is a CONNECT, and where it wants to go.

    Args:
        head: all up to and with the empty line.

    Raises:
        AskingError: it is no request to a proxy.
    """
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise AskingError("no HTTP request")
    method, target, version = words
    try:
        parts = urlsplit(f"//{target}" if method == "CONNECT" else target)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise AskingError("no address that can be read") from None
    if not host:
        raise AskingError("a request without the whole address")
    if method == "CONNECT":
        if port is None:
            raise AskingError("CONNECT without a port")
        return True, Wish(_host(host), port)
    if parts.scheme != "http":
        raise AskingError("plain requests are served for http:// only")
    path = parts._replace(scheme="", netloc="", fragment="").geturl() or "/"
    kept = [line for line in lines[1:] if line and not _is_of_one_hop(line)]
    rewritten = [f"{method} {path} {version}", *kept, "Connection: close", "", ""]
    return False, Wish(_host(host), port or _HTTP_PORT, "\r\n".join(rewritten).encode("latin-1"))


def _is_of_one_hop(line: str) -> bool:
    name = line.partition(":")[0].strip().lower()
    return name in ("connection", "keep-alive", "proxy-connection", "proxy-authorization")


def _host(text: str) -> Host:
    try:
        return ip_address(text)
    except ValueError:
        return text
