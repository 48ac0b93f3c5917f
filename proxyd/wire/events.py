"""Requests of a client to the proxy, and the answers to them, for every protocol."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple, Protocol

from market.base import networks

Address = networks.Address

# Objects of every connection are not frozen, which would make them three times as dear to make, and
# have constructors of their own: the constructor that `dataclass` writes is not compiled.


@dataclass(slots=True)
class Authenticate:
    """The client shows credentials; it waits for `accept_credentials` or `refuse_credentials`."""

    username: bytes
    password: bytes

    def __init__(self, username: bytes, password: bytes) -> None:
        self.username = username
        self.password = password


@dataclass(frozen=True, slots=True)
class Identify:
    """The client shows no credentials, so its address decides; it waits as after `Authenticate`."""


@dataclass(slots=True)
class Connect:
    """The client wants a connection to a target; it waits for `succeed` or `fail`.

    `host` is an address, or a name to look up (never empty, never an address in text).
    """

    host: Address | str
    port: int

    def __init__(self, host: Address | str, port: int) -> None:
        self.host = host
        self.port = port


@dataclass(slots=True)
class Associate:
    """The client wants its datagrams relayed; it waits for `succeed` with an address, or `fail`.

    `host` and `port` are where it will send from; unspecified and 0 when it does not know.
    """

    host: Address
    port: int


@dataclass(frozen=True, slots=True)
class Violation:
    """The client breaks the protocol, or requests an unknown service; close the connection."""

    reason: str


Request = Connect | Associate
Event = Authenticate | Identify | Request | Violation


class Refusal(Enum):
    """Reasons for a refusal of credentials."""

    WRONG = auto()
    EXHAUSTED = auto()
    OVER = auto()
    TOO_MANY_CONNECTIONS = auto()
    UNAVAILABLE = auto()
    LIMITED = auto()  # a new account has too many connections
    PARAMETERS = auto()  # the credentials are right, the parameters behind the user name are not


class Failure(Enum):
    """Reasons for a missing connection to the target, or a missing relay of datagrams."""

    GENERAL = auto()
    NOT_ALLOWED = auto()
    NETWORK_UNREACHABLE = auto()
    HOST_UNREACHABLE = auto()
    REFUSED = auto()
    TIMED_OUT = auto()
    COMMAND_NOT_SUPPORTED = auto()
    LIMITED = auto()  # a new account may not reach this port
    NO_EXIT = auto()  # none is attached that is wanted, and would take the connection
    EXIT_LOST = auto()  # the one that must not be replaced by another is gone


class Handover(NamedTuple):
    """Bytes and limits that a protocol leaves to the relay.

    `early` is the first data for the target. At most `upload_limit` further bytes from the client
    may follow to this target; None: any number. Bytes of the client beyond that are for another
    target, and must be thrown away.
    """

    early: bytes
    upload_limit: int | None


class ServerProtocol(Protocol):
    """The server's side of a proxy protocol, up to the moment the relay takes over."""

    __slots__ = ()

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the client."""

    def next_event(self) -> Event | None:
        """Return the next event of the client, or None until more bytes or a decision arrive."""

    def data_to_send(self) -> bytes:
        """Return the bytes to send to the client, once."""

    def accept_credentials(self) -> None:
        """Accept the credentials, so that the client sends its request."""

    def refuse_credentials(self, refusal: Refusal, words: str = "") -> None:
        """Send the client the reason of the refusal; close it after the pending bytes.

        Args:
            refusal: why not.
            words: a sentence that says so more exactly, where the protocol has room for one;
                printable ASCII without quotation marks and backslashes.
        """

    def succeed(self, host: Address, port: int, headers: tuple[str, ...] = ()) -> None:
        """Send the client that the target is connected, from this address.

        After `Associate`: datagrams are relayed, and the client sends them to this address.

        Args:
            host: the address.
            port: its port.
            headers: lines about the way out, where the protocol has room for them (`X-Exit: …`);
                printable ASCII.
        """

    def fail(self, failure: Failure) -> None:
        """Send the client the reason of the failure; close it after the pending bytes."""

    def hand_over(self) -> Handover:
        """Return the start of the relay, once, after `succeed`."""
