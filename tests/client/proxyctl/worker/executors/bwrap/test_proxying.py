"""proxyctl.worker.executors.bwrap.proxying"""

from ipaddress import ip_address

import pytest
from support.base.cases import cases

from proxyctl.worker.executors.bwrap import proxying
from proxyctl.worker.executors.bwrap.proxying import AskingError, Wish


def test_socks_names_and_addresses() -> None:
    """Each kind of address, and its size before it is whole."""
    name = b"\x05\x01\x00\x03\x0bexample.com\x01\xbb"
    assert proxying.socks_request_size(name[:5]) == len(name)
    assert proxying.socks_wish(name) == Wish("example.com", 443)
    four = b"\x05\x01\x00\x01\x01\x02\x03\x04\x00\x50"
    assert proxying.socks_request_size(four[:5]) == len(four)
    assert proxying.socks_wish(four) == Wish(ip_address("1.2.3.4"), 80)
    six = b"\x05\x01\x00\x04" + ip_address("2001:db8::1").packed + b"\x00\x50"
    assert proxying.socks_request_size(six[:5]) == len(six)
    assert proxying.socks_wish(six) == Wish(ip_address("2001:db8::1"), 80)


@cases("request_", [b"\x04\x01\x00\x01\x00", b"\x05\x01\x00\x09\x00"])
def test_bytes_that_are_no_socks_request_are_refused(request_: bytes) -> None:
    """Another version, another kind of address."""
    with pytest.raises(AskingError):
        proxying.socks_request_size(request_)


def test_socks_serves_only_connections() -> None:
    """Neither BIND nor datagrams."""
    with pytest.raises(AskingError, match="CONNECT"):
        proxying.socks_wish(b"\x05\x03\x00\x01\x01\x02\x03\x04\x00\x50")
    assert not proxying.socks_accepts(b"\x05\x01\x02")
    assert proxying.socks_accepts(b"\x05\x02\x02\x00")


def test_a_connect_and_a_plain_request() -> None:
    """A plain request is sent on with only its path, and without the headers for the proxy."""
    connect = b"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: x\r\n\r\n"
    assert proxying.http_wish(connect) == (True, Wish(ip_address("2001:db8::1"), 443))
    plain = (
        b"GET http://example.com/a?b=c#d HTTP/1.1\r\nHost: example.com\r\n"
        b"Proxy-Connection: keep-alive\r\nConnection: keep-alive\r\nAccept: */*\r\n\r\n"
    )
    head = b"GET /a?b=c HTTP/1.1\r\nHost: example.com\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    assert proxying.http_wish(plain) == (False, Wish("example.com", 80, head))
    bare = proxying.http_wish(b"GET http://example.com:81 HTTP/1.1\r\n\r\n")[1]
    assert (bare.port, bare.head[:6]) == (81, b"GET / ")


@cases(
    "head",
    [
        b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET https://example.com/ HTTP/1.1\r\n\r\n",
        b"GET ftp://example.com/ HTTP/1.1\r\n\r\n",
        b"CONNECT example.com HTTP/1.1\r\n\r\n",
        b"CONNECT example.com:99999 HTTP/1.1\r\n\r\n",
        b"CONNECT [::1 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_to_a_proxy_are_refused(head: bytes) -> None:
    """In words, and never by an error of this program."""
    with pytest.raises(AskingError):
        proxying.http_wish(head)
