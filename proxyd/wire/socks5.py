"""The server's side of SOCKS5 (RFC 1928) with username and password (RFC 1929).

The rules of this file: bytes go in through `receive_data`, events come out of `next_event`, answers
are collected by `data_to_send`. After `Authenticate`, `Identify`, `Connect` and `Associate` nothing
more is read until the owner has decided. A client that breaks the protocol gets the answer that the
RFC has for it, if it has one, and a `Violation`.
"""

from enum import Enum, IntEnum, auto
from ipaddress import IPv4Address
from typing import Final, final

from proxyd.wire.events import (
    Address,
    Associate,
    Authenticate,
    Connect,
    Event,
    Failure,
    Handover,
    Identify,
    Refusal,
    ServerProtocol,
    Violation,
)
from proxyd.wire.hosts import address_from_packed, host_from_text

VERSION: Final = 0x05
NEGOTIATION_VERSION: Final = 0x01
NO_AUTHENTICATION: Final = 0x00
USERNAME_PASSWORD: Final = 0x02
NO_ACCEPTABLE_METHODS: Final = 0xFF

CONNECT: Final = 0x01
UDP_ASSOCIATE: Final = 0x03

IPV4: Final = 0x01
DOMAINNAME: Final = 0x03
IPV6: Final = 0x04


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


STATUS_OF_REFUSAL: Final = {
    Refusal.WRONG: 0x01,
    Refusal.EXHAUSTED: 0x02,
    Refusal.OVER: 0x03,
    Refusal.TOO_MANY_CONNECTIONS: 0x04,
    Refusal.UNAVAILABLE: 0x05,
    Refusal.PARAMETERS: 0x06,
    Refusal.LIMITED: 0x07,
}

REPLY_OF_FAILURE: Final = {
    Failure.GENERAL: Reply.GENERAL_FAILURE,
    Failure.NOT_ALLOWED: Reply.NOT_ALLOWED,
    Failure.LIMITED: Reply.NOT_ALLOWED,
    Failure.NETWORK_UNREACHABLE: Reply.NETWORK_UNREACHABLE,
    Failure.HOST_UNREACHABLE: Reply.HOST_UNREACHABLE,
    Failure.REFUSED: Reply.CONNECTION_REFUSED,
    Failure.TIMED_OUT: Reply.TTL_EXPIRED,
    Failure.COMMAND_NOT_SUPPORTED: Reply.COMMAND_NOT_SUPPORTED,
    Failure.NO_EXIT: Reply.NETWORK_UNREACHABLE,  # there is no way out to the target
    Failure.EXIT_LOST: Reply.HOST_UNREACHABLE,
}

UNSPECIFIED: Final = IPv4Address(0)

_CREDENTIALS_CHOSEN: Final = bytes((VERSION, USERNAME_PASSWORD))
_NOTHING_CHOSEN: Final = bytes((VERSION, NO_AUTHENTICATION))
_NONE_ACCEPTABLE: Final = bytes((VERSION, NO_ACCEPTABLE_METHODS))
_WELCOME: Final = bytes((NEGOTIATION_VERSION, 0x00))
_SUCCEEDED_V4: Final = bytes((VERSION, Reply.SUCCEEDED, 0x00, IPV4))
_SUCCEEDED_V6: Final = bytes((VERSION, Reply.SUCCEEDED, 0x00, IPV6))
_NOTHING_EARLY: Final = Handover(b"", None)  # nearly always, and a named tuple is dear to make
_SOCKS4_REJECTED: Final = bytes((0x00, 0x5B, 0, 0, 0, 0, 0, 0))


class Socks5State(Enum):
    """Decision or input that the server waits for."""

    METHODS = auto()
    IDENTITY_DECISION = auto()
    CREDENTIALS = auto()
    CREDENTIALS_DECISION = auto()
    REQUEST = auto()
    REQUEST_DECISION = auto()
    ESTABLISHED = auto()
    CLOSED = auto()


# Names of this module: a lookup of an enumeration's member costs six times that (3.11), and a
# handshake does some thirty.
_METHODS: Final = Socks5State.METHODS
_IDENTITY_DECISION: Final = Socks5State.IDENTITY_DECISION
_CREDENTIALS: Final = Socks5State.CREDENTIALS
_CREDENTIALS_DECISION: Final = Socks5State.CREDENTIALS_DECISION
_REQUEST: Final = Socks5State.REQUEST
_REQUEST_DECISION: Final = Socks5State.REQUEST_DECISION
_ESTABLISHED: Final = Socks5State.ESTABLISHED
_CLOSED: Final = Socks5State.CLOSED


@final
class Socks5(ServerProtocol):
    """Negotiation of one client.

    Args:
        password_required: whether clients show credentials. If not, their address must do: a client
            that offers to go without sends none, and one that insists may show any.
    """

    __slots__ = ("_buffer", "_output", "_password_required", "state")

    def __init__(self, *, password_required: bool = True) -> None:
        self.state = _METHODS
        self._password_required = password_required
        self._buffer = b""
        self._output = b""

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the client."""
        self._buffer = self._buffer + data if self._buffer else data

    def next_event(self) -> Event | None:
        """Return the next event of the client, or None until more bytes or a decision arrive."""
        state = self.state
        if state is _METHODS:
            event = self._read_methods()
            if event is not None:
                return event
            state = self.state
        if not self._buffer:
            return None
        if state is _CREDENTIALS:
            return self._read_credentials()
        if state is _REQUEST:
            return self._read_request()
        return None

    def data_to_send(self) -> bytes:
        """Return the bytes to send to the client, once."""
        data, self._output = self._output, b""
        return data

    def accept_credentials(self) -> None:
        """Accept the credentials, so that the client sends its request."""
        if self.state is _IDENTITY_DECISION:
            self._output += _NOTHING_CHOSEN
        else:
            self._require(_CREDENTIALS_DECISION)
            self._output += _WELCOME
        self.state = _REQUEST

    def refuse_credentials(
        self,
        refusal: Refusal,
        words: str = "",  # noqa: ARG002 - SOCKS5 has a number for it
    ) -> None:
        """Send the client the reason of the refusal; close it after the pending bytes."""
        if self.state is _IDENTITY_DECISION:
            self._output += _NONE_ACCEPTABLE
        else:
            self._require(_CREDENTIALS_DECISION)
            self._output += bytes((NEGOTIATION_VERSION, STATUS_OF_REFUSAL[refusal]))
        self._close()

    def succeed(
        self,
        host: Address,
        port: int,
        headers: tuple[str, ...] = (),  # noqa: ARG002 - SOCKS5 has no room for them
    ) -> None:
        """Send the client that the target is connected, from this address."""
        self._require(_REQUEST_DECISION)
        start = _SUCCEEDED_V4 if isinstance(host, IPv4Address) else _SUCCEEDED_V6
        self._output += start + host.packed + port.to_bytes(2, "big")
        self.state = _ESTABLISHED

    def fail(self, failure: Failure) -> None:
        """Send the client the reason of the failure; close it after the pending bytes."""
        self._require(_REQUEST_DECISION)
        self._refuse_request(REPLY_OF_FAILURE[failure])

    def hand_over(self) -> Handover:
        """Return the bytes after the client's request; all that follows is for its target."""
        self._require(_ESTABLISHED)
        early, self._buffer = self._buffer, b""
        return Handover(early, None) if early else _NOTHING_EARLY

    def _read_methods(self) -> Event | None:
        buffer = self._buffer
        if buffer and buffer[0] != VERSION:
            return self._another_protocol(buffer[0])
        if len(buffer) < 2 or len(buffer) < 2 + buffer[1]:
            return None
        end = 2 + buffer[1]
        offered = buffer[2:end]
        self._buffer = buffer[end:]
        if NO_AUTHENTICATION in offered and not self._password_required:
            self.state = _IDENTITY_DECISION
            return Identify()
        if USERNAME_PASSWORD not in offered:
            self._output += _NONE_ACCEPTABLE
            return self._violation("no method offered that is served here")
        self._output += _CREDENTIALS_CHOSEN
        self.state = _CREDENTIALS
        return None

    def _another_protocol(self, first: int) -> Violation:
        """Refuse a client of another protocol; SOCKS4 has a reply for it."""
        if first == 0x04:
            self._output += _SOCKS4_REJECTED
            return self._violation("SOCKS4 instead of SOCKS5")
        if first == 0x16:
            return self._violation("TLS instead of SOCKS5")
        return self._violation(f"version {first} instead of 5")

    def _read_credentials(self) -> Event | None:
        buffer = self._buffer
        if buffer[0] != NEGOTIATION_VERSION:
            self._output += bytes((NEGOTIATION_VERSION, STATUS_OF_REFUSAL[Refusal.WRONG]))
            return self._violation(f"negotiation version {buffer[0]} instead of 1")
        if len(buffer) < 2:
            return None
        middle = 2 + buffer[1]
        if len(buffer) <= middle:
            return None
        end = middle + 1 + buffer[middle]
        if len(buffer) < end:
            return None
        self._buffer = buffer[end:]
        self.state = _CREDENTIALS_DECISION
        if not self._password_required:
            return Identify()
        return Authenticate(buffer[2:middle], buffer[middle + 1 : end])

    def _read_request(self) -> Event | None:
        buffer = self._buffer
        if buffer[0] != VERSION:
            return self._violate_request(
                Reply.GENERAL_FAILURE, f"request version {buffer[0]} instead of 5"
            )
        if len(buffer) < 5:
            is_known = len(buffer) < 4 or buffer[3] in (IPV4, DOMAINNAME, IPV6)
            return None if is_known else self._unknown_address_type(buffer[3])
        kind = buffer[3]
        start = 4
        if kind == IPV4:
            end = 8
        elif kind == DOMAINNAME:
            start = 5
            end = 5 + buffer[4]
        elif kind == IPV6:
            end = 20
        else:
            return self._unknown_address_type(kind)
        if len(buffer) < end + 2:
            return None
        self._buffer = buffer[end + 2 :]
        host = _host(kind, buffer[start:end])
        return self._requested(buffer[1], host, int.from_bytes(buffer[end : end + 2], "big"))

    def _requested(self, command: int, host: Address | str | None, port: int) -> Event:
        if command == CONNECT:
            if host is None:
                return self._violate_request(Reply.HOST_UNREACHABLE, "not a host name")
            self.state = _REQUEST_DECISION
            return Connect(host, port)
        if command == UDP_ASSOCIATE:
            self.state = _REQUEST_DECISION
            if host is None or isinstance(host, str):  # some clients write "0", as a name
                host = UNSPECIFIED
            return Associate(host, port)
        return self._violate_request(Reply.COMMAND_NOT_SUPPORTED, f"command {command}")

    def _unknown_address_type(self, kind: int) -> Violation:
        return self._violate_request(Reply.ADDRESS_TYPE_NOT_SUPPORTED, f"address type {kind}")

    def _violate_request(self, reply: Reply, reason: str) -> Violation:
        self._refuse_request(reply)
        return Violation(reason)

    def _refuse_request(self, reply: Reply) -> None:
        self._output += bytes((VERSION, reply, 0x00, IPV4)) + bytes(6)
        self._close()

    def _violation(self, reason: str) -> Violation:
        self._close()
        return Violation(reason)

    def _close(self) -> None:
        self.state = _CLOSED
        self._buffer = b""

    def _require(self, state: Socks5State) -> None:
        if self.state is not state:
            raise RuntimeError(f"called in state {self.state.name}, not {state.name}")


def _host(kind: int, encoded: bytes) -> Address | str | None:
    """Return the address or the name of a request; None when it is neither."""
    return host_from_text(encoded) if kind == DOMAINNAME else address_from_packed(encoded)
