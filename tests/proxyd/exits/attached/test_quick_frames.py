"""The compiled frames have the same bytes and errors as those of the agents' module."""

from collections.abc import Callable
from ipaddress import ip_address
from random import Random

from support.base.cases import cases

from proxyctl.protocol.frames import (
    Dial,
    Dialled,
    DialOutcome,
    Frame,
    FrameError,
    FrameReader,
    Over,
    Ping,
    Pong,
    encode,
)
from proxyd.exits.attached.quick_frames import QuickReader, encode_dial

V4, V6 = ip_address("192.0.2.1"), ip_address("2001:db8::1")
ANSWERS = (
    Over((1 << 64) - 1),
    Dialled(7, DialOutcome.CONNECTED, 1234, V4, 50_000),
    Ping(b"12345678"),
    Dialled(8, DialOutcome.REFUSED, 0, None, 0),
    Dialled(1 << 63, DialOutcome.FAILED, 0xFFFFFFFF, V6, 65_535),
    Pong(b"12345678"),
    Over(0),
)


@cases(
    "dial",
    [
        Dial(1, (V4,), 443),
        Dial((1 << 64) - 1, (ip_address("255.255.255.255"),), 65_535),
        Dial(2, (V6,), 80),
        Dial(3, (V4, V6, V4), 80),
        Dial(4, "example.com", 443),
    ],
)
def test_an_order_has_the_usual_bytes(dial: Dial) -> None:
    assert encode_dial(dial) == encode(dial)


@cases(
    "dial",
    [
        Dial(1, (V4,), 0),
        Dial(1, (V4,), 65_536),
        Dial(1 << 64, (V4,), 443),
        Dial(-1, (V4,), 443),
        Dial(1, (), 443),
        Dial(1, "a b", 443),
    ],
)
def test_an_impossible_order_has_the_usual_error(dial: Dial) -> None:
    errors = []
    for encoding in (encode, encode_dial):
        try:
            encoding(dial)
        except FrameError as error:
            errors.append(str(error))
    assert len(errors) == 2
    assert errors[0] == errors[1]


def usual(chunks: list[bytes]) -> list[Frame | str]:
    """Return the frames of `FrameReader`, and the words of an error."""
    reader = FrameReader()
    return _read(chunks, lambda data, found: found.extend(reader.receive_data(data)))


def quick(chunks: list[bytes]) -> list[Frame | str]:
    """Return the frames of `QuickReader`, and the words of an error."""
    reader = QuickReader()

    def read(data: bytes, found: list[Frame | str]) -> None:
        reader.receive_data(data)
        while (frame := reader.next_frame()) is not None:
            found.append(frame)

    return _read(chunks, read)


def _read(
    chunks: list[bytes], read: Callable[[bytes, list[Frame | str]], None]
) -> list[Frame | str]:
    found: list[Frame | str] = []
    try:
        for each in chunks:
            read(each, found)
    except FrameError as error:
        found.append(str(error))
    return found


def test_frames_and_errors_of_any_bytes_in_any_pieces_are_the_usual_ones() -> None:
    whole = b"".join(map(encode, ANSWERS))
    assert quick([whole]) == list(ANSWERS)
    chance = Random(7)
    errors = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.randrange(4)):
            data[chance.randrange(len(data))] = chance.choice((0, 1, 4, 7, 9, 16, 26, 255))
        cut = chance.randrange(len(data))
        chunks = [bytes(data[:cut]), bytes(data[cut:])]
        found = quick(chunks)
        assert found == usual(chunks), chunks
        errors += bool(found) and isinstance(found[-1], str)
    assert errors > 100
