"""One request to an HTTP proxy: its head read (RFC 9110, RFC 9112), and rewritten for the target.

A head that could be read in two ways is refused, because the target might read it the other way.
"""

import re
from binascii import a2b_base64
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from proxyd.wire.events import Address
from proxyd.wire.hosts import host_from_text
from proxyd.wire.http_refusals import (
    ANOTHER_VERSION,
    BAD_HOST,
    BAD_LENGTH,
    BAD_TARGET,
    CREDENTIALS_WRONG,
    HEAD_TOO_LARGE,
    LENGTH_REQUIRED,
    MALFORMED,
    NOT_A_PAGE,
    NOT_HTTP,
    NOT_OFFERED,
    RequestError,
)

FIELDS_MAX: Final = 100  # the limit of the usual servers
NAME_MAX_BYTES: Final = 255
DEFAULT_PORT: Final = 80

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_HOST: Final = rb"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9\-._~!$&'()*+,;=%]+"
_REQUEST_LINE: Final = re.compile(rb"(" + _TOKEN + rb") ([\x21-\x7e\x80-\xff]+) HTTP/(\d)\.(\d)")
_FIELD: Final = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_HOST_FIELD: Final = re.compile(rb"(?:" + _HOST + rb")?(?::\d*)?")
_AUTHORITY: Final = re.compile(rb"(" + _HOST + rb")(?::(\d*))?")
_ABSOLUTE: Final = re.compile(rb"([A-Za-z][A-Za-z0-9+\-.]*)://([^/?#]*)([^#]*)")
_LENGTH: Final = re.compile(rb"\d{1,18}")
_BASE64: Final = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_CONTROL: Final = re.compile(rb"[\x00-\x1f\x7f]")

# Meant for the proxy, or for one connection alone (RFC 9110, section 7.6.1).
_NOT_FORWARDED: Final = frozenset(
    (
        b"connection",
        b"host",
        b"keep-alive",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"upgrade",
    )
)


class Credentials(NamedTuple):
    """Content of Basic authentication (RFC 7617)."""

    username: bytes
    password: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """A request that may be served once its credentials are accepted.

    `head` goes to the target, and after it at most `upload_limit` further bytes of the client
    (None: any number). `keeps_alive` says that another request may follow if this one is refused.
    `authorizations` are the values of Proxy-Authorization.
    """

    host: Address | str
    port: int
    authorizations: tuple[bytes, ...]
    head: bytes
    upload_limit: int | None
    keeps_alive: bool

    @property
    def is_tunnel(self) -> bool:
        """Whether the client asked by CONNECT."""
        return not self.head

    def credentials(self) -> Credentials | None:
        """Return the client's credentials; None if it shows nothing, or not by Basic.

        Raises:
            RequestError: the header cannot be read.
        """
        if not self.authorizations:
            return None
        scheme, _, rest = self.authorizations[0].partition(b" ")
        if scheme.lower() != b"basic":
            return None
        encoded = rest.lstrip(b" ")
        if len(self.authorizations) > 1 or _BASE64.fullmatch(encoded) is None:
            raise RequestError(CREDENTIALS_WRONG)
        decoded = a2b_base64(encoded)
        username, colon, password = decoded.partition(b":")
        if not colon or _CONTROL.search(decoded) or not _is_utf8(decoded):
            raise RequestError(CREDENTIALS_WRONG)
        return Credentials(username, password)


class Field(NamedTuple):
    """A header field: its name in lower case, its value, and the line as it came."""

    name: bytes
    value: bytes
    line: bytes


class Fields:
    """The header fields of a request.

    Args:
        lines: the lines, without their ends.

    Raises:
        RequestError: one of them is no header field, or there are too many.
    """

    def __init__(self, lines: list[bytes]) -> None:
        if len(lines) > FIELDS_MAX:
            raise RequestError(HEAD_TOO_LARGE)
        self._all = [_field(line) for line in lines]
        self.options = self.tokens(b"connection")

    def values(self, *names: bytes) -> tuple[bytes, ...]:
        """Return the values of all fields of these names, in order."""
        return tuple(field.value for field in self._all if field.name in names)

    def tokens(self, *names: bytes) -> frozenset[bytes]:
        """Return the members of fields that are lists, in lower case."""
        return frozenset(
            token.strip(b" \t").lower()
            for value in self.values(*names)
            for token in value.split(b",")
        )

    def to_forward(self) -> Iterable[bytes]:
        """Return the lines that are for the target, as they came."""
        stay = _NOT_FORWARDED | self.options
        return [field.line for field in self._all if field.name not in stay]


def read_request(head: bytes) -> Request:
    """Read the head of a request, without the empty line that ends it.

    Raises:
        RequestError: the request is malformed, or one that a proxy does not serve.
    """
    first, *lines = head.split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        raise RequestError(MALFORMED)
    method, target, major, minor = line.groups()
    if major != b"1":
        raise RequestError(ANOTHER_VERSION)
    is_old = minor == b"0"
    fields = Fields(lines)
    _check_host(fields, is_old=is_old)
    size = _body_size(fields)
    persistence = fields.tokens(b"connection", b"proxy-connection")
    keeps_alive = b"keep-alive" in persistence if is_old else b"close" not in persistence
    if method == b"CONNECT":
        host, port = _tunnel_target(target, size)
        rewritten, limit = b"", None
    else:
        host, port, rewritten = _rewritten(method, target, fields, is_old=is_old)
        limit = size
    return Request(
        host=host,
        port=port,
        authorizations=fields.values(b"proxy-authorization"),
        head=rewritten,
        upload_limit=limit,
        keeps_alive=keeps_alive and size == 0,
    )


def _field(line: bytes) -> Field:
    field = _FIELD.fullmatch(line)
    if field is None:
        raise RequestError(MALFORMED)
    name, value = field.groups()
    return Field(name.lower(), value.rstrip(b" \t"), line)


def _check_host(fields: Fields, *, is_old: bool) -> None:
    """Check the Host field by RFC 9112, section 3.2; its host does not matter."""
    hosts = fields.values(b"host")
    if not hosts and is_old:
        return
    if len(hosts) != 1 or _HOST_FIELD.fullmatch(hosts[0]) is None:
        raise RequestError(BAD_HOST)


def _body_size(fields: Fields) -> int:
    """Return the length of the body (RFC 9112, section 6.3)."""
    lengths = fields.values(b"content-length")
    is_coded = bool(fields.values(b"transfer-encoding"))
    if not lengths:
        if is_coded:
            raise RequestError(LENGTH_REQUIRED)
        return 0
    if len(lengths) > 1 or is_coded or _LENGTH.fullmatch(lengths[0]) is None:
        raise RequestError(BAD_LENGTH)
    if b"content-length" in fields.options:  # to be taken away: then the body would be a request
        raise RequestError(BAD_LENGTH)
    return int(lengths[0])


def _tunnel_target(target: bytes, size: int) -> tuple[Address | str, int]:
    """Return the target of CONNECT; it has no body (RFC 9110, section 9.3.6)."""
    if size:
        raise RequestError(BAD_LENGTH)
    authority = _AUTHORITY.fullmatch(target)
    if authority is None or not authority[2]:
        raise RequestError(BAD_TARGET)
    return _host(authority[1]), _port(authority[2])


def _rewritten(
    method: bytes, target: bytes, fields: Fields, *, is_old: bool
) -> tuple[Address | str, int, bytes]:
    """Return the target of a plain request, and its head as the target gets it.

    There is no Via, in spite of RFC 9110, section 7.6.3: a target sees the same as from a client of
    SOCKS5, and no loop can arise, since the forwarded request is no request to a proxy any more.
    The client's own version goes on, because the answer comes back untouched. An Upgrade is not
    passed on (RFC 9110, section 7.8 leaves it to each hop): the target answers as if the client had
    not requested it. WebSocket clients use CONNECT at a proxy (RFC 6455, section 4.1).
    """
    if method == b"TRACE":
        raise RequestError(NOT_OFFERED)
    authority, host, port, path = _absolute(target)
    if not path.startswith(b"/"):
        path = b"*" if method == b"OPTIONS" and not path else b"/" + path
    lines = [
        b"%b %b HTTP/1.%d" % (method, path, 0 if is_old else 1),
        b"Host: " + authority,
        *fields.to_forward(),
    ]
    if fields.tokens(b"te") == {b"trailers"}:
        lines += [b"TE: trailers", b"Connection: TE, close"]
    else:
        lines += [b"Connection: close"]
    return host, port, b"\r\n".join(lines) + b"\r\n\r\n"


def _absolute(target: bytes) -> tuple[bytes, Address | str, int, bytes]:
    """Return the authority of an http URI without its user, its host and port, and the rest."""
    if target.startswith(b"/") or target == b"*":
        raise RequestError(NOT_A_PAGE)
    parts = _ABSOLUTE.fullmatch(target)
    if parts is None:
        raise RequestError(BAD_TARGET)
    scheme, authority, path = parts.groups()
    if scheme.lower() != b"http":
        raise RequestError(NOT_HTTP)
    _, _, without_user = authority.rpartition(b"@")
    matched = _AUTHORITY.fullmatch(without_user)
    if matched is None:
        raise RequestError(BAD_TARGET)
    host = _host(matched[1])
    port = _port(matched[2]) if matched[2] else DEFAULT_PORT
    return without_user.removesuffix(b":"), host, port, path


def _host(text: bytes) -> Address | str:
    host = host_from_text(text) if len(text) <= NAME_MAX_BYTES else None
    if host is None or (text.startswith(b"[") and not isinstance(host, IPv6Address)):
        raise RequestError(BAD_TARGET)
    return host


def _port(text: bytes) -> int:
    port = int(text) if len(text) <= 5 else 0
    if not 0 < port <= 65_535:
        raise RequestError(BAD_TARGET)
    return port


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
