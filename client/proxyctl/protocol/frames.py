"""The frames of an exit's control connection, and the preface of its work connections.

Theory of operation
-------------------
An exit is a device that carries other people's connections. It dials the daemon twice over:

* one **control connection**, over TLS 1.3, on which both sides send frames as long as the exit is
  attached. A frame is a length of two bytes (of the rest), a type of one byte and a body.
* **work connections**, opened ahead of need, each for one connection to a target. The exit begins
  with a preface: `W`, its attachment, the number of the ticket and the ticket, 33 bytes. From then
  on the bytes are those of the buyer and the target, and nothing of ours is among them.

    exit                                        daemon
    Hello ---------------------------------------->
         <------------------ Welcome, Tickets, Park    (or Sorry, and the end)
    W.. W.. W.. (work connections, parked) ------->
         <-------------- Dial: a ticket's number, a target
    Dialled: how that went ----------------------->    then bytes, on that work connection

A ticket lets one work connection in, once. The daemon says with `Park` how many it wants parked,
and the exit opens a new one for each that was taken. Each side answers `Ping` with `Pong`.

A daemon may **lend** the exit to another one, whose buyers it then carries as well. `Lend` names
the place where the borrower takes work connections, and the number of the loan; `Lent` says whether
the exit does so. The borrower's frames (Tickets, Park, Dial, Ping) come inside of a `For` with that
number, and so go the answers (Dialled, Pong, State). `Return` ends it. A daemon lends only an exit
whose Hello has the feature "lend".

A device that runs jobs attaches to the same port as a **worker**, with `Tunnel` in the place of
Hello; it is no exit by that. `Open` asks it for a stream into a job, and has the ticket for one
work connection, which the device opens under TLS once it has connected to the job. The stream
begins right behind the preface, in chunks (`secure.py`). If the device opens none, `Dialled` gives
the reason.

    device                                      daemon
    Tunnel --------------------------------------->
         <------------------------------- Tunnelled    (or Sorry, and the end)
         <----- Open: a number, a ticket, a job's port
    W.. (a work connection), or Dialled ---------->

The service knows addresses that the device does not. `Deny` names targets that no order may lead
to, for names that the device looks up. `Call` has the device connect to the daemon itself, and
`Seen` names the source address of that connection: it is one of the device's own public ones, at
which a router shows its own pages. A daemon sends these only to an exit whose Hello has the feature
"deny" or "calls".

Both sides ignore frames of a type that they do not know, and fields of a JSON body that they do not
know, and take an outcome that they do not know for a failure, so either may be older than the
other. A binary body never grows: every further message is a type of its own. Numbers are unsigned
and big-endian.

Neither side trusts the other: a text becomes one line that can be shown. Bytes that cannot be
decoded are a `FrameError`, after which the connection is closed.
"""

from __future__ import annotations

import json
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from struct import Struct, error
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar, Union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proxyctl.protocol.addresses import Address

VERSION: Final = 1
FRAME_MAX_BYTES: Final = (
    4096  # type and body; the largest are 128 tickets and a Limits with many ports
)
TICKET_BYTES: Final = 16
TICKETS_MAX: Final = 128  # in one frame
CANDIDATES_MAX: Final = 4
ADDRESSES_KEPT: Final = 4096  # of targets: each is dialled again soon, and its object costs more
NODES_MAX: Final = 8  # more are not tried before the first one is back
NAME_MAX_BYTES: Final = 255  # RFC 1035, section 2.3.4
PING_BYTES: Final = 8
# A device's description of itself, and its reason for a refusal, are lines, not pages.
TEXT_MAX_CHARACTERS: Final = 500
PORT_MAX: Final = 65_535
MICROS_MAX: Final = 0xFFFFFFFF  # more than an hour: no dial lasts this long, but a clock may jump

PREFACE: Final = Struct("!cQQ16s")
# Features of an exit beyond connections to targets (`Hello.features`).
UDP: Final = "udp"
SECURE: Final = "secure"
SECURE_TICKETS: Final = 1 << 62
DENY: Final = "deny"
CALLS: Final = "calls"
CALL: Final = b"C"  # the first byte of a call; its number follows
CALL_NUMBER_BYTES: Final = 16
# In one `Deny`: with the longest texts of networks that is three quarters of a frame.
DENIED_MAX: Final = 64

WORK: Final = b"W"  # the first byte of a work connection; of a control connection it is TLS's 0x16

_HEAD: Final = Struct("!HB")
_NUMBER: Final = Struct("!Q")
_COUNT: Final = Struct("!H")
_DIAL: Final = Struct("!QHB")
_OPEN: Final = Struct("!Q16sIH")
_DIALLED: Final = Struct("!QBIHB")
_CALL: Final = Struct("!16sH")


class Kind(IntEnum):
    """The type of a frame."""

    HELLO = 1
    WELCOME = 2
    SORRY = 3
    TICKETS = 4
    PARK = 5
    DIAL = 6
    DIALLED = 7
    STATE = 8
    LIMITS = 9
    DRAIN = 10
    PING = 11
    PONG = 12
    LEND = 13
    FOR = 14
    LENT = 15
    RETURN = 16
    NODES = 17
    ASSOCIATE = 18
    ENCRYPT = 19
    TUNNEL = 20
    TUNNELLED = 21
    OPEN = 22
    DENY = 23
    CALL = 24
    SEEN = 25
    OVER = 26


class DialOutcome(IntEnum):
    """The result of a dial of an exit."""

    CONNECTED = 0
    REFUSED = 1
    HOST_UNREACHABLE = 2
    NETWORK_UNREACHABLE = 3
    TIMED_OUT = 4
    NOT_ALLOWED = 5  # the device never goes there, for any buyer
    NAME_UNKNOWN = 6
    PAUSED = 7  # not now: the battery, the network, the hour, or its owner
    AT_LIMIT = 8
    FAILED = 9


class Capacity(NamedTuple):
    """The limits of a device, set by its owner there; 0 and no `ports` are no limit.

    `connections` and `associations` are at once; an association counts as a connection as well.
    `dials` are new work connections in a second. An exit with this field also sends `Over`.
    """

    connections: int
    associations: int
    ports: tuple[int, ...]
    dials: int


class Hello(NamedTuple):
    """First frame of an exit: its worker token, its system, and the terms that its owner accepted.

    `terms` is the SHA-256 of their text, in hexadecimal. `paused` says why the exit takes no
    connections now; empty when it does. Older exits do not say their `capacity`.
    """

    protocol: int
    token: str
    version: str
    system: str
    features: tuple[str, ...]
    terms: str
    paused: str
    capacity: Capacity | None = None


class ServiceLimits(NamedTuple):
    """Limits of the daemon for the exit; 0 is no limit. The device may hold itself to less.

    `bytes_per_second` and `bytes_per_day` count both ways together. `ports` are those of targets.
    `paused` says why the daemon asks nothing of the exit now, for its owner; empty when it does.
    """

    connections: int
    bytes_per_second: int
    bytes_per_day: int
    ports: tuple[int, ...]
    paused: str = ""


class Welcome(NamedTuple):
    """The exit is attached: under which number, and how the daemon sees it.

    `address` is where its connections come from; `country` is ISO 3166's code of two letters, in
    lower case, and like `city` empty where it is not known; `asn` is 0 then.
    """

    attachment: int
    address: str
    country: str
    city: str
    asn: int
    limits: ServiceLimits
    heartbeat_seconds: int


class Sorry(NamedTuple):
    """The exit is not attached: a code, and words for its owner; come again after some seconds.

    With `retry_seconds` of 0 a retry is useless until the owner has changed something.
    """

    code: str
    words: str
    retry_seconds: int


class Tickets(NamedTuple):
    """Permission for a number of work connections; their numbers count up from `first`."""

    first: int
    tickets: tuple[bytes, ...]


class Park(NamedTuple):
    """The number of work connections that should wait."""

    connections: int


class Dial(NamedTuple):
    """Connect a parked work connection to a target: an address out of some, or a name."""

    number: int
    host: tuple[Address, ...] | str
    port: int


class Associate(NamedTuple):
    """Let a parked work connection carry datagrams, to any number of targets; see `Dialled`.

    From then on it carries them both ways, each behind a length of two bytes and the header of RFC
    1928, section 7, which names the target or the sender. Only to be sent to an exit that has the
    feature `UDP`.
    """

    number: int


class Encrypt(NamedTuple):
    """The number of work connections that should wait under TLS, beside those of `Park`.

    Their tickets have numbers from `SECURE_TICKETS` on. Inside of TLS the preface comes first, and
    then the stream in chunks (`secure.py`). Only to be sent to an exit with the feature `SECURE`.
    """

    connections: int


class Dialled(NamedTuple):
    """How a dial went; the address and port that the target sees, if they are known.

    `micros` is how long it took, in microseconds.
    """

    number: int
    outcome: DialOutcome
    micros: int
    address: Address | None
    port: int


class Over(NamedTuple):
    """A connection through the exit is over there, by the number of its order: its place is free.

    An order that was answered by a failure ends with that answer. Loans have no such frame.
    """

    number: int


class ExitStatus(NamedTuple):
    """The reason why the exit takes no more connections; empty: it takes some again."""

    paused: str


class Drain(NamedTuple):
    """Announces that the daemon stops within these seconds; the agent attaches again after that."""

    seconds: int


class Ping(NamedTuple):
    """Is anybody there?"""

    payload: bytes


class Pong(NamedTuple):
    """Answer to a `Ping`, with its payload."""

    payload: bytes


class Node(NamedTuple):
    """Address where an exit may attach, and the SHA-256 of its certificate, in hexadecimal."""

    host: str
    port: int
    certificate: str


class Nodes(NamedTuple):
    """Other nodes for the exit when this daemon is gone or drains, the best first.

    Only for an exit that has told the feature "nodes".
    """

    nodes: tuple[Node, ...]


class Lend(NamedTuple):
    """Orders the exit to serve another daemon, which accepts work connections at an address.

    `number` identifies the loan on both sides, and is never 0; `attachment` is the number in the
    preface of those work connections.
    """

    number: int
    host: str
    port: int
    attachment: int


class For(NamedTuple):
    """A whole frame (`encode`) to a borrower or from a borrower."""

    number: int
    frame: bytes


class Lent(NamedTuple):
    """Whether the exit carries for a borrower: yes with an empty code, or why not (any more)."""

    number: int
    code: str


class Return(NamedTuple):
    """Ends a loan: the borrower gets no new connections, and the open ones continue."""

    number: int


class Tunnel(NamedTuple):
    """First frame of a worker: its worker token, for streams into the jobs that it runs."""

    protocol: int
    token: str
    version: str


class Tunnelled(NamedTuple):
    """The worker is attached: under which number, and how often it is to show that it is there."""

    attachment: int
    heartbeat_seconds: int


class Open(NamedTuple):
    """Connect to a port of a job that runs on the device, and open a work connection for it.

    `number` and `ticket` go into its preface. Outcomes of `Dialled`: `REFUSED`, no program listens
    or the job has not declared the port; `NOT_ALLOWED`, this attempt does not run there;
    `AT_LIMIT`, the limit of open streams is reached.
    """

    number: int
    ticket: bytes
    job_id: str
    attempt: int
    port: int


class Deny(NamedTuple):
    """Targets that the service denies to every order, also by a name.

    These are all of `networks` (CIDR), and the `ports` of `addresses`, which are the service's own.
    `left` is how many such frames follow; together they replace those of before.
    """

    networks: tuple[str, ...]
    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    left: int = 0


class Call(NamedTuple):
    """Connect to an address of the daemon, and send `CALL` and this number there."""

    number: bytes
    address: Address
    port: int


class Seen(NamedTuple):
    """A call of the exit came from this address."""

    address: str


Frame = Union[
    Hello,
    Welcome,
    Sorry,
    Tickets,
    Park,
    Dial,
    Dialled,
    ExitStatus,
    ServiceLimits,
    Drain,
    Ping,
    Pong,
    Associate,
    Lend,
    For,
    Lent,
    Return,
    Nodes,
    Encrypt,
    Tunnel,
    Tunnelled,
    Open,
    Deny,
    Call,
    Seen,
    Over,
]


class FrameError(Exception):
    """Bytes that are no frame, or a frame that cannot be encoded; the message is one line."""


class Preface(NamedTuple):
    """The first bytes of a work connection."""

    attachment: int
    number: int
    ticket: bytes

    def encode(self) -> bytes:
        """Return its 33 bytes."""
        assert len(self.ticket) == TICKET_BYTES  # noqa: S101 - it would be filled up with zeros
        return PREFACE.pack(WORK, self.attachment, self.number, self.ticket)

    @classmethod
    def decode(cls, data: bytes) -> Preface:
        """Return the preface in 33 bytes.

        Raises:
            FrameError: they are no preface.
        """
        try:
            first, attachment, number, ticket = PREFACE.unpack(data)
        except error:
            raise FrameError("a preface has 33 bytes") from None
        if first != WORK:
            raise FrameError("a preface begins with W")
        return cls(attachment, number, ticket)


Known = TypeVar("Known")


class Reader(Generic[Known]):
    """Takes bytes as they come, and gives frames: each a length, a type and a body.

    Args:
        decode: returns the frame of a type with a body, or None for a type that is not known.
        most: how many bytes a type and a body may have.
    """

    def __init__(self, decode: Callable[[int, bytes], Known | None], most: int) -> None:
        self._decode = decode
        self._most = most
        self._data = b""
        self._at = 0  # where the next frame begins

    def receive_data(self, data: bytes) -> Iterator[Known]:
        """Take bytes; yield every frame that is complete and of a known type.

        A caller that stops in between gets the rest with the next bytes.

        Raises:
            FrameError: while it yields: the other side does not speak the protocol.
        """
        self._data = self._data[self._at :] + data
        self._at = 0
        return self._frames()

    def _frames(self) -> Iterator[Known]:
        while True:
            data, at = self._data, self._at
            if len(data) - at < _HEAD.size:
                break
            size, kind = _HEAD.unpack_from(data, at)
            if not 1 <= size <= self._most:
                raise FrameError(f"a frame of {size} bytes")
            end = at + _COUNT.size + size
            if len(data) < end:
                break
            self._at = end
            frame = self._decode(kind, data[at + _HEAD.size : end])
            if frame is not None:
                yield frame
        if at == len(data):  # bytes that were read need no memory
            self._data, self._at = b"", 0


class FrameReader(Reader[Frame]):
    """Reads the frames of a control connection."""

    def __init__(self) -> None:
        super().__init__(decode, FRAME_MAX_BYTES)


def decode_whole(data: bytes) -> Frame | None:
    """Return the frame in these bytes; None for a frame of an unknown type.

    Raises:
        FrameError: they are not one frame.
    """
    if len(data) < _HEAD.size or _COUNT.unpack_from(data)[0] != len(data) - _COUNT.size:
        raise FrameError(f"{len(data)} bytes that are not one frame")
    return decode(data[_COUNT.size], data[_HEAD.size :])


def encode(frame: Frame) -> bytes:
    """Return the bytes of a frame.

    Raises:
        FrameError: it has no bytes that the other side would take.
    """
    try:
        kind, encoding = _ENCODING[type(frame)]
        body = encoding(frame)
    except (error, ValueError):
        name = type(frame).__name__
        raise FrameError(f"a frame of the type {name} that cannot be encoded") from None
    if len(body) >= FRAME_MAX_BYTES:
        name = type(frame).__name__
        raise FrameError(f"a frame of the type {name} with {len(body)} bytes")
    return _HEAD.pack(1 + len(body), kind) + body


def decode(kind: int, body: bytes) -> Frame | None:
    """Return the frame of a type with a body; None for a type that is not known.

    Raises:
        FrameError: the body does not fit the type.
    """
    try:
        decoding = _DECODING.get(kind)
        if decoding is not None:
            return decoding(body)
        return _decode_json(Kind(kind), body) if kind in _KINDS else None
    except (error, ValueError, KeyError, TypeError, IndexError, RecursionError):
        name = Kind(kind).name.title() if kind in _KINDS else str(kind)
        raise FrameError(f"a frame of the type {name} that cannot be understood") from None


def _encode_json(frame: Frame) -> bytes:
    text = json.dumps(_fields(frame), ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace")  # of half a surrogate pair


def _encode_number(frame: Associate | Over | Return) -> bytes:
    return _NUMBER.pack(frame.number)


def _encode_count(frame: Park | Encrypt | Drain) -> bytes:
    return _COUNT.pack(frame[0])


def _encode_ping(frame: Ping | Pong) -> bytes:
    if len(frame.payload) != PING_BYTES:
        raise ValueError
    return frame.payload


def _encode_tickets(frame: Tickets) -> bytes:
    if len(frame.tickets) > TICKETS_MAX or any(len(each) != TICKET_BYTES for each in frame.tickets):
        raise ValueError
    return _NUMBER.pack(frame.first) + b"".join(frame.tickets)


def _decode_tickets(body: bytes) -> Tickets:
    (first,), rest = _NUMBER.unpack_from(body), body[_NUMBER.size :]
    if len(rest) % TICKET_BYTES or len(rest) > TICKETS_MAX * TICKET_BYTES:
        raise ValueError
    ends = range(TICKET_BYTES, len(rest) + 1, TICKET_BYTES)
    return Tickets(first, tuple(rest[end - TICKET_BYTES : end] for end in ends))


def _decode_ping(body: bytes) -> Ping:
    if len(body) != PING_BYTES:
        raise ValueError
    return Ping(body)


def _encode_for(frame: For) -> bytes:
    return _NUMBER.pack(frame.number) + frame.frame


def _decode_for(body: bytes) -> For:
    (number,) = _NUMBER.unpack_from(body)
    return For(number, body[_NUMBER.size :])


def _encode_dialled(frame: Dialled) -> bytes:
    number, outcome, micros, address, port = frame
    packed = b"" if address is None else address.packed
    micros = max(0, min(micros, MICROS_MAX))
    return _DIALLED.pack(number, outcome, micros, port, len(packed)) + packed


def _decode_dialled(body: bytes) -> Dialled:
    number, outcome, micros, port, size = _DIALLED.unpack_from(body)
    packed = body[_DIALLED.size :]
    if len(packed) != size:
        raise ValueError
    address = _address(packed) if packed else None
    return Dialled(number, _OUTCOMES.get(outcome, DialOutcome.FAILED), micros, address, port)


def _encode_dial(frame: Dial) -> bytes:
    """A count of addresses, each behind its length; or a count of 0, and a name.

    Of more addresses than there is room for the first ones go, which are the best.
    """
    number, host, port = frame
    if not port or not host:
        raise ValueError
    if isinstance(host, str):
        return _DIAL.pack(number, port, 0) + _checked_name(host.encode("ascii"))
    addresses = host[:CANDIDATES_MAX]
    body = _DIAL.pack(number, port, len(addresses))
    for each in addresses:
        packed = each.packed
        body += bytes((len(packed),)) + packed
    return body


def _decode_dial(body: bytes) -> Dial:
    number, port, count = _DIAL.unpack_from(body)
    rest = body[_DIAL.size :]
    if not port or count > CANDIDATES_MAX:
        raise ValueError
    if not count:
        return Dial(number, _checked_name(rest).decode("ascii"), port)
    addresses = []
    for _ in range(count):
        size = rest[0]
        addresses.append(_address(rest[1 : 1 + size]))
        rest = rest[1 + size :]
    if rest:
        raise ValueError
    return Dial(number, tuple(addresses), port)


def _encode_open(frame: Open) -> bytes:
    if len(frame.ticket) != TICKET_BYTES or not frame.port:
        raise ValueError
    head = _OPEN.pack(frame.number, frame.ticket, frame.attempt, frame.port)
    return head + _checked_name(frame.job_id.encode("ascii"))


def _decode_open(body: bytes) -> Open:
    number, ticket, attempt, port = _OPEN.unpack_from(body)
    if not port:
        raise ValueError
    job_id = _checked_name(body[_OPEN.size :]).decode("ascii")
    return Open(number, ticket, job_id, attempt, port)


def _encode_call(frame: Call) -> bytes:
    if len(frame.number) != CALL_NUMBER_BYTES or not frame.port:
        raise ValueError
    return _CALL.pack(frame.number, frame.port) + frame.address.packed


def _decode_call(body: bytes) -> Call:
    number, port = _CALL.unpack_from(body)
    if not port:
        raise ValueError
    return Call(number, _address(body[_CALL.size :]), port)


def _checked_name(name: bytes) -> bytes:
    """Return a name that may stand in a log: neither blanks nor control characters are in it."""
    if not 1 <= len(name) <= NAME_MAX_BYTES or not all(0x21 <= each <= 0x7E for each in name):
        raise ValueError
    return name


@lru_cache(maxsize=ADDRESSES_KEPT)
def _address(packed: bytes) -> Address:
    return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)


def _decode_json(kind: Kind, body: bytes) -> Frame:  # noqa: PLR0911 - one for each type
    fields = json.loads(body)
    if kind is Kind.HELLO:
        return Hello(
            integer_of(fields["protocol"]),
            line_of(fields["token"]),
            line_of(fields["version"]),
            line_of(fields["system"]),
            tuple(line_of(each) for each in _list(fields["features"])),
            line_of(fields["terms"]),
            line_of(fields["paused"]),
            _capacity(fields["capacity"]) if "capacity" in fields else None,
        )
    if kind is Kind.WELCOME:
        return Welcome(
            integer_of(fields["attachment"]),
            line_of(fields["address"]),
            line_of(fields["country"]),
            line_of(fields["city"]),
            integer_of(fields["asn"]),
            _limits(fields["limits"]),
            integer_of(fields["heartbeat_seconds"]),
        )
    if kind is Kind.SORRY:
        return Sorry(
            line_of(fields["code"]), line_of(fields["words"]), integer_of(fields["retry_seconds"])
        )
    if kind is Kind.STATE:
        return ExitStatus(line_of(fields["paused"]))
    if kind is Kind.LEND:
        return Lend(
            integer_of(fields["number"]),
            line_of(fields["host"]),
            integer_of(fields["port"], PORT_MAX),
            integer_of(fields["attachment"]),
        )
    if kind is Kind.LENT:
        return Lent(integer_of(fields["number"]), line_of(fields["code"]))
    if kind is Kind.TUNNEL:
        return Tunnel(
            integer_of(fields["protocol"]), line_of(fields["token"]), line_of(fields["version"])
        )
    if kind is Kind.TUNNELLED:
        return Tunnelled(integer_of(fields["attachment"]), integer_of(fields["heartbeat_seconds"]))
    if kind is Kind.NODES:
        return Nodes(tuple(_node(each) for each in _list(fields["nodes"])[:NODES_MAX]))
    return _limits(fields)


def _fields(frame: Frame) -> dict[str, Any]:
    """Return the fields of a frame with a JSON body."""
    if isinstance(frame, ServiceLimits):
        return _said(frame)
    fields: dict[str, Any] = frame._asdict()
    if isinstance(frame, Hello):
        del fields["capacity"]
        if frame.capacity is not None:
            fields["capacity"] = frame.capacity._asdict()
    if isinstance(frame, Welcome):
        fields["limits"] = _said(frame.limits)
    return fields


def _said(limits: ServiceLimits) -> dict[str, Any]:
    """Return the fields of limits; a missing pause is left out, as in older versions."""
    fields: dict[str, Any] = limits._asdict()
    if not limits.paused:
        del fields["paused"]
    return fields


def _node(value: object) -> Node:
    fields = _list(value)
    return Node(line_of(fields[0]), integer_of(fields[1], PORT_MAX), line_of(fields[2]))


def _decode_deny(body: bytes) -> Deny:
    fields = json.loads(body)
    return Deny(
        tuple(line_of(each) for each in _list(fields["networks"])),
        tuple(line_of(each) for each in _list(fields["addresses"])),
        tuple(integer_of(each, PORT_MAX) for each in _list(fields["ports"])),
        integer_of(fields["left"]),
    )


def _limits(fields: dict[str, Any]) -> ServiceLimits:
    return ServiceLimits(
        integer_of(fields["connections"]),
        integer_of(fields["bytes_per_second"]),
        integer_of(fields["bytes_per_day"]),
        tuple(integer_of(each, PORT_MAX) for each in _list(fields["ports"])),
        line_of(fields.get("paused", "")),  # older daemons do not send it
    )


def _capacity(fields: dict[str, Any]) -> Capacity:
    return Capacity(
        integer_of(fields["connections"]),
        integer_of(fields["associations"]),
        tuple(integer_of(each, PORT_MAX) for each in _list(fields["ports"])),
        integer_of(fields["dials"]),
    )


def integer_of(value: object, most: int = (1 << 64) - 1) -> int:
    """Return a whole number out of JSON.

    Raises:
        ValueError: the value is no whole number, or out of range.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError
    return value


def line_of(value: object) -> str:
    """Return a text out of JSON as one line that can be shown and written anywhere.

    Raises:
        ValueError: the value is no text, or too long.
    """
    if not isinstance(value, str) or len(value) > TEXT_MAX_CHARACTERS:
        raise ValueError
    if value.isprintable():
        return value
    return "".join(each if each.isprintable() else "?" for each in value)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError
    return value


_DECODING: Final[dict[int, Callable[[bytes], Frame]]] = {
    Kind.DIAL: _decode_dial,
    Kind.DIALLED: _decode_dialled,
    Kind.TICKETS: _decode_tickets,
    Kind.PARK: lambda body: Park(*_COUNT.unpack(body)),
    Kind.DRAIN: lambda body: Drain(*_COUNT.unpack(body)),
    Kind.PING: _decode_ping,
    Kind.PONG: lambda body: Pong(_decode_ping(body).payload),
    Kind.ENCRYPT: lambda body: Encrypt(*_COUNT.unpack(body)),
    Kind.ASSOCIATE: lambda body: Associate(*_NUMBER.unpack(body)),
    Kind.OVER: lambda body: Over(*_NUMBER.unpack(body)),
    Kind.FOR: _decode_for,
    Kind.OPEN: _decode_open,
    Kind.CALL: _decode_call,
    Kind.DENY: _decode_deny,
    Kind.SEEN: lambda body: Seen(line_of(json.loads(body)["address"])),
    Kind.RETURN: lambda body: Return(*_NUMBER.unpack(body)),
}
_KINDS: Final = frozenset(Kind)
_OUTCOMES: Final = {int(outcome): outcome for outcome in DialOutcome}
_ENCODING: Final[dict[type[Frame], tuple[Kind, Callable[[Any], bytes]]]] = {
    Dial: (Kind.DIAL, _encode_dial),
    Dialled: (Kind.DIALLED, _encode_dialled),
    Over: (Kind.OVER, _encode_number),
    Tickets: (Kind.TICKETS, _encode_tickets),
    Park: (Kind.PARK, _encode_count),
    Encrypt: (Kind.ENCRYPT, _encode_count),
    Ping: (Kind.PING, _encode_ping),
    Pong: (Kind.PONG, _encode_ping),
    Associate: (Kind.ASSOCIATE, _encode_number),
    Drain: (Kind.DRAIN, _encode_count),
    For: (Kind.FOR, _encode_for),
    Return: (Kind.RETURN, _encode_number),
    Open: (Kind.OPEN, _encode_open),
    Call: (Kind.CALL, _encode_call),
    Hello: (Kind.HELLO, _encode_json),
    Welcome: (Kind.WELCOME, _encode_json),
    Sorry: (Kind.SORRY, _encode_json),
    ExitStatus: (Kind.STATE, _encode_json),
    ServiceLimits: (Kind.LIMITS, _encode_json),
    Lend: (Kind.LEND, _encode_json),
    Lent: (Kind.LENT, _encode_json),
    Nodes: (Kind.NODES, _encode_json),
    Tunnel: (Kind.TUNNEL, _encode_json),
    Tunnelled: (Kind.TUNNELLED, _encode_json),
    Deny: (Kind.DENY, _encode_json),
    Seen: (Kind.SEEN, _encode_json),
}
