"""The frames of each connection through an exit, read and written by compiled code.

`proxyctl.protocol.frames` knows all frames, and runs interpreted: it is a part of the agent's
program. Here are the order of a connection, its answer and its end. The bytes are the same, and so
are the errors; all other frames go through that module.

The constructor of a named tuple is interpreted, too; that of a plain tuple takes a third of the
time, and makes the same frame.
"""

from ipaddress import IPv4Address
from struct import Struct
from typing import Final, final

from market.base.networks import Address
from proxyctl.protocol.frames import (
    FRAME_MAX_BYTES,
    PORT_MAX,
    Dial,
    Dialled,
    DialOutcome,
    Frame,
    FrameError,
    Kind,
    Over,
    decode,
    encode,
)
from proxyd.wire.hosts import address_from_packed

_HEAD_BYTES: Final = 3  # the length of type and body, and the type
_LENGTH_BYTES: Final = 2
_DIAL_KIND: Final = int(Kind.DIAL)
_DIALLED_KIND: Final = int(Kind.DIALLED)
_OVER_KIND: Final = int(Kind.OVER)
_NUMBER: Final = Struct("!Q")
_NUMBER_MAX: Final = (1 << 64) - 1
_DIALLED: Final = Struct("!QBIHB")
# With the head, and one address behind the count of addresses and its length.
_DIAL_OF_IPV4: Final = Struct("!HBQHBBI")
_IPV4_BYTES: Final = 4
_ADDRESS_BYTES: Final = (0, 4, 16)  # of an answer: no address, or one of either family
_OUTCOMES: Final = {int(outcome): outcome for outcome in DialOutcome}
_FAILED: Final = DialOutcome.FAILED
_new: Final = tuple.__new__


def dial_of(number: int, host: tuple[Address, ...] | str, port: int) -> Dial:
    """Return an order."""
    return _new(Dial, (number, host, port))


def encode_dial(frame: Dial) -> bytes:
    """Return the bytes of an order, as `encode` does.

    Raises:
        FrameError: it has no bytes that the exit would take.
    """
    host = frame.host
    if (
        not isinstance(host, str)
        and len(host) == 1
        and 1 <= frame.port <= PORT_MAX
        and 0 <= frame.number <= _NUMBER_MAX
    ):
        address = host[0]
        if isinstance(address, IPv4Address):
            size = _DIAL_OF_IPV4.size - _LENGTH_BYTES
            number, port = frame.number, frame.port
            return _DIAL_OF_IPV4.pack(size, _DIAL_KIND, number, port, 1, _IPV4_BYTES, int(address))
    return encode(frame)


@final
class QuickReader:
    """Takes bytes as they come, and returns frame by frame, as `FrameReader` does."""

    __slots__ = ("_at", "_data")

    def __init__(self) -> None:
        self._data = b""
        self._at = 0  # where the next frame begins

    def receive_data(self, data: bytes) -> None:
        """Take bytes."""
        self._data = self._data[self._at :] + data
        self._at = 0

    def next_frame(self) -> Frame | None:
        """Return the next frame of a known type; None if no whole one is left.

        Raises:
            FrameError: the other side does not speak the protocol.
        """
        data = self._data
        at = self._at
        while len(data) - at >= _HEAD_BYTES:
            size = data[at] << 8 | data[at + 1]
            if not 1 <= size <= FRAME_MAX_BYTES:
                raise FrameError(f"a frame of {size} bytes")
            end = at + _LENGTH_BYTES + size
            if len(data) < end:
                break
            self._at = end
            frame = _frame(data[at + _LENGTH_BYTES], data, at + _HEAD_BYTES, end)
            if frame is not None:
                return frame
            at = end
        if at == len(data):  # bytes that were read need no memory
            self._data, self._at = b"", 0
        return None


def _frame(kind: int, data: bytes, at: int, end: int) -> Frame | None:
    """Return the frame of a type whose body is between two positions."""
    if kind == _OVER_KIND and end - at == _NUMBER.size:
        return _new(Over, _NUMBER.unpack_from(data, at))
    if kind == _DIALLED_KIND and end - at - _DIALLED.size in _ADDRESS_BYTES:
        number, outcome, micros, port, size = _DIALLED.unpack_from(data, at)
        at_address = at + _DIALLED.size
        if size == end - at_address:
            address = address_from_packed(data[at_address:end]) if size else None
            result = _OUTCOMES.get(outcome, _FAILED)
            return _new(Dialled, (number, result, micros, address, port))
    return decode(kind, data[at:end])
