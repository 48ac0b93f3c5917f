"""The ending of a client's connection, and the access records on their way to the log.

Each connection has exactly one `Ending`. Its word is the `reason` in the access record and a label
of the metrics, so these words never change.
"""

from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import Final, final

from msgspec.structs import replace

from proxyd.access_records import Access, Reached, Sent
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


@final
class AccessQueue:
    """The records that wait for the thread of the access log; one that finds it full is dropped.

    `waiting` has each with its time, in UTC seconds, and `dropped` is the number of dropped ones.

    Args:
        most: the most records that wait.
        now: the wall clock, in UTC seconds.
        wake: called when a record has come into the empty queue.
    """

    __slots__ = ("_most", "_now", "_wake", "dropped", "waiting")

    def __init__(self, most: int, now: Callable[[], int], wake: Callable[[], None]) -> None:
        self._most = most
        self._now = now
        self._wake = wake
        self.waiting: deque[tuple[int, Access | Reached | Sent]] = deque()
        self.dropped = 0

    def put(self, record: Access | Reached | Sent) -> None:
        """Queue a record, or drop it when too many wait."""
        waiting = self.waiting
        if len(waiting) >= self._most:
            self.dropped += 1
            return
        waiting.append((self._now(), record))
        if len(waiting) == 1:  # the thread takes all that it finds, so it sees the others
            self._wake()


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
            self._record(Sent(replace(to, host=host, port=port, source_port=source_port)))
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
