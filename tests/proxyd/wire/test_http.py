"""The HTTP proxy's conversation, corner by corner: bytes in, events and bytes out."""

import re
from base64 import b64encode
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.base.brief import examples
from support.base.cases import cases
from support.clients.owner import BOUND, Owner

from proxyd.wire.events import (
    Authenticate,
    Connect,
    Event,
    Failure,
    Handover,
    Identify,
    Refusal,
    Violation,
)
from proxyd.wire.http import (
    CHALLENGES_MAX,
    EMPTY_LINES_MAX,
    HEAD_MAX_BYTES,
    LINE_MAX_BYTES,
    Http,
    HttpState,
)

TUNNEL = b"HTTP/1.1 200 Connection established\r\n\r\n"
ERROR_TYPES = {  # RFC 9209, section 2.3
    "connection_limit_reached",
    "connection_refused",
    "connection_terminated",
    "connection_timeout",
    "destination_ip_prohibited",
    "destination_ip_unroutable",
    "destination_unavailable",
    "dns_error",
    "http_request_denied",
    "http_request_error",
    "proxy_internal_error",
}


def basic(
    username: bytes = b"user", password: bytes = b"pass", *, scheme: bytes = b"Basic"
) -> bytes:
    """Return the header that shows credentials."""
    return b"Proxy-Authorization: " + scheme + b" " + b64encode(username + b":" + password)


def asked(
    line: bytes, *headers: bytes, host: bytes | None = b"example.com", shown: bool = True
) -> bytes:
    """Return a head with a Host and with credentials, unless they are left out."""
    lines = [line]
    if host is not None:
        lines.append(b"Host: " + host)
    if shown:
        lines.append(basic())
    return b"\r\n".join((*lines, *headers)) + b"\r\n\r\n"


CONNECT = asked(b"CONNECT example.com:443 HTTP/1.1")
GET = asked(b"GET http://example.com/page HTTP/1.1")
CONNECT_BARE = asked(b"CONNECT example.com:443 HTTP/1.1", shown=False)


class Answer:
    """One answer to a client, read as strictly as a client may read it."""

    def __init__(self, data: bytes, *, to_head: bool = False) -> None:
        head, _, rest = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        found = re.fullmatch(r"HTTP/1\.1 (\d{3}) [A-Za-z -]+", first)
        assert found is not None
        self.status = int(found[1])
        self.headers = dict(line.split(": ", 1) for line in lines)
        assert len(self.headers) == len(lines)
        size = 0 if to_head else int(self.headers["Content-Length"])
        assert len(rest) >= size
        self.text = rest[:size].decode()
        self.rest = rest[size:]
        found = re.fullmatch(
            r'proxyd; error=(\w+); details="([ -!#-\[\]-~]+)"', self.headers["Proxy-Status"]
        )
        assert found is not None
        self.error = found[1]
        assert self.error in ERROR_TYPES
        assert to_head or self.text == found[2] + "\n"
        assert self.headers["Cache-Control"] == "no-store"
        assert self.headers["Content-Type"] == "text/plain; charset=utf-8"


def says(protocol: Http, data: bytes) -> Event | None:
    """Pass bytes of the client in. Return the event."""
    protocol.receive_data(data)
    return protocol.next_event()


def assert_over(protocol: Http, status: int, *, to_head: bool = False) -> Answer:
    """Check the last words of a conversation, and that nothing is understood after them."""
    answer = Answer(protocol.data_to_send(), to_head=to_head)
    assert answer.status == status
    assert answer.headers["Connection"] == "close"
    assert answer.rest == b""
    assert protocol.state is HttpState.CLOSED
    assert says(protocol, CONNECT) is None
    assert protocol.data_to_send() == b""
    return answer


def refused(request: bytes, status: int) -> Answer:
    """Check that a request is refused for its content, before its credentials are checked."""
    protocol = Http()
    assert isinstance(says(protocol, request), Violation)
    return assert_over(protocol, status)


def deciding(request: bytes = CONNECT) -> Http:
    """Return a conversation that waits for a decision about credentials."""
    protocol = Http()
    assert says(protocol, request) == Authenticate(b"user", b"pass")
    assert protocol.data_to_send() == b""
    return protocol


def admitted(request: bytes = CONNECT) -> Http:
    """Return a conversation whose credentials are accepted."""
    protocol = deciding(request)
    protocol.accept_credentials()
    return protocol


def dialling(request: bytes = CONNECT) -> Http:
    """Return a conversation that waits for the outcome of a dial."""
    protocol = admitted(request)
    assert isinstance(protocol.next_event(), Connect)
    assert protocol.data_to_send() == b""
    return protocol


def established(request: bytes = CONNECT) -> Http:
    """Return a conversation that is over, the relay being next."""
    protocol = dialling(request)
    protocol.succeed(*BOUND)
    return protocol


def closed() -> Http:
    """Return a conversation that has failed."""
    protocol = dialling()
    protocol.fail(Failure.GENERAL)
    return protocol


def target_of(request: bytes) -> Event | None:
    """Return the event with the target of a request."""
    return admitted(request).next_event()


def forwarded(request: bytes) -> bytes:
    """Return the bytes that the target gets."""
    protocol = established(request)
    assert protocol.data_to_send() == b""
    return protocol.hand_over().early


# --- CONNECT -------------------------------------------------------------------------------------


def test_a_tunnel_is_reported_when_it_stands_and_not_before() -> None:
    protocol = dialling()
    protocol.succeed(*BOUND)
    assert protocol.data_to_send() == TUNNEL
    assert protocol.state is HttpState.ESTABLISHED
    assert protocol.hand_over() == Handover(b"", upload_limit=None)


def test_bytes_behind_connect_are_given_once_for_the_relay() -> None:
    protocol = dialling(CONNECT + b"\x16\x03\x01first")
    protocol.receive_data(b" second")
    assert protocol.next_event() is None
    protocol.succeed(*BOUND)
    assert protocol.hand_over().early == b"\x16\x03\x01first second"
    with pytest.raises(RuntimeError):
        protocol.hand_over()


@cases(
    ("authority", "host", "port"),
    [
        (b"example.com:443", "example.com", 443),
        (b"EXAMPLE.com.:1", "EXAMPLE.com", 1),
        (b"192.0.2.7:65535", IPv4Address("192.0.2.7"), 65535),
        (b"[2606:4700::1111]:443", IPv6Address("2606:4700::1111"), 443),
        (b"[::FFFF:10.0.0.1]:80", IPv6Address("::ffff:10.0.0.1"), 80),
        (b"under_score.example:00443", "under_score.example", 443),
        (b"127.1:80", "127.1", 80),
        (b"n" * 255 + b":80", "n" * 255, 80),
    ],
)
def test_connect_names_its_target(authority: bytes, host: object, port: int) -> None:
    request = asked(b"CONNECT " + authority + b" HTTP/1.1")
    assert target_of(request) == Connect(host, port)


@cases(
    "authority",
    [
        b"example.com",
        b"example.com:",
        b":443",
        b"example.com:0",
        b"example.com:65536",
        b"example.com:000443",
        b"example.com:+443",
        b"example.com:443x",
        b"example.com:443:443",
        b"user@example.com:443",
        b"user:pass@example.com:443",
        b"2606:4700::1111:443",
        b"[2606:4700::1111]",
        b"[2606:4700::1111]443",
        b"[192.0.2.7]:443",
        b"[fe80::1%eth0]:443",
        b"[fe80::1%25eth0]:443",
        b"[::1:443",
        b"::1]:443",
        b"[]:443",
        b".:443",
        b"exam\xc3\xa4ple.com:443",
        b"example.com/:443",
        b"http://example.com:443",
        b"/",
        b"*",
        b"n" * 256 + b":80",
    ],
)
def test_connect_to_a_text_without_host_and_port_is_refused(authority: bytes) -> None:
    refused(asked(b"CONNECT " + authority + b" HTTP/1.1"), 400)


def test_connect_with_a_body_is_refused() -> None:
    refused(asked(b"CONNECT example.com:443 HTTP/1.1", b"Content-Length: 5") + b"hello", 400)
    refused(asked(b"CONNECT example.com:443 HTTP/1.1", b"Transfer-Encoding: chunked"), 411)
    assert target_of(asked(b"CONNECT example.com:443 HTTP/1.1", b"Content-Length: 0"))


# --- plain requests ------------------------------------------------------------------------------


@cases(
    ("uri", "host", "port", "path", "field"),
    [
        (b"http://example.com/", "example.com", 80, b"/", b"example.com"),
        (b"http://example.com", "example.com", 80, b"/", b"example.com"),
        (b"HTTP://Example.com/A%20b?c=d&e", "Example.com", 80, b"/A%20b?c=d&e", b"Example.com"),
        (b"http://example.com?q", "example.com", 80, b"/?q", b"example.com"),
        (b"http://example.com:8080/x", "example.com", 8080, b"/x", b"example.com:8080"),
        (b"http://example.com:/x", "example.com", 80, b"/x", b"example.com"),
        (b"http://[::1]:81/x", IPv6Address("::1"), 81, b"/x", b"[::1]:81"),
        (b"http://127.0.0.1//x//", IPv4Address("127.0.0.1"), 80, b"//x//", b"127.0.0.1"),
        (b"http://me:secret@example.com/", "example.com", 80, b"/", b"example.com"),
        (b"http://a@b@example.com/c@d", "example.com", 80, b"/c@d", b"example.com"),
        (b"http://example.com/http://b/", "example.com", 80, b"/http://b/", b"example.com"),
        (b"http://example.com/\xc3\xa4", "example.com", 80, b"/\xc3\xa4", b"example.com"),
    ],
)
def test_a_plain_request_is_rewritten_for_its_target(
    uri: bytes, host: object, port: int, path: bytes, field: bytes
) -> None:
    request = asked(b"GET " + uri + b" HTTP/1.1", b"Accept: */*", host=b"other.example")
    assert target_of(request) == Connect(host, port)
    assert forwarded(request) == (
        b"GET " + path + b" HTTP/1.1\r\n"
        b"Host: " + field + b"\r\n"
        b"Accept: */*\r\n"
        b"Connection: close\r\n\r\n"
    )


@cases(
    "method", [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"PROPFIND", b"get", b"x-Y!"]
)
def test_any_other_method_is_forwarded_as_it_is(method: bytes) -> None:
    head = forwarded(asked(method + b" http://example.com/a HTTP/1.1"))
    assert head.startswith(method + b" /a HTTP/1.1\r\n")


@cases(
    ("uri", "path"),
    [
        (b"http://example.com", b"*"),
        (b"http://example.com/", b"/"),
        (b"http://example.com?q", b"/?q"),
    ],
)
def test_options_without_a_path_is_for_the_whole_server(uri: bytes, path: bytes) -> None:
    head = forwarded(asked(b"OPTIONS " + uri + b" HTTP/1.1"))
    assert head.startswith(b"OPTIONS " + path + b" HTTP/1.1\r\n")


def test_trace_is_not_forwarded() -> None:
    answer = refused(asked(b"TRACE http://example.com/ HTTP/1.1"), 405)
    assert "TRACE" not in answer.headers["Allow"]
    assert "CONNECT" in answer.headers["Allow"]


@cases(
    ("target", "words"),
    [
        (b"/", "This is a proxy"),
        (b"/index.html?x=http://example.com/", "This is a proxy"),
        (b"*", "This is a proxy"),
        (b"https://example.com/", "CONNECT"),
        (b"ftp://example.com/", "Only http"),
        (b"ws://example.com/", "Only http"),
        (b"example.com:443", "target"),
        (b"example.com", "target"),
        (b"http:/example.com/", "target"),
        (b"http:example.com", "target"),
        (b"http://", "target"),
        (b"http:///path", "target"),
        (b"http://:80/", "target"),
        (b"http://user@/", "target"),
        (b"http://example.com:0/", "target"),
        (b"http://example.com:65536/", "target"),
        (b"http://example.com:8o/", "target"),
        (b"http://::1/", "target"),
        (b"http://[::1/", "target"),
        (b"http://[v1.x]/", "target"),
        (b"http://exam\\ple.com/", "target"),
        (b"http://example.com/#fragment", "target"),
        (b"http://" + b"n" * 256 + b"/", "target"),
    ],
)
def test_a_target_that_is_not_served_is_refused_in_words(target: bytes, words: str) -> None:
    assert words in refused(asked(b"GET " + target + b" HTTP/1.1"), 400).text


def test_fields_for_the_proxy_stay_there_and_the_rest_goes_on_byte_for_byte() -> None:
    request = asked(
        b"GET http://example.com/ HTTP/1.1",
        b"User-Agent:x/1 ",
        b"PROXY-connection: keep-alive",
        b"Keep-Alive: timeout=5",
        b"Accept:\t text/html",
        b"TE: gzip",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAMAAABkAAQAAP__",
        b"connection: keep-alive, X-Hop ,",
        b"Connection: Upgrade,HTTP2-Settings",
        b"x-hop: secret",
        b"Cookie: a=b; \xe4=\xff",
        b"cookie: c=d",
        b"X-Empty:",
        b"Authorization: Basic b3JpZ2luOnM=",
        b"X-Forwarded-For: 192.0.2.1",
        b"Expect: 100-continue",
    )
    assert forwarded(request).split(b"\r\n") == [
        b"GET / HTTP/1.1",
        b"Host: example.com",
        b"User-Agent:x/1 ",
        b"Accept:\t text/html",
        b"Cookie: a=b; \xe4=\xff",
        b"cookie: c=d",
        b"X-Empty:",
        b"Authorization: Basic b3JpZ2luOnM=",
        b"X-Forwarded-For: 192.0.2.1",
        b"Expect: 100-continue",
        b"Connection: close",
        b"",
        b"",
    ]


def test_the_wish_for_trailers_goes_on() -> None:
    head = forwarded(asked(b"GET http://example.com/ HTTP/1.1", b"TE: trailers", b"Connection: TE"))
    assert head.endswith(b"Host: example.com\r\nTE: trailers\r\nConnection: TE, close\r\n\r\n")


def test_an_old_client_is_served_in_its_own_version() -> None:
    request = asked(b"GET http://example.com/ HTTP/1.0", host=None)
    assert forwarded(request) == (
        b"GET / HTTP/1.0\r\nHost: example.com\r\nConnection: close\r\n\r\n"
    )
    assert target_of(asked(b"CONNECT example.com:443 HTTP/1.0", host=None))


# --- bodies --------------------------------------------------------------------------------------

POST = asked(b"POST http://example.com/ HTTP/1.1", b"Content-Length: 10")


@cases("early", [0, 1, 9, 10, 11, 300])
def test_of_a_body_no_more_goes_up_than_its_length(early: int) -> None:
    protocol = established(POST + (b"0123456789" + GET * 10)[:early])
    start, limit = protocol.hand_over()
    head, _, body = start.partition(b"\r\n\r\n")
    assert b"Content-Length: 10" in head
    assert body == b"0123456789"[:early]
    assert limit == 10 - len(body)


def test_behind_a_request_without_a_body_nothing_goes_up() -> None:
    protocol = established(GET + GET)
    start, limit = protocol.hand_over()
    assert start.count(b"HTTP/1.1") == 1
    assert limit == 0


@cases(
    "headers",
    [
        (b"Content-Length: 5", b"Content-Length: 6"),
        (b"Content-Length: 5", b"content-length: 5"),
        (b"Content-Length: 5, 5",),
        (b"Content-Length: +5",),
        (b"Content-Length: -5",),
        (b"Content-Length: 0x5",),
        (b"Content-Length: 5 5",),
        (b"Content-Length:",),
        (b"Content-Length: " + b"9" * 19,),
        (b"Content-Length: \xb2",),
        (b"Content-Length: 5", b"Transfer-Encoding: chunked"),
        (b"Transfer-Encoding: identity", b"Content-Length: 5"),
        (b"Content-Length: 5", b"Connection: Content-Length"),
    ],
)
def test_a_length_in_two_minds_is_refused(headers: tuple[bytes, ...]) -> None:
    refused(asked(b"POST http://example.com/ HTTP/1.1", *headers) + b"hello", 400)


@cases("coding", [b"chunked", b"gzip, chunked", b"identity", b"", b"xchunked"])
def test_a_body_without_a_length_is_refused_in_words(coding: bytes) -> None:
    answer = refused(
        asked(b"POST http://example.com/ HTTP/1.1", b"Transfer-Encoding: " + coding) + b"0\r\n\r\n",
        411,
    )
    assert "Content-Length" in answer.text


# --- an Upgrade without CONNECT ------------------------------------------------------------------

WEBSOCKET = (b"Upgrade: websocket", b"Connection: keep-alive, Upgrade", b"Sec-WebSocket-Key: eA==")


def test_a_websocket_without_connect_is_forwarded_as_an_ordinary_request() -> None:
    protocol = established(asked(b"GET http://example.com/chat HTTP/1.1", *WEBSOCKET) + b"\x81\x00")
    assert protocol.hand_over() == Handover(
        b"GET /chat HTTP/1.1\r\nHost: example.com\r\nSec-WebSocket-Key: eA==\r\n"
        b"Connection: close\r\n\r\n",
        upload_limit=0,
    )


@cases(
    ("line", "headers"),
    [
        (b"GET http://example.com/ HTTP/1.1", (b"Upgrade: websocket",)),
        (b"GET http://example.com/ HTTP/1.1", (b"Connection: Upgrade",)),
        (b"GET http://example.com/ HTTP/1.1", (b"Connection: Upgrade", b"Upgrade: h2c")),
        (b"GET http://example.com/ HTTP/1.1", (b"Connection: Upgrade", b"Upgrade: websocket, h2c")),
        (b"GET http://example.com/ HTTP/1.0", WEBSOCKET),
        (b"POST http://example.com/ HTTP/1.1", WEBSOCKET),
        (b"GET http://example.com/ HTTP/1.1", (*WEBSOCKET, b"Content-Length: 5")),
    ],
)
def test_no_upgrade_reaches_a_target_or_sheds_a_limit(
    line: bytes, headers: tuple[bytes, ...]
) -> None:
    protocol = established(asked(line, *headers))
    start, limit = protocol.hand_over()
    assert b"pgrade" not in start
    assert limit in (0, 5)


# --- the head ------------------------------------------------------------------------------------


@cases(
    "request_",
    [
        b"GET http://example.com/\r\n\r\n",
        b"GET  http://example.com/ HTTP/1.1\r\n\r\n",
        b"GET http://example.com/  HTTP/1.1\r\n\r\n",
        b"GET http://exam ple.com/ HTTP/1.1\r\n\r\n",
        b"GET http://example.com/ HTTP/1.1 \r\n\r\n",
        b"GET http://example.com/ http/1.1\r\n\r\n",
        b"GET http://example.com/ HTTP/1\r\n\r\n",
        b"GET http://example.com/ HTTP/1.10\r\n\r\n",
        b"GET http://example.com/ HTTP/x.1\r\n\r\n",
        b"G(T http://example.com/ HTTP/1.1\r\n\r\n",
        b"hello\r\n\r\n",
        asked(b"GET http://example.com/ HTTP/1.1", b" folded"),
        asked(b"GET http://example.com/ HTTP/1.1", b"X: a", b"\tb"),
        asked(b"GET http://example.com/ HTTP/1.1", b"X : a"),
        asked(b"GET http://example.com/ HTTP/1.1", b"X\t: a"),
        asked(b"GET http://example.com/ HTTP/1.1", b"X"),
        asked(b"GET http://example.com/ HTTP/1.1", b": a"),
        asked(b"GET http://example.com/ HTTP/1.1", b"X[]: a"),
        asked(b"GET http://example.com/ HTTP/1.1", b"X\xe4: a"),
        asked(b"GET http://example.com/ HTTP/1.1", b"X: a\x0bb"),
        asked(b"GET http://example.com/ HTTP/1.1", b"X: a\x7fb"),
        asked(b"GET http://example.com/ HTTP/1.1", b"X: a\x00b"),
        asked(b"GET http://example.com/ HTTP/1.1", b"X: a\rb"),
        asked(b"GET http://example.com/ HTTP/1.1", b"X: a\nb: c"),
        asked(b"GET http://example.com/\rx HTTP/1.1"),
        GET.replace(b"\r\n", b"\n"),
        GET.replace(b"\r\n", b"\r"),
    ],
)
def test_a_head_that_could_be_read_in_two_ways_is_refused(request_: bytes) -> None:
    refused(request_, 400)


@cases("line", [b"GET http://example.com/ HTTP/1.1\n", b"GET a\r\r", b"GET \0"])
def test_a_line_that_ends_otherwise_is_refused_at_once(line: bytes) -> None:
    refused(line, 400)


@cases(
    "hosts",
    [
        (),
        (b"Host: example.com", b"Host: example.com"),
        (b"Host: example.com", b"host: other.example"),
        (b"Host: exam ple.com",),
        (b"Host: example.com, other.example",),
        (b"Host: example.com/",),
        (b"Host: user@example.com",),
        (b"Host: example.com:port",),
        (b"Host: [::1",),
    ],
)
@cases("line", [b"GET http://example.com/ HTTP/1.1", b"CONNECT a.b:1 HTTP/1.1"])
def test_a_host_field_must_be_there_once_and_well_formed(
    line: bytes, hosts: tuple[bytes, ...]
) -> None:
    assert "Host" in refused(asked(line, *hosts, host=None), 400).text


@cases("host", [b"", b"example.com", b"other.example:81", b"[::1]:443", b":80"])
def test_the_target_counts_with_any_proper_host_field(host: bytes) -> None:
    request = asked(b"GET http://example.com/ HTTP/1.1", host=host)
    assert target_of(request) == Connect("example.com", 80)
    assert forwarded(request).startswith(b"GET / HTTP/1.1\r\nHost: example.com\r\n")


@cases("version", [b"0.9", b"2.0", b"3.0"])
def test_another_version_is_refused(version: bytes) -> None:
    refused(asked(b"GET http://example.com/ HTTP/" + version), 505)


def test_the_preface_of_http2_is_refused() -> None:
    refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505)


def line_of(size: int) -> bytes:
    """Return a request line of this size."""
    path = bytes(size - len(b"GET http://example.com/ HTTP/1.1"))
    return b"GET http://example.com/" + path.replace(b"\0", b"x") + b" HTTP/1.1"


def head_of(size: int) -> bytes:
    """Return a whole head of this size."""
    shortest = asked(b"GET http://example.com/ HTTP/1.1", b"X: ")
    return shortest.replace(b"X: ", b"X: " + b"x" * (size - len(shortest)))


def test_the_longest_request_line_is_read_and_a_longer_one_is_not() -> None:
    assert target_of(asked(line_of(LINE_MAX_BYTES)))
    refused(asked(line_of(LINE_MAX_BYTES + 1)), 414)
    refused(b"x" * (LINE_MAX_BYTES + 2), 414)


def test_the_largest_head_is_read_and_a_larger_one_is_not() -> None:
    assert target_of(head_of(HEAD_MAX_BYTES))
    refused(head_of(HEAD_MAX_BYTES + 1), 431)
    refused(head_of(HEAD_MAX_BYTES + 5)[:-4], 431)


def test_more_fields_than_any_client_sends_are_refused() -> None:
    assert target_of(asked(b"GET http://example.com/ HTTP/1.1", *[b"X: y"] * 98))
    refused(asked(b"GET http://example.com/ HTTP/1.1", *[b"X: y"] * 99), 431)


def test_empty_lines_ahead_of_a_request_are_nothing() -> None:
    assert target_of(b"\r\n\r\n" + GET) == Connect("example.com", 80)


def test_empty_lines_without_a_request_are_refused_in_the_end() -> None:
    refused(b"\r\n" * (EMPTY_LINES_MAX + 1), 400)
    assert target_of(b"\r\n" * EMPTY_LINES_MAX + GET) == Connect("example.com", 80)


@cases("method", [b"CONNECT example.com:443", b"HEAD http://example.com/"])
def test_empty_lines_are_counted_over_all_requests_and_reads_of_a_connection(
    method: bytes,
) -> None:
    protocol = Http()
    bare = asked(method + b" HTTP/1.1", shown=False)
    for _ in range(EMPTY_LINES_MAX // 2):
        assert says(protocol, b"\r\n") is None
    assert says(protocol, bare) is None
    protocol.data_to_send()
    for _ in range(EMPTY_LINES_MAX // 2):
        assert says(protocol, b"\r") is None
        assert says(protocol, b"\n") is None
    assert isinstance(says(protocol, b"\r\n"), Violation)
    assert_over(protocol, 400)


def test_head_gets_no_body_with_a_refusal() -> None:
    for request, status in (
        (asked(b"HEAD / HTTP/1.1"), 400),
        (asked(b"HEAD http://example.com/ HTTP/1.1", b"X : y"), 400),
        (b"HEAD http://example.com/\n", 400),
    ):
        protocol = Http()
        assert isinstance(says(protocol, request), Violation)
        assert_over(protocol, status, to_head=True)
    protocol = dialling(asked(b"HEAD http://example.com/ HTTP/1.1"))
    protocol.fail(Failure.REFUSED)
    assert_over(protocol, 502, to_head=True)


# --- credentials ---------------------------------------------------------------------------------


@cases(
    ("username", "password"),
    [
        (b"user", b"pass"),
        (b"", b""),
        (b"user", b""),
        (b"", b"pass"),
        (b"user", b"pass:with:colons"),
        ("größe".encode(), "pässword".encode()),
        (b"u" * 255, b"p" * 255),
    ],
)
@cases("scheme", [b"Basic", b"basic", b"BASIC", b"Basic  "])
def test_credentials_are_shown_by_basic(username: bytes, password: bytes, scheme: bytes) -> None:
    request = asked(
        b"CONNECT example.com:443 HTTP/1.1", basic(username, password, scheme=scheme), shown=False
    )
    assert says(Http(), request) == Authenticate(username, password)


@cases(
    "value",
    [
        b"Basic",
        b"Basic ",
        b"Basic dXNlcjpwYXNz=",
        b"Basic dXNlcjpwYXN",
        b"Basic dXNl cjpwYXNz",
        b"Basic dXNlcjpwYXNz!",
        b"Basic dXNlcjpwYXNz, Basic dXNlcjpwYXNz",
        b"Basic " + b64encode(b"no colon"),
        b"Basic " + b64encode(b"user:\xff"),
        b"Basic " + b64encode(b"user:pass\n"),
        b"Basic " + b64encode(b"us\0er:pass"),
    ],
)
def test_garbled_credentials_are_wrong(value: bytes) -> None:
    request = asked(
        b"CONNECT example.com:443 HTTP/1.1", b"Proxy-Authorization: " + value, shown=False
    )
    answer = refused(request, 407)
    assert answer.headers["Proxy-Authenticate"] == 'Basic realm="proxyd", charset="UTF-8"'


def test_credentials_shown_twice_are_wrong() -> None:
    refused(asked(b"CONNECT example.com:443 HTTP/1.1", basic()), 407)


def challenged(protocol: Http, request: bytes) -> Answer:
    """Check that a request is answered with the question for credentials, and no event."""
    assert says(protocol, request) is None
    answer = Answer(protocol.data_to_send(), to_head=request.startswith(b"HEAD"))
    assert answer.status == 407
    assert answer.rest == b""
    assert answer.headers["Proxy-Authenticate"] == 'Basic realm="proxyd", charset="UTF-8"'
    assert answer.headers["Connection"] == "keep-alive"
    assert protocol.state is HttpState.REQUEST
    return answer


@cases("method", [b"CONNECT example.com:443", b"HEAD http://example.com/"])
@cases("headers", [(), (b"Proxy-Authorization: Digest x=y",), (b"Content-Length: 0",)])
def test_a_client_without_credentials_is_asked_and_may_go_on(
    method: bytes, headers: tuple[bytes, ...]
) -> None:
    protocol = Http()
    challenged(protocol, asked(method + b" HTTP/1.1", *headers, shown=False))
    assert says(protocol, b"\r\n" + CONNECT) == Authenticate(b"user", b"pass")
    protocol.accept_credentials()
    assert protocol.next_event() == Connect("example.com", 443)


def test_an_old_client_that_asks_for_it_may_go_on() -> None:
    line = b"CONNECT example.com:443 HTTP/1.0"
    challenged(Http(), asked(line, b"Proxy-Connection: Keep-Alive", shown=False))
    refused(asked(line, shown=False), 407)


@cases(
    "request_",
    [
        asked(b"CONNECT example.com:443 HTTP/1.1", b"Connection: close", shown=False),
        asked(b"CONNECT example.com:443 HTTP/1.1", b"Proxy-Connection: Close", shown=False),
        asked(b"POST http://example.com/ HTTP/1.1", b"Content-Length: 9", shown=False)
        + b"GET / HT",
    ],
)
def test_a_client_that_cannot_go_on_is_asked_and_closed(request_: bytes) -> None:
    assert "Proxy-Authenticate" in refused(request_, 407).headers


def test_a_client_that_never_shows_credentials_is_not_asked_forever() -> None:
    protocol = Http()
    for _ in range(CHALLENGES_MAX - 1):
        challenged(protocol, CONNECT_BARE)
    assert says(protocol, CONNECT_BARE) == Violation("no credentials")
    assert_over(protocol, 407)


def test_requests_sent_at_once_are_asked_one_by_one() -> None:
    protocol = Http()
    assert says(protocol, CONNECT_BARE + CONNECT) == Authenticate(b"user", b"pass")
    assert Answer(protocol.data_to_send()).rest == b""


@cases(
    ("refusal", "status", "error"),
    [
        (Refusal.WRONG, 407, "http_request_error"),
        (Refusal.EXHAUSTED, 403, "http_request_denied"),
        (Refusal.OVER, 403, "http_request_denied"),
        (Refusal.TOO_MANY_CONNECTIONS, 429, "connection_limit_reached"),
        (Refusal.LIMITED, 429, "connection_limit_reached"),
        (Refusal.UNAVAILABLE, 503, "proxy_internal_error"),
        (Refusal.PARAMETERS, 400, "http_request_error"),
    ],
)
def test_each_refusal_of_credentials_has_its_answer(
    refusal: Refusal, status: int, error: str
) -> None:
    protocol = deciding()
    protocol.refuse_credentials(refusal)
    answer = assert_over(protocol, status)
    assert answer.error == error
    assert ("Proxy-Authenticate" in answer.headers) == (status == 407)
    assert ("Retry-After" in answer.headers) == (status in (429, 503))


def test_a_refusal_may_have_a_more_exact_reason() -> None:
    protocol = deciding()
    protocol.refuse_credentials(Refusal.PARAMETERS, "The parameter 'ctry' is not known.")
    answer = protocol.data_to_send()
    assert (
        b"; error=http_request_error; details=\"The parameter 'ctry' is not known.\"\r\n" in answer
    )
    assert answer.endswith(b"\r\n\r\nThe parameter 'ctry' is not known.\n")


@cases("headers", [(), ("X-Exit: country=de; id=4", "X-Exit-Changed: 1")])
def test_a_tunnel_says_by_which_exit_it_leaves(headers: tuple[str, ...]) -> None:
    protocol = dialling()
    protocol.succeed(*BOUND, headers)
    lines = ["HTTP/1.1 200 Connection established", *headers, "", ""]
    assert protocol.data_to_send() == "\r\n".join(lines).encode()


def test_the_answer_to_a_plain_request_is_the_targets_own() -> None:
    protocol = dialling(GET)
    protocol.succeed(*BOUND, ("X-Exit: country=de",))
    assert protocol.data_to_send() == b""


# --- without a password --------------------------------------------------------------------------


@cases("headers", [(), (basic(),), (b"Proxy-Authorization: Basic nonsense",)])
def test_where_no_password_is_required_none_is_looked_at(headers: tuple[bytes, ...]) -> None:
    protocol = Http(password_required=False)
    request = asked(b"GET http://example.com/ HTTP/1.1", *headers, shown=False)
    assert says(protocol, request) == Identify()
    protocol.accept_credentials()
    assert protocol.next_event() == Connect("example.com", 80)
    protocol.succeed(*BOUND)
    assert b"Proxy-Authorization" not in protocol.hand_over().early


@cases("refusal", sorted(set(Refusal) - {Refusal.PARAMETERS}, key=str))
def test_where_no_password_is_required_no_challenge_is_sent(refusal: Refusal) -> None:
    protocol = Http(password_required=False)
    assert says(protocol, CONNECT_BARE) == Identify()
    protocol.refuse_credentials(refusal)
    answer = Answer(protocol.data_to_send())
    assert answer.status in (403, 429, 503)
    assert "Proxy-Authenticate" not in answer.headers


# --- failures ------------------------------------------------------------------------------------


@cases(
    ("failure", "status", "error"),
    [
        (Failure.GENERAL, 502, "proxy_internal_error"),
        (Failure.NOT_ALLOWED, 403, "destination_ip_prohibited"),
        (Failure.NETWORK_UNREACHABLE, 502, "destination_ip_unroutable"),
        (Failure.HOST_UNREACHABLE, 502, "destination_ip_unroutable"),
        (Failure.REFUSED, 502, "connection_refused"),
        (Failure.TIMED_OUT, 504, "connection_timeout"),
        (Failure.COMMAND_NOT_SUPPORTED, 501, "http_request_denied"),
        (Failure.NO_EXIT, 503, "destination_unavailable"),
        (Failure.EXIT_LOST, 502, "connection_terminated"),
    ],
)
def test_each_failure_has_its_answer(failure: Failure, status: int, error: str) -> None:
    for request in (
        asked(b"CONNECT 192.0.2.7:443 HTTP/1.1"),
        asked(b"GET http://192.0.2.7/ HTTP/1.1"),
    ):
        protocol = dialling(request)
        protocol.fail(failure)
        assert assert_over(protocol, status).error == error


def test_an_unknown_name_is_reported_as_that() -> None:
    protocol = dialling()
    protocol.fail(Failure.HOST_UNREACHABLE)
    assert assert_over(protocol, 502).error == "dns_error"


# --- the owner's mistakes ------------------------------------------------------------------------

STATES: dict[HttpState, Callable[[], Http]] = {
    HttpState.REQUEST: Http,
    HttpState.CREDENTIALS_DECISION: deciding,
    HttpState.ADMITTED: admitted,
    HttpState.REQUEST_DECISION: dialling,
    HttpState.ESTABLISHED: established,
    HttpState.CLOSED: closed,
}

DECISIONS: dict[str, tuple[HttpState, Callable[[Http], object]]] = {
    "accept_credentials": (HttpState.CREDENTIALS_DECISION, Http.accept_credentials),
    "refuse_credentials": (
        HttpState.CREDENTIALS_DECISION,
        lambda protocol: protocol.refuse_credentials(Refusal.WRONG),
    ),
    "succeed": (HttpState.REQUEST_DECISION, lambda protocol: protocol.succeed(*BOUND)),
    "fail": (HttpState.REQUEST_DECISION, lambda protocol: protocol.fail(Failure.GENERAL)),
    "hand_over": (HttpState.ESTABLISHED, Http.hand_over),
}


@cases("state", HttpState)
@cases("name", DECISIONS)
def test_a_decision_in_another_state_is_the_owners_mistake(name: str, state: HttpState) -> None:
    proper, decide = DECISIONS[name]
    protocol = STATES[state]()
    assert protocol.state is state
    if state is proper:
        decide(protocol)
        return
    protocol.data_to_send()
    with pytest.raises(RuntimeError, match=f"{state.name}.*{proper.name}"):
        decide(protocol)
    assert protocol.state is state
    assert protocol.data_to_send() == b""


# --- whole conversations -------------------------------------------------------------------------

CONVERSATIONS = {
    "a tunnel": CONNECT,
    "a tunnel with payload": CONNECT + b"\x16\x03\x01\r\n\r\n",
    "a page": GET,
    "two pages": GET + GET,
    "a body": POST + b"0123456789",
    "a body and more": POST + b"0123456789" + GET,
    "credentials on demand": CONNECT_BARE + CONNECT + b"payload",
    "no credentials": CONNECT_BARE * 5,
    "empty lines": CONNECT_BARE + b"\r\n\r\n" + CONNECT,
    "too many empty lines": CONNECT_BARE + b"\r\n" * 100 + CONNECT,
    "too many empty lines behind HEAD": asked(b"HEAD http://example.com/ HTTP/1.1", shown=False)
    + b"\r\n" * 100,
    "bare line feeds": GET.replace(b"\r\n", b"\n"),
    "a bare carriage return": GET[:40] + b"\r" + GET[40:],
    "a long line": asked(line_of(LINE_MAX_BYTES + 1)),
    "a long line with a fault in it": line_of(LINE_MAX_BYTES) + b"\n" + GET,
    "a large head": head_of(HEAD_MAX_BYTES + 1),
    "the largest head": head_of(HEAD_MAX_BYTES),
    "a page of the proxy": asked(b"GET / HTTP/1.1"),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HEAD": asked(b"HEAD http://example.com/ HTTP/1.1", shown=False) * 4,
}


def overheard(conversation: bytes, sizes: list[int], **decisions: bool) -> tuple[object, ...]:
    """Return all that a conversation comes to when it is cut into segments."""
    protocol = Http()
    owner = Owner(protocol, **decisions)
    left, turn = conversation, 0
    while left:
        size = sizes[turn % len(sizes)]
        owner.hear(left[:size])
        left = left[size:]
        turn += 1
        if not owner.is_over:
            assert len(protocol._buffer) <= HEAD_MAX_BYTES
    if not owner.is_relaying:
        assert not (owner.is_over and protocol._buffer)
        return owner.events, owner.sent
    return owner.events, owner.sent, *protocol.hand_over()


@cases("accept", [True, False])
@cases("reach", [True, False])
@cases("name", CONVERSATIONS)
def test_a_byte_at_a_time_has_the_meaning_of_one_segment(
    name: str, reach: bool, accept: bool
) -> None:
    conversation = CONVERSATIONS[name]
    at_once = overheard(conversation, [len(conversation)], accept=accept, reach=reach)
    assert overheard(conversation, [1], accept=accept, reach=reach) == at_once
    assert overheard(conversation, [7, 1, 64], accept=accept, reach=reach) == at_once


pieces = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([CONNECT, CONNECT_BARE, GET, POST, *CONVERSATIONS.values()]),
    st.sampled_from(
        [b"\r\n", b"\r", b"\n", b"\0", b": ", b" ", b"GET ", b"HEAD ", b" HTTP/1.1\r\n", b"Host: a"]
    ),
    st.sampled_from([b"http://", b"[::1]", b"a:80", b"Content-Length: 3\r\n", basic() + b"\r\n"]),
    st.integers(1, 9000).map(lambda size: b"x" * size),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(pieces, max_size=10).map(b"".join),
    st.lists(st.integers(1, 4096), min_size=1, max_size=20),
)
def test_no_bytes_in_any_pieces_raise_pile_up_or_change_their_meaning(
    data: bytes, sizes: list[int]
) -> None:
    pieced = overheard(data, sizes)
    assert pieced == overheard(data, [len(data) or 1])
    events = pieced[0]
    assert sum(isinstance(event, Violation) for event in events) <= 1
    if len(pieced) == 4 and pieced[3] is not None:
        head = pieced[2].partition(b"\r\n\r\n")[0]
        assert re.search(rb"(?im)^proxy-authorization:", head) is None
