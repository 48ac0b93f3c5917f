"""The frames between nodes: every one, cut anywhere, and bytes that are no frame."""

import json
import random
import string
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.base.cases import cases

from proxyctl.protocol import frames
from proxyctl.protocol.frames import FrameError, FrameReader, ServiceLimits
from proxyd.wire import links
from proxyd.wire.links import (
    DIALLED,
    DIALLER,
    FRAME_MAX_BYTES,
    PARCEL_BYTES,
    Accepted,
    AnnouncedExit,
    Borrow,
    Borrowed,
    Carrying,
    Exits,
    Frame,
    Gone,
    Greeting,
    Kind,
    Leaving,
    LinkReader,
    LoanNumbers,
    Moved,
    Passed,
    Ping,
    Pong,
    Recheck,
    Return,
    encode,
    encode_exits,
    is_link,
    link_key,
    proof,
)

LIMITS = ServiceLimits(16, 0, 5_000_000_000, (80, 443))
EXIT = AnnouncedExit(
    "device",
    "owner",
    1_700_000_000_123,
    "",
    False,
    7,
    "de",
    "berlin",
    "berlin",
    3320,
    "residential",
    "198.51.100.7",
    "198.51.100.7",
    LIMITS,
    ("dns",),
    25_000,
)
PROOF = bytes(range(32))

# Version 1 as it was first sent: nodes are updated one after the other.
RECORDED: list[tuple[Frame, bytes]] = [
    (
        Greeting(1, "a", "b", PROOF),
        b'\x00\x4f\x80[1,"a","b","' + PROOF.hex().encode() + b'"]',
    ),
    (Accepted("b", PROOF), b'\x00\x49\x81["b","' + PROOF.hex().encode() + b'"]'),
    (
        Exits((EXIT,)),
        (
            b'\x00\x9f\x82[["device","owner",1700000000123,"",false,7,"de","berlin","berlin",3320,'
            b'"residential","198.51.100.7","198.51.100.7",[16,0,5000000000],[80,443],["dns"],25000]]'
        ),
    ),
    (Gone("device"), b"\x00\x07\x83device"),
    (Recheck("device"), b"\x00\x07\x84device"),
    (
        Borrow(9, "device", "192.0.2.7", 1090, 7),
        (b'\x00\x29\x85\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x07\x04\x42["device","192.0.2.7"]'),
    ),
    (Borrowed(9, "gone"), b"\x00\x0d\x86\0\0\0\0\0\0\0\x09gone"),
    (Passed(9, b"\x00\x01\x05"), b"\x00\x0c\x87\0\0\0\0\0\0\0\x09\x00\x01\x05"),
    (Carrying(9, 3, 5_000), b"\x00\x15\x8d\0\0\0\0\0\0\0\x09\0\0\0\x03\0\0\0\0\0\0\x13\x88"),
    (Return(9), b"\x00\x09\x88\0\0\0\0\0\0\0\x09"),
    (Ping(b"12345678"), b"\x00\x09\x8912345678"),
    (Pong(b"12345678"), b"\x00\x09\x8a12345678"),
    (Leaving(), b"\x00\x01\x8b"),
    (Moved("session", "label"), b'\x00\x14\x8c["session","label"]'),
]


def read(*segments: bytes) -> list[Frame]:
    """Return the frames that a reader finds in bytes that arrive in segments."""
    reader = LinkReader()
    return [frame for segment in segments for frame in reader.receive_data(segment)]


def framed(kind: int, body: bytes) -> bytes:
    """Return a frame of any type and body, right or wrong."""
    return (1 + len(body)).to_bytes(2, "big") + bytes([kind]) + body


@cases(("frame", "data"), RECORDED)
def test_a_frame_has_the_bytes_that_it_always_had(frame: Frame, data: bytes) -> None:
    assert encode(frame) == data
    assert read(data) == [frame]


def test_every_type_is_recorded() -> None:
    assert {data[2] for _, data in RECORDED} == set(Kind)


@given(st.lists(st.integers(1, 40), max_size=30))
@settings(deadline=None)
def test_frames_are_cut_anywhere(sizes: list[int]) -> None:
    data = b"".join(data for _, data in RECORDED)
    segments = []
    for size in sizes:
        segments.append(data[:size])
        data = data[size:]
    assert read(*segments, data) == [frame for frame, _ in RECORDED]


def test_no_type_is_also_one_of_an_agent() -> None:
    assert not {int(each) for each in Kind} & {int(each) for each in frames.Kind}
    assert is_link(encode(Greeting(1, "a", "b", PROOF)))
    assert not is_link(frames.encode(frames.Ping(b"12345678")))
    assert not is_link(b"\x00")


def test_an_agents_reader_ignores_the_frames_of_a_node() -> None:
    reader = FrameReader()
    assert not list(reader.receive_data(encode(Greeting(1, "a", "b", PROOF))))


def test_an_unknown_type_is_ignored() -> None:
    assert read(framed(250, b"anything"), encode(Leaving())) == [Leaving()]
    assert read(framed(1, b"{}"), encode(Leaving())) == [Leaving()]


def test_bytes_behind_the_last_known_field_are_ignored() -> None:
    [fields] = json.loads(encode(Exits((EXIT,)))[3:])
    data = framed(Kind.EXITS, json.dumps([[*fields, {"new": 1}]]).encode())
    assert read(data) == [Exits((EXIT,))]


@cases(
    ("kind", "body"),
    [
        (Kind.GREETING, b"[]"),
        (Kind.GREETING, b'[1,"a","b","00"]'),
        (Kind.GREETING, b'[1,"a","b","zz"]'),
        (Kind.ACCEPTED, b'["a"]'),
        (Kind.EXITS, b"{}"),
        (Kind.EXITS, b"[1]"),
        (Kind.EXITS, b"[[1,2,3]]"),
        (Kind.EXITS, b"[" * 3000),
        (Kind.EXITS, links._json([links._listed(EXIT._replace(address="nowhere"))]).encode()),
        (Kind.GONE, b"\xff"),
        (Kind.GONE, b"x" * 501),
        (Kind.BORROW, b"12345678"),
        (Kind.BORROW, bytes(16) + b"\x00\x00" + b'["a","b"]'),
        (Kind.BORROWED, b"1234"),
        (Kind.PASSED, b"12345678"),
        (Kind.PASSED, bytes(8 + 4096 + 3)),
        (Kind.RETURN, b"123456789"),
        (Kind.PING, b"1234567"),
        (Kind.PONG, b""),
    ],
)
def test_a_body_that_is_none_of_its_type_is_refused(kind: int, body: bytes) -> None:
    with pytest.raises(FrameError):
        read(framed(kind, body))


@cases("size", [0, FRAME_MAX_BYTES + 1, 65_535])
def test_a_frame_of_no_size_or_too_much_is_refused(size: int) -> None:
    with pytest.raises(FrameError):
        read(size.to_bytes(2, "big") + bytes([Kind.PING]))


def test_a_text_becomes_one_line() -> None:
    [frame] = read(framed(Kind.GONE, b"de\nvi\x1bce"))
    assert frame == Gone("de?vi?ce")


def test_many_exits_take_several_frames_of_a_bounded_size() -> None:
    exits = [EXIT._replace(device_id=f"device {number}") for number in range(1_000)]
    parcels = list(encode_exits(exits))
    assert len(parcels) > 5
    assert max(len(each) for each in parcels) < PARCEL_BYTES + 1_000
    announced = [each for frame in read(*parcels) for each in frame.exits]  # type: ignore[union-attr]
    assert announced == exits


def test_an_exit_with_all_its_fields_fits_into_a_frame() -> None:
    words = "\N{SNOWMAN}" * 100
    ports = tuple(range(64_000, 64_000 + links.PORTS_MAX))
    widest = EXIT._replace(paused=words, city=words, limits=ServiceLimits(1, 2, 3, ports))
    [parcel] = encode_exits([widest])
    assert read(parcel) == [Exits((widest,))]


def test_an_exit_that_fits_into_no_frame_is_refused() -> None:
    with pytest.raises(FrameError):
        list(encode_exits([EXIT._replace(limits=ServiceLimits(1, 2, 3, (443,) * 10_000))]))


def test_both_sides_number_loans_without_meeting() -> None:
    one, other = LoanNumbers(is_dialler=True), LoanNumbers(is_dialler=False)
    assert not {one.take() for _ in range(10)} & {other.take() for _ in range(10)}


def test_a_proof_is_good_for_one_pair_one_certificate_and_one_side() -> None:
    key = link_key(b"k" * 40)
    proofs = {
        proof(key, DIALLER, "f", "a", "b"),
        proof(key, DIALLED, "f", "a", "b"),
        proof(key, DIALLER, "g", "a", "b"),
        proof(key, DIALLER, "f", "b", "a"),
        proof(key, DIALLER, "f", "a", "c"),
        proof(link_key(b"l" * 40), DIALLER, "f", "a", "b"),
    }
    assert len(proofs) == 6


# --- fuzz ----------------------------------------------------------------------------------------


def test_any_bytes_are_frames_or_refused() -> None:
    chance = random.Random(1)
    for _ in range(3_000):
        body = bytes(chance.randrange(256) for _ in range(chance.randrange(60)))
        if chance.random() < 0.5:
            body = "".join(chance.choice(string.printable) for _ in range(30)).encode()
        data = framed(chance.choice([*map(int, Kind), chance.randrange(256)]), body)
        with suppress(FrameError):
            for frame in read(data):
                encode(frame)


def test_a_frame_with_one_changed_byte_is_a_frame_or_refused() -> None:
    chance = random.Random(2)
    for _ in range(3_000):
        data = bytearray(chance.choice(RECORDED)[1])
        data[chance.randrange(2, len(data))] = chance.randrange(256)
        with suppress(FrameError):
            read(bytes(data))
