"""Exits for a process without the exits' port: it sends requests to the process that has the port.

Theory of operation
-------------------
Of several processes of a daemon one takes exits in, and dials through them for all (`answering`). A
dial here is an ask: a message with the requirements and a number. The answer is why not, or the
work connection that the exit has joined to its target, as a descriptor. From then on it is a socket
of this process like any other: relayed, metered and closed here. The other process gets a report of
the socket's bytes now and then, and at its end, and may have it cut.

The line between the two is made at the first dial. When it is lost, because the other process has
died, it is made anew at once: the listening socket is the supervisor's, so asks wait there for the
successor, no longer than a dial may take. The successor gets a list of the relays that go on.

How many asks are under way is bounded where clients wait for targets (`limits.dials_waiting`).
"""

import logging
import os
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, final

from msgspec import DecodeError

from market.base.networks import Address
from proxyd.egress.exit import Cancellable
from proxyd.exits.attached.attached import Carrier
from proxyd.exits.choosing.entries import ANY_PORT
from proxyd.exits.choosing.places import Carried, Place
from proxyd.exits.dialling.dial import Buyer, Done, Via, Ways
from proxyd.exits.processes.line import Line, LineEnd, is_ours
from proxyd.loop.deadlines import Deadlines, Expiring
from proxyd.loop.reactor import Reactor
from proxyd.metering.pace import Pace
from proxyd.wire.asks import (
    RELAYS_PER_MESSAGE,
    Answered,
    Ask,
    Cut,
    Ended,
    Failed,
    GiveUp,
    Moved,
    PlaceText,
    Reached,
    Relaying,
    Resume,
    decode_answer,
    encode,
)
from proxyd.wire.events import Failure
from proxyd.wire.wants import Wants

if TYPE_CHECKING:
    import asyncio

# Longer than the process with the exits takes to notice that a dial takes too long, so that it is
# the one with the reason.
SLACK_SECONDS: Final = 2.0

_AF_UNIX: Final = socket.AF_UNIX
_KIND: Final = socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
_logger = logging.getLogger("exits")


@dataclass(frozen=True, slots=True)
class AskingTimes:
    """The intervals of messages to the process with the exits.

    Attributes:
        reconnect_seconds: between two lines, so that no process spins while the other one is away.
        tell_seconds: between two reports of the bytes of relays: a third of a usual heartbeat. At
            each heartbeat the bytes of an exit are compared with its limit of the day.
    """

    reconnect_seconds: float = 0.2
    tell_seconds: float = 5.0


USUAL: Final = AskingTimes()


@final
class _Relays:
    """The open relays of this process, and the paces of their exits."""

    __slots__ = ("_by_number", "_numbers", "_paces")

    def __init__(self) -> None:
        self._by_number: dict[int, AskedExit] = {}  # by the number of the ask
        self._numbers: Counter[str] = Counter()  # relays of each device
        self._paces: dict[str, Pace] = {}  # how fast the relays of a device may go together

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator["AskedExit"]:
        """Iterate over the relays; no relay may begin or end meanwhile."""
        return iter(self._by_number.values())

    def get(self, number: int) -> "AskedExit | None":
        """Return a relay; None when it is over."""
        return self._by_number.get(number)

    def add(self, relay: "AskedExit") -> None:
        """Keep a relay that begins."""
        self._by_number[relay.number] = relay
        self._numbers[relay.device_id] += 1

    def remove(self, relay: "AskedExit") -> None:
        """Forget a relay that is over."""
        del self._by_number[relay.number]
        self._numbers[relay.device_id] -= 1
        self.drop_unused(relay.device_id)

    def pace(
        self, loop: "asyncio.AbstractEventLoop", device_id: str, bytes_per_second: int
    ) -> Pace:
        """Return the pace that all relays of this process through an exit share.

        The relays of other processes through it do not count here: the device itself bounds all
        of them.
        """
        pace = self._paces.get(device_id)
        if pace is None:
            pace = self._paces[device_id] = Pace(loop, bytes_per_second)
        else:
            pace.change(bytes_per_second)
        return pace

    def drop_unused(self, device_id: str) -> None:
        """Forget an exit that has no relay here."""
        if not self._numbers[device_id]:
            del self._numbers[device_id]
            self._paces.pop(device_id, None)


@final
class AskedExits(Ways, LineEnd):
    """The ways out through exits, by the process that has them.

    Args:
        reactor: shared by the sockets of the loop; sockets that are handed over are not watched.
        address: the Unix socket where that process answers.
        seconds: how long a dial may take in all.
    """

    __slots__ = (
        "_address",
        "_asks",
        "_deadlines",
        "_is_closed",
        "_line",
        "_next",
        "_reactor",
        "_reconnect",
        "_relays",
        "_tell",
        "_times",
        "_tried_at",
    )

    def __init__(
        self, reactor: Reactor, address: bytes, seconds: float, times: AskingTimes = USUAL
    ) -> None:
        self._times = times
        self._reactor = reactor
        self._address = address
        self._deadlines: Deadlines[AskedDial] = Deadlines(reactor.loop, seconds + SLACK_SECONDS)
        self._asks: dict[int, AskedDial] = {}
        self._relays = _Relays()
        self._next = 1
        self._line: Line | None = None
        self._tried_at = 0.0  # when a line was made last (loop time, seconds)
        self._reconnect: asyncio.TimerHandle | None = None
        self._tell: asyncio.TimerHandle | None = None
        self._is_closed = False

    def dial(
        self, wants: Wants, session: Buyer, host: Address | str, port: int, done: Done
    ) -> "AskedDial":
        """Begin to connect to a target through an exit: see `Ways.dial`."""
        return self._ask(wants, session, str(host), port, done, is_name=isinstance(host, str))

    def associate(self, wants: Wants, session: Buyer, done: Done) -> "AskedDial":
        """Begin to have an exit carry datagrams: see `Ways.associate`."""
        return self._ask(wants, session, "", ANY_PORT, done, is_datagrams=True)

    def _ask(
        self,
        wants: Wants,
        session: Buyer,
        host: str,
        port: int,
        done: Done,
        *,
        is_name: bool = False,
        is_datagrams: bool = False,
    ) -> "AskedDial":
        number, self._next = self._next, self._next + 1
        ask = Ask(
            number,
            wants,
            session.id,
            session.user_id,
            session.price_per_gb,
            host,
            is_name,
            port,
            is_datagrams,
        )
        dial = AskedDial(self, number, encode(ask), done)
        self._asks[number] = dial
        self._deadlines.add(dial)
        if self._line is not None:
            self._line.send(dial.message)
        elif self._reconnect is None:
            self._connect()
        return dial

    def change_seconds(self, seconds: float) -> None:
        """Change the time that dials may take in all, also for dials under way."""
        self._deadlines.seconds = seconds + SLACK_SECONDS

    def close(self) -> None:
        """Close the line; asks under way get no answer."""
        self._is_closed = True
        self._deadlines.close()
        self._asks.clear()
        for timer in (self._reconnect, self._tell):
            if timer is not None:
                timer.cancel()
        if self._line is not None:
            self._line.close()
            self._line = None

    # --- the line ------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Make a line and send the relays and the asks over it; after a failure, try again soon."""
        self._reconnect = None
        self._tried_at = self._reactor.loop.time()
        sock = socket.SocketType(_AF_UNIX, _KIND)
        try:
            sock.setblocking(False)
            sock.connect(self._address)
            if not is_ours(sock):  # no other user can have the address while the supervisor lives
                raise PermissionError("another user's process answers for exits")
            line = self._line = Line(self._reactor, sock, self)
        except OSError as error:
            sock.close()
            _logger.debug("the process with the exits cannot be reached: %s", error)
            self._connect_later()
            return
        relays = [each.told() for each in self._relays]
        for first in range(0, len(relays), RELAYS_PER_MESSAGE):
            line.send(encode(Resume(tuple(relays[first : first + RELAYS_PER_MESSAGE]))))
        for dial in self._asks.values():
            line.send(dial.message)

    def _connect_later(self) -> None:
        loop = self._reactor.loop
        self._reconnect = loop.call_at(
            self._tried_at + self._times.reconnect_seconds, self._connect
        )

    def lose(self) -> None:
        """Make another line if there are asks or relays: see `LineEnd.lose`."""
        self._line = None
        if not self._is_closed and (self._asks or self._relays):
            self._connect_later()

    def take(self, data: memoryview, descriptor: int) -> None:
        """Act on an answer: see `LineEnd.take`."""
        try:
            answer = decode_answer(data)
        except DecodeError:
            if descriptor >= 0:
                os.close(descriptor)
            raise
        if isinstance(answer, Reached):
            self._reached(answer, descriptor)
        elif isinstance(answer, Failed):
            dial = self._asks.pop(answer.number, None)
            if dial is not None:
                self._deadlines.discard(dial)
                dial.done(answer.failure, False, None)
        else:
            self._cut(answer)

    def _reached(self, answer: Reached, descriptor: int) -> None:
        """Take the descriptor of the exit's connection; close it if the ask is over."""
        dial = self._asks.pop(answer.number, None)
        if dial is None or descriptor < 0:
            if descriptor >= 0:  # given up, as the other process knows
                os.close(descriptor)
            if dial is not None:  # it came without one: this process has too many open
                self._deadlines.discard(dial)
                self.forget(answer.number)
                dial.done(Failure.GENERAL, False, None)
            return
        self._deadlines.discard(dial)
        try:
            sock = socket.SocketType(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            self.forget(answer.number)
            dial.done(Failure.GENERAL, False, None)
            return
        sock.setblocking(False)
        exit_ = AskedExit(
            self, answer.number, answer.device_id, ip_address(answer.exit_address), answer.place
        )
        address = ip_address(answer.address)
        pace = self._relays.pace(self._reactor.loop, answer.device_id, answer.bytes_per_second)
        via = Via(
            exit_,
            address,
            answer.port,
            answer.headers,
            answer.ports,
            pace,
            fault=partial(self.suspect, answer.number),
            proof=partial(self.prove, answer.number),
        )
        dial.done(sock, True, via)
        self._relays.drop_unused(answer.device_id)

    def _cut(self, answer: Cut) -> None:
        relay = self._relays.get(answer.number)
        if relay is not None:
            relay.cut()

    # --- dials and relays ----------------------------------------------------------------------

    def give_up(self, number: int) -> bool:
        """Drop an ask; return False when it is over already."""
        dial = self._asks.pop(number, None)
        if dial is None:
            return False
        self._deadlines.discard(dial)
        self.forget(number)
        return True

    def forget(self, number: int) -> None:
        """Notify the other process that an ask is cancelled."""
        if self._line is not None:
            self._line.send(encode(GiveUp(number)))

    def suspect(self, number: int) -> None:
        """Report that a TLS client got an answer other than TLS through an exit."""
        if self._line is not None:
            self._line.send(encode(Answered(number, is_right=False, is_tls=False)))

    def prove(self, number: int, is_tls: bool) -> None:
        """Report a first answer on port 443 that may be the target's."""
        if self._line is not None:
            self._line.send(encode(Answered(number, is_right=True, is_tls=is_tls)))

    def begin(self, relay: "AskedExit") -> None:
        """Report the bytes of a relay from now on."""
        self._relays.add(relay)
        if self._tell is None:
            self._tell_later()

    def _tell_later(self) -> None:
        self._tell = self._reactor.loop.call_later(self._times.tell_seconds, self._tell_all)

    def end(self, relay: "AskedExit", size: int) -> None:
        """Report that a relay is over."""
        self._relays.remove(relay)
        if self._line is not None:
            self._line.send(encode(Ended(relay.number, size)))

    def _tell_all(self) -> None:
        """Report the bytes of the relays that have moved bytes since the last report."""
        self._tell = None
        if not self._relays or self._is_closed:
            return
        self._tell_later()
        if self._line is None or self._line.waiting:  # totals: the next report has the same bytes
            return
        moved = [each.tell() for each in self._relays if each.has_moved]
        for first in range(0, len(moved), RELAYS_PER_MESSAGE):
            self._line.send(encode(Moved(tuple(moved[first : first + RELAYS_PER_MESSAGE]))))


@final
class AskedDial(Cancellable, Expiring):
    """One ask to the process with the exits.

    Args:
        message: the ask, which goes out again when the other process was started again.
        done: called with the outcome; never after `cancel`.
    """

    __slots__ = ("_exits", "done", "message", "number")

    def __init__(self, exits: AskedExits, number: int, message: bytes, done: Done) -> None:
        self._exits = exits
        self.number = number
        self.message = message
        self.done = done

    def cancel(self) -> None:
        """Cancel the ask, without calling `done`: see `Cancellable.cancel`."""
        self._exits.give_up(self.number)

    def timed_out(self) -> None:
        """Fail the ask: the other process is silent, or has ended; see `Expiring.timed_out`."""
        if self._exits.give_up(self.number):
            self.done(Failure.NO_EXIT, False, None)


@final
class AskedExit(Carrier):
    """The exit of one relay, which another process knows.

    Args:
        address: the address that it attaches from.
    """

    __slots__ = ("_carried", "_exits", "_place", "_told", "address", "device_id", "number")

    def __init__(
        self,
        exits: AskedExits,
        number: int,
        device_id: str,
        address: Address,
        place: PlaceText,
    ) -> None:
        self.number = number
        self.device_id = device_id
        self.address = address
        self._exits = exits
        self._place = place
        self._carried: Carried | None = None
        self._told = 0

    def begin(
        self,
        relay: Carried,
        place: Place | None = None,  # noqa: ARG002 - the other process has taken it
    ) -> None:
        """See `Carrier.begin`."""
        self._carried = relay
        self._exits.begin(self)

    def end(self, relay: Carried) -> None:
        """See `Carrier.end`."""
        self._exits.end(self, sum(relay.traffic))
        self._carried = None

    def cut(self) -> None:
        """Cut the relay."""
        if self._carried is not None:
            self._carried.abort()

    @property
    def has_moved(self) -> bool:
        """Whether it has carried bytes that are not reported yet."""
        return self._carried is not None and sum(self._carried.traffic) != self._told

    def tell(self) -> tuple[int, int]:
        """Return its report: its number, and the bytes that it has carried."""
        if self._carried is not None:
            self._told = sum(self._carried.traffic)
        return self.number, self._told

    def told(self) -> Relaying:
        """Return its full description, for a process that does not know it."""
        number, size = self.tell()
        return Relaying(number, self.device_id, self._place, size)
