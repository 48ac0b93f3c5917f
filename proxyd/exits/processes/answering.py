"""Dials through exits for the other processes of this machine, and hands over the connections.

Theory of operation
-------------------
`asking` is the other side. Each other process has a line here, and on it dials under way and relays
that have become of them. A dial is the same as one for a client of this process. When an exit has
connected, its work connection is let go of here and its descriptor goes to the process that has
asked; an `AwayRelay` stays here and stands for the relay: it is counted among the exit's
connections, has the byte counts that the other process reported, and has it cut.

The dials of a process end with its line, since the process has ended. A process that finds this one
started again tells of its relays (`Resume`): they are counted at their device if that is attached,
and otherwise from when it is; and whether it may carry anything at all is looked up.
"""

import asyncio
import logging
import socket
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final, final

from proxyd.exits.attached.attached import Adopted, Attached
from proxyd.exits.attached.listener import ExitListener
from proxyd.exits.choosing.entries import Place
from proxyd.exits.choosing.places import Place as TakenPlace
from proxyd.exits.choosing.places import yields_at
from proxyd.exits.dialling.dial import Buyer, Exits, Via
from proxyd.exits.processes.line import Line, LineEnd, is_ours
from proxyd.wire.asks import (
    Answered,
    Ask,
    Cut,
    Ended,
    Failed,
    GiveUp,
    Moved,
    Reached,
    Relaying,
    Resume,
    decode_question,
    encode,
)
from proxyd.wire.events import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from market.base.networks import Address
    from proxyd.egress.exit import Cancellable

# Twice as many as there may be processes: the line of one that has died may end after its
# successor's has begun.
LINES_MAX: Final = 128
# When descriptors are short the socket stays readable: it is looked at again after that.
EXHAUSTED_PAUSE_SECONDS: Final = 0.1

_logger = logging.getLogger("exits")


@final
class ExitDesk:
    """Answers the other processes of this machine.

    Args:
        sock: listens, does not block, and is owned from here on; the supervisor also has it.
        most: how many asks of one process may be under way; may be replaced.
    """

    def __init__(
        self, exits: Exits, listener: ExitListener, sock: socket.socket, most: int
    ) -> None:
        self.exits = exits
        self.listener = listener
        self.most = most
        self._sock = sock
        self._processes: set[OtherProcess] = set()
        self._has_turned_away = False
        self._over = asyncio.Event()
        self._over.set()

    @property
    def relays(self) -> int:
        """Number of relays of other processes through exits."""
        return sum(len(each.relays) for each in self._processes)

    def start(self) -> None:
        """Begin to answer, unless it is closed."""
        if self._sock.fileno() >= 0:
            self.exits.reactor.loop.add_reader(self._sock.fileno(), self._accept)

    def close(self) -> None:
        """Stop answering; relays of other processes continue. Closing twice is harmless."""
        if self._sock.fileno() >= 0:
            self.exits.reactor.loop.remove_reader(self._sock.fileno())
            self._sock.close()
        for process in tuple(self._processes):
            process.close()

    async def wait_over(self, seconds: float) -> None:
        """Wait until nothing of other processes goes through exits, for some seconds at most."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            _logger.info("%d connections of other processes go through exits still", self.relays)

    def changed(self) -> None:
        """Check whether other processes still use exits."""
        if any(each.is_busy for each in self._processes):
            self._over.clear()
        else:
            self._over.set()

    def left(self, process: "OtherProcess") -> None:
        """Forget a process whose line has ended."""
        self._processes.discard(process)
        self.changed()

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _logger.debug("no process can be answered now: %s", error)
            loop = self.exits.reactor.loop
            loop.remove_reader(self._sock.fileno())
            loop.call_later(EXHAUSTED_PAUSE_SECONDS, self.start)
            return
        if len(self._processes) >= LINES_MAX or not is_ours(sock):
            # Any program of this machine can cause this refusal again and again: it is logged once.
            level = logging.DEBUG if self._has_turned_away else logging.WARNING
            self._has_turned_away = True
            _logger.log(level, "a program that is not to ask for exits was turned away")
            sock.close()
            return
        sock.setblocking(False)
        self._processes.add(OtherProcess(self, sock))


@final
class OtherProcess(LineEnd):
    """One of the other processes.

    Args:
        sock: the line to it, owned from here on.
    """

    __slots__ = ("_desk", "_dials", "_line", "relays")

    def __init__(self, desk: ExitDesk, sock: socket.SocketType) -> None:
        self._desk = desk
        # Under way; None while a dial begins, because it may end before it returns.
        self._dials: dict[int, Cancellable | None] = {}
        self.relays: dict[int, AwayRelay] = {}
        self._line = Line(desk.exits.reactor, sock, self)

    @property
    def is_busy(self) -> bool:
        """Whether it waits for a target, or relays."""
        return bool(self._dials or self.relays)

    def close(self) -> None:
        """Stop answering the process."""
        self._line.close()
        self.lose()

    def lose(self) -> None:
        """End all that the process had requested, after its end: see `LineEnd.lose`."""
        dials, self._dials = self._dials, {}
        for dial in dials.values():
            if dial is not None:
                dial.cancel()
        for number in tuple(self.relays):
            self._end(number)
        self._desk.left(self)

    def cut(self, number: int) -> None:
        """Order the other process to cut a relay.

        That process later reports the end of the relay.
        """
        self._line.send(encode(Cut(number)))

    def take(self, data: memoryview, descriptor: int) -> None:
        """Act on a message of the process: see `LineEnd.take`."""
        assert descriptor < 0  # noqa: S101 - descriptors go the other way
        question = decode_question(data)
        if isinstance(question, Ask):
            self._dial(question)
        elif isinstance(question, Moved):
            for number, size in question.relays:
                if number in self.relays:
                    self.relays[number].moved(size, self._desk.exits.reactor.loop.time())
        elif isinstance(question, Answered):
            if question.number in self.relays:
                self.relays[question.number].answered(question)
        elif isinstance(question, Ended):
            if question.number in self.relays:
                self.relays[question.number].size = question.size
                self._end(question.number)
        elif isinstance(question, GiveUp):
            self._give_up(question.number)
        else:
            self._resume(question)
        self._desk.changed()

    # --- dials ---------------------------------------------------------------------------------

    def _dial(self, ask: Ask) -> None:
        number, desk = ask.number, self._desk
        if len(self._dials) + self._line.waiting >= desk.most:
            self._fail(number, Failure.GENERAL)
            return
        done = partial(self._dialled, number)
        self._dials[number] = None
        dial: Cancellable
        if ask.is_datagrams:
            dial = desk.exits.associate(ask.wants, Asker(ask), done)
        else:
            host: Address | str = ask.host if ask.is_name else ip_address(ask.host)
            dial = desk.exits.dial(ask.wants, Asker(ask), host, ask.port, done)
        if number in self._dials:
            self._dials[number] = dial

    def _dialled(
        self,
        number: int,
        outcome: socket.SocketType | Failure,
        _unread: bool,
        via: Via | None,
    ) -> None:
        """Send the process the outcome of a dial."""
        del self._dials[number]
        if isinstance(outcome, Failure) or via is None:
            assert isinstance(outcome, Failure)  # noqa: S101 - only what is connected has a way
            self._fail(number, outcome)
        else:
            self._hand_over(number, outcome, via)
        self._desk.changed()

    def _hand_over(self, number: int, sock: socket.SocketType, via: Via) -> None:
        """Give a connection to the process, and count it here on its behalf."""
        attached = via.attached
        assert isinstance(attached, Attached)  # noqa: S101 - it was dialled here
        # Not forgotten but let go of: to the kernel it is open as long as anybody has it.
        self._desk.exits.reactor.poller.release(sock.fileno())
        relay = AwayRelay(self, number, attached.place, 0)
        relay.begin(attached, via.place)
        relay.fault, relay.proof = via.fault, via.proof
        self.relays[number] = relay
        reached = Reached(
            number,
            attached.device_id,
            attached.place,
            str(attached.address),
            str(via.address),
            via.port,
            via.headers,
            via.ports,
            attached.limits.bytes_per_second,
        )
        if not self._line.send(encode(reached), sock):
            self._end(number)

    def _fail(self, number: int, failure: Failure) -> None:
        self._line.send(encode(Failed(number, failure)))

    def _give_up(self, number: int) -> None:
        dial = self._dials.pop(number, None)
        if dial is not None:
            dial.cancel()
        elif number in self.relays:  # it was handed over meanwhile, and is closed there
            self._end(number)

    # --- relays --------------------------------------------------------------------------------

    def _resume(self, told: Resume) -> None:
        devices: dict[str, None] = {}  # each is looked up once, however much goes through it
        for each in told.relays:
            if each.number not in self.relays:
                self.relays[each.number] = self._adopted(each)
                devices[each.device_id] = None
        for device_id in devices:
            self._desk.listener.recheck(device_id)

    def _adopted(self, told: Relaying) -> "AwayRelay":
        relay = AwayRelay(self, told.number, Place(*told.place), told.size)
        relay.device_id = told.device_id
        self._desk.listener.detached.adopt(told.device_id, relay)
        return relay

    def _end(self, number: int) -> None:
        relay = self.relays.pop(number)
        if relay.attached is not None:
            relay.attached.end(relay)
        else:
            self._desk.listener.detached.disown(relay.device_id, relay)


@final
class Asker(Buyer):
    """Buyer of an ask of another process."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    @property
    def id(self) -> str:
        """See `Buyer.id`."""
        return self._ask.session_id

    @property
    def user_id(self) -> str:
        """See `Buyer.user_id`."""
        return self._ask.user_id

    @property
    def price_per_gb(self) -> int:
        """See `Buyer.price_per_gb`."""
        return self._ask.price_per_gb


@final
class AwayRelay(Adopted):
    """A buyer's connection of another process that goes through an exit of this one.

    `fault` and `proof` are those of its `Via`, until its target has begun to answer. `attached` is
    the exit that counts it, `size` how many bytes it has carried in all. The bytes that it had
    carried before it was known here are not counted: they have been reported to the store, or will
    be.

    Args:
        before: bytes that it had carried before it was known here.
    """

    __slots__ = (
        "_before",
        "_moved_at",
        "_number",
        "_process",
        "attached",
        "device_id",
        "fault",
        "place",
        "proof",
        "size",
    )

    def __init__(self, process: OtherProcess, number: int, place: Place, before: int) -> None:
        self._process = process
        self._number = number
        self._before = before
        self.place = place
        self.size = before
        self.device_id = ""  # of an exit that is not attached
        self.attached: Attached | None = None
        self.fault: Callable[[], None] | None = None
        self.proof: Callable[[bool], None] | None = None
        self._moved_at = 0.0  # by the last report (loop time, seconds)

    @property
    def traffic(self) -> tuple[int, int]:
        """The bytes that its exit has carried, both ways in one number."""
        return 0, max(0, self.size - self._before)

    def abort(self) -> None:
        """See `Carried.abort`."""
        self._process.cut(self._number)

    def yields_at(self) -> float:
        """See `Carried.yields_at`: whether one side has ended is not told."""
        return yields_at(self._moved_at, is_half_closed=False)

    def answered(self, told: Answered) -> None:
        """Pass on the verdict on the target's first answer; only the first report counts."""
        fault, proof, self.fault, self.proof = self.fault, self.proof, None, None
        if told.is_right and proof is not None:
            proof(told.is_tls)
        elif not told.is_right and fault is not None:
            fault()

    def moved(self, size: int, now: float) -> None:
        """Note the number of bytes that it has carried."""
        if size != self.size:
            self.size, self._moved_at = size, now

    def begin(self, attached: Attached, place: TakenPlace | None) -> None:
        """Move the relay to an exit, in one of its places."""
        self._before = self.size
        self._moved_at = attached.load.now()
        self.attached = attached
        attached.begin(self, place)

    def join(self, attached: Attached) -> None:
        """See `Adopted.join`."""
        self.begin(attached, None)
