"""The connections of one exit that wait for a target, and the dials that wait for one.

Theory of operation
-------------------
An exit keeps work connections open ahead of need (`Pool`). Each came with a ticket that was handed
out over the control connection (`TicketBook`), waits in the poller, and is used once: it is taken
for a dial, a `Dial` frame with its number goes out over the control connection, and a `Dialled`
frame with that number comes back. From then on the connection is the target's socket of an ordinary
relay: the stream has no bytes of ours, so it is spliced, half-closed and reset like any other.

`Park` gives the exit the number of connections that shall wait, and the exit opens a new one for
each that was taken:

    clamp(rate of dials x 2 round trips, rounded up, + 1 + dials that wait for one, least, most)

So a burst finds enough connections until new ones arrive, and an exit that was unused for a while
keeps none (`Demand`). `ParkedBudget` bounds the connections that wait, over all exits.

A translator of addresses on the way forgets silent connections without telling anybody. So waiting
connections have keep-alives, and are closed before they get old; the exit replaces them.
"""

import math
import socket
from collections.abc import Callable
from hmac import compare_digest
from secrets import token_bytes
from typing import TYPE_CHECKING, Final, Protocol, final

from proxyctl.protocol.frames import (
    SECURE_TICKETS,
    TICKET_BYTES,
    Dialled,
    Encrypt,
    Frame,
    Park,
    Tickets,
)
from proxyd.counters import ExitCounters
from proxyd.loop.poller import READS, Watcher
from proxyd.loop.reactor import Reactor

if TYPE_CHECKING:
    import asyncio

# Connections of an exit that is used much: more make carriers suspicious, and weak routers run out
# of ports.
PARKED_MAX: Final = 16
# After a longer time without use an exit keeps no connection open: its next dial takes a round trip
# more.
IDLE_SECONDS: Final = 600.0
# Connections beyond the wanted ones that are kept for the next burst. The exit keeps the same
# number: if it closed one first, an order for that one would fail.
SURPLUS_MAX: Final = 8
# Carriers forget silent connections after five minutes and more; one that is no older was alive
# when the exit opened it.
PARKED_SECONDS: Final = 300.0
# Tickets that are handed out beyond those wanted: for connections that were lost before they came,
# and for the dials of a second, because a frame for every few dials costs as much as one of them.
TICKETS_SPARE: Final = 4
TICKETS_SPARE_MOST: Final = 32
TICKETS_KEPT: Final = 64  # more are not on their way at once: the oldest were lost
RATE_SECONDS: Final = 5.0  # over which dials are counted, and a burst is remembered
RTT_MOST_SECONDS: Final = (
    2.0  # an exit that answers late on purpose gets no more connections for it
)
SRTT_SHARE: Final = 0.125  # RFC 6298, section 2.3
ALMOST_NOTHING: Final = 0.05  # of a connection: the rest of a rate long after the last dial
FIRST_RTT_SECONDS: Final = 0.1  # until it was measured


class Asker(Protocol):
    """A dial that waits for a connection of an exit, and then for the exit's answer."""

    __slots__ = ()

    @property
    def buyer(self) -> str:
        """The buyer of the dial: buyers that wait for connections of an exit take turns."""

    def take(self, parked: "Parked") -> None:
        """Take over the connection that the dial has waited for."""

    def answer(self, dialled: Dialled) -> None:
        """Take the result of the exit's dial."""

    def lose(self) -> None:
        """Note that the exit is gone."""


@final
class ParkedBudget:
    """Bound on the waiting connections of all exits together."""

    __slots__ = ("most", "wanted")

    def __init__(self, most: int) -> None:
        self.most = most
        self.wanted = 0

    def change(self, most: int) -> None:
        """Change the bound; no connection is closed because of it."""
        self.most = most


@final
class Parked(Watcher):
    """A work connection that waits for a target, and then for the exit to reach it.

    It is watched all the while. Before it is taken nothing may come but its end; after that the
    received bytes are the target's, and stay in the kernel until the relay has them: `is_unread`
    says whether there are some, or the end of the stream.

    Args:
        number: its ticket's.
        sock: owned from here on.
        since: the beginning of its wait (loop time, seconds).
    """

    __slots__ = ("_pool", "is_taken", "is_unread", "number", "since", "sock")

    def __init__(self, pool: "Pool", number: int, sock: socket.SocketType, since: float) -> None:
        self._pool = pool
        self.number = number
        self.sock = sock
        self.since = since
        self.is_taken = self.is_unread = False

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if not events & READS:
            return
        if self.is_taken:
            self.is_unread = True
        else:
            self._pool.drop(self)

    def fail(self, _error: Exception) -> None:
        """See `Watcher.fail`."""
        if not self.is_taken:
            self._pool.drop(self)


@final
class TicketBook:
    """The tickets of one pool: `out` has the tickets that are handed out, by their numbers.

    Args:
        first: the number of the first ticket.
    """

    __slots__ = ("_first", "_next", "_send", "out")

    def __init__(self, send: Callable[[Frame], None], first: int) -> None:
        self._send = send
        self._first = self._next = first
        self.out: dict[int, bytes] = {}  # the oldest first

    def issue(self, count: int) -> None:
        """Hand out more tickets; the oldest become void if too many are out."""
        first, self._next = self._next, self._next + count
        drawn = token_bytes(count * TICKET_BYTES)
        starts = range(0, len(drawn), TICKET_BYTES)
        tickets = tuple([drawn[start : start + TICKET_BYTES] for start in starts])
        self.out.update(zip(range(first, first + count), tickets, strict=True))
        while len(self.out) > TICKETS_KEPT:
            del self.out[next(iter(self.out))]
        self._send(Tickets(first, tickets))

    def admits(self, number: int, ticket: bytes) -> bool:
        """Return whether a ticket is valid and unused, and count it as used."""
        expected = self.out.get(number)
        if expected is None or not compare_digest(expected, ticket):
            return False
        del self.out[number]
        return True

    def was_used(self, number: int) -> bool:
        """Return whether a ticket was handed out, and is not valid any more."""
        return self._first <= number < self._next and number not in self.out

    def clear(self) -> None:
        """Make every ticket invalid."""
        self.out.clear()


@final
class Queue:
    """The dials that wait for a connection of one exit: their buyers take turns.

    `count` is how many there are.
    """

    __slots__ = ("_waiting", "count")

    def __init__(self) -> None:
        self.count = 0
        # By buyer: whose turn is next comes first, and of each the first come.
        self._waiting: dict[str, dict[Asker, None]] = {}

    def add(self, asker: Asker) -> None:
        """Add a waiting dial, unless it waits already."""
        self._waiting.setdefault(asker.buyer, {})[asker] = None
        self.count += 1

    def discard(self, asker: Asker) -> None:
        """Forget a dial that may be waiting."""
        waiting = self._waiting.get(asker.buyer)
        if waiting is not None and asker in waiting:
            del waiting[asker]
            self.count -= 1
            if not waiting:
                del self._waiting[asker.buyer]

    def pop(self) -> Asker | None:
        """Remove and return the dial whose turn it is; None when no dial waits."""
        for buyer in self._waiting:
            waiting = self._waiting.pop(buyer)
            asker = next(iter(waiting))
            del waiting[asker]
            self.count -= 1
            if waiting:
                self._waiting[buyer] = waiting  # behind all others
            return asker
        return None

    def dismiss(self) -> None:
        """Notify all waiting dials that no connection will come."""
        waiting, self._waiting, self.count = self._waiting, {}, 0
        for askers in waiting.values():
            for asker in askers:
                asker.lose()


@final
class Demand:
    """The use of one pool, and the number of connections that should wait for it.

    `rate` is in dials per second, `rtt` a round trip in seconds, `used_at` the last dial (loop
    time, seconds).

    Args:
        now: the time of the loop.
    """

    __slots__ = ("_rated_at", "rate", "rtt", "used_at")

    def __init__(self, now: float) -> None:
        self.rate = 0.0
        self._rated_at = self.used_at = now
        self.rtt = FIRST_RTT_SECONDS

    def count(self, now: float) -> None:
        """Count a dial."""
        self.rate = self.rate * math.exp((self._rated_at - now) / RATE_SECONDS) + 1 / RATE_SECONDS
        self._rated_at = self.used_at = now

    def decay(self, now: float) -> None:
        """Decrease the rate with the time since its last update."""
        self.rate *= math.exp((self._rated_at - now) / RATE_SECONDS)
        self._rated_at = now

    def wanted(self, waiting: int) -> int:
        """Return the number of connections that should wait while `waiting` dials wait."""
        least = 0 if self.used_at + IDLE_SECONDS <= self._rated_at else 1
        return math.ceil(self.rate * 2 * self.rtt - ALMOST_NOTHING) + least + waiting

    def measure(self, seconds: float) -> None:
        """Add the duration of a round trip to the average."""
        self.rtt += SRTT_SHARE * (min(seconds, RTT_MOST_SECONDS) - self.rtt)

    def add_way(self, seconds: float) -> None:
        """Add the time of a longer way over another node."""
        self.rtt += seconds


@final
class Pace:
    """The number of connections that an exit has opened in the last second."""

    __slots__ = ("_before", "_count", "_second")

    def __init__(self) -> None:
        self._second = 0  # of the loop's clock
        self._count = self._before = 0  # in that second, and in the one before

    def count(self, now: float) -> None:
        """Count a connection that has come (loop time, seconds)."""
        second = int(now)
        if second != self._second:
            self._before = self._count if second == self._second + 1 else 0
            self._second, self._count = second, 0
        self._count += 1

    def in_last_second(self, now: float) -> int:
        """Return the number of connections in this second of the clock and in the one before.

        One that comes a moment late at each beginning of a second is counted all the same.
        """
        seconds = int(now) - self._second
        if seconds > 1:
            return 0
        return self._count if seconds else self._count + self._before


@final
class Pool:
    """The connections of one exit that wait, the tickets for more, and the dials that wait for one.

    Args:
        is_secure: whether those that wait are under TLS.
    """

    __slots__ = (
        "_asked",
        "_budget",
        "_counters",
        "_is_open",
        "_is_secure",
        "_parked",
        "_queue",
        "_reactor",
        "_send",
        "demand",
        "pace",
        "tickets",
    )

    def __init__(
        self,
        reactor: Reactor,
        send: Callable[[Frame], None],
        budget: ParkedBudget,
        counters: ExitCounters,
        *,
        is_secure: bool = False,
    ) -> None:
        self._is_open = False
        self._is_secure = is_secure
        self._reactor = reactor
        self._send = send
        self._budget = budget
        self._counters = counters
        self._parked: list[Parked] = []  # the oldest first; few, and most exits have one
        self._queue = Queue()
        self._asked = 0
        self.tickets = TicketBook(send, SECURE_TICKETS if is_secure else 1)
        self.demand = Demand(reactor.loop.time())
        self.pace = Pace()

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def loop(self) -> "asyncio.AbstractEventLoop":
        """The event loop of its connections."""
        return self._reactor.loop

    @property
    def waiting(self) -> int:
        """Number of dials that wait for a connection."""
        return self._queue.count

    def open(self) -> None:
        """Ask the exit for its first connections."""
        self._refill()

    def park(self, number: int, sock: socket.SocketType) -> None:
        """Keep a connection, or give it to the dial that has waited longest.

        Args:
            number: its ticket's.
            sock: owned from here on.

        Raises:
            OSError: the kernel watches no more sockets; the caller still owns it.
        """
        now = self._reactor.loop.time()
        parked = Parked(self, number, sock, now)
        self._reactor.poller.watch(sock.fileno(), parked)
        self.pace.count(now)
        asker = self._queue.pop() if self._queue.count else None
        if asker is not None:
            parked.is_taken = True
            self._refill()
            asker.take(parked)
            return
        if len(self._parked) >= PARKED_MAX:  # more than the exit was ever asked for
            self._close(self._parked.pop(0))
        self._parked.append(parked)
        self._counters.parked += 1
        self._refill()

    def take(self, asker: Asker) -> Parked | None:
        """Return a connection, which the caller owns; None if the asker has to wait for one."""
        self.demand.count(self._reactor.loop.time())
        if not self._parked:
            self._queue.add(asker)
            self._refill()
            return None
        parked = self._parked.pop()  # the youngest: the least likely to be dead
        self._counters.parked -= 1
        parked.is_taken = True
        self._refill()
        return parked

    def has_used(self, number: int) -> bool:
        """Return whether a ticket's connection may have received an order."""
        return self.tickets.was_used(number) and all(each.number != number for each in self._parked)

    def stop_waiting(self, asker: Asker) -> None:
        """Forget about a dial that may be waiting."""
        self._queue.discard(asker)

    def drop(self, parked: Parked) -> None:
        """Close a connection that has ended, or sends bytes before its order."""
        self._parked.remove(parked)
        self._close(parked)

    def tend(self) -> None:
        """Close old connections, and request the number that is needed now."""
        if not self._is_open:  # no dial has wanted one yet
            return
        now = self._reactor.loop.time()
        while self._parked and self._parked[0].since + PARKED_SECONDS <= now:
            self._close(self._parked.pop(0))
        self.demand.decay(now)
        if len(self._parked) < self._asked:  # tickets may have been lost on the way
            self.tickets.issue(self._asked - len(self._parked))
        wanted = self._wanted()
        while len(self._parked) > wanted + SURPLUS_MAX:
            self._close(self._parked.pop(0))
        self._ask(wanted)

    def close(self) -> None:
        """Close all that wait, and notify the dials that wait for one; twice is harmless."""
        self._budget.wanted -= self._asked
        self._asked = 0
        self.tickets.clear()
        while self._parked:
            self._close(self._parked.pop(0))
        self.dismiss()

    def dismiss(self) -> None:
        """Notify the dials that wait for a connection that none will come."""
        self._queue.dismiss()

    def _close(self, parked: Parked) -> None:
        self._counters.parked -= 1
        self._reactor.poller.forget(parked.sock.fileno())
        parked.sock.close()

    def _wanted(self) -> int:
        """Return the number of connections that should wait, within the bound on all exits."""
        waiting = self._queue.count
        wanted = self.demand.wanted(waiting)
        room = self._budget.most - (self._budget.wanted - self._asked)
        # A dial that waits gets a connection all the same: that connection is taken when it comes,
        # and never waits.
        wanted = min(wanted, PARKED_MAX)
        return max(0, min(wanted, max(room, waiting)))

    def _refill(self) -> None:
        """Send the exit the new number and tickets, if more connections should wait.

        Only `tend` asks for fewer, unless there are too many: one burst is often followed
        by another.
        """
        self._is_open = True
        has_room = self._budget.wanted <= self._budget.most
        self._ask(max(self._wanted(), self._asked) if has_room else self._wanted())

    def _ask(self, wanted: int) -> None:
        if len(self.tickets.out) < wanted:
            spare = min(TICKETS_SPARE + int(self.demand.rate), TICKETS_SPARE_MOST)
            self.tickets.issue(wanted + spare - len(self.tickets.out))
        if wanted != self._asked:
            self._budget.wanted += wanted - self._asked
            self._asked = wanted
            self._send(Encrypt(wanted) if self._is_secure else Park(wanted))
