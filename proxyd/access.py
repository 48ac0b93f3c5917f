"""The ending of a client's connection, and the access records of the connection.

Each connection has exactly one `Ending`. Its word is the `reason` in the access record and a label
of the metrics, so these words never change.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final, NamedTuple, final

from proxyd.wire.events import Failure, Refusal


class Ending(StrEnum):
    """Every way in which the connection of a client can end.

    The words are labels of metrics and values in access records: operators search for them, so they
    stay as they are.
    """

    # Ends of a relay.
    ENDED = "ended"  # both streams have ended in order
    RESET = "reset"  # one side has reset its connection
    IDLE = "idle"  # no byte has moved for the limit
    EXHAUSTED = "exhausted"  # the session has no bytes left; also a refusal
    CUT = "cut"  # the session was ended, the daemon stops, or something failed here

    # Ends of a handshake, or of a dial before its outcome.
    CLIENT_LEFT = "client_left"
    VIOLATION = "violation"  # the client does not speak the protocol
    TIMED_OUT = "timed_out"  # the client has not finished in time; also a failure: the target

    # The other refusals of credentials.
    WRONG = "wrong"
    OVER = "over"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    LIMITED = "limited"  # a new account: too many connections; also a failure: the port
    UNAVAILABLE = "unavailable"
    PARAMETERS = "parameters"

    # The other failures to reach a target.
    GENERAL = "general"
    NOT_ALLOWED = "not_allowed"
    NETWORK_UNREACHABLE = "network_unreachable"
    HOST_UNREACHABLE = "host_unreachable"
    REFUSED = "refused"
    COMMAND_NOT_SUPPORTED = "command_not_supported"
    NO_EXIT = "no_exit"
    EXIT_LOST = "exit_lost"


# By name: a member without an ending fails at the import.
ENDING_OF_REFUSAL: Final = {refusal: Ending[refusal.name] for refusal in Refusal}
ENDING_OF_FAILURE: Final = {failure: Ending[failure.name] for failure in Failure}


class Access(NamedTuple):
    """Ended connection of a client that had shown credentials.

    `client` is its address, `host` and `port` its target ("" and 0 if it ended before that was
    known), `seconds` its duration. `exit` is the device that it went through, `exit_address` the
    address that the device has attached from; both "" for a connection from this machine. A dial
    that has failed has the devices that were ordered the target in `tried`, each with its address.
    """

    connection: int
    session_id: str
    client: str
    host: str
    port: int
    bytes_up: int
    bytes_down: int
    seconds: float
    reason: str
    exit: str = ""
    exit_address: str = ""
    tried: tuple[tuple[str, str], ...] = ()


class Reached(NamedTuple):
    """Connection of a client that has just reached its target, or relays datagrams from now on.

    The fields of `Access` mean the same here. `addresses` are the possible dialled addresses: one,
    or several where an exit has chosen among them; none where the exit looked the name up, or
    `host` is the address. `source_port` is the port that the target sees: ours, or by the word of
    the exit; 0 where it is unknown. `seen_address` is the address that the target sees by the word
    of the exit, if it is not `exit_address`.
    """

    connection: int
    session_id: str
    client: str
    protocol: str
    host: str
    port: int
    addresses: tuple[str, ...]
    source_port: int
    exit: str
    exit_address: str
    seen_address: str


class Sent(NamedTuple):
    """Datagrams to a destination, the first in an hour; `reached` has the destination.

    With `others` it has none: it is the number of datagrams to destinations without a record.
    """

    reached: Reached
    others: int = 0


@final
class Hour:
    """The hour (its number since 1970) whose file the access log writes; 0 without a log."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


@final
class SessionLines:
    """Bounds the lines about destinations of all associations of a session in an hour.

    A buyer can open associations again and again. The number of sessions bounds the memory.

    Args:
        most: lines of a session in an hour.
    """

    __slots__ = ("_hour", "_lines", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._hour = 0
        self._lines: dict[str, int] = {}

    def take(self, hour: int, session_id: str) -> bool:
        """Return whether a session may have one more line in an hour, and count it."""
        if hour != self._hour:
            self._hour = hour
            self._lines.clear()
        lines = self._lines.get(session_id, 0)
        if lines >= self._most:
            return False
        self._lines[session_id] = lines + 1
        return True


@final
class Destinations:
    """Records the destinations of one association, `DESTINATIONS_MAX` in an hour.

    Of more there is a count: the lines have it at 1, 2, 4, 8 and so on.

    Args:
        reached: the record of the association.
        record: takes the records.
        lines: bounds the lines of all associations of the session.
    """

    __slots__ = ("_hour", "_lines", "_noted", "_others", "_reached", "_record")

    def __init__(
        self,
        reached: Reached,
        record: Callable[[Access | Reached | Sent], None],
        lines: SessionLines,
    ) -> None:
        self._reached = reached
        self._record = record
        self._lines = lines
        self._hour = 0
        self._noted = 0
        self._others = 0

    def note(self, hour: int, host: str, port: int, source_port: int) -> None:
        """Record a destination that is new in an hour; `source_port` is ours, 0 if unknown."""
        if hour != self._hour:
            self._hour, self._noted, self._others = hour, 0, 0
        to = self._reached
        if self._noted < DESTINATIONS_MAX and self._lines.take(hour, to.session_id):
            self._noted += 1
            self._record(Sent(to._replace(host=host, port=port, source_port=source_port)))
            return
        self._others += 1
        if not self._others & (self._others - 1):
            self._record(Sent(to, self._others))


# A client of names and calls has fewer. Each costs a line, and one connection must not fill the
# log's queue.
DESTINATIONS_MAX: Final = 32
# The lines of 64 such connections. Above it a connection has a count alone.
SESSION_LINES_MAX: Final = 2048
UNKNOWN_EXIT: Final = "unknown"  # instead of the device of a dial that another process has made
