"""The SOCKS5 conversation, corner by corner: bytes in, events and bytes out."""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.base.brief import examples
from support.base.cases import cases
from support.clients.owner import BOUND, Owner

from proxyd.wire.events import (
    Associate,
    Authenticate,
    Connect,
    Event,
    Failure,
    Handover,
    Identify,
    Refusal,
    Violation,
)
from proxyd.wire.hosts import host_from_text
from proxyd.wire.socks5 import Socks5, Socks5State

GREETING = b"\x05\x01\x02"
LOGIN = b"\x01\x04user\x04pass"
CONNECT_V4 = b"\x05\x01\x00\x01\x08\x08\x08\x08\x00\x50"
CONNECT_V6 = b"\x05\x01\x00\x04" + IPv6Address("2606:4700::1111").packed + b"\x01\xbb"
CONNECT_NAME = b"\x05\x01\x00\x03\x0bexample.com\x01\xbb"

METHOD_CHOSEN = b"\x05\x02"
WELCOME = b"\x01\x00"
SUCCESS = b"\x05\x00\x00\x01\xc0\x00\x02\x07\x10\x92"


def refusal_reply(code: int) -> bytes:
    """Return a complete reply that says no: REP, then 0.0.0.0 and port 0."""
    return bytes([5, code, 0, 1, 0, 0, 0, 0, 0, 0])


def name_request(host: bytes, port: int = 80, *, command: int = 1) -> bytes:
    """Return a request with ATYP 3."""
    return bytes([5, command, 0, 3, len(host)]) + host + port.to_bytes(2, "big")


def address_request(address: IPv4Address | IPv6Address, port: int = 80) -> bytes:
    """Return a request with ATYP 1 or 4."""
    kind = 1 if address.version == 4 else 4
    return bytes([5, 1, 0, kind]) + address.packed + port.to_bytes(2, "big")


def says(protocol: Socks5, data: bytes) -> Event | None:
    """Pass bytes of the client in. Return the event."""
    protocol.receive_data(data)
    return protocol.next_event()


def greeted() -> Socks5:
    """Return a conversation that waits for credentials."""
    protocol = Socks5()
    assert says(protocol, GREETING) is None
    assert protocol.data_to_send() == METHOD_CHOSEN
    return protocol


def identifying() -> Socks5:
    """Return a conversation that waits for a decision about the client's address."""
    protocol = Socks5(password_required=False)
    assert says(protocol, b"\x05\x01\x00") == Identify()
    return protocol


def deciding() -> Socks5:
    """Return a conversation that waits for a decision about credentials."""
    protocol = greeted()
    assert says(protocol, LOGIN) == Authenticate(b"user", b"pass")
    return protocol


def logged_in() -> Socks5:
    """Return a conversation that waits for a request."""
    protocol = deciding()
    protocol.accept_credentials()
    assert protocol.data_to_send() == WELCOME
    return protocol


def dialling() -> Socks5:
    """Return a conversation that waits for the outcome of a dial."""
    protocol = logged_in()
    assert says(protocol, CONNECT_V4) == Connect(IPv4Address("8.8.8.8"), 80)
    return protocol


def established() -> Socks5:
    """Return a conversation that is over, the relay being next."""
    protocol = dialling()
    protocol.succeed(*BOUND)
    return protocol


def closed() -> Socks5:
    """Return a conversation that has failed."""
    protocol = dialling()
    protocol.fail(Failure.GENERAL)
    return protocol


def assert_over(protocol: Socks5, answer: bytes) -> None:
    """Check the last words of a conversation, and that nothing is understood after them."""
    assert protocol.data_to_send() == answer
    assert protocol.state is Socks5State.CLOSED
    assert says(protocol, GREETING + LOGIN + CONNECT_V4) is None
    assert protocol.data_to_send() == b""


# --- the method list ---------------------------------------------------------------------------


def test_username_and_password_are_chosen_when_offered() -> None:
    protocol = Socks5()
    assert says(protocol, b"\x05\x01\x02") is None
    assert protocol.data_to_send() == b"\x05\x02"
    assert protocol.state is Socks5State.CREDENTIALS


@cases(
    "methods",
    [b"\x00\x02", b"\x02\x00", b"\x00\x01\x02", b"\x02\x02", bytes(range(255)), b"\x02" * 255],
)
def test_username_and_password_are_chosen_among_others(methods: bytes) -> None:
    protocol = Socks5()
    assert says(protocol, bytes([5, len(methods)]) + methods) is None
    assert protocol.data_to_send() == b"\x05\x02"
    assert says(protocol, LOGIN) == Authenticate(b"user", b"pass")


@cases(
    "methods",
    [b"", b"\x00", b"\x01", b"\x00\x01", b"\xff", bytes(each for each in range(256) if each != 2)],
)
def test_a_list_without_username_and_password_is_answered_ff(methods: bytes) -> None:
    protocol = Socks5()
    event = says(protocol, bytes([5, len(methods)]) + methods)
    assert event == Violation("no method offered that is served here")
    assert_over(protocol, b"\x05\xff")


def test_the_method_list_is_read_as_long_as_it_says() -> None:
    protocol = Socks5()
    assert says(protocol, b"\x05\x03\x00\x01") is None
    assert protocol.data_to_send() == b""
    assert says(protocol, b"\x02") is None
    assert protocol.data_to_send() == b"\x05\x02"


def test_a_two_beyond_the_list_is_no_method() -> None:
    protocol = Socks5()
    assert isinstance(says(protocol, b"\x05\x01\x00\x02"), Violation)
    assert_over(protocol, b"\x05\xff")


@cases("version", [0x00, 0x01, 0x06, 0x15, 0x43, 0x47, 0xFF])
def test_another_version_is_refused_at_its_first_byte_and_gets_no_answer(version: int) -> None:
    protocol = Socks5()
    assert says(protocol, bytes([version])) == Violation(f"version {version} instead of 5")
    assert_over(protocol, b"")


def test_a_client_of_socks4_is_refused_in_its_own_protocol() -> None:
    protocol = Socks5()
    assert says(protocol, b"\x04") == Violation("SOCKS4 instead of SOCKS5")
    assert_over(protocol, b"\x00\x5b" + bytes(6))


def test_a_client_of_tls_gets_no_answer() -> None:
    protocol = Socks5()
    assert says(protocol, b"\x16\x03\x01") == Violation("TLS instead of SOCKS5")
    assert_over(protocol, b"")


# --- without a password ------------------------------------------------------------------------


@cases("methods", [b"\x00", b"\x00\x02", b"\x02\x01\x00", bytes(range(255))])
def test_a_client_that_offers_no_password_is_identified_before_that_is_chosen(
    methods: bytes,
) -> None:
    protocol = Socks5(password_required=False)
    assert says(protocol, bytes([5, len(methods)]) + methods) == Identify()
    assert protocol.data_to_send() == b""
    protocol.accept_credentials()
    assert protocol.data_to_send() == b"\x05\x00"
    assert says(protocol, CONNECT_V4) == Connect(IPv4Address("8.8.8.8"), 80)


def test_a_client_that_insists_on_a_password_may_show_any() -> None:
    protocol = Socks5(password_required=False)
    assert says(protocol, GREETING) is None
    assert protocol.data_to_send() == METHOD_CHOSEN
    assert says(protocol, b"\x01\x01x\x00" + CONNECT_V4) == Identify()
    protocol.accept_credentials()
    assert protocol.data_to_send() == WELCOME
    assert protocol.next_event() == Connect(IPv4Address("8.8.8.8"), 80)


@cases("refusal", Refusal)
def test_an_address_that_does_not_do_has_no_acceptable_method(refusal: Refusal) -> None:
    protocol = Socks5(password_required=False)
    assert says(protocol, b"\x05\x02\x00\x02" + CONNECT_V4) == Identify()
    protocol.refuse_credentials(refusal)
    assert_over(protocol, b"\x05\xff")


def test_an_address_that_does_not_do_has_a_status_where_there_is_one() -> None:
    protocol = Socks5(password_required=False)
    assert says(protocol, GREETING + LOGIN) == Identify()
    protocol.refuse_credentials(Refusal.EXHAUSTED)
    assert_over(protocol, METHOD_CHOSEN + b"\x01\x02")


def test_a_method_of_another_kind_is_not_served_without_a_password_either() -> None:
    protocol = Socks5(password_required=False)
    assert isinstance(says(protocol, b"\x05\x02\x01\x80"), Violation)
    assert_over(protocol, b"\x05\xff")


# --- credentials -------------------------------------------------------------------------------


@cases(
    ("username", "password"),
    [
        (b"", b""),
        (b"", b"pass"),
        (b"user", b""),
        (b"u" * 255, b"p" * 255),
        (b"\xff\xfe\x00", b"\x80\x00\r\n"),
        ("größe".encode("latin-1"), "größe".encode()),
        (b"\x01\x02", b"\x05\x01\x00\x01"),
    ],
)
def test_credentials_are_bytes_of_any_length_and_value(username: bytes, password: bytes) -> None:
    protocol = greeted()
    message = b"\x01" + bytes([len(username)]) + username + bytes([len(password)]) + password
    assert says(protocol, message) == Authenticate(username, password)
    assert protocol.data_to_send() == b""
    assert protocol.state is Socks5State.CREDENTIALS_DECISION


@cases("length", [1, 2, 5, 6, 7, 10])
def test_incomplete_credentials_are_waited_for(length: int) -> None:
    protocol = greeted()
    assert says(protocol, LOGIN[:length]) is None
    assert protocol.data_to_send() == b""
    assert says(protocol, LOGIN[length:]) == Authenticate(b"user", b"pass")


@cases("version", [0x00, 0x02, 0x05, 0xFF])
def test_another_negotiation_version_is_refused_as_wrong(version: int) -> None:
    protocol = greeted()
    event = says(protocol, bytes([version]))
    assert event == Violation(f"negotiation version {version} instead of 1")
    assert_over(protocol, b"\x01\x01")


@cases(
    ("refusal", "status"),
    [
        (Refusal.WRONG, 1),
        (Refusal.EXHAUSTED, 2),
        (Refusal.OVER, 3),
        (Refusal.TOO_MANY_CONNECTIONS, 4),
        (Refusal.UNAVAILABLE, 5),
        (Refusal.PARAMETERS, 6),
        (Refusal.LIMITED, 7),
    ],
)
def test_each_refusal_of_credentials_has_its_status(refusal: Refusal, status: int) -> None:
    protocol = deciding()
    protocol.refuse_credentials(refusal)
    assert_over(protocol, bytes([1, status]))


def test_every_refusal_has_a_status_of_its_own() -> None:
    statuses = set()
    for refusal in Refusal:
        protocol = deciding()
        protocol.refuse_credentials(refusal)
        statuses.add(protocol.data_to_send())
    assert len(statuses) == len(Refusal)
    assert WELCOME not in statuses


def test_a_request_sent_early_waits_for_the_decision() -> None:
    protocol = greeted()
    assert says(protocol, LOGIN + CONNECT_V4) == Authenticate(b"user", b"pass")
    assert protocol.next_event() is None
    protocol.accept_credentials()
    assert protocol.data_to_send() == WELCOME
    assert protocol.next_event() == Connect(IPv4Address("8.8.8.8"), 80)


def test_a_request_sent_early_is_forgotten_when_credentials_are_refused() -> None:
    protocol = greeted()
    says(protocol, LOGIN + CONNECT_V4)
    protocol.refuse_credentials(Refusal.WRONG)
    assert protocol.next_event() is None
    assert_over(protocol, b"\x01\x01")


# --- the request -------------------------------------------------------------------------------


@cases(
    ("request_", "event"),
    [
        (CONNECT_V4, Connect(IPv4Address("8.8.8.8"), 80)),
        (CONNECT_V6, Connect(IPv6Address("2606:4700::1111"), 443)),
        (CONNECT_NAME, Connect("example.com", 443)),
        (address_request(IPv4Address("8.8.8.8"), 0), Connect(IPv4Address("8.8.8.8"), 0)),
        (address_request(IPv4Address("8.8.8.8"), 65535), Connect(IPv4Address("8.8.8.8"), 65535)),
        (name_request(b"example.com", 0), Connect("example.com", 0)),
        (address_request(IPv4Address("0.0.0.0")), Connect(IPv4Address("0.0.0.0"), 80)),
        (
            address_request(IPv6Address("::ffff:127.0.0.1")),
            Connect(IPv6Address("::ffff:127.0.0.1"), 80),
        ),
    ],
)
def test_a_request_names_its_target(request_: bytes, event: Connect) -> None:
    protocol = logged_in()
    assert says(protocol, request_) == event
    assert protocol.data_to_send() == b""
    assert protocol.state is Socks5State.REQUEST_DECISION


def test_the_port_is_in_network_order() -> None:
    assert says(logged_in(), name_request(b"example.com", 0x1234)) == Connect("example.com", 0x1234)


def test_the_reserved_byte_is_not_looked_at() -> None:
    request = bytearray(CONNECT_V4)
    request[2] = 0xFF
    assert says(logged_in(), bytes(request)) == Connect(IPv4Address("8.8.8.8"), 80)


@cases("version", [0x00, 0x01, 0x04, 0x06])
def test_another_version_in_the_request_is_a_general_failure(version: int) -> None:
    protocol = logged_in()
    event = says(protocol, bytes([version]))
    assert event == Violation(f"request version {version} instead of 5")
    assert_over(protocol, refusal_reply(1))


@cases("command", [0x00, 0x02, 0x04, 0x7F, 0xFF])
def test_every_other_command_is_refused_with_seven(command: int) -> None:
    protocol = logged_in()
    event = says(protocol, name_request(b"example.com", command=command))
    assert event == Violation(f"command {command}")
    assert_over(protocol, refusal_reply(7))


@cases(
    ("sender", "host"),
    [
        (b"\x01\xc0\x00\x02\x07", IPv4Address("192.0.2.7")),
        (b"\x01" + bytes(4), IPv4Address(0)),
        (b"\x04" + bytes(16), IPv6Address(0)),
        (b"\x03\x0a192.0.2.17", IPv4Address("192.0.2.17")),
        (b"\x03\x010", IPv4Address(0)),
        (b"\x03\x00", IPv4Address(0)),
        (b"\x03\x0bexample.com", IPv4Address(0)),
    ],
)
def test_a_client_that_associates_says_where_it_sends_from_if_it_knows(
    sender: bytes, host: IPv4Address | IPv6Address
) -> None:
    protocol = logged_in()
    assert says(protocol, b"\x05\x03\x00" + sender + b"\x10\x92") == Associate(host, 4242)
    protocol.succeed(*BOUND)
    assert protocol.data_to_send() == SUCCESS
    assert protocol.state is Socks5State.ESTABLISHED


def test_an_association_that_is_not_offered_is_refused_with_seven() -> None:
    protocol = logged_in()
    says(protocol, b"\x05\x03" + CONNECT_V4[2:])
    protocol.fail(Failure.COMMAND_NOT_SUPPORTED)
    assert_over(protocol, refusal_reply(7))


@cases("kind", [0x00, 0x02, 0x05, 0x7F, 0xFF])
def test_an_unknown_address_type_is_refused_with_eight(kind: int) -> None:
    protocol = logged_in()
    event = says(protocol, bytes([5, 1, 0, kind, 1, 2, 3, 4, 0, 80]))
    assert event == Violation(f"address type {kind}")
    assert_over(protocol, refusal_reply(8))


def test_an_unknown_address_type_is_refused_at_its_byte() -> None:
    protocol = logged_in()
    assert says(protocol, b"\x05\x01\x00") is None
    assert says(protocol, b"\x02") == Violation("address type 2")
    assert_over(protocol, refusal_reply(8))


@cases(
    ("text", "host"),
    [
        (b"127.0.0.1", IPv4Address("127.0.0.1")),
        (b"169.254.169.254", IPv4Address("169.254.169.254")),
        (b"::1", IPv6Address("::1")),
        (b"[::1]", IPv6Address("::1")),
        (b"2606:4700:0:0:0:0:0:1111", IPv6Address("2606:4700::1111")),
        (b"::ffff:10.0.0.1", IPv6Address("::ffff:10.0.0.1")),
        (b"[::FFFF:10.0.0.1]", IPv6Address("::ffff:10.0.0.1")),
    ],
)
def test_an_address_in_text_is_that_address(text: bytes, host: IPv4Address | IPv6Address) -> None:
    assert says(logged_in(), name_request(text)) == Connect(host, 80)


@cases(
    ("text", "host"),
    [
        (b"example.com.", "example.com"),
        (b"EXAMPLE.com", "EXAMPLE.com"),
        (b"localhost", "localhost"),
        (b"xn--gre-6ka8l.example", "xn--gre-6ka8l.example"),
        (b"under_score.example", "under_score.example"),
        (b"2130706433", "2130706433"),
        (b"127.1", "127.1"),
        (b"0177.0.0.1", "0177.0.0.1"),
        (b"a" * 255, "a" * 255),
        (b"a" * 254 + b".", "a" * 254),
    ],
)
def test_any_other_text_is_a_name_to_look_up(text: bytes, host: str) -> None:
    assert says(logged_in(), name_request(text)) == Connect(host, 80)


@cases(
    "text",
    [
        b"",
        b".",
        b" ",
        b"\x00",
        b"example.com\x00",
        b"example.com\x00.internal",
        b"exa mple.com",
        b"example.com\n",
        b"example.com\x7f",
        b"\x80",
        "größe.example".encode(),
        b"\xff" * 255,
    ],
)
def test_a_text_that_no_name_can_be_is_refused_as_an_unknown_host(text: bytes) -> None:
    protocol = logged_in()
    assert says(protocol, name_request(text)) == Violation("not a host name")
    assert_over(protocol, refusal_reply(4))


@cases(
    "text",
    [
        b"fe80::1%eth0",
        b"[fe80::1%1]",
        b"2606:4700::1%\x00",
        b"2606:4700::1% ",
        b"[2606:4700::1%\n]",
        b"::1%\x1b[2J",
    ],
)
def test_an_address_with_a_zone_is_no_host_of_ours(text: bytes) -> None:
    protocol = logged_in()
    assert says(protocol, name_request(text)) == Violation("not a host name")
    assert_over(protocol, refusal_reply(4))


@given(st.binary(max_size=255))
def test_a_host_from_text_is_an_address_or_a_printable_name(encoded: bytes) -> None:
    host = host_from_text(encoded)
    if isinstance(host, str):
        assert host
        assert all(0x21 <= ord(character) <= 0x7E for character in host)
        with pytest.raises(ValueError):
            IPv4Address(host)
        with pytest.raises(ValueError):
            IPv6Address(host)


# --- the reply ---------------------------------------------------------------------------------


@cases(
    ("failure", "code"),
    [
        (Failure.GENERAL, 1),
        (Failure.NOT_ALLOWED, 2),
        (Failure.NETWORK_UNREACHABLE, 3),
        (Failure.HOST_UNREACHABLE, 4),
        (Failure.REFUSED, 5),
        (Failure.TIMED_OUT, 6),
        (Failure.COMMAND_NOT_SUPPORTED, 7),
        (Failure.NO_EXIT, 3),
        (Failure.EXIT_LOST, 4),
    ],
)
def test_each_failure_has_its_code_in_a_complete_reply(failure: Failure, code: int) -> None:
    protocol = dialling()
    protocol.fail(failure)
    assert_over(protocol, refusal_reply(code))


def test_every_failure_has_a_code_of_its_own_but_those_of_exits() -> None:
    """RFC 1928 has no code for these and new accounts: they have that of the nearest failure."""
    others = {Failure.NO_EXIT, Failure.EXIT_LOST, Failure.LIMITED}
    replies, of_targets = set(), set(Failure) - others
    for failure in of_targets:
        protocol = dialling()
        protocol.fail(failure)
        replies.add(protocol.data_to_send())
    assert len(replies) == len(of_targets)


def test_success_has_no_room_for_the_http_fields_of_the_exit() -> None:
    protocol = dialling()
    protocol.succeed(*BOUND, ("X-Exit: country=de",))
    assert protocol.data_to_send() == SUCCESS


def test_success_carries_the_bound_ipv4_address() -> None:
    protocol = dialling()
    assert protocol.data_to_send() == b""
    protocol.succeed(IPv4Address("192.0.2.7"), 4242)
    assert protocol.data_to_send() == b"\x05\x00\x00\x01\xc0\x00\x02\x07\x10\x92"
    assert protocol.state is Socks5State.ESTABLISHED


def test_success_carries_the_bound_ipv6_address() -> None:
    protocol = dialling()
    protocol.succeed(IPv6Address("2001:db8::7"), 65535)
    bound = b"\x20\x01\x0d\xb8" + bytes(11) + b"\x07"
    assert protocol.data_to_send() == b"\x05\x00\x00\x04" + bound + b"\xff\xff"


def test_bytes_to_send_are_given_once() -> None:
    protocol = established()
    assert protocol.data_to_send() == SUCCESS
    assert protocol.data_to_send() == b""


def test_bytes_behind_the_request_are_given_once_for_the_relay() -> None:
    protocol = logged_in()
    assert says(protocol, CONNECT_NAME + b"first") == Connect("example.com", 443)
    protocol.receive_data(b" second")
    assert protocol.next_event() is None
    protocol.succeed(*BOUND)
    assert protocol.hand_over() == Handover(b"first second", upload_limit=None)
    assert protocol.hand_over() == Handover(b"", upload_limit=None)


def test_payload_that_looks_like_a_request_is_payload() -> None:
    protocol = logged_in()
    says(protocol, CONNECT_V4 + CONNECT_V6)
    protocol.succeed(*BOUND)
    assert protocol.next_event() is None
    assert protocol.hand_over().early == CONNECT_V6


# --- the owner's mistakes ----------------------------------------------------------------------

STATES: dict[Socks5State, Callable[[], Socks5]] = {
    Socks5State.METHODS: Socks5,
    Socks5State.IDENTITY_DECISION: identifying,
    Socks5State.CREDENTIALS: greeted,
    Socks5State.CREDENTIALS_DECISION: deciding,
    Socks5State.REQUEST: logged_in,
    Socks5State.REQUEST_DECISION: dialling,
    Socks5State.ESTABLISHED: established,
    Socks5State.CLOSED: closed,
}

DECISIONS: dict[str, tuple[Socks5State, Callable[[Socks5], object]]] = {
    "accept_credentials": (Socks5State.CREDENTIALS_DECISION, Socks5.accept_credentials),
    "refuse_credentials": (
        Socks5State.CREDENTIALS_DECISION,
        lambda protocol: protocol.refuse_credentials(Refusal.WRONG),
    ),
    "succeed": (Socks5State.REQUEST_DECISION, lambda protocol: protocol.succeed(*BOUND)),
    "fail": (Socks5State.REQUEST_DECISION, lambda protocol: protocol.fail(Failure.GENERAL)),
    "hand_over": (Socks5State.ESTABLISHED, Socks5.hand_over),
}


def test_every_state_is_reached_as_the_table_says() -> None:
    assert {state: make().state for state, make in STATES.items()} == {
        state: state for state in Socks5State
    }


@cases("state", Socks5State)
@cases("name", DECISIONS)
def test_a_decision_in_another_state_is_the_owners_mistake(name: str, state: Socks5State) -> None:
    proper, decide = DECISIONS[name]
    protocol = STATES[state]()
    if state is proper or (state is Socks5State.IDENTITY_DECISION and "credentials" in name):
        decide(protocol)
        return
    protocol.data_to_send()
    with pytest.raises(RuntimeError, match=f"{state.name}.*{proper.name}"):
        decide(protocol)
    assert protocol.state is state
    assert protocol.data_to_send() == b""


# --- whole conversations -----------------------------------------------------------------------


CONVERSATIONS = {
    "an IPv4 target": GREETING + LOGIN + CONNECT_V4,
    "an IPv6 target": GREETING + LOGIN + CONNECT_V6,
    "a name": b"\x05\x02\x00\x02" + LOGIN + CONNECT_NAME,
    "payload after the request": GREETING + LOGIN + CONNECT_NAME + b"GET / HTTP/1.1\r\n\r\n",
    "the longest messages": (
        b"\x05\xff"
        + bytes(range(255))
        + (b"\x01\xff" + b"u" * 255 + b"\xff" + b"p" * 255)
        + name_request(b"n" * 255)
        + b"payload"
    ),
    "the shortest messages": GREETING + b"\x01\x00\x00" + name_request(b"n"),
    "no name at all": GREETING + LOGIN + name_request(b""),
    "no method": b"\x05\x00",
    "another method": b"\x05\x01\x00" + LOGIN,
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "another negotiation": GREETING + b"\x05\x01\x00\x01",
    "another version in the request": GREETING + LOGIN + b"\x04\x01\x00\x50\x08\x08\x08\x08\x00",
    "UDP ASSOCIATE": GREETING + LOGIN + b"\x05\x03" + CONNECT_V4[2:],
    "BIND": GREETING + LOGIN + b"\x05\x02" + CONNECT_V4[2:],
    "an unknown address type": GREETING + LOGIN + b"\x05\x01\x00\x07" + bytes(16),
}


@cases("accept", [True, False])
@cases("reach", [True, False])
@cases("name", CONVERSATIONS)
def test_a_byte_at_a_time_has_the_meaning_of_one_segment(
    name: str, reach: bool, accept: bool
) -> None:
    conversation = CONVERSATIONS[name]
    at_once = Owner(Socks5(), accept=accept, reach=reach)
    at_once.hear(conversation)
    trickling = Owner(Socks5(), accept=accept, reach=reach)
    for byte in conversation:
        trickling.hear(bytes([byte]))
    assert trickling.events == at_once.events
    assert trickling.sent == at_once.sent
    assert trickling.protocol.state is at_once.protocol.state
    if at_once.is_relaying:
        assert trickling.protocol.hand_over() == at_once.protocol.hand_over()


def test_each_answer_comes_with_the_last_byte_of_its_message() -> None:
    owner = Owner(Socks5())
    for byte in GREETING + LOGIN + CONNECT_NAME + b"x":
        owner.hear(bytes([byte]))
    assert owner.answers == [
        (len(GREETING), METHOD_CHOSEN),
        (len(GREETING + LOGIN), WELCOME),
        (len(GREETING + LOGIN + CONNECT_NAME), SUCCESS),
    ]


def test_everything_in_one_segment_is_understood_in_order() -> None:
    payload = b"\x16\x03\x01\x02\x00\x01\x00" + bytes(1000)
    owner = Owner(Socks5())
    owner.hear(GREETING + LOGIN + CONNECT_NAME + payload)
    assert owner.events == [Authenticate(b"user", b"pass"), Connect("example.com", 443)]
    assert [answer for _, answer in owner.answers] == [METHOD_CHOSEN, WELCOME, SUCCESS]
    assert owner.protocol.hand_over().early == payload


# The longest that a message can be while its end has not come.
UNFINISHED_MAX_BYTES = {
    Socks5State.METHODS: 2 + 255 - 1,
    Socks5State.CREDENTIALS: 3 + 255 + 255 - 1,
    Socks5State.REQUEST: 4 + 1 + 255 + 2 - 1,
    Socks5State.CLOSED: 0,
}

plausible = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([GREETING, LOGIN, CONNECT_V4, CONNECT_V6, CONNECT_NAME, b"\x05", b"\x01"]),
    st.just(b"\x05\x03" + CONNECT_V4[2:]),
    st.binary(max_size=255).map(name_request),
    st.tuples(st.binary(max_size=255), st.binary(max_size=255)).map(
        lambda pair: b"\x01" + b"".join(bytes([len(each)]) + each for each in pair)
    ),
    st.binary(max_size=255).map(lambda methods: bytes([5, len(methods)]) + methods),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    st.booleans(),
    st.lists(plausible, max_size=8),
    st.lists(st.integers(1, 64), min_size=1, max_size=20),
)
def test_no_bytes_in_any_pieces_raise_or_pile_up(
    password_required: bool, parts: list[bytes], sizes: list[int]
) -> None:
    data = b"".join(parts)
    protocol = Socks5(password_required=password_required)
    owner = Owner(protocol)
    turn = 0
    while data and not owner.is_over:
        size = sizes[turn % len(sizes)]
        owner.hear(data[:size])
        data = data[size:]
        turn += 1
        if not owner.is_relaying:
            assert len(protocol._buffer) <= UNFINISHED_MAX_BYTES[protocol.state]
    assert len(owner.sent) <= 2 + 2 + 10
    assert len(owner.events) <= 3
    assert sum(isinstance(event, Violation) for event in owner.events) <= 1
