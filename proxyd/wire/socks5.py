"""The server's side of SOCKS5 (RFC 1928) with username and password (RFC 1929).

The rules of this file: bytes go in through `receive_data`, events come out of `next_event`, answers
are collected by `data_to_send`. After `Authenticate` and `Connect` nothing more is read until the
owner has decided. Whoever breaks the protocol gets the answer that the RFC has for it, if it has
one, and a `Violation`.
"""

from enum import Enum, IntEnum, auto
from ipaddress import IPv4Address, IPv6Address, ip_address

from proxyd.wire.events import Address, Authenticate, Connect, Event, Failure, Refusal, Violation

VERSION = 0x05
NEGOTIATION_VERSION = 0x01
USERNAME_PASSWORD = 0x02
NO_ACCEPTABLE_METHODS = 0xFF


class Command(IntEnum):
    """RFC 1928, section 4."""

    CONNECT = 0x01
    BIND = 0x02
    UDP_ASSOCIATE = 0x03


class AddressType(IntEnum):
    """RFC 1928, section 5."""

    IPV4 = 0x01
    DOMAINNAME = 0x03
    IPV6 = 0x04


class Reply(IntEnum):
    """RFC 1928, section 6."""

    SUCCEEDED = 0x00
    GENERAL_FAILURE = 0x01
    NOT_ALLOWED = 0x02
    NETWORK_UNREACHABLE = 0x03
    HOST_UNREACHABLE = 0x04
    CONNECTION_REFUSED = 0x05
    TTL_EXPIRED = 0x06
    COMMAND_NOT_SUPPORTED = 0x07
    ADDRESS_TYPE_NOT_SUPPORTED = 0x08


STATUS_OF_REFUSAL = {
    Refusal.WRONG: 0x01,
    Refusal.EXHAUSTED: 0x02,
    Refusal.OVER: 0x03,
    Refusal.TOO_MANY_CONNECTIONS: 0x04,
    Refusal.UNAVAILABLE: 0x05,
}

REPLY_OF_FAILURE = {
    Failure.GENERAL: Reply.GENERAL_FAILURE,
    Failure.NOT_ALLOWED: Reply.NOT_ALLOWED,
    Failure.NETWORK_UNREACHABLE: Reply.NETWORK_UNREACHABLE,
    Failure.HOST_UNREACHABLE: Reply.HOST_UNREACHABLE,
    Failure.REFUSED: Reply.CONNECTION_REFUSED,
    Failure.TIMED_OUT: Reply.TTL_EXPIRED,
}

UNSPECIFIED = IPv4Address(0)


class State(Enum):
    """What the server waits for."""

    METHODS = auto()
    CREDENTIALS = auto()
    CREDENTIALS_DECISION = auto()
    REQUEST = auto()
    REQUEST_DECISION = auto()
    ESTABLISHED = auto()
    CLOSED = auto()


class Socks5:
    """One client's negotiation; a `ServerProtocol`."""

    __slots__ = ("_buffer", "_output", "state")

    def __init__(self) -> None:
        self.state = State.METHODS
        self._buffer = bytearray()
        self._output = bytearray()

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the client."""
        self._buffer += data

    def next_event(self) -> Event | None:
        """Return what the client said, or None until more bytes or a decision arrive."""
        if self.state is State.METHODS:
            violation = self._read_methods()
            if violation is not None:
                return violation
        if self.state is State.CREDENTIALS:
            return self._read_credentials()
        if self.state is State.REQUEST:
            return self._read_request()
        return None

    def data_to_send(self) -> bytes:
        """Return what is to be sent to the client, once."""
        data = bytes(self._output)
        self._output.clear()
        return data

    def accept_credentials(self) -> None:
        """Let the client go on to its request."""
        self._require(State.CREDENTIALS_DECISION)
        self._output += bytes((NEGOTIATION_VERSION, 0x00))
        self.state = State.REQUEST

    def refuse_credentials(self, refusal: Refusal) -> None:
        """Tell the client why not; close it after what is to be sent."""
        self._require(State.CREDENTIALS_DECISION)
        self._output += bytes((NEGOTIATION_VERSION, STATUS_OF_REFUSAL[refusal]))
        self._close()

    def succeed(self, host: Address, port: int) -> None:
        """Tell the client that the target is connected, from this local address."""
        self._require(State.REQUEST_DECISION)
        self._reply(Reply.SUCCEEDED, host, port)
        self.state = State.ESTABLISHED

    def fail(self, failure: Failure) -> None:
        """Tell the client why there is no connection; close it after what is to be sent."""
        self._require(State.REQUEST_DECISION)
        self._reply(REPLY_OF_FAILURE[failure], UNSPECIFIED, 0)
        self._close()

    def trailing_data(self) -> bytes:
        """Return what the client sent after its request, once: the first bytes to relay."""
        self._require(State.ESTABLISHED)
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def _read_methods(self) -> Violation | None:
        buffer = self._buffer
        if buffer and buffer[0] != VERSION:
            return self._violation(f"version {buffer[0]} instead of 5")
        if len(buffer) < 2 or len(buffer) < 2 + buffer[1]:
            return None
        end = 2 + buffer[1]
        offered = bytes(buffer[2:end])
        del buffer[:end]
        if USERNAME_PASSWORD not in offered:
            self._output += bytes((VERSION, NO_ACCEPTABLE_METHODS))
            return self._violation("no username/password method offered")
        self._output += bytes((VERSION, USERNAME_PASSWORD))
        self.state = State.CREDENTIALS
        return None

    def _read_credentials(self) -> Event | None:
        buffer = self._buffer
        if buffer and buffer[0] != NEGOTIATION_VERSION:
            self._output += bytes((NEGOTIATION_VERSION, STATUS_OF_REFUSAL[Refusal.WRONG]))
            return self._violation(f"negotiation version {buffer[0]} instead of 1")
        if len(buffer) < 2:
            return None
        middle = 2 + buffer[1]
        if len(buffer) < middle + 1:
            return None
        end = middle + 1 + buffer[middle]
        if len(buffer) < end:
            return None
        event = Authenticate(bytes(buffer[2:middle]), bytes(buffer[middle + 1 : end]))
        del buffer[:end]
        self.state = State.CREDENTIALS_DECISION
        return event

    def _read_request(self) -> Event | None:
        buffer = self._buffer
        if buffer and buffer[0] != VERSION:
            return self._refuse_request(
                Reply.GENERAL_FAILURE, f"request version {buffer[0]} instead of 5"
            )
        end = self._request_end()
        if end is None or len(buffer) < end:
            return None
        request = bytes(buffer[:end])
        del buffer[:end]
        return self._requested(command=request[1], kind=request[3], rest=request[4:])

    def _request_end(self) -> int | None:
        """Return where the request ends, None while that is not known."""
        buffer = self._buffer
        if len(buffer) < 4:
            return None
        match buffer[3]:
            case AddressType.IPV4:
                return 4 + 4 + 2
            case AddressType.IPV6:
                return 4 + 16 + 2
            case AddressType.DOMAINNAME:
                return 5 + buffer[4] + 2 if len(buffer) > 4 else None
            case _:
                return 4

    def _requested(self, *, command: int, kind: int, rest: bytes) -> Event:
        if kind not in AddressType.__members__.values():
            return self._refuse_request(Reply.ADDRESS_TYPE_NOT_SUPPORTED, f"address type {kind}")
        if command != Command.CONNECT:
            return self._refuse_request(Reply.COMMAND_NOT_SUPPORTED, f"command {command}")
        host = _host(kind, rest[:-2])
        if host is None:
            return self._refuse_request(Reply.HOST_UNREACHABLE, "not a host name")
        self.state = State.REQUEST_DECISION
        return Connect(host, int.from_bytes(rest[-2:], "big"))

    def _reply(self, reply: Reply, host: Address, port: int) -> None:
        kind = AddressType.IPV4 if host.version == 4 else AddressType.IPV6
        self._output += bytes((VERSION, reply, 0x00, kind)) + host.packed + port.to_bytes(2, "big")

    def _refuse_request(self, reply: Reply, reason: str) -> Violation:
        self._reply(reply, UNSPECIFIED, 0)
        return self._violation(reason)

    def _violation(self, reason: str) -> Violation:
        self._close()
        return Violation(reason)

    def _close(self) -> None:
        self.state = State.CLOSED
        self._buffer.clear()

    def _require(self, state: State) -> None:
        if self.state is not state:
            raise RuntimeError(f"called in state {self.state.name}, not {state.name}")


def _host(kind: int, encoded: bytes) -> Address | str | None:
    """Return the address or the name of a request; None when it is neither."""
    if kind == AddressType.IPV4:
        return IPv4Address(encoded)
    if kind == AddressType.IPV6:
        return IPv6Address(encoded)
    return host_from_text(encoded[1:])


def host_from_text(encoded: bytes) -> Address | str | None:
    """Return the host that a text means: an address in text is that address.

    None when it can be neither an address nor a name: empty, with bytes no name has, or an address
    that means something on one machine's links alone (a scope, RFC 4007).
    """
    if not encoded or not all(0x21 <= byte <= 0x7E for byte in encoded):
        return None
    text = encoded.decode("ascii")
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ip_address(bare)
    except ValueError:
        return text.removesuffix(".") or None
    return None if isinstance(address, IPv6Address) and address.scope_id else address
