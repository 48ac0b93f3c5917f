"""A node that stands in for the agent of an exit, towards a node that has borrowed it.

The borrower finds what it would find of an agent: work connections come with its tickets, orders
are obeyed and questions answered. Each connection that it orders is joined here to one out of the
exit's own pool, with an order of this node's. Its bytes are counted and paid for by the borrower;
here they count towards the exit's limits alone.

Questions whether the exit is there are passed on: only its own answer shows that.
"""

import asyncio
import logging
import os
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import Final, Protocol, final

from proxyctl.protocol.frames import (
    Associate,
    Dial,
    Dialled,
    Frame,
    Outcome,
    Park,
    Ping,
    Pong,
    Preface,
    Tickets,
)
from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.load import Carried
from proxyd.exits.attached.pool import PARKED_MAX, TICKETS_KEPT, Asker, Parked, prepare
from proxyd.exits.choosing.places import Place
from proxyd.loop.poller import HUNG_UP, Watcher
from proxyd.loop.reactor import Reactor

CONNECT_SECONDS: Final = 2.0  # to another node; later no dial waits for it any more
AGAIN_SECONDS: Final = 1.0  # after a connection to the borrower has failed
ASKED_MAX: Final = 16  # questions that the exit has not answered; the borrower asks one at a time

_CONNECTED: Final = Outcome.CONNECTED
_logger = logging.getLogger("exits")
_os_write: Final = os.write


class Join(Protocol):
    """Joins two connected sockets, both watched, until both streams are over."""

    def __call__(
        self, borrower: socket.SocketType, exit_: socket.SocketType, over: Callable[[], None]
    ) -> Carried:
        """Begin; both sockets are owned from here on. `over` is called once, perhaps at once."""


@final
class StandInServices:
    """What all stand-ins of a node share.

    Args:
        reactor: what the sockets of the loop share.
        join: joins a borrower's connection and an exit's.
        most: how many connections all of them may have.
    """

    __slots__ = ("join", "joined", "most", "open", "reactor")

    def __init__(self, reactor: Reactor, join: Join, most: int) -> None:
        self.reactor = reactor
        self.join = join
        self.most = most
        self.open = 0
        self.joined: set[Carried] = set()

    def close(self) -> None:
        """Cut what is joined."""
        for each in tuple(self.joined):
            each.abort()


# More than 12 fields: what it was given, and what is under way.
@final
class StandIn:
    """Does what an exit's agent would do for a borrower.

    Args:
        services: what all stand-ins share.
        attached: the exit.
        borrower: the host and port where work connections go to.
        attachment: what those name.
        answer: takes a frame for the borrower.
    """

    __slots__ = (
        "_answer",
        "_asked",
        "_attached",
        "_attachment",
        "_borrower",
        "_is_closed",
        "_lines",
        "_opening",
        "_orders",
        "_services",
        "_tickets",
        "_timer",
        "_wanted",
    )

    def __init__(
        self,
        services: StandInServices,
        attached: Attached,
        borrower: tuple[str, int],
        attachment: int,
        answer: Callable[[Frame], None],
    ) -> None:
        self._services = services
        self._attached = attached
        self._borrower = borrower
        self._attachment = attachment
        self._answer = answer
        self._tickets: deque[tuple[int, bytes]] = deque(maxlen=TICKETS_KEPT)
        self._wanted = 0
        self._opening: set[asyncio.Task[None]] = set()
        self._lines: dict[int, _Line] = {}  # those that wait for an order
        self._orders: set[_Line] = set()  # those that the exit is to connect
        self._asked: deque[bytes] = deque(maxlen=ASKED_MAX)
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def receive(self, frame: Tickets | Park | Dial | Associate | Ping) -> None:
        """Do what the borrower says."""
        if isinstance(frame, Tickets):
            self._tickets.extend(enumerate(frame.tickets, frame.first))
            self._fill()
        elif isinstance(frame, Park):
            self._wanted = min(frame.connections, PARKED_MAX)
            self._fill()
        elif isinstance(frame, Ping):
            self._asked.append(frame.payload)
            self._attached.say(frame)
        else:
            self._dial(frame)

    def ponged(self, frame: Pong) -> None:
        """The exit has answered a question that may be the borrower's."""
        if frame.payload in self._asked:
            self._asked.remove(frame.payload)
            self._answer(frame)

    def close(self) -> None:
        """End what waits, and orders; what is joined goes on."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._opening:
            task.cancel()
        for line in (*self._lines.values(), *self._orders):
            self.drop(line)

    # --- connections to the borrower -----------------------------------------------------------

    def _fill(self) -> None:
        services = self._services
        while (
            self._timer is None
            and self._tickets
            and len(self._lines) + len(self._opening) < self._wanted
            and services.open < services.most
        ):
            number, ticket = self._tickets.popleft()
            services.open += 1
            task = services.reactor.loop.create_task(self._open(number, ticket))
            self._opening.add(task)
            task.add_done_callback(partial(self._opened, (number, ticket)))

    def _opened(self, ticket: tuple[int, bytes], task: "asyncio.Task[None]") -> None:
        """A connection waits, or there is none."""
        self._opening.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            self._fill()
            return
        self._services.open -= 1
        self._tickets.appendleft(ticket)  # hardly anybody has seen it
        if isinstance(error, OSError):
            _logger.debug("exit %s: its borrower is not reached: %s", self._name, error)
        elif error is not None:
            _logger.error("standing in for an exit failed", exc_info=error)
        if self._timer is None and not self._is_closed:
            self._timer = self._services.reactor.loop.call_later(AGAIN_SECONDS, self._go_on)

    async def _open(self, number: int, ticket: bytes) -> None:
        """Open a work connection to the borrower, and have it wait.

        Raises:
            OSError: that is not possible now.
        """
        loop, poller = self._services.reactor.loop, self._services.reactor.poller
        try:
            async with asyncio.timeout(CONNECT_SECONDS):  # its error is an OSError, too
                sock = await connected(loop, *self._borrower)
        except (ValueError, OverflowError) as error:
            raise OSError(f"it cannot be where it says: {error}") from None
        try:
            prepare(sock)
            if self._is_closed or number in self._lines:
                raise OSError("it is not needed any more")
            _os_write(sock.fileno(), Preface(self._attachment, number, ticket).encode())
            line = _Line(self, number, sock)
            poller.watch(sock.fileno(), line)
        except BaseException:
            sock.close()
            raise
        self._lines[number] = line

    def _go_on(self) -> None:
        self._timer = None
        self._fill()

    @property
    def borrower(self) -> str:
        """The borrower's name among the buyers of the exit."""
        return f"node at {self._borrower[0]}:{self._borrower[1]}"

    @property
    def _name(self) -> str:
        return self._attached.device_id

    # --- orders --------------------------------------------------------------------------------

    def _dial(self, frame: Dial | Associate) -> None:
        line = self._lines.pop(frame.number, None)
        attached = self._attached
        if line is None:
            self._fail(frame.number, Outcome.FAILED)
            return
        self._fill()
        if not attached.is_open or not attached.has_place:
            self._fail(frame.number, Outcome.AT_LIMIT if attached.is_open else Outcome.PAUSED)
            self.drop(line)
            return
        self._orders.add(line)
        line.order(attached, frame)

    def answered(self, line: "_Line", dialled: Dialled) -> None:
        """The exit says how a dial went."""
        sock = line.sock
        if dialled.outcome is not _CONNECTED:
            self.drop(line)
            self._answer(dialled._replace(number=line.number))
            return
        parked, place = line.keep()
        self._orders.discard(line)
        carrying = _Carrying(self._services, self._attached)
        self._answer(dialled._replace(number=line.number))
        carrying.begin(sock, parked.sock, place)

    def lose(self, line: "_Line") -> None:
        """The exit is gone."""
        self.drop(line)
        self._fail(line.number, Outcome.FAILED)

    def _fail(self, number: int, outcome: Outcome) -> None:
        self._answer(Dialled(number, outcome, 0, None, 0))

    def drop(self, line: "_Line") -> None:
        """Close a connection that has ended, or is not needed any more, and what it has ordered."""
        self._lines.pop(line.number, None)
        self._orders.discard(line)
        poller = self._services.reactor.poller
        parked = line.let_go(self._attached)
        for sock in (line.sock, None if parked is None else parked.sock):
            if sock is not None:
                poller.forget(sock.fileno())
                sock.close()
        self._services.open -= 1
        if not self._is_closed:
            self._fill()


@final
class _Line(Asker, Watcher):
    """A connection to the borrower, which waits for an order and then for the exit.

    Args:
        stand_in: whose it is.
        number: its ticket's.
        sock: owned from here on.
    """

    __slots__ = ("_attached", "_order", "_parked", "_place", "_stand_in", "number", "sock")

    def __init__(self, stand_in: StandIn, number: int, sock: socket.SocketType) -> None:
        self._stand_in = stand_in
        self._attached: Attached | None = None
        self._order: Dial | Associate | None = None
        self._parked: Parked | None = None
        self._place: Place | None = None
        self.number = number
        self.sock = sock

    @property
    def buyer(self) -> str:
        """See `Asker.buyer`: the borrower has its buyers take turns."""
        return self._stand_in.borrower

    def order(self, attached: Attached, order: Dial | Associate) -> None:
        """Have the exit connect one of its own connections to a target, or to any by datagrams."""
        self._attached, self._order = attached, order
        datagrams = isinstance(order, Associate)
        self._place = attached.take_place(self.buyer, datagrams=datagrams)
        parked = attached.pool.take(self)
        if parked is not None:
            self.take(parked)

    def take(self, parked: Parked) -> None:
        """See `Asker.take`."""
        attached, order = self._attached, self._order
        assert attached is not None  # noqa: S101 - only who has an order asks for a connection
        assert order is not None  # noqa: S101 - as above
        self._parked = parked
        if self._place is not None:
            self._place.number = parked.number
        if isinstance(order, Associate):
            attached.order_datagrams(parked, self)
        else:
            attached.order(parked, order.host, order.port, self)

    def answer(self, dialled: Dialled) -> None:
        """See `Asker.answer`."""
        if self._place is not None and dialled.outcome is not _CONNECTED:
            self._place.number = 0  # the exit has let go of it
        self._stand_in.answered(self, dialled)

    def lose(self) -> None:
        """See `Asker.lose`."""
        self._stand_in.lose(self)

    def keep(self) -> tuple[Parked, Place | None]:
        """Return the exit's connection and its place, the caller's from here on."""
        parked, self._parked = self._parked, None
        place, self._place = self._place, None
        assert parked is not None  # noqa: S101 - the exit has answered on it
        return parked, place

    def let_go(self, attached: Attached) -> Parked | None:
        """Care no more about the order; return the exit's connection, the caller's."""
        attached.pool.stop_waiting(self)
        parked, self._parked = self._parked, None
        if parked is not None:
            attached.forgo(parked.number)
        place, self._place = self._place, None
        if place is not None:
            attached.places.leave(place, attached.load.now())
        return parked

    def ready(self, events: int) -> None:
        """The borrower has given up: it says nothing before the exit has connected."""
        if events & HUNG_UP:
            self._stand_in.drop(self)

    def fail(self, error: Exception) -> None:
        """See `Watcher.fail`."""
        _logger.error("standing in for an exit failed; it is cut", exc_info=error)
        self._stand_in.drop(self)


@final
class _Carrying:
    """Two connections that are joined, and count as one of the exit's.

    Args:
        services: what all stand-ins share.
        attached: the exit.
    """

    __slots__ = ("_attached", "_is_over", "_joined", "_services")

    def __init__(self, services: StandInServices, attached: Attached) -> None:
        self._services = services
        self._attached = attached
        self._joined: Carried | None = None
        self._is_over = False

    def begin(
        self, borrower: socket.SocketType, exit_: socket.SocketType, place: Place | None
    ) -> None:
        """Join them, in a place of the exit."""
        joined = self._services.join(borrower, exit_, self._over)
        self._joined = joined
        self._services.joined.add(joined)
        self._attached.begin(joined, place)
        if self._is_over:
            self._end(joined)

    def _over(self) -> None:
        self._is_over = True
        if self._joined is not None:
            self._end(self._joined)

    def _end(self, joined: Carried) -> None:
        self._services.open -= 1
        self._services.joined.discard(joined)
        self._attached.end(joined)


async def connected(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Return a socket that is connected to another node.

    Raises:
        OSError: there is none.
    """
    try:
        address = str(ip_address(host))
    except ValueError:
        rows = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        address = str(rows[0][4][0])
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, (address, port))
    except BaseException:
        sock.close()
        raise
    return sock
