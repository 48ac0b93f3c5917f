"""The frames between two nodes, over the one connection (link) that they keep.

Theory of operation
-------------------
Nodes of one database keep a link with one another, over TLS, so that each knows the exits of all:

    the node that dials                          the node that is dialled
    Greeting: its name, and a proof --------------->
             <-------------- Accepted: its name, and a proof
    Exits, Gone, Leaving ... both ways, whenever something has changed
    Recheck, Moved ... both ways: look at a device, or the exit of a label, again
    Ping, Pong ... both ways, a heartbeat

A link begins with nothing known: each side announces every exit that is attached to it (`Exits`),
then each change. An announcement ends with its link.

A node that has a buyer for an exit of the other one borrows it (`Borrow`, `Borrowed`), and then
speaks with the exit's agent through the other node: `Passed` holds one frame of
`proxyctl.protocol.frames`, to the agent or from it. `Return` ends that, from either side.

A frame is a length of two bytes (of the rest), a type of one byte and a body. The types are other
numbers than those of an agent's frames: so the first frame tells an agent from a node. Frames of an
unknown type are ignored, and so are the fields of an announcement behind its last known field:
nodes of neighbouring versions work together. Numbers are unsigned and big-endian.
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from ipaddress import ip_address
from struct import Struct, error
from typing import Any, Final, NamedTuple

from proxyctl.protocol.frames import FRAME_MAX_BYTES as AGENT_FRAME_MAX_BYTES
from proxyctl.protocol.frames import (
    PORT_MAX,
    FrameError,
    Reader,
    ServiceLimits,
    integer_of,
    line_of,
)

VERSION: Final = 1
FRAME_MAX_BYTES: Final = 32 * 1024  # type and body
# Of a frame with exits: it is handled without a pause, and each of some 20 exits may take 250 us to
# be filed beside 100,000.
PARCEL_BYTES: Final = 4 * 1024
EXITS_MAX: Final = 256  # in one frame
PING_BYTES: Final = 8
PORTS_MAX: Final = 1024  # of targets, that an exit may be requested for
FEATURES_MAX: Final = 32
PROOF_BYTES: Final = 32

_HEAD: Final = Struct("!HB")
_LENGTH: Final = Struct("!H")
_NUMBER: Final = Struct("!Q")
_BORROW: Final = Struct("!QQH")
_CARRYING: Final = Struct("!QIQ")
_KEY_PURPOSE: Final = b"proxyd: links between nodes"


class Kind(IntEnum):
    """The type of a frame; see `proxyctl.protocol.frames.Kind` for those below 128."""

    GREETING = 128
    ACCEPTED = 129
    EXITS = 130
    GONE = 131
    RECHECK = 132
    BORROW = 133
    BORROWED = 134
    PASSED = 135
    RETURN = 136
    PING = 137
    PONG = 138
    LEAVING = 139
    MOVED = 140
    CARRYING = 141


class Greeting(NamedTuple):
    """A node has dialled another one; `proof` shows that it has the cluster's key."""

    protocol: int
    node_id: str
    to_node_id: str
    proof: bytes


class Accepted(NamedTuple):
    """The node that was dialled, with a proof of its own."""

    node_id: str
    proof: bytes


class AnnouncedExit(NamedTuple):  # as wide as an announcement
    """An exit that is attached to the node that announces it, or a change of one.

    `since` is when it attached, in UTC milliseconds; `min_price_per_gb` is micro-USD. `paused` says
    why it carries nothing, empty when it does; `is_spent` that its bytes of the day are used up.
    `country` to `kind` are its place, `network` is the network for its limits. `features` are those
    that its agent has told. `rtt_micros` is the round trip from its node to it, in microseconds.
    """

    device_id: str
    owner_id: str
    since: int
    paused: str
    is_spent: bool
    min_price_per_gb: int
    country: str
    state: str
    city: str
    asn: int
    kind: str
    network: str
    address: str
    limits: ServiceLimits
    features: tuple[str, ...]
    rtt_micros: int


class Exits(NamedTuple):
    """Exits that are attached to the sender; an exit that was announced before has changed."""

    exits: tuple[AnnouncedExit, ...]


class Gone(NamedTuple):
    """An announced exit is no longer attached to the sender."""

    device_id: str


class Recheck(NamedTuple):
    """The permissions of a device have changed: query the marketplace again."""

    device_id: str


class Leaving(NamedTuple):
    """The sender takes no further exits, and ends soon."""


class Moved(NamedTuple):
    """A label of a session has another exit than before, which the store knows."""

    session_id: str
    label: str


class Borrow(NamedTuple):
    """The sender wants work connections of an exit that is attached to the receiver.

    They are to come to `host` and `port`, and to name `attachment`. `number` tells this loan from
    all others of the link: see `LoanNumbers`.
    """

    number: int
    device_id: str
    host: str
    port: int
    attachment: int


class Borrowed(NamedTuple):
    """Reason, in a word, why an exit is not lent or its loan has ended."""

    number: int
    code: str


class Passed(NamedTuple):
    """One frame (`proxyctl.protocol.frames`) to the agent of a lent exit, or from it."""

    number: int
    frame: bytes


class Return(NamedTuple):
    """A loan is over."""

    number: int


class Carrying(NamedTuple):
    """The traffic through a borrowed exit: connections now, and bytes since it was borrowed."""

    number: int
    connections: int
    size: int


class Ping(NamedTuple):
    """Request for a sign of life."""

    payload: bytes


class Pong(NamedTuple):
    """Answer to `Ping`, with its payload."""

    payload: bytes


Loan = Borrow | Borrowed | Passed | Return | Carrying  # about lent exits
Frame = Greeting | Accepted | Exits | Gone | Recheck | Leaving | Moved | Ping | Pong | Loan


class LoanNumbers:
    """Numbers of loans that both sides of a link give out, and never the same.

    Args:
        is_dialler: whether this side has dialled the other one.
    """

    __slots__ = ("_next",)

    def __init__(self, *, is_dialler: bool) -> None:
        self._next = 1 if is_dialler else 2

    def take(self) -> int:
        """Return the next number."""
        number = self._next
        self._next += 2
        return number


class LinkReader(Reader[Frame]):
    """Reads the frames of a link."""

    def __init__(self) -> None:
        super().__init__(decode, FRAME_MAX_BYTES)


def is_link(data: bytes) -> bool:
    """Return whether the first bytes of a connection, at least three, are those of a node."""
    return len(data) >= _HEAD.size and data[_LENGTH.size] == Kind.GREETING


def link_key(signing_key: bytes) -> bytes:
    """Return the key of proofs, which every node derives from the common signing key."""
    return hmac.digest(signing_key, _KEY_PURPOSE, hashlib.sha256)


def proof(key: bytes, speaker: bytes, fingerprint: str, dialler: str, dialled: str) -> bytes:
    """Return the proof that a node has the cluster's key; it is valid only for this pair.

    Args:
        key: see `link_key`.
        speaker: the side that shows it: `DIALLER` or `DIALLED`.
        fingerprint: of the certificate that the dialled node has shown (SHA-256, hexadecimal).
        dialler: the node that has dialled.
        dialled: the other one.
    """
    text = json.dumps([speaker.decode("ascii"), fingerprint, dialler, dialled])
    return hmac.digest(key, text.encode(), hashlib.sha256)


DIALLER: Final = b"dialler"
DIALLED: Final = b"dialled"


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame.

    Raises:
        FrameError: it has no bytes that the other side would take.
    """
    name = type(frame).__name__
    kind, encoding = _ENCODING[type(frame)]
    try:
        body = encoding(frame)
    except (error, ValueError):
        raise FrameError(f"a frame of the type {name} that cannot be encoded") from None
    if len(body) >= FRAME_MAX_BYTES:
        raise FrameError(f"a frame of the type {name} with {len(body)} bytes")
    return _HEAD.pack(1 + len(body), kind) + body


def encode_exits(exits: Iterable[AnnouncedExit]) -> Iterator[bytes]:
    """Yield the bytes of the frames that announce exits.

    Raises:
        FrameError: while it yields: an exit has more to tell than fits into a frame.
    """
    parcel: list[str] = []
    size = 0
    for each in exits:
        text = _json(_listed(each))
        if parcel and (size + len(text) > PARCEL_BYTES or len(parcel) >= EXITS_MAX):
            yield _parcel(parcel)
            parcel, size = [], 0
        parcel.append(text)
        size += len(text)
    if parcel:
        yield _parcel(parcel)


def decode(kind: int, body: bytes) -> Frame | None:
    """Return the frame of a type with a body; None for an unknown type.

    Raises:
        FrameError: the body is malformed for that type.
    """
    decoding = _DECODING.get(kind)
    if decoding is None:
        return None
    try:
        return decoding(body)
    except (error, ValueError, TypeError, IndexError, RecursionError):
        name = Kind(kind).name.title()
        raise FrameError(f"a frame of the type {name} that cannot be understood") from None


def _encode_greeting(frame: Greeting) -> bytes:
    fields = [frame.protocol, frame.node_id, frame.to_node_id, _shown(frame.proof)]
    return _json(fields).encode()


def _decode_greeting(body: bytes) -> Greeting:
    fields = _list(json.loads(body))
    return Greeting(
        integer_of(fields[0]), line_of(fields[1]), line_of(fields[2]), _proof(fields[3])
    )


def _encode_accepted(frame: Accepted) -> bytes:
    return _json([frame.node_id, _shown(frame.proof)]).encode()


def _decode_accepted(body: bytes) -> Accepted:
    fields = _list(json.loads(body))
    return Accepted(line_of(fields[0]), _proof(fields[1]))


def _encode_borrow(frame: Borrow) -> bytes:
    head = _BORROW.pack(frame.number, frame.attachment, frame.port)
    return head + _json([frame.device_id, frame.host]).encode()


def _decode_borrow(body: bytes) -> Borrow:
    number, attachment, port = _BORROW.unpack_from(body)
    fields = _list(json.loads(body[_BORROW.size :]))
    if not port:
        raise ValueError
    return Borrow(number, line_of(fields[0]), line_of(fields[1]), port, attachment)


def _decode_borrowed(body: bytes) -> Borrowed:
    return Borrowed(_NUMBER.unpack_from(body)[0], line_of(body[_NUMBER.size :].decode()))


def _encode_passed(frame: Passed) -> bytes:
    return _NUMBER.pack(frame.number) + _checked_size(frame.frame)


def _decode_passed(body: bytes) -> Passed:
    return Passed(_NUMBER.unpack_from(body)[0], _checked_size(body[_NUMBER.size :]))


def _checked_size(frame: bytes) -> bytes:
    """Return a frame of an agent; raise ValueError if its size is impossible."""
    if not 0 < len(frame) <= AGENT_FRAME_MAX_BYTES + _LENGTH.size:
        raise ValueError
    return frame


def _encode_exits(frame: Exits) -> bytes:
    return _json([_listed(each) for each in frame.exits]).encode()


def _decode_exits(body: bytes) -> Exits:
    entries = _list(json.loads(body), EXITS_MAX)
    return Exits(tuple(_announced(_list(each)) for each in entries))


def _decode_leaving(_body: bytes) -> Leaving:
    return Leaving()


def _decode_moved(body: bytes) -> Moved:
    fields = _list(json.loads(body))
    return Moved(line_of(fields[0]), line_of(fields[1]))


def _payload(data: bytes) -> bytes:
    if len(data) != PING_BYTES:
        raise ValueError
    return data


def _listed(each: AnnouncedExit) -> list[object]:
    """Return the encoded fields of an exit in their order; later versions only append fields."""
    limits = each.limits
    return [*each[:13], list(limits[:3]), list(limits.ports), list(each.features), each.rtt_micros]


def _announced(fields: list[Any]) -> AnnouncedExit:
    most = _list(fields[13])
    ports = tuple(integer_of(each, PORT_MAX) for each in _list(fields[14], PORTS_MAX))
    return AnnouncedExit(
        line_of(fields[0]),
        line_of(fields[1]),
        integer_of(fields[2]),
        line_of(fields[3]),
        _truth(fields[4]),
        integer_of(fields[5]),
        line_of(fields[6]),
        line_of(fields[7]),
        line_of(fields[8]),
        integer_of(fields[9]),
        line_of(fields[10]),
        line_of(fields[11]),
        _address(fields[12]),
        ServiceLimits(integer_of(most[0]), integer_of(most[1]), integer_of(most[2]), ports),
        tuple(line_of(each) for each in _list(fields[15], FEATURES_MAX)),
        integer_of(fields[16]),
    )


def _parcel(exits: list[str]) -> bytes:
    body = f"[{','.join(exits)}]".encode()
    if len(body) >= FRAME_MAX_BYTES:
        raise FrameError(f"an exit whose announcement has {len(body)} bytes")
    return _HEAD.pack(1 + len(body), Kind.EXITS) + body


def _json(value: object) -> str:
    # In ASCII: so its length is that of its bytes, and half a surrogate pair can be encoded.
    return json.dumps(value, separators=(",", ":"))


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _address(value: object) -> str:
    """Return the text of an address."""
    text = line_of(value)
    ip_address(text.partition("%")[0])
    return text


def _list(value: object, most: int = 64) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    if len(value) > most:
        raise ValueError
    return value


def _proof(value: object) -> bytes:
    data = bytes.fromhex(line_of(value))
    if len(data) != PROOF_BYTES:
        raise ValueError
    return data


def _shown(data: bytes) -> str:
    if len(data) != PROOF_BYTES:
        raise ValueError
    return data.hex()


# Each accepts only frames of its own type.
_ENCODING: Final[dict[type, tuple[Kind, Callable[[Any], bytes]]]] = {
    Passed: (Kind.PASSED, _encode_passed),
    Return: (Kind.RETURN, lambda frame: _NUMBER.pack(frame.number)),
    Carrying: (Kind.CARRYING, lambda frame: _CARRYING.pack(*frame)),
    Borrow: (Kind.BORROW, _encode_borrow),
    Borrowed: (Kind.BORROWED, lambda frame: _NUMBER.pack(frame.number) + frame.code.encode()),
    Ping: (Kind.PING, lambda frame: _payload(frame.payload)),
    Pong: (Kind.PONG, lambda frame: _payload(frame.payload)),
    Exits: (Kind.EXITS, _encode_exits),
    Gone: (Kind.GONE, lambda frame: frame.device_id.encode()),
    Recheck: (Kind.RECHECK, lambda frame: frame.device_id.encode()),
    Leaving: (Kind.LEAVING, lambda _: b""),
    Moved: (Kind.MOVED, lambda frame: _json(frame).encode()),
    Greeting: (Kind.GREETING, _encode_greeting),
    Accepted: (Kind.ACCEPTED, _encode_accepted),
}
_DECODING: Final[dict[int, Callable[[bytes], Frame]]] = {
    Kind.PASSED: _decode_passed,
    Kind.RETURN: lambda body: Return(_NUMBER.unpack(body)[0]),
    Kind.CARRYING: lambda body: Carrying(*_CARRYING.unpack(body)),
    Kind.BORROW: _decode_borrow,
    Kind.BORROWED: _decode_borrowed,
    Kind.PING: lambda body: Ping(_payload(body)),
    Kind.PONG: lambda body: Pong(_payload(body)),
    Kind.EXITS: _decode_exits,
    Kind.GONE: lambda body: Gone(line_of(body.decode())),
    Kind.RECHECK: lambda body: Recheck(line_of(body.decode())),
    Kind.LEAVING: _decode_leaving,
    Kind.MOVED: _decode_moved,
    Kind.GREETING: _decode_greeting,
    Kind.ACCEPTED: _decode_accepted,
}
