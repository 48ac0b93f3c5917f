"""One exit that is attached: its control, its connections that wait for a target, and its dials.

Theory of operation
-------------------
An exit keeps work connections open ahead of need (`Pool`). Each came with a ticket that was handed
out over the control connection, waits in the poller, and is used once: it is taken for a dial, a
`Dial` frame with its number goes out over the control connection, and a `Dialled` frame with that
number comes back. From then on the connection is the relay's.

How many shall wait is told to the exit (`Park`), which opens a new one for each that was taken:

    clamp(rate of dials x 2 round trips, rounded up, + 1 + dials that wait for one, least, most)

so that a burst finds as many as it takes while new ones are on their way, and an exit that nobody
has used for a while keeps none. All exits together may have so many waiting (`ParkedBudget`).

A translator of addresses on the way forgets silent connections without telling anybody. So what
waits has keep-alives, and is closed, which the exit replaces, before it gets old.
"""

import math
import socket
from collections.abc import Callable
from enum import IntEnum
from hashlib import sha256
from hmac import compare_digest
from secrets import token_bytes
from typing import TYPE_CHECKING, Final, Protocol, final

from market.base.networks import Address, counted_network
from proxyctl.protocol.frames import (
    CALLS,
    PING_BYTES,
    SECURE_TICKETS,
    TICKET_BYTES,
    Associate,
    Capacity,
    Dial,
    Dialled,
    Encrypt,
    Frame,
    Limits,
    Outcome,
    Park,
    Ping,
    Tickets,
)
from proxyctl.protocol.policy import is_global
from proxyd.counters import ExitCounters
from proxyd.exits.choosing.directory import Place as Where
from proxyd.exits.choosing.places import Place, Places
from proxyd.loop.deadlines import Expiring
from proxyd.loop.poller import READS, Watcher
from proxyd.loop.reactor import Reactor
from proxyd.metering.pace import Pace

if TYPE_CHECKING:
    import asyncio

# What an exit opens at once to its daemon when it is used much: more makes carriers suspicious,
# and weak routers run out of ports.
PARKED_MAX: Final = 16
# An exit that nobody has used for so long keeps no connection open: its next dial takes a round
# trip more.
IDLE_SECONDS: Final = 600.0
# Carriers forget what is silent after five minutes and more; a keep-alive each minute is rarely
# lost on the way, and a connection that is no older was alive when the exit opened it.
PARKED_SECONDS: Final = 300.0
KEEPALIVE_SECONDS: Final = 60
KEEPALIVE_PAUSE_SECONDS: Final = 10
KEEPALIVE_TRIES: Final = 3
# Tickets that are handed out beyond those wanted: for connections that were lost before they came.
TICKETS_SPARE: Final = 4
TICKETS_KEPT: Final = 64  # more are not on their way at once: the oldest were lost
RATE_SECONDS: Final = 5.0  # over which dials are counted: a burst is remembered so long
ID_CHARACTERS: Final = 12  # no two exits share them by chance, and nobody learns the device's name
ATTACHMENT_BITS: Final = 64
# Why an exit that is let go of takes the buyers' connections with it: it is not there any more, or
# must not carry anything. Those of one whose control was lost go on until they end themselves, or
# their device may carry nothing any more.
HARMLESS: Final = frozenset(("lost", "attached_again", "stopping"))
SILENT_BEATS: Final = 3  # one heartbeat may be lost, and the next be late
RTT_MOST_SECONDS: Final = 2.0  # who answers late on purpose gets no more connections for it
SRTT_SHARE: Final = 0.125  # RFC 6298, section 2.3
ALMOST_NOTHING: Final = 0.05  # of a connection: what is left of a rate long after the last dial
FIRST_RTT_SECONDS: Final = 0.1  # until it was measured
NO_PORTS: Final = (0,)  # the account and the device allow no port in common
TLS_PORT: Final = 443  # what goes there cannot be changed unseen
HELD: Final = "paused in the account"
CROWDED: Final = "too many devices' connections leave from the same network"
SEEN_MAX: Final = 16  # as many as an agent keeps
STANDBY: Final = "another device on the same line carries connections"
WANDERING: Final = "its connections leave from changing addresses"
UNPROVEN: Final = "it was not looked at yet"

_CONNECTED: Final = Outcome.CONNECTED
_SOL_SOCKET: Final = socket.SOL_SOCKET
_SO_KEEPALIVE: Final = socket.SO_KEEPALIVE
_SO_OOBINLINE: Final = socket.SO_OOBINLINE
_IPPROTO_TCP: Final = socket.IPPROTO_TCP
_TCP_NODELAY: Final = socket.TCP_NODELAY
_TCP_KEEPIDLE: Final = socket.TCP_KEEPIDLE
_TCP_KEEPINTVL: Final = socket.TCP_KEEPINTVL
_TCP_KEEPCNT: Final = socket.TCP_KEEPCNT


class Asker(Protocol):
    """A dial that wants one connection of an exit, and then its answer."""

    __slots__ = ()

    @property
    def buyer(self) -> str:
        """Whose dial it is: buyers that wait for connections of an exit take turns."""

    def take(self, parked: "Parked") -> None:
        """Own a connection that it has waited for."""

    def answer(self, dialled: Dialled) -> None:
        """Hear how the exit's dial went."""

    def lose(self) -> None:
        """Hear that the exit is gone."""


class Carried(Protocol):
    """A buyer's connection that goes through an exit."""

    __slots__ = ()

    @property
    def traffic(self) -> tuple[int, int]:
        """How many bytes it has relayed so far, from the client and to it."""

    def yields_at(self) -> float:
        """Return when it gives way to others if it moves nothing until then (loop time)."""

    def abort(self) -> None:
        """Cut it at once, after giving back what was not delivered."""


class Carrier(Protocol):
    """An exit, as a connection that goes through it knows it."""

    __slots__ = ()

    device_id: str
    address: Address

    def begin(self, relay: Carried, place: Place | None = None) -> None:
        """Count a connection that goes through it, in the place that its dial has taken."""

    def end(self, relay: Carried) -> None:
        """Count one no more, but its bytes."""


class Adopted(Carried, Protocol):
    """A buyer's connection whose exit was attached to a daemon that is gone."""

    __slots__ = ()

    place: Where

    def join(self, attached: "Attached") -> None:
        """Go through an exit from now on that is attached here, by the same device."""


@final
class ParkedBudget:
    """How many connections all exits together may have waiting.

    Args:
        most: that number; may be replaced.
    """

    __slots__ = ("most", "wanted")

    def __init__(self, most: int) -> None:
        self.most = most
        self.wanted = 0


@final
class Parked(Watcher):
    """A work connection that waits for a target, and then for the exit to reach it.

    It is watched all the while. Before it is taken nothing may come but its end; after that what
    comes is the target's, and stays in the kernel until the relay has it.

    Args:
        pool: where it waits.
        number: its ticket's.
        sock: owned from here on.
        since: when it began to wait (loop time, seconds).
    """

    __slots__ = ("_pool", "is_taken", "number", "since", "sock")

    def __init__(self, pool: "Pool", number: int, sock: socket.SocketType, since: float) -> None:
        self._pool = pool
        self.number = number
        self.sock = sock
        self.since = since
        self.is_taken = False

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        if events & READS and not self.is_taken:
            self._pool.drop(self)

    def fail(self, _error: Exception) -> None:
        """See `Watcher.fail`."""
        if not self.is_taken:
            self._pool.drop(self)


@final
class Pool:
    """The connections of one exit that wait, the tickets for more, and the dials that wait for one.

    Args:
        reactor: what the sockets of the loop share.
        send: takes a frame for the exit.
        budget: how many all exits may have waiting.
        counters: count them.
        is_secure: whether those that wait are under TLS.
    """

    __slots__ = (
        "_asked",
        "_budget",
        "_counters",
        "_first_ticket",
        "_is_open",
        "_is_secure",
        "_next_ticket",
        "_parked",
        "_rate",
        "_rated_at",
        "_reactor",
        "_send",
        "_tickets",
        "_waiting",
        "rtt",
        "used_at",
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
        self._tickets: dict[int, bytes] = {}  # the oldest first
        self._first_ticket = SECURE_TICKETS if is_secure else 1
        self._next_ticket = self._first_ticket
        # By buyer: whose turn is next comes first, and of each the first come.
        self._waiting: dict[str, dict[Asker, None]] = {}
        self._asked = 0
        self._rate = 0.0
        self._rated_at = self.used_at = reactor.loop.time()
        self.rtt = FIRST_RTT_SECONDS

    def __len__(self) -> int:
        return len(self._parked)

    @property
    def loop(self) -> "asyncio.AbstractEventLoop":
        """The event loop of its connections."""
        return self._reactor.loop

    @property
    def waiting(self) -> int:
        """How many dials wait for a connection."""
        return sum(map(len, self._waiting.values()))

    def open(self) -> None:
        """Ask the exit for its first connections."""
        self._refill()

    def reopen(self) -> None:
        """Ask anew for all that are wanted, with other tickets: somebody else opens them now."""
        self._tickets.clear()
        self._budget.wanted -= self._asked
        self._asked = 0
        self._refill()

    def admits(self, number: int, ticket: bytes) -> bool:
        """Say whether a ticket is one that was handed out; it is none any more then."""
        expected = self._tickets.get(number)
        if expected is None or not compare_digest(expected, ticket):
            return False
        del self._tickets[number]
        return True

    def park(self, number: int, sock: socket.SocketType) -> None:
        """Keep a connection, or give it to the dial that has waited longest.

        Args:
            number: its ticket's.
            sock: owned from here on.

        Raises:
            OSError: it has broken meanwhile; the caller still owns it.
        """
        prepare(sock)
        parked = Parked(self, number, sock, self._reactor.loop.time())
        asker = self._next()
        if asker is not None:
            parked.is_taken = True
            self._reactor.poller.watch(sock.fileno(), parked)
            self._refill()
            asker.take(parked)
            return
        if len(self._parked) >= PARKED_MAX:  # more than the exit was ever asked for
            self._close(self._parked.pop(0))
        self._parked.append(parked)
        self._counters.parked += 1
        self._reactor.poller.watch(sock.fileno(), parked)
        self._refill()

    def take(self, asker: Asker) -> Parked | None:
        """Return a connection, the caller's from here on; None: the asker will be given one."""
        now = self.used_at = self._reactor.loop.time()
        self._decay(now)
        self._rate += 1 / RATE_SECONDS
        if not self._parked:
            self._waiting.setdefault(asker.buyer, {})[asker] = None
            self._refill()
            return None
        parked = self._parked.pop()  # the youngest: the least likely to be dead
        self._counters.parked -= 1
        parked.is_taken = True
        self._refill()
        return parked

    def has_used(self, number: int) -> bool:
        """Say whether a ticket's connection may have been given an order."""
        is_issued = self._first_ticket <= number < self._next_ticket and number not in self._tickets
        return is_issued and all(each.number != number for each in self._parked)

    def stop_waiting(self, asker: Asker) -> None:
        """Forget about a dial that may be waiting."""
        waiting = self._waiting.get(asker.buyer)
        if waiting is not None:
            waiting.pop(asker, None)
            if not waiting:
                del self._waiting[asker.buyer]

    def _next(self) -> Asker | None:
        """Return the dial whose turn it is: buyers take turns, however many dials one has."""
        for buyer in self._waiting:
            waiting = self._waiting.pop(buyer)
            asker = next(iter(waiting))
            del waiting[asker]
            if waiting:
                self._waiting[buyer] = waiting  # behind all others
            return asker
        return None

    def drop(self, parked: Parked) -> None:
        """Close a connection that has ended, or says something before it was asked to."""
        self._parked.remove(parked)
        self._close(parked)

    def tend(self) -> None:
        """Close what has got old, and ask for as many as are needed by now."""
        if not self._is_open:  # nobody has wanted one yet
            return
        now = self._reactor.loop.time()
        while self._parked and self._parked[0].since + PARKED_SECONDS <= now:
            self._close(self._parked.pop(0))
        self._decay(now)
        if len(self._parked) < self._asked:  # tickets may have been lost on the way
            self._issue(self._asked - len(self._parked))
        self._ask(self._wanted())

    def close(self) -> None:
        """Close all that wait, and tell the dials that wait for one; closing twice is harmless."""
        self._budget.wanted -= self._asked
        self._asked = 0
        self._tickets.clear()
        while self._parked:
            self._close(self._parked.pop(0))
        self.dismiss()

    def dismiss(self) -> None:
        """Tell the dials that wait for a connection that none will come."""
        waiting, self._waiting = self._waiting, {}
        for askers in waiting.values():
            for asker in askers:
                asker.lose()

    def _close(self, parked: Parked) -> None:
        self._counters.parked -= 1
        self._reactor.poller.forget(parked.sock.fileno())
        parked.sock.close()

    def _decay(self, now: float) -> None:
        self._rate *= math.exp((self._rated_at - now) / RATE_SECONDS)
        self._rated_at = now

    def _wanted(self) -> int:
        """Return how many connections shall wait, as far as all exits together leave room."""
        is_idle = self.used_at + IDLE_SECONDS <= self._rated_at
        least = 0 if is_idle else 1
        waiting = self.waiting
        wanted = math.ceil(self._rate * 2 * self.rtt - ALMOST_NOTHING) + least + waiting
        room = self._budget.most - (self._budget.wanted - self._asked)
        # A dial that waits gets a connection all the same: it does not wait, but is taken at once.
        return max(0, min(wanted, PARKED_MAX, max(room, waiting)))

    def _refill(self) -> None:
        """Tell the exit if more shall wait than before, with tickets for them.

        Fewer are asked for by `tend` alone, unless there are too many: one burst is often followed
        by another.
        """
        self._is_open = True
        has_room = self._budget.wanted <= self._budget.most
        self._ask(max(self._wanted(), self._asked) if has_room else self._wanted())

    def _ask(self, wanted: int) -> None:
        if len(self._tickets) < wanted:
            self._issue(wanted + TICKETS_SPARE - len(self._tickets))
        if wanted != self._asked:
            self._budget.wanted += wanted - self._asked
            self._asked = wanted
            self._send(Encrypt(wanted) if self._is_secure else Park(wanted))

    def _issue(self, count: int) -> None:
        first, self._next_ticket = self._next_ticket, self._next_ticket + count
        tickets = tuple(token_bytes(TICKET_BYTES) for _ in range(count))
        self._tickets.update(zip(range(first, first + count), tickets, strict=True))
        while len(self._tickets) > TICKETS_KEPT:
            del self._tickets[next(iter(self._tickets))]
        self._send(Tickets(first, tickets))


class State(IntEnum):
    """Where an exit is.

    OPEN: it takes connections, as long as it has a place. RESTING: it stays attached and takes
    none: its device or its owner has paused it, or it has no place to sell. GONE: it is not
    attached any more.
    """

    OPEN = 0
    RESTING = 1
    GONE = 2


TRANSITIONS: Final = {
    State.OPEN: (State.RESTING, State.GONE),
    State.RESTING: (State.OPEN, State.GONE),
    State.GONE: (),
}

# Names of this module: looking a member of an enumeration up costs six times as much (3.11).
_OPEN: Final = State.OPEN
_RESTING: Final = State.RESTING
_GONE: Final = State.GONE


# More than 12 fields: who it is, as the directory looks at it for each choice, and what is under
# way through it.
@final
class Attached(Carrier, Expiring):
    """An exit.

    `text` is what buyers are told of it. `since` is when it attached (UTC, in milliseconds),
    `features` are what its agent and its owner offer beside the rest. `relays` are the buyers'
    connections that go through it. `heard_at` is when it last sent anything (loop time, seconds).
    `paused` is why the device takes nothing now, empty when it does; `is_held` says that its owner
    has paused it in the account, `knows_nodes` that it was told where else it may attach. One that
    is not `is_proven` carries port 443 alone. Connections of one that `is_elsewhere` leave from
    another line than it is attached from; `astray` is why it has no place to sell for that, empty
    when it has one. `seen` are its public addresses, as far as they are known.
    `secure` has its connections that wait under TLS, if it can do that. `places` says which buyers
    have its places.

    Args:
        attachment: its number, which its work connections name.
        device_id: which device it is.
        owner_id: whose.
        min_price_per_gb: micro-USD; cheaper sessions do not leave through it.
        place: where it is.
        network: what it is counted by.
        address: as the daemon sees it; later, from which its connections leave.
        granted: what it is used for at most, by the account; replaced when that changes, and `pace`
            with it.
        pool: its connections that wait.
        send: takes a frame for it.
        beat: called when a heartbeat is due.
        now: the loop's clock.
    """

    __slots__ = (
        "_beat",
        "_capacity",
        "_connections_elsewhere",
        "_day",
        "_ended_bytes",
        "_granted",
        "_limits",
        "_near",
        "_ping",
        "_pinged_at",
        "_send",
        "_state",
        "_yesterdays_bytes",
        "address",
        "astray",
        "attachment",
        "device_id",
        "dials",
        "features",
        "heard_at",
        "is_elsewhere",
        "is_held",
        "is_proven",
        "is_spent",
        "knows_nodes",
        "min_price_per_gb",
        "network",
        "now",
        "owner_id",
        "pace",
        "paused",
        "place",
        "places",
        "pool",
        "relays",
        "secure",
        "seen",
        "since",
        "text",
    )

    def __init__(
        self,
        attachment: int,
        device_id: str,
        owner_id: str,
        min_price_per_gb: int,
        place: Where,
        network: str,
        address: Address,
        granted: Limits,
        pool: Pool,
        send: Callable[[Frame], None],
        beat: Callable[["Attached"], None],
        now: Callable[[], float],
    ) -> None:
        self.attachment = attachment
        self.device_id = device_id
        self.owner_id = owner_id
        self.min_price_per_gb = min_price_per_gb
        self.place = place
        self.network = network
        self.address = address
        self._granted = self._limits = granted
        self._capacity: Capacity | None = None
        self.pace = Pace(pool.loop, granted.bytes_per_second)
        self.pool = pool
        self.dials: dict[int, Asker] = {}
        self.relays: dict[Carried, Place | None] = {}
        self.places = Places()
        self.paused = ""
        self.secure: Pool | None = None
        self.features: tuple[str, ...] = ()
        self.text = describe(device_id, place)
        self.since = 0
        self.knows_nodes = False
        self.is_held = False
        self.is_proven = True
        self.is_elsewhere = False
        self.astray = ""
        self.seen: tuple[Address, ...] = ()
        self._near: frozenset[str] = frozenset()  # the networks of `seen`
        self.learn(address)
        self.is_spent = False
        self._state = _OPEN
        self._send = send
        self._beat = beat
        self._connections_elsewhere = 0
        self._ended_bytes = 0  # of relays that are over
        self._yesterdays_bytes = 0  # of all relays, up to the beginning of the day
        self._day = 0
        self.now = now
        self.heard_at = now()
        self._ping: bytes | None = None
        self._pinged_at = 0.0

    @property
    def granted(self) -> Limits:
        """The limits of the account, which the device is sent."""
        return self._granted

    @property
    def limits(self) -> Limits:
        """The tighter limits of the account and the device."""
        return self._limits

    def grant(self, granted: Limits) -> None:
        """Be used for so much at most from now on, by the account."""
        self._granted = granted
        self._limits = narrowed(granted, self._capacity)
        self.pace.change(granted.bytes_per_second)

    def take_in(self, capacity: Capacity | None) -> None:
        """Keep to the limits of the device; None if it has sent none."""
        self._capacity = capacity
        self._limits = narrowed(self._granted, capacity)
        self.places.reports_ends = capacity is not None

    @property
    def is_open(self) -> bool:
        """Whether it may be chosen, as long as it has a place."""
        return self._state is _OPEN

    @property
    def is_gone(self) -> bool:
        """Whether it is not attached any more."""
        return self._state is _GONE

    def pause(self, words: str) -> None:
        """Take nothing, because the device says so; "": take connections again."""
        self.paused = words
        self._settle()

    def hold(self, *, is_held: bool) -> None:
        """Take nothing while its owner has paused it in the account."""
        self.is_held = is_held
        self._settle()

    def _settle(self) -> None:
        """Be open or rest, as the reasons for a rest are now."""
        state = _RESTING if self.paused or self.is_held or self.astray else _OPEN
        if state is not self._state and self._state is not _GONE:
            self._to(state)

    def _to(self, state: State) -> None:
        assert state in TRANSITIONS[self._state]  # noqa: S101 - half an exit helps nobody
        self._state = state

    def prove(self, *, is_proven: bool) -> None:
        """Carry whatever the owner allows, or port 443 alone."""
        self.is_proven = is_proven

    def set_price(self, min_price_per_gb: int) -> None:
        """Carry no sessions that are cheaper from now on."""
        self.min_price_per_gb = min_price_per_gb

    def join(self, since: int, features: tuple[str, ...], capacity: Capacity | None) -> None:
        """Begin: `features` are what its agent offers, and `capacity` the limits of the device."""
        self.since = since
        self.features = features
        self.take_in(capacity)

    def change(self, limits: Limits, features: tuple[str, ...], min_price_per_gb: int) -> None:
        """Be offered otherwise from now on, as another node has announced it."""
        self.grant(limits)
        self.features = features
        self.min_price_per_gb = min_price_per_gb

    def add_secure(self, pool: Pool) -> None:
        """Keep connections under TLS in a pool, too."""
        self.secure = pool

    def hear(self, now: float) -> None:
        """Note that it has sent something (loop time, seconds)."""
        self.heard_at = now

    def told_nodes(self) -> None:
        """Note that it was sent where else it may attach."""
        self.knows_nodes = True

    @property
    def why_not(self) -> str:
        """Why it may not be chosen, on other nodes either; "" if it may."""
        if self.astray:
            return self.astray
        if self.is_proven or self.may_ask(TLS_PORT):
            return self.paused or (HELD if self.is_held else "")
        return UNPROVEN

    def leave_from(
        self, address: Address, place: Where, network: str, *, is_elsewhere: bool
    ) -> None:
        """Be counted where its connections leave; not while it is in the directory."""
        self.address, self.place, self.network = address, place, network
        self.is_elsewhere = is_elsewhere
        self.text = describe(self.device_id, place)

    def stray(self, words: str) -> None:
        """Have no place to sell, and why; "": have one."""
        self.astray = words
        self._settle()

    def learn(self, address: Address) -> None:
        """Add a public address of the exit: its router may show private pages there."""
        if is_global(address) and address not in self.seen:
            self.seen = (*self.seen[1 - SEEN_MAX :], address)
            self._near = frozenset(counted_network(str(each)) for each in self.seen)

    def permitted(self, host: tuple[Address, ...] | str) -> tuple[Address, ...] | str:
        """Return the addresses of a target without those of the exit itself.

        An older agent that is attached by IPv6 does not know its IPv4 address, and does not refuse
        it.
        """
        if isinstance(host, str) or not self.seen:
            return host
        is_blind = CALLS not in self.features and all(each.version == 6 for each in self.seen)
        near = self._near
        return tuple(
            each
            for each in host
            if not (is_blind and each.version == 4) and counted_network(str(each)) not in near
        )

    @property
    def has_place(self) -> bool:
        """Whether it takes one more connection now."""
        most = self._limits.connections
        taken = self.places.taken + self._connections_elsewhere
        return not (self.is_spent or self._state is _GONE) and (not most or taken < most)

    def has_place_for(self, buyer: str, *, datagrams: bool) -> bool:
        """Say whether it takes one more connection of a buyer now."""
        if self.is_spent or self._state is _GONE:
            return False
        return self.places.has(
            buyer, self._most, self._associations_max, self.now(), datagrams=datagrams
        )

    def take_place(self, buyer: str, *, datagrams: bool) -> Place:
        """Take a place for a dial of a buyer; what gives way for it is cut."""
        return self.places.take(
            buyer, self._most, self._associations_max, self.now(), datagrams=datagrams
        )

    @property
    def _most(self) -> int:
        """How many connections from here it takes; 0 for any number."""
        most = self._limits.connections
        return max(1, most - self._connections_elsewhere) if most else 0

    @property
    def _associations_max(self) -> int:
        return 0 if self._capacity is None else self._capacity.associations

    def allows(self, port: int) -> bool:
        """Say whether a buyer may ask it for a port of targets."""
        return (self.is_proven or port == TLS_PORT) and self.may_ask(port)

    @property
    def ports(self) -> tuple[int, ...]:
        """The only ports of targets that a buyer may ask it for; none for any."""
        return tuple(self.limits.ports) if self.is_proven else (TLS_PORT,)

    def may_ask(self, port: int) -> bool:
        """Say whether its owner allows a port of targets."""
        return not self.limits.ports or port in self.limits.ports

    def order(self, parked: Parked, host: tuple[Address, ...] | str, port: int, by: Asker) -> None:
        """Have it connect one of its connections to a target; `by` is told how that went."""
        self.dials[parked.number] = by
        self._send(Dial(parked.number, host, port))

    def order_datagrams(self, parked: Parked, by: Asker) -> None:
        """Have it carry datagrams on one of its connections; `by` is told whether it does."""
        self.dials[parked.number] = by
        self._send(Associate(parked.number))

    def tend(self) -> None:
        """Close connections that have got old, and ask for as many as are needed by now."""
        self.pool.tend()
        if self.secure is not None:
            self.secure.tend()

    def forgo(self, number: int) -> None:
        """Care no more about an order."""
        self.dials.pop(number, None)

    def answered(self, dialled: Dialled) -> bool:
        """Hand an answer to the dial that waits for it; False when nobody does any more."""
        asker = self.dials.pop(dialled.number, None)
        if dialled.outcome is not _CONNECTED:
            self.places.over(dialled.number)
        if asker is None:
            return False
        asker.answer(dialled)
        return True

    def has_ordered(self, number: int) -> bool:
        """Say whether the connection of this number may have been given an order."""
        pools = (self.pool, self.secure)
        return any(pool is not None and pool.has_used(number) for pool in pools)

    def say(self, frame: Frame) -> None:
        """Send its agent a frame."""
        self._send(frame)

    # --- what it carries -----------------------------------------------------------------------

    @property
    def carried(self) -> int:
        """How many bytes it has carried since it attached, and before that in the day."""
        return self._ended_bytes + sum(sum(relay.traffic) for relay in self.relays)

    def carried_elsewhere(self, connections: int, size: int) -> None:
        """Count what goes through it from other nodes: how many more connections, and bytes."""
        self._connections_elsewhere += connections
        self._ended_bytes += size

    def begin(self, relay: Carried, place: Place | None = None) -> None:
        """See `Carrier.begin`."""
        self.relays[relay] = place
        if place is None:
            self.places.others += 1
        else:
            self.places.begin(place, relay)

    def end(self, relay: Carried) -> None:
        """See `Carrier.end`."""
        if relay in self.relays:
            place = self.relays.pop(relay)
            if place is None:
                self.places.others -= 1
            else:
                self.places.leave(place, self.now())
        self._ended_bytes += sum(relay.traffic)

    def carried_before(self, size: int, day: int) -> None:
        """Count what it has carried before it attached, of the day with this number."""
        self._ended_bytes, self._day, self._yesterdays_bytes = size, day, 0
        self.spend(day)

    def spend(self, day: int) -> None:
        """Look whether it has carried what it may in a day.

        Args:
            day: the number of the day.
        """
        carried = self.carried
        if day != self._day:
            self._day, self._yesterdays_bytes = day, carried
        most = self.limits.bytes_per_day
        self.is_spent = bool(most) and carried - self._yesterdays_bytes >= most

    # --- is it there? --------------------------------------------------------------------------

    def ping(self) -> None:
        """Ask whether it is there, unless it is asked already."""
        if self._ping is None:
            self._ping = token_bytes(PING_BYTES)
            self._pinged_at = self.now()
            self._send(Ping(self._ping))

    def ponged(self, payload: bytes) -> bool:
        """Measure the round trip; False for an answer to no question."""
        if payload != self._ping:
            return False
        self._ping = None
        measured = min(self.heard_at - self._pinged_at, RTT_MOST_SECONDS)
        self.pool.rtt += SRTT_SHARE * (measured - self.pool.rtt)
        return True

    def timed_out(self) -> None:
        """A heartbeat is due: see `Expiring.timed_out`."""
        self._beat(self)

    # --- the end -------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Let its dials know that it takes nothing any more; what waits is kept."""
        dials, self.dials = self.dials, {}
        self.pool.dismiss()
        if self.secure is not None:
            self.secure.dismiss()
        for asker in dials.values():
            asker.lose()

    def close(self) -> None:
        """Let its dials know that it is gone, and close what waits; twice is harmless."""
        if self._state is not _GONE:
            self._to(_GONE)
        self.pool.close()
        if self.secure is not None:
            self.secure.close()
        self.interrupt()

    def cut(self) -> None:
        """Cut the buyers' connections that go through it."""
        for relay in tuple(self.relays):
            relay.abort()


def describe(device_id: str, place: Where) -> str:
    """Return what a buyer is told of an exit: where it is, and a word that tells it from others."""
    parts = (
        ("country", place.country),
        ("state", place.state),
        ("city", place.city),
        ("asn", str(place.asn or "")),
        ("kind", place.kind),
        ("id", sha256(device_id.encode()).hexdigest()[:ID_CHARACTERS]),
    )
    return "; ".join(f"{name}={value}" for name, value in parts if value)


def narrowed(limits: Limits, capacity: Capacity | None) -> Limits:
    """Return the tighter one of each limit: the account's or the device's."""
    if capacity is None:
        return limits
    connections, ports = limits.connections, limits.ports
    if capacity.connections:
        connections = min(connections or capacity.connections, capacity.connections)
    if capacity.ports:
        both = tuple(each for each in capacity.ports if not ports or each in ports)
        ports = both or NO_PORTS
    return limits._replace(connections=connections, ports=ports)


def prepare(sock: socket.SocketType) -> None:
    """Set what a connection needs that may wait long, and then carries a stream.

    Raises:
        OSError: it has broken.
    """
    sock.setsockopt(_IPPROTO_TCP, _TCP_NODELAY, 1)
    sock.setsockopt(_SOL_SOCKET, _SO_OOBINLINE, 1)  # or a byte is left out of the stream
    sock.setsockopt(_SOL_SOCKET, _SO_KEEPALIVE, 1)
    sock.setsockopt(_IPPROTO_TCP, _TCP_KEEPIDLE, KEEPALIVE_SECONDS)
    sock.setsockopt(_IPPROTO_TCP, _TCP_KEEPINTVL, KEEPALIVE_PAUSE_SECONDS)
    sock.setsockopt(_IPPROTO_TCP, _TCP_KEEPCNT, KEEPALIVE_TRIES)
