"""Headers that are passed on, both ways (RFC 9110, section 7.6.1), or forbidden to jobs.

Heads are built from bytes as they came, without the framing headers: each side's own library has
read it, and each connection has one message that was framed by us.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from api.reverse.admission import Shown, bearer, cookies, without_keys
from api.reverse.places import Place
from api.routing.cookies import is_of_service

Headers = tuple[tuple[bytes, bytes], ...]

# Of one connection; with these, the headers that Connection names.
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authentication-info",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
FRAMING = frozenset((b"content-length", b"expect", b"host"))
# Headers that describe the client to a job; clients must not set them.
FORWARDING = frozenset(
    (
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-prefix",
        b"x-forwarded-proto",
        b"x-forwarded-server",
        b"x-real-ip",
    )
)
# A job could use these headers to harm other hosts below the same domain, or outlast its end: have
# browsers refuse plain HTTP, come to another server, report elsewhere, or forget all cookies of the
# domain.
NOT_A_JOBS = frozenset(
    (
        b"alt-svc",
        b"clear-site-data",
        b"nel",
        b"public-key-pins",
        b"report-to",
        b"reporting-endpoints",
        b"strict-transport-security",
        # A server in front of the door would answer with a file or an address of its own.
        b"x-accel-redirect",
        b"x-lighttpd-send-file",
        b"x-lighttpd-send-tempfile",
        b"x-reproxy-file",
        b"x-reproxy-url",
        b"x-sendfile",
        b"x-sendfile2",
    )
)
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")


class Client(NamedTuple):
    """Description of the client for a job."""

    address: str
    host: str
    scheme: str


def to_job(
    headers: Headers, place: Place, client: Client, by: Shown
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of the request to a job, except the framing headers."""
    left_out = HOP_BY_HOP | FRAMING | FORWARDING | named(headers)
    is_key_sent = by is Shown.BEARER
    for name, value in headers:
        lower = name.lower()
        # Gateways read `_` as `-`: a name forbidden in one spelling must not pass in the other.
        if lower.replace(b"_", b"-") in left_out or lower == b"cookie":
            continue
        if lower == b"authorization" and is_key_sent and bearer(((name, value),)):
            continue
        yield name, value
    kept = [f"{name}={value}" for name, value in cookies(headers) if not is_of_service(name)]
    if kept:
        yield b"Cookie", "; ".join(kept).encode("latin-1")
    yield b"Host", client.host.encode()
    yield b"X-Forwarded-For", client.address.encode()
    yield b"X-Forwarded-Host", client.host.encode()
    yield b"X-Forwarded-Proto", client.scheme.encode()
    if place.prefix:
        yield b"X-Forwarded-Prefix", place.prefix.encode()


def target_of(place: Place, opens: Callable[[str], bool]) -> str:
    """Return the target of the request to a job, without the key, even if it is there repeatedly.

    Args:
        place: the app and the requested target.
        opens: says whether a key is the app's.
    """
    return without_keys(place.target, opens)


def from_job(headers: Headers, place: Place) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a job's answer that its client gets, except the framing headers."""
    left_out = HOP_BY_HOP | FRAMING | NOT_A_JOBS | named(headers)
    for name, value in headers:
        lower = name.lower()
        if lower in left_out or _TOKEN.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            continue
        if lower == b"service-worker-allowed" and place.prefix:
            continue
        if lower == b"location":
            yield name, _location(value, place)
        elif lower == b"set-cookie":
            if line := _cookie(value, place):
                yield name, line
        else:
            yield name, value


def named(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return the headers that a header Connection names."""
    return frozenset(
        part.strip().lower()
        for name, value in headers
        if name.lower() == b"connection"
        for part in value.split(b",")
    )


def length_of(headers: Headers) -> int | None:
    """Return the declared length of a body; None if it is absent, or not one number."""
    values = {value.strip() for name, value in headers if name.lower() == b"content-length"}
    if len(values) != 1:
        return None
    (value,) = values
    return int(value) if value.isdigit() and len(value) < 20 else None


def _location(value: bytes, place: Place) -> bytes:
    """Return the target of a job's redirection: its own paths are below the prefix."""
    if place.prefix and value.startswith(b"/") and not value.startswith(b"//"):
        return place.prefix.encode() + value
    return value


def _cookie(value: bytes, place: Place) -> bytes:
    """Return a cookie that a job sets, for its own host and below its prefix; b"" for none."""
    pair, *attributes = value.split(b";")
    name, equals, _ = pair.partition(b"=")
    if not equals or not name.strip() or is_of_service(name.decode("latin-1")):
        return b""
    kept = [pair.strip()]
    path = b""
    for attribute in attributes:
        key, _, said = attribute.strip().partition(b"=")
        if key.strip().lower() == b"path":
            path = said.strip()
        elif key.strip().lower() != b"domain":
            kept.append(attribute.strip())
    prefix = place.prefix.encode()
    if prefix:
        kept.append(b"Path=" + prefix + (path if path.startswith(b"/") else b"/"))
    elif path:
        kept.append(b"Path=" + path)
    return b"; ".join(kept)
