"""The frames between an exit and the daemon: every one, cut anywhere, and malformed bytes."""

import json
import random
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.base.brief import examples
from support.base.cases import cases

from proxyctl.exit.carrying.carrier import PORTS_SAID_MAX
from proxyctl.protocol import frames
from proxyctl.protocol.frames import (
    CANDIDATES_MAX,
    FRAME_MAX_BYTES,
    NAME_MAX_BYTES,
    TEXT_MAX_CHARACTERS,
    TICKETS_MAX,
    Associate,
    Call,
    Capacity,
    Deny,
    Dial,
    Dialled,
    DialOutcome,
    Drain,
    Encrypt,
    ExitStatus,
    For,
    Frame,
    FrameError,
    FrameReader,
    Hello,
    Kind,
    Lend,
    Lent,
    Node,
    Nodes,
    Open,
    Over,
    Park,
    Ping,
    Pong,
    Preface,
    Return,
    Seen,
    ServiceLimits,
    Sorry,
    Tickets,
    Tunnel,
    Tunnelled,
    Welcome,
    encode,
)

V4, V6 = IPv4Address("192.0.2.7"), IPv6Address("2001:db8::7")
LIMITS = ServiceLimits(16, 0, 5_000_000_000, (80, 443))
WELCOME = Welcome(7, "198.51.100.7", "de", "berlin", 3320, LIMITS, 30)

# Version 1 as it was first sent: an update of the daemon does not change the frames of devices.
RECORDED: list[tuple[Frame, bytes]] = [
    (
        Hello(1, "t0ken", "0.2.0", "Linux", ("dns",), "ab", ""),
        (
            b'\x00\x6e\x01{"protocol":1,"token":"t0ken","version":"0.2.0","system":"Linux",'
            b'"features":["dns"],"terms":"ab","paused":""}'
        ),
    ),
    (
        Hello(1, "t0ken", "0.2.0", "Linux", (), "ab", "", Capacity(16, 8, (80, 443), 20)),
        (
            b'\x00\xb4\x01{"protocol":1,"token":"t0ken","version":"0.2.0","system":"Linux",'
            b'"features":[],"terms":"ab","paused":"",'
            b'"capacity":{"connections":16,"associations":8,"ports":[80,443],"dials":20}}'
        ),
    ),
    (Over(9), b"\x00\x09\x1a\0\0\0\0\0\0\0\x09"),
    (
        WELCOME,
        (
            b'\x00\xc8\x02{"attachment":7,"address":"198.51.100.7","country":"de","city":"berlin",'
            b'"asn":3320,"limits":{"connections":16,"bytes_per_second":0,"bytes_per_day":5000000000,'
            b'"ports":[80,443]},"heartbeat_seconds":30}'
        ),
    ),
    (
        Sorry("exit_paused", "Later.", 60),
        b'\x00\x3b\x03{"code":"exit_paused","words":"Later.","retry_seconds":60}',
    ),
    (
        Tickets(5, (b"a" * 16, b"b" * 16)),
        b"\x00\x29\x04\0\0\0\0\0\0\0\x05" + b"a" * 16 + b"b" * 16,
    ),
    (Park(3), b"\x00\x03\x05\x00\x03"),
    (
        Dial(9, (V4, V6), 443),
        b"\x00\x22\x06\0\0\0\0\0\0\0\x09\x01\xbb\x02\x04" + V4.packed + b"\x10" + V6.packed,
    ),
    (
        Dial(9, "example.com", 443),
        b"\x00\x17\x06\0\0\0\0\0\0\0\x09\x01\xbb\x00example.com",
    ),
    (
        Dialled(9, DialOutcome.CONNECTED, 1500, V4, 50_000),
        b"\x00\x15\x07\0\0\0\0\0\0\0\x09\x00\x00\x00\x05\xdc\xc3\x50\x04" + V4.packed,
    ),
    (
        Dialled(9, DialOutcome.REFUSED, 1500, None, 0),
        b"\x00\x11\x07\0\0\0\0\0\0\0\x09\x01\x00\x00\x05\xdc\x00\x00\x00",
    ),
    (ExitStatus("battery"), b'\x00\x15\x08{"paused":"battery"}'),
    (
        LIMITS,
        (
            b'\x00\x54\x09{"connections":16,"bytes_per_second":0,"bytes_per_day":5000000000,'
            b'"ports":[80,443]}'
        ),
    ),
    (Drain(20), b"\x00\x03\x0a\x00\x14"),
    (Ping(b"12345678"), b"\x00\x09\x0b12345678"),
    (Pong(b"12345678"), b"\x00\x09\x0c12345678"),
    (Encrypt(3), b"\x00\x03\x13\x00\x03"),
    (Associate(9), b"\x00\x09\x12\0\0\0\0\0\0\0\x09"),
    (
        Nodes((Node("exits.example.com", 1090, "ab"),)),
        b'\x00\x2c\x11{"nodes":[["exits.example.com",1090,"ab"]]}',
    ),
    (
        Lend(3, "node2.example", 1090, 7),
        b'\x00\x3f\x0d{"number":3,"host":"node2.example","port":1090,"attachment":7}',
    ),
    (For(3, b"\x00\x03\x05\x00\x03"), b"\x00\x0e\x0e\0\0\0\0\0\0\0\x03\x00\x03\x05\x00\x03"),
    (Lent(3, "unreachable"), b'\x00\x22\x0f{"number":3,"code":"unreachable"}'),
    (Return(3), b"\x00\x09\x10\0\0\0\0\0\0\0\x03"),
    (
        Tunnel(1, "t0ken", "0.2.0"),
        b'\x00\x31\x14{"protocol":1,"token":"t0ken","version":"0.2.0"}',
    ),
    (Tunnelled(7, 30), b'\x00\x28\x15{"attachment":7,"heartbeat_seconds":30}'),
    (
        Open(9, b"t" * 16, "01a1", 3, 8888),
        b"\x00\x23\x16" + bytes(7) + b"\x09" + b"t" * 16 + b"\x00\x00\x00\x03\x22\xb801a1",
    ),
    (
        Deny(("198.51.100.0/24",), ("192.0.2.7",), (1080,)),
        (
            b'\x00\x53\x17{"networks":["198.51.100.0/24"],"addresses":["192.0.2.7"],"ports":[1080],'
            b'"left":0}'
        ),
    ),
    (Call(b"n" * 16, V4, 1090), b"\x00\x17\x18" + b"n" * 16 + b"\x04\x42" + V4.packed),
    (Seen("192.0.2.7"), b'\x00\x18\x19{"address":"192.0.2.7"}'),
]


def read(*segments: bytes) -> list[Frame]:
    """Return the frames that a reader finds in bytes that arrive in segments."""
    reader = FrameReader()
    return [frame for segment in segments for frame in reader.receive_data(segment)]


def framed(kind: int, body: bytes) -> bytes:
    """Return a frame of any type and body, right or wrong."""
    return (1 + len(body)).to_bytes(2, "big") + bytes([kind]) + body


# --- encoding ------------------------------------------------------------------------------------


@cases(("frame", "data"), RECORDED)
def test_a_frame_has_the_bytes_that_it_always_had(frame: Frame, data: bytes) -> None:
    assert encode(frame) == data
    assert read(data) == [frame]


def test_every_type_is_recorded() -> None:
    assert {data[2] for _, data in RECORDED} == set(Kind)


integers = st.integers(0, (1 << 64) - 1)
ports = st.integers(1, 65_535)
lines = st.text(st.characters(codec="utf-8").filter(str.isprintable), max_size=40)
names = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255)
addresses = st.ip_addresses()
limits = st.builds(
    ServiceLimits, integers, integers, integers, st.lists(ports, max_size=100).map(tuple), lines
)
capacities = st.builds(
    Capacity, integers, integers, st.lists(ports, max_size=100).map(tuple), integers
)
any_frame = st.one_of(
    st.builds(
        Hello,
        integers,
        lines,
        lines,
        lines,
        st.lists(lines, max_size=5).map(tuple),
        lines,
        lines,
        st.none() | capacities,
    ),
    st.builds(Over, integers),
    st.builds(Welcome, integers, lines, lines, lines, integers, limits, integers),
    st.builds(Sorry, lines, lines, integers),
    st.builds(
        Tickets,
        integers,
        st.lists(st.binary(min_size=16, max_size=16), max_size=TICKETS_MAX).map(tuple),
    ),
    st.builds(Park, st.integers(0, 65_535)),
    st.builds(
        Dial,
        integers,
        names | st.lists(addresses, min_size=1, max_size=CANDIDATES_MAX).map(tuple),
        ports,
    ),
    st.builds(
        Dialled,
        integers,
        st.sampled_from(DialOutcome),
        st.integers(0, (1 << 32) - 1),
        st.none() | addresses,
        st.integers(0, 65_535),
    ),
    st.builds(ExitStatus, lines),
    limits,
    st.builds(Drain, st.integers(0, 65_535)),
    st.builds(Ping, st.binary(min_size=8, max_size=8)),
    st.builds(Pong, st.binary(min_size=8, max_size=8)),
    st.builds(Lend, integers, lines, st.integers(0, 65_535), integers),
    st.builds(For, integers, st.binary(max_size=300)),
    st.builds(Lent, integers, lines),
    st.builds(Return, integers),
    st.builds(Tunnel, integers, lines, lines),
    st.builds(Tunnelled, integers, integers),
    st.builds(
        Open,
        integers,
        st.binary(min_size=16, max_size=16),
        names,
        st.integers(0, (1 << 32) - 1),
        ports,
    ),
    st.builds(Nodes, st.lists(st.builds(Node, lines, ports, lines), max_size=8).map(tuple)),
)


@settings(deadline=None)
@given(st.lists(any_frame, max_size=6), st.lists(st.integers(1, 700), min_size=1, max_size=30))
@example([frame for frame, _ in RECORDED], [1])
def test_frames_arrive_whole_however_they_are_cut(said: list[Frame], sizes: list[int]) -> None:
    data = b"".join(map(encode, said))
    segments, turn = [], 0
    while data:
        size = sizes[turn % len(sizes)]
        segments.append(data[:size])
        data, turn = data[size:], turn + 1
    heard = read(*segments)
    assert heard == said
    assert [type(each) for each in heard] == [type(each) for each in said]


def test_bytes_are_taken_although_the_frames_are_not_read_yet() -> None:
    reader, data = FrameReader(), encode(Park(3)) + encode(Park(4))
    reader.receive_data(data[:3])
    first = reader.receive_data(data[3:])
    assert next(first) == Park(3)
    assert list(reader.receive_data(encode(Park(5)))) == [Park(4), Park(5)]


@pytest.mark.parametrize(
    "frame",
    [
        Tickets((1 << 64) - 1, (b"t" * 16,) * TICKETS_MAX),
        Dial(1, "n" * NAME_MAX_BYTES, 65_535),
        Dial(1, (V6,) * CANDIDATES_MAX, 65_535),
        ServiceLimits(1, 1, 1, tuple(range(65_000, 65_535))),
        Sorry("code", "\N{GRINNING FACE}" * TEXT_MAX_CHARACTERS, 0),
        For(1, encode(Tickets(1, (b"t" * 16,) * TICKETS_MAX))),
        Hello(
            1,
            "t" * 100,
            "v" * 100,
            "s" * 500,
            ("dns", "udp"),
            "a" * 64,
            "p" * 500,
            Capacity(1 << 32, 1 << 32, tuple(range(65_000, 65_000 + PORTS_SAID_MAX)), 1 << 32),
        ),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_largest_frames_fit(frame: Frame) -> None:
    assert len(encode(frame)) <= 2 + FRAME_MAX_BYTES
    assert read(encode(frame)) == [frame]


@cases(
    "frame",
    [
        Tickets(1, (b"short",)),
        Open(1, b"short", "job", 1, 80),
        Open(1, b"t" * 16, "job", 1, 0),
        Open(1, b"t" * 16, "a job", 1, 80),
        Tickets(1, (b"t" * 16,) * (TICKETS_MAX + 1)),
        Tickets(1 << 64, ()),
        Park(65_536),
        Park(-1),
        Dial(1, "", 443),
        Dial(1, (), 443),
        Dial(1, "example.com", 0),
        Dial(1, "example.com", 65_536),
        Dial(1, "n" * (NAME_MAX_BYTES + 1), 443),
        Dial(1, "ex ample", 443),
        Dial(1, "b\u00fccher.example", 443),
        Dialled(1, DialOutcome.CONNECTED, 0, V4, -1),
        Ping(b"1234567"),
        ServiceLimits(1, 1, 1, tuple(range(60_000, 61_000))),
        ExitStatus("p" * FRAME_MAX_BYTES),
        For(1, bytes(FRAME_MAX_BYTES)),
        Return(1 << 64),
    ],
)
def test_a_frame_that_the_other_side_would_refuse_is_not_sent(frame: Frame) -> None:
    with pytest.raises(FrameError, match=type(frame).__name__):
        encode(frame)


def test_of_too_many_addresses_the_first_ones_are_sent() -> None:
    many = tuple(IPv4Address(each) for each in range(1, 10))
    assert read(encode(Dial(1, many, 443))) == [Dial(1, many[:CANDIDATES_MAX], 443)]


def test_a_broken_text_of_the_machine_is_still_sent() -> None:
    assert read(encode(ExitStatus("b\udcfccher"))) == [ExitStatus("b?cher")]


@cases(("micros", "said"), [(-5, 0), (1 << 40, (1 << 32) - 1)])
def test_a_clock_that_leaps_is_no_reason_to_say_nothing(micros: int, said: int) -> None:
    [frame] = read(encode(Dialled(1, DialOutcome.TIMED_OUT, micros, None, 0)))
    assert frame == Dialled(1, DialOutcome.TIMED_OUT, said, None, 0)


# --- frames of neighbouring versions -------------------------------------------------------------


@cases("kind", sorted(set(range(256)) - set(Kind)))
def test_a_type_of_another_version_is_passed_over(kind: int) -> None:
    assert read(framed(kind, b"whatever") + encode(Park(1)) + framed(kind, b"")) == [Park(1)]


def documents(frame: Frame) -> dict[str, object]:
    fields = json.loads(encode(frame)[3:])
    assert isinstance(fields, dict)
    return fields


JSON_FRAMES = [frame for frame, data in RECORDED if data[3:4] == b"{"]


@cases("frame", JSON_FRAMES)
def test_a_field_of_a_later_version_is_passed_over(frame: Frame) -> None:
    fields = documents(frame) | {"later": [{"x": 1.5}], "": None}
    if isinstance(frame, Welcome):
        fields["limits"] = documents(frame.limits) | {"hours": "08-22"}
    kind = encode(frame)[2]
    assert read(framed(kind, json.dumps(fields, indent=1).encode())) == [frame]


@cases("frame", JSON_FRAMES)
def test_a_field_that_is_missing_or_of_another_kind_is_no_frame(frame: Frame) -> None:
    fields, kind = documents(frame), encode(frame)[2]
    for key in fields:
        without = {each: value for each, value in fields.items() if each != key}
        absent = [] if key == "capacity" else [without]  # older exits have no such field
        for wrong in (*absent, *(fields | {key: value} for value in (None, 1.5, True, {}, -1))):
            with pytest.raises(FrameError, match="cannot be understood"):
                read(framed(kind, json.dumps(wrong).encode()))


def test_an_outcome_of_a_later_version_is_a_failure() -> None:
    data = bytearray(encode(Dialled(9, DialOutcome.REFUSED, 1, None, 0)))
    data[11] = 200
    assert read(bytes(data)) == [Dialled(9, DialOutcome.FAILED, 1, None, 0)]


@cases("said", ["two\nlines", "\x1b[31mred", "nul\0", "\u202eback", "\ud800", "\x7f", "\x85"])
def test_a_text_becomes_one_line_that_can_be_shown(said: str) -> None:
    [frame] = read(framed(Kind.STATE, json.dumps({"paused": said}).encode()))
    assert isinstance(frame, ExitStatus)
    assert frame.paused.isprintable()
    assert len(frame.paused) == len(said)
    frame.paused.encode()


# --- bytes that are no frame ---------------------------------------------------------------------


@cases(
    "data",
    [
        b"\0\0",
        b"\0\0\x05",
        (FRAME_MAX_BYTES + 1).to_bytes(2, "big") + b"\x05",
        b"\xff\xff\x00",
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        framed(Kind.PARK, b""),
        framed(Kind.PARK, b"\0\0\0"),
        framed(Kind.DRAIN, b"\0"),
        framed(Kind.PING, b"1234567"),
        framed(Kind.PONG, b"123456789"),
        framed(Kind.TICKETS, b"\0" * 7),
        framed(Kind.TICKETS, b"\0" * 8 + b"t" * 15),
        framed(Kind.TICKETS, b"\0" * 8 + b"t" * 16 * (TICKETS_MAX + 1)),
        framed(Kind.DIAL, b"\0" * 8 + b"\0\0\x00name"),  # port 0
        framed(Kind.DIAL, b"\0" * 8 + b"\x01\xbb\x00"),  # no name
        framed(Kind.DIAL, b"\0" * 8 + b"\x01\xbb\x00" + b"n" * 256),
        framed(Kind.DIAL, b"\0" * 8 + b"\x01\xbb\x00a\x1b[2J"),
        framed(Kind.DIAL, b"\0" * 8 + b"\x01\xbb\x00b\xc3\xbccher"),
        framed(Kind.DIAL, b"\0" * 8 + b"\x01\xbb\x05" + (b"\x04" + V4.packed) * 5),
        framed(Kind.DIAL, b"\0" * 8 + b"\x01\xbb\x01"),
        framed(Kind.DIAL, b"\0" * 8 + b"\x01\xbb\x01\x04\x01\x02\x03"),
        framed(Kind.DIAL, b"\0" * 8 + b"\x01\xbb\x01\x05" + b"12345"),
        framed(Kind.DIAL, b"\0" * 8 + b"\x01\xbb\x01\x04" + V4.packed + b"x"),
        framed(Kind.DIALLED, b"\0" * 15),
        framed(Kind.DIALLED, b"\0" * 15 + b"\x04" + b"123"),
        framed(Kind.DIALLED, b"\0" * 15 + b"\x05" + b"12345"),
        framed(Kind.FOR, b"\0" * 7),
        framed(Kind.RETURN, b"\0" * 9),
        framed(Kind.LEND, b'{"number":1,"host":"h","port":65536,"attachment":1}'),
        framed(Kind.HELLO, b""),
        framed(Kind.STATE, b"[]"),
        framed(Kind.STATE, b"null"),
        framed(Kind.STATE, b'"paused"'),
        framed(Kind.STATE, b'{"paused":"\xff"}'),
        framed(Kind.STATE, b'{"paused":"a\nb"}'),
        framed(Kind.STATE, json.dumps({"paused": "p" * (TEXT_MAX_CHARACTERS + 1)}).encode()),
        framed(Kind.STATE, b"[" * 4000),
        framed(Kind.STATE, b'{"paused":' * 400),
        framed(Kind.SORRY, b'{"code":"a","words":"b","retry_seconds":' + b"9" * 4000 + b"}"),
        framed(Kind.SORRY, b'{"code":"a","words":"b","retry_seconds":18446744073709551616}'),
        framed(Kind.SORRY, b'{"code":"a","words":"b","retry_seconds":NaN}'),
        framed(
            Kind.LIMITS,
            b'{"connections":1,"bytes_per_second":1,"bytes_per_day":1,"ports":[65536]}',
        ),
        framed(
            Kind.LIMITS,
            b'{"connections":1,"bytes_per_second":1,"bytes_per_day":1,"ports":{"80":1}}',
        ),
    ],
)
def test_bytes_that_are_no_frame_are_refused_in_a_line(data: bytes) -> None:
    with pytest.raises(FrameError) as refused:
        read(data + b"\0" * 3)
    said = str(refused.value)
    assert said.isprintable()
    assert said.isascii()
    assert len(said) < 100


def test_a_length_that_cannot_be_is_never_passed() -> None:
    reader = FrameReader()
    heard = reader.receive_data(encode(Park(1)) + b"\0\0\x05" + encode(Park(2)))
    assert next(heard) == Park(1)
    for more in (heard, reader.receive_data(b""), reader.receive_data(encode(Park(3)))):
        with pytest.raises(FrameError, match="0 bytes"):
            next(more)


def test_of_a_frame_that_is_not_complete_no_more_is_kept_than_a_frame_has() -> None:
    reader, largest = FrameReader(), framed(0, bytes(FRAME_MAX_BYTES - 1))
    for each in largest[:-1]:
        assert list(reader.receive_data(bytes([each]))) == []
    assert len(reader._data) == len(largest) - 1
    assert list(reader.receive_data(largest[-1:] + encode(Park(1)))) == [Park(1)]
    assert not reader._data


@settings(max_examples=examples(500), deadline=None)
@given(st.binary(max_size=300), st.integers(1, 50))
def test_garbage_is_frames_or_an_error_and_nothing_else(data: bytes, size: int) -> None:
    reader = FrameReader()
    try:
        for start in range(0, len(data), size):
            for frame in reader.receive_data(data[start : start + size]):
                encode(frame)
    except FrameError:
        pass
    assert len(reader._data) <= 2 + FRAME_MAX_BYTES


@cases("seed", range(4))
def test_frames_with_some_bytes_changed_raise_nothing_else(seed: int) -> None:
    chance = random.Random(seed)
    heard = 0
    for _ in range(3000):
        data = bytearray(chance.choice(RECORDED)[1])
        for _ in range(chance.randint(1, 4)):
            place = chance.randrange(2, len(data))
            if chance.random() < 0.7:
                data[place] = chance.randrange(256)
            else:
                del data[place:]
                data += bytes(chance.randrange(256) for _ in range(chance.randrange(20)))
            data = data if len(data) > 2 else bytearray(RECORDED[4][1])
        data[:2] = (len(data) - 2).to_bytes(2, "big")
        try:
            for frame in read(bytes(data)):
                heard += 1
                assert read(encode(frame)) == [frame], "what was understood can be said"
        except FrameError:
            pass
    assert heard > 100, "hardly anything was understood, so hardly anything was shown"


# --- a frame inside of another -------------------------------------------------------------------


@cases(("frame", "data"), RECORDED)
def test_a_whole_frame_is_read(frame: Frame, data: bytes) -> None:
    assert frames.decode_whole(data) == frame


def test_a_whole_frame_of_another_version_is_passed_over() -> None:
    assert frames.decode_whole(framed(255, b"whatever")) is None


@cases(
    "data", [b"", b"\0", b"\0\x01", b"\0\0", b"\0\0\x05", encode(Park(1))[:-1], encode(Park(1)) * 2]
)
def test_less_or_more_than_a_frame_is_no_frame(data: bytes) -> None:
    with pytest.raises(FrameError, match="not one frame"):
        frames.decode_whole(data)


# --- the preface of a work connection ------------------------------------------------------------


class Said(NamedTuple):
    """A preface as it is sent."""

    preface: Preface
    data: bytes


PREFACE = Said(
    Preface(7, 9, b"0123456789abcdef"),
    b"W" + b"\0" * 7 + b"\x07" + b"\0" * 7 + b"\x09" + b"0123456789abcdef",
)


def test_a_preface_has_33_bytes_and_names_its_sender() -> None:
    assert PREFACE.preface.encode() == PREFACE.data
    assert len(PREFACE.data) == frames.PREFACE.size == 33
    assert Preface.decode(PREFACE.data) == PREFACE.preface


@given(integers, integers, st.binary(min_size=16, max_size=16))
def test_a_preface_is_read_as_it_was_sent(attachment: int, number: int, ticket: bytes) -> None:
    said = Preface(attachment, number, ticket)
    assert Preface.decode(said.encode()) == said


@cases("data", [b"", PREFACE.data[:32], PREFACE.data + b"x", b"w" + PREFACE.data[1:], b"\x16" * 33])
def test_bytes_that_are_no_preface_are_refused(data: bytes) -> None:
    with pytest.raises(FrameError, match="a preface"):
        Preface.decode(data)


def test_a_ticket_of_another_size_is_never_filled_up() -> None:
    with pytest.raises(AssertionError):
        Preface(1, 2, b"short").encode()
