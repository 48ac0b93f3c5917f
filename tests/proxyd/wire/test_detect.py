"""The first byte tells the protocol."""

from ipaddress import IPv4Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.base.cases import cases
from support.clients.owner import BOUND, Owner

from proxyd.wire.detect import detect
from proxyd.wire.events import Authenticate, Connect, Failure, Identify, Refusal, Violation

SOCKS5 = b"\x05\x01\x02" + b"\x01\x04user\x04pass" + b"\x05\x01\x00\x01\x08\x08\x08\x08\x00\x50"
HTTP = (
    b"POST http://8.8.8.8/ HTTP/1.1\r\nHost: 8.8.8.8\r\nContent-Length: 9\r\n"
    b"Proxy-Authorization: Basic dXNlcjpwYXNz\r\n\r\n"
)
UNDERSTOOD = [Authenticate(b"user", b"pass"), Connect(IPv4Address("8.8.8.8"), 80)]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize("asked", [SOCKS5, HTTP], ids=["SOCKS5", "HTTP"])
def test_either_protocol_leads_to_its_target(asked: bytes, size: int) -> None:
    owner = Owner()
    data = asked + b"hello"
    for start in range(0, len(data), size):
        owner.hear(data[start : start + size])
    assert owner.events == UNDERSTOOD
    early, limit = owner.protocol.hand_over()
    assert early.endswith(b"hello")
    assert limit == (None if asked is SOCKS5 else 4)


@cases(("asked", "answer"), [(SOCKS5, b"\x05\x02\x01\x01"), (HTTP, b"HTTP/1.1 407 ")])
def test_either_protocol_returns_a_refusal(asked: bytes, answer: bytes) -> None:
    protocol = detect(asked[0])
    protocol.receive_data(asked)
    protocol.next_event()
    protocol.refuse_credentials(Refusal.WRONG)
    assert protocol.data_to_send().startswith(answer)


@cases(("asked", "answer"), [(SOCKS5, b"\x05\x05"), (HTTP, b"HTTP/1.1 502 ")])
def test_either_protocol_returns_a_failure(asked: bytes, answer: bytes) -> None:
    protocol = detect(asked[0])
    protocol.receive_data(asked)
    protocol.next_event()
    protocol.accept_credentials()
    protocol.next_event()
    protocol.data_to_send()
    protocol.fail(Failure.REFUSED)
    assert protocol.data_to_send().startswith(answer)


@pytest.mark.parametrize("asked", [b"\x05\x01\x00", HTTP], ids=["SOCKS5", "HTTP"])
def test_either_protocol_does_without_a_password(asked: bytes) -> None:
    owner = Owner(password_required=False)
    owner.hear(asked)
    assert owner.events[0] == Identify()


@cases("first", [*range(5), *range(6, 0x41), *range(0x5B, 0x61), *range(0x7B, 256)])
def test_any_other_first_byte_is_turned_away_at_once(first: int) -> None:
    owner = Owner()
    owner.hear(bytes((first,)))
    assert [type(event) for event in owner.events] == [Violation]
    assert owner.sent == (b"\x00\x5b" + bytes(6) if first == 4 else b"")


@cases("first", b"AZaz")
def test_a_letter_is_the_start_of_a_method(first: int) -> None:
    owner = Owner()
    owner.hear(bytes((first,)) + b"\n")
    assert owner.sent.startswith(b"HTTP/1.1 400 ")


@settings(deadline=None)
@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20))
def test_no_bytes_raise(parts: list[bytes]) -> None:
    owner = Owner()
    for part in parts:
        owner.hear(part)


@cases("first", b"\x05G")
def test_decisions_before_any_byte_are_the_owners_mistake(first: int) -> None:
    protocol = detect(first)
    assert protocol.next_event() is None
    assert protocol.data_to_send() == b""
    with pytest.raises(RuntimeError):
        protocol.succeed(*BOUND)
