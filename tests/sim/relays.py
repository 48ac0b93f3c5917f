"""Relays of the proxy: they pass bytes while the session lends them, until one side is silent.

`Relay` stands for a relay of the proxy: its calls of the session are those of
`proxyd.relay.halfpipe` and `proxyd.relay.tcp`, and the kernel's queue of a socket is a number that
falls with time. `Closing` stands for `proxyd.relay.closing`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from proxyd.exits.choosing.places import yields_at
from proxyd.loop.poller import HUNG_UP
from proxyd.metering.exit_share import ExitShare
from proxyd.metering.in_transit import Closing as ClosingSink
from proxyd.metering.session import LiveSession

if TYPE_CHECKING:
    import asyncio

    from proxyd.exits.dialling.dial import Via
    from tests.sim.checks import Books
    from tests.sim.clients import ClientPlan
    from tests.sim.process import Life

SEND_QUEUE_BYTES = 256 * 1024
READS_PER_TURN = 4
PATIENCE_SECONDS = 5.0
FIRST_LOOK_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 0.5
EXITS = 2


def exit_name(number: int) -> str:
    """Return the device identifier of an exit."""
    return f"exit{number % EXITS}"


class _Queue:
    """Queue of a socket in the kernel: bytes that have not left the machine.

    Args:
        clock: the clock of the machine.
        rate: bytes that the peer reads in a second.
    """

    def __init__(self, clock: Callable[[], float], rate: int) -> None:
        self._clock = clock
        self._rate = rate
        self._size = 0
        self._at = clock()

    def size(self) -> int:
        """Return the number of queued bytes."""
        if self._size == 0:
            return 0
        gone = int((self._clock() - self._at) * self._rate)
        if gone:
            self._size = max(0, self._size - gone)
            self._at += gone / self._rate
        return self._size

    def add(self, size: int) -> None:
        """Add bytes."""
        if self.size() == 0:
            self._at = self._clock()
        self._size += size

    def clear(self) -> None:
        """Drop all bytes."""
        self._size = 0

    def seconds_until(self, most: int) -> float | None:
        """Return the seconds until at most `most` bytes are left; None for never."""
        excess = self.size() - most
        if excess <= 0:
            return 0.0
        return excess / self._rate + 1e-6 if self._rate else None


class Numbered:
    """Object with a number as its hash, so that the order of a set is the same in each run."""

    count = 0

    def __init__(self) -> None:
        Numbered.count += 1
        self.number = Numbered.count

    def __hash__(self) -> int:
        return self.number


class _Resume(Numbered):
    """Callback of a relay, for its session to call when that has bytes again."""

    def __init__(self, relay: "Relay") -> None:
        super().__init__()
        self._relay = relay

    def __call__(self) -> None:
        self._relay.resume()


class Relay(Numbered):
    """A transfer from a target to a client: a connection, and a sink, of its session.

    Args:
        life: the daemon.
        books: counts its bytes.
        session: the session that pays.
        plan: the plan of the client.
        over: called at the end, with the reason and the number of bytes that the kernel took.
        via: the exit that a dial has chosen; None for the exit of the plan, or for none.
        target: the work connection of that exit.
    """

    def __init__(
        self,
        life: "Life",
        books: "Books",
        session: LiveSession,
        plan: "ClientPlan",
        over: Callable[[str, int], None],
        via: "Via | None" = None,
        target: Any = None,
    ) -> None:
        super().__init__()
        self.life = life
        self.session = session
        self.lease_id = session.lease_id or ""
        self.plan = plan
        self.device_id = "" if plan.exit is None else exit_name(plan.exit)
        # An exit's share counts for its session too.
        self.payer: LiveSession | ExitShare = session
        if via is not None:
            self.device_id = via.attached.device_id
        if self.device_id:
            self.payer = session.share_of(self.device_id)
            self.payer.pace = None if via is None else via.pace
        self.via = via
        self._target = target
        self._moved_at = life.loop.time()
        self.queue = _Queue(life.loop.time, plan.rate)
        self.is_closed = False
        # Since when (loop time) it waits for bytes of its session.
        self.waits_since: float | None = None
        self._books = books
        self._over = over
        self._left = plan.size
        self._pending = 0
        self._delivered = 0
        self._timer: asyncio.Handle | None = None
        self._resume = _Resume(self)

    def start(self) -> None:
        """Begin."""
        assert self.life.core is not None
        self.life.core.meter.tallies.begin(self.session.id)
        self.session.connections.add(self)  # type: ignore[arg-type]
        self.life.relays[self] = None
        self._books.begins(self)
        if self._target is not None and self.life.port is not None:
            self.life.port.watch(self._target, self)
        self._later(0.0)

    # --- moving ----------------------------------------------------------------------------------

    def resume(self) -> None:
        """Schedule the next turn: the session has bytes again."""
        self._later(0.0)

    def _later(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            loop = self.life.loop
            self._timer = (
                loop.call_later(seconds, self._turn) if seconds else loop.call_soon(self._turn)
            )

    def _turn(self) -> None:
        self._timer = None
        self.waits_since = None
        if self.is_closed:
            return
        for _ in range(READS_PER_TURN):
            if self._pending and not self._write():
                return
            if self._left == 0:
                self._end()
                return
            allowance = self._allowance()
            if allowance <= 0:
                return
            size = min(allowance, self._left, self.plan.chunk)
            self._books.takes(self)
            self.session.take(size, self)
            self._left -= size
            self._moved_at = self.life.loop.time()
            if self.via is not None and self.via.proof is not None and not self._delivered:
                self.via.proof(True)
            self._pending = size
            if not self._write():
                return
            if self.plan.pause:
                break
        self._later(self.plan.pause or 1e-4)

    def _allowance(self) -> int:
        """Return how many bytes it may take; it waits for some if that is 0."""
        allowance = self.session.allowance(self)
        if allowance <= 0:
            self.waits_since = self.life.loop.time()
            self.session.wait(self._resume)
        elif self.payer is not self.session:
            allowance = min(allowance, self.payer.allowance(self))
            if allowance <= 0:
                self.payer.wait(self._resume)
        return allowance

    def _write(self) -> bool:
        """Write the pending bytes; return False if some must wait, or if the relay is over."""
        sent = min(self._pending, SEND_QUEUE_BYTES - self.queue.size())
        if sent > 0:
            self._pending -= sent
            self._delivered += sent
            self.queue.add(sent)
            self._books.hands(self, sent)
            self.payer.deliver(sent, self)  # type: ignore[arg-type]
        if self.is_closed:
            return False
        if self._pending:
            self._later(self.queue.seconds_until(SEND_QUEUE_BYTES // 2))
            return False
        return True

    def _end(self) -> None:
        """End the relay as soon as the client has all bytes: the target has ended its stream."""
        seconds = self.queue.seconds_until(0)
        if seconds:
            self._later(seconds)
        elif seconds is not None and self._release():
            self._closed("complete")

    # --- as a connection of an exit --------------------------------------------------------------

    @property
    def traffic(self) -> tuple[int, int]:
        """See `Carried.traffic`."""
        return 0, self._delivered

    def yields_at(self) -> float:
        """See `Carried.yields_at`."""
        return yields_at(self._moved_at, is_half_closed=False)

    def ready(self, events: int) -> None:
        """See `Watcher.ready`: the exit has closed its connection."""
        if events & HUNG_UP and not self.is_closed:
            self._left = 0
            self._later(0.0)

    # --- as a connection and a sink of the session -----------------------------------------------

    def unsent(self) -> int:
        """See `InTransit.unsent`."""
        return self.queue.size()

    def finish(self) -> None:
        """See `MeteredConnection.finish`."""
        if self._release():
            if self.queue.size():
                Closing(self).start()
            self._closed("finished")

    def abort(self) -> None:
        """See `MeteredConnection.abort`."""
        if self._release():
            self._books.cuts(self)
            self._refund()
            self._closed("cut")

    def reset(self) -> None:
        """Reset the connection, as the client."""
        if self._release():
            self._refund()
            self._closed("reset")

    def _refund(self) -> None:
        lost = self.queue.size()
        self._delivered -= lost
        self.queue.clear()
        self._books.hands(self, -lost)
        self.payer.refund(lost)

    def died(self, *, with_machine: bool) -> None:
        """Handle the death of the process; queued bytes still leave, unless the machine died."""
        self.is_closed = True
        if with_machine:
            self._books.hands(self, -self.queue.size())
        self.queue.clear()
        self._books.ends(self)
        self._over("died", self._delivered)

    def _release(self) -> bool:
        if self.is_closed:
            return False
        self.is_closed = True
        self._later(None)
        self.payer.forget(self)  # type: ignore[arg-type]
        self.session.stop_waiting(self._resume)
        if self.payer is not self.session:
            self.payer.stop_waiting(self._resume)
        pending, self._pending = self._pending, 0
        self.session.give_back(pending)
        return True

    def _closed(self, reason: str) -> None:
        self.session.connections.discard(self)  # type: ignore[arg-type]
        self.life.relays.pop(self, None)
        if self.via is not None:
            self.via.attached.end(self)
            self._target.close()
        self._books.ends(self)
        self._over(reason, self._delivered)


class Closing(Numbered, ClosingSink):
    """Socket that waits for its queued bytes to leave before it closes.

    Args:
        relay: the relay that closes its socket.
    """

    def __init__(self, relay: Relay) -> None:
        super().__init__()
        self._relay = relay
        self._payer = relay.payer
        self._queue = relay.queue
        self._waiting = relay.queue.size()
        self._pause = FIRST_LOOK_SECONDS
        self._deadline = relay.life.loop.time() + PATIENCE_SECONDS
        self._timer: asyncio.TimerHandle | None = None
        self.lease_id = relay.lease_id
        self.device_id = relay.device_id
        self.place = relay.life.name, relay.session.id
        self.queue = relay.queue

    def start(self) -> None:
        """Begin."""
        self._payer.closings.add(self)
        self._payer.may_wait(self, self._waiting)
        self._relay.life.closings[self] = None
        self._relay._books.closes(self)
        self._look()

    def unsent(self) -> int:
        """See `InTransit.unsent`."""
        return self._queue.size()

    def abort(self) -> None:
        """See `Closing.abort`."""
        self.finish()

    def finish(self) -> None:
        """Close the socket, and refund the bytes that have not left."""
        if self._timer is not None:
            self._timer.cancel()
        self._payer.closings.discard(self)
        self._payer.forget(self)
        self._relay.life.closings.pop(self, None)
        lost = self._queue.size()
        self._queue.clear()
        books = self._relay._books
        books.closed(self)
        if lost:
            books.hands(self, -lost)
            self._payer.refund(lost)

    def died(self, *, with_machine: bool) -> None:
        """See `Relay.died`."""
        books = self._relay._books
        if with_machine:
            books.hands(self, -self._queue.size())
        self._queue.clear()
        books.closed(self)

    def _look(self) -> None:
        loop = self._relay.life.loop
        waiting = self._queue.size()
        if waiting < self._waiting:
            self._waiting = waiting
            self._deadline = loop.time() + PATIENCE_SECONDS
        if waiting == 0 or loop.time() >= self._deadline:
            self.finish()
            return
        self._timer = loop.call_later(self._pause, self._look)
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
