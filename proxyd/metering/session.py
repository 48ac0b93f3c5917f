"""A session in memory: its budget, its counters, and what of it is still on its way.

Theory of operation
-------------------
A session's bytes belong to the store. Some of them are leased to this process: `granted` bytes,
which nobody else may hand out meanwhile. A byte of the lease is in one of four places:

    available       it may be taken;
    in hand         taken, read from one socket, not yet written to the other;
    used            the kernel has it: it is billed, unless it is refunded;
    given up        taken out of the budget of a session that is over, so that nobody gets it again.

    take            available -> in hand     before a socket is read
    deliver         in hand   -> used        the kernel accepted it
    give_back       in hand   -> available   it could not be written
    refund          used      -> available   it never left this machine (or given up, see `refund`)
    regrant         changes how much is granted; the difference becomes available
    shrink          available -> another node's

Everything happens on the event loop and awaits nothing, so two connections never take one byte.

What the kernel accepted may still wait in a socket's queue, and would be lost with this process.
For each socket where that may be so, the session keeps an upper bound of the bytes (`Sinks`):
delivering raises it, asking the kernel lowers it. `used` less these bounds is *certain*, and only
what is certain is reported to the store: after a crash nothing is billed that was not delivered.

These hold between any two calls from outside, and `check` asserts them:

    0 <= available
    used + available <= granted                       the rest is in hand, or given up
    0 <= reported <= certain <= used <= granted

`certain` never falls: a refund takes at most what was not certain. So a report never goes back,
and what is settled at the end is at least what was last reported.

`used == granted` ends the budget: `on_spent` is called at the delivery of its last byte. Without
other nodes that byte is the session's last one; among nodes the store knows whether there are more.

`check` runs where a session is admitted, reported and settled, and not at every byte: these are the
places where a wrong count would become money.
"""

from collections.abc import Callable
from itertools import islice
from typing import Protocol, final

from market.leases import Grant, Usage
from market.states import SessionStatus
from proxyd.metering.pace import Pace

# Sinks of a session that have taken nothing since they were asked last are asked again in turn, so
# many at a time: a thousand clients that never read cost what a few do. That one of them takes more
# is noticed all the same, since more is written to it then.
STALLED_ASKED = 32


class MeteredConnection(Protocol):
    """A connection that spends a session's bytes."""

    def finish(self) -> None:
        """Close it so that everything already counted still arrives."""

    def abort(self) -> None:
        """Cut it at once, after giving back what was not delivered."""


class InTransit(Protocol):
    """A sink that may hold bytes which are counted and may still be lost."""

    def unsent(self) -> int:
        """Return how many counted bytes have not left this machine.

        It grows by what is written to the sink, and by nothing else.
        """


class Closing(InTransit, Protocol):
    """A sink that is being closed."""

    def abort(self) -> None:
        """Cut it at once; what has not left this machine is given back."""


class Payer(Protocol):
    """Whoever paid for bytes on their way, and gets back those that are lost."""

    @property
    def closings(self) -> set[Closing]:
        """The sinks with such bytes that are being closed; they add and remove themselves."""

    @property
    def is_used_up(self) -> bool:
        """Whether it is to be settled as soon as nothing is on its way."""

    def may_wait(self, sink: InTransit, size: int) -> None:
        """Note that at most so many of the bytes paid for may not have left through a sink."""

    def forget(self, sink: InTransit) -> None:
        """Ask a sink nothing any more."""

    def refund(self, size: int) -> None:
        """Take back bytes that were counted as delivered."""


@final
class Sinks:
    """Where delivered bytes of a session may still wait to leave this machine.

    For each sink it keeps at most how many bytes those are: a delivery raises that, asking the
    kernel lowers it, and a sink with nothing left is dropped. So a count costs a question for each
    sink that has moved, and none for those that are idle.
    """

    __slots__ = ("_most", "_moved", "closings")

    def __init__(self) -> None:
        self.closings: set[Closing] = set()
        self._most: dict[InTransit, int] = {}
        self._moved: set[InTransit] = set()

    def __len__(self) -> int:
        return len(self._most)

    def add(self, sink: InTransit, size: int) -> None:
        """Note that so many more bytes may wait in a sink."""
        self._most[sink] = self._most.get(sink, 0) + size
        self._moved.add(sink)

    def forget(self, sink: InTransit) -> None:
        """Drop a sink."""
        self._most.pop(sink, None)
        self._moved.discard(sink)

    def waiting(self) -> int:
        """Return at most how many bytes have not left this machine.

        The sinks that moved since the last call are asked, and `STALLED_ASKED` of the others.
        """
        most = self._most
        moved, self._moved = self._moved, set()
        stalled = (each for each in most if each not in moved)
        for sink in (*islice(stalled, STALLED_ASKED), *moved):
            before = most.pop(sink)
            if waiting := min(before, sink.unsent()):
                most[sink] = waiting  # behind all others, whose turn comes first then
        return sum(most.values())


class LiveSession:
    """See the theory above. Sizes in bytes.

    `connections` are those that spend it: whoever opens one adds it, and removes it at its end.

    Args:
        grant: what was leased.
        on_spent: called with the session at the delivery of the last byte granted.
        pace: how fast it may go; None for as fast as it can.
        changed: has the session in it from when `used` changes.
    """

    __slots__ = (
        "_changed",
        "_on_spent",
        "_pace",
        "_waiting",
        "available",
        "connections",
        "cuts",
        "expires_at",
        "granted",
        "id",
        "lease_id",
        "names",
        "password_hash",
        "pending",
        "reported",
        "sinks",
        "status",
        "used",
        "username",
    )

    def __init__(
        self,
        grant: Grant,
        on_spent: Callable[["LiveSession"], None],
        pace: Pace | None = None,
        changed: set["LiveSession"] | None = None,
    ) -> None:
        self.id = grant.session_id
        self.username = grant.username
        self.names = grant.names
        # Addresses that are to be proved, and from when on (loop time) that may be tried.
        self.pending = dict.fromkeys(grant.pending, 0.0)
        self.password_hash = grant.password_hash
        self.lease_id = grant.lease_id
        self.status = grant.status
        self.expires_at = grant.expires_at
        self.granted = grant.granted_bytes
        self.available = grant.granted_bytes
        self.used = 0
        self.reported = 0
        self.cuts = 0
        self.connections: set[MeteredConnection] = set()
        self.sinks = Sinks()
        self._waiting: set[Callable[[], None]] = set()
        self._on_spent = on_spent
        self._pace = pace
        self._changed: set[LiveSession] = changed if changed is not None else set()

    def allowance(self, taker: object) -> int:
        """Return how many bytes one connection may take now."""
        if self._pace is None:
            return self.available
        return min(self.available, self._pace.allowance(taker))

    def affords(self, size: int, taker: object) -> bool:
        """Say whether bytes may be taken that only go together: a datagram.

        The budget must have them all. The pace need not, or a datagram larger than its burst would
        never go: whoever may take a part may take the rest in advance, and waits longer for more.
        One without a payload costs nothing, and goes only where a byte would.
        """
        return self.allowance(taker) > 0 and size <= self.available

    def take(self, size: int, taker: object) -> None:
        """Take bytes out of the budget; at most the `allowance`, or what it `affords`."""
        self.available -= size
        if self._pace is not None:
            self._pace.spend(taker, size)

    def give_back(self, size: int) -> None:
        """Return bytes that were taken and not delivered; whoever waits for bytes may go on."""
        if size == 0:
            return
        self.available += size
        self.wake()

    def deliver(self, size: int, sink: InTransit | None = None) -> None:
        """Count bytes that were delivered; the last one granted calls `on_spent`.

        Args:
            size: how many.
            sink: where some of them may still wait to leave this machine; None if none do.
        """
        if sink is not None:
            self.sinks.add(sink, size)
        self._changed.add(self)
        self.used += size
        if self.used == self.granted:
            self._on_spent(self)

    def refund(self, size: int) -> None:
        """Count bytes as not delivered after all; nothing once the session has left `active`.

        Those of an exhausted session are not billed, and not handed out again: it is over.
        """
        self._changed.add(self)
        if size and self.status is SessionStatus.ACTIVE:
            self.used -= size
            self.give_back(size)
        elif self.status is SessionStatus.EXHAUSTED:
            self.used -= size

    def wait(self, resume: Callable[[], None]) -> None:
        """Have `resume` called when there are bytes again, or when the pace allows some again."""
        if self._pace is not None and self.available > 0:
            self._pace.wait(resume)
        else:
            self._waiting.add(resume)

    def stop_waiting(self, resume: Callable[[], None]) -> None:
        """Forget about `resume`."""
        self._waiting.discard(resume)
        if self._pace is not None:
            self._pace.stop_waiting(resume)

    def wake(self) -> None:
        """Have everybody who waits for bytes try again."""
        waiting, self._waiting = self._waiting, set()
        for resume in waiting:
            resume()

    @property
    def closings(self) -> set[Closing]:
        """See `Payer.closings`."""
        return self.sinks.closings

    def may_wait(self, sink: InTransit, size: int) -> None:
        """See `Payer.may_wait`."""
        self.sinks.add(sink, size)

    def forget(self, sink: InTransit) -> None:
        """See `Payer.forget`: what waits there is refunded, or has become another sink's."""
        self.sinks.forget(sink)

    @property
    def is_used_up(self) -> bool:
        """See `Payer.is_used_up`."""
        return self.status is SessionStatus.EXHAUSTED

    @property
    def usage(self) -> Usage | None:
        """What is to be reported of the lease when its connections are closed."""
        return Usage(self.id, self.lease_id, self.used) if self.lease_id is not None else None

    def certain(self) -> int:
        """Return how many bytes are used whatever happens to this process now."""
        certain = self.used - self.sinks.waiting()
        self.check()
        # Better no daemon than one that bills what was not delivered.
        assert self.reported <= certain <= self.used  # noqa: S101
        return certain

    def check(self) -> None:
        """Assert the invariants of the budget."""
        # Better no daemon than one that bills what was not delivered.
        assert self.available >= 0  # noqa: S101
        assert self.used + self.available <= self.granted  # noqa: S101
        assert 0 <= self.reported <= self.used  # noqa: S101
