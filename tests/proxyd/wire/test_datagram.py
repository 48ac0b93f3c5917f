"""The header of datagrams: every corner of it, there and back."""

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.base.cases import cases

from proxyd.wire.datagram import Datagram, header, unwrap

V4 = b"\0\0\0\x01\x08\x08\x08\x08\x00\x35"
V6 = b"\0\0\0\x04" + IPv6Address("2606:4700::1111").packed + b"\x01\xbb"
NAME = b"\0\0\0\x03\x0bexample.com\x00\x35"

HEADERS = {
    V4: (IPv4Address("8.8.8.8"), 53),
    V6: (IPv6Address("2606:4700::1111"), 443),
    NAME: ("example.com", 53),
    b"\0\0\0\x03\x07" + b"8.8.8.8" + b"\x00\x35": (IPv4Address("8.8.8.8"), 53),
    b"\0\0\0\x03\x05" + b"[::1]" + b"\xff\xff": (IPv6Address("::1"), 65_535),
    b"\0\0\0\x03\x01n\x00\x00": ("n", 0),
    b"\0\0\0\x03\xff" + b"n" * 255 + b"\x00\x35": ("n" * 255, 53),
}


@cases("payload", [b"", b"x", bytes(65_000)])
@cases("kind", [bytes, memoryview])
@cases("head", HEADERS)
def test_a_datagram_says_where_it_goes(head: bytes, kind: type, payload: bytes) -> None:
    assert unwrap(kind(head + payload)) == Datagram(*HEADERS[head], payload)


@pytest.mark.parametrize("head", HEADERS, ids=lambda head: head[:8].hex())
def test_a_datagram_whose_header_is_cut_is_dropped(head: bytes) -> None:
    assert [unwrap(head[:size]) for size in range(len(head))] == [None] * len(head)


@cases("fragment", [1, 0x7F, 0x80, 0xFF])
def test_a_fragment_is_dropped(fragment: int) -> None:
    assert unwrap(V4[:2] + bytes((fragment,)) + V4[3:] + b"payload") is None


@cases("kind", [0, 2, 5, 0xFF])
def test_an_unknown_address_type_is_dropped(kind: int) -> None:
    assert unwrap(V4[:3] + bytes((kind,)) + V4[4:] + bytes(300)) is None


@cases("name", [b"", b".", b"a b", b"a\0", b"\xff", b"fe80::1%eth0"])
def test_a_text_that_no_name_can_be_is_dropped(name: bytes) -> None:
    assert unwrap(b"\0\0\0\x03" + bytes((len(name),)) + name + b"\0\x35payload") is None


def test_the_reserved_bytes_are_not_looked_at() -> None:
    assert unwrap(b"\xff\xff" + V4[2:]) == Datagram(IPv4Address("8.8.8.8"), 53, b"")


def test_the_payload_of_a_view_is_not_copied() -> None:
    memory = bytearray(V4 + b"before")
    datagram = unwrap(memoryview(memory))
    memory[-6:] = b"after!"
    assert datagram is not None
    assert datagram.payload == b"after!"


@given(st.ip_addresses(), st.integers(0, 65_535), st.binary(max_size=100))
def test_a_written_datagram_is_read_back(
    host: IPv4Address | IPv6Address, port: int, payload: bytes
) -> None:
    assert unwrap(header(host, port) + payload) == Datagram(host, port, payload)


@given(st.binary(max_size=300))
def test_no_datagram_raises(data: bytes) -> None:
    datagram = unwrap(b"\0\0\0" + data)
    assert unwrap(data) is None or data[2] == 0
    if datagram is not None:
        assert datagram.host
        assert data.endswith(datagram.payload)
