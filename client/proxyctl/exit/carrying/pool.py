"""Work connections ahead of need: as many as the daemon asks for wait, each behind its preface.

The number of new connections in a second is bounded, because carriers and routers at home take a
burst for an attack. The number of waiting connections is bounded as well, even if the daemon asks
for more. Both bounds (`Room`) are for all pools together: where the exit is lent, each borrower has
one of its own.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from proxyctl.attach.network.pace import Pace
from proxyctl.protocol.frames import TICKETS_MAX, Preface

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from proxyctl.attach.daemon.secure import SecureDoor
    from proxyctl.attach.relay.attempts import Attempt, Connected
    from proxyctl.attach.relay.relays import Relays, Work

PARKED_MAX: Final = 64  # four times a daemon's usual wish; a router at home maps some thousand
SURPLUS_MAX: Final = 8  # beyond the wanted number: the daemon may ask for fewer later
TICKETS_KEPT: Final = 4 * TICKETS_MAX
RETRY_SECONDS: Final = 1.0  # after the first that failed; doubled with each further one
RETRY_MAX_SECONDS: Final = 30.0


class Room:
    """How many work connections all pools may open in a second, and have open and waiting.

    Args:
        per_second: how many may be opened in a second.
        now: a clock that never goes back, in seconds.
        most: how many may be open and waiting.
    """

    def __init__(self, per_second: int, now: Callable[[], float], most: int = PARKED_MAX) -> None:
        self.most = most
        self._pace = Pace(per_second, 1.0, now)
        self._taken = 0
        self._waiting: dict[Pool, None] = {}  # pools without a place, the longest wait first

    def take(self, pool: Pool) -> bool:
        """Take a place for one; a pool that gets none is called when a place is free."""
        if self._taken >= self.most:
            self._waiting[pool] = None
            return False
        self._taken += 1
        return True

    def give(self) -> None:
        """Free a place."""
        self._taken -= 1
        while self._waiting and self._taken < self.most:  # the first may want no more by now
            pool = next(iter(self._waiting))
            del self._waiting[pool]
            pool.fill()

    def pause(self) -> float:
        """Count an opened connection; return the seconds to wait before the next one."""
        return self._pace.take(1)

    def forget(self, pool: Pool) -> None:
        """Stop calling a pool."""
        self._waiting.pop(pool, None)


class _Pause:
    """The time during which a pool opens nothing: its timer, and the failures in a row.

    Args:
        over: called when a pause has ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, over: Callable[[], None]) -> None:
        self._loop = loop
        self._over = over
        self._failures = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_on(self) -> bool:
        """Whether a pause is running."""
        return self._timer is not None

    def begin(self, seconds: float) -> None:
        """Begin a pause, unless one is running."""
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._end)

    def back_off(self) -> None:
        """Begin the pause after a failure; each further failure doubles it, up to a limit."""
        self.begin(min(RETRY_MAX_SECONDS, RETRY_SECONDS * 2 ** min(self._failures, 10)))
        self._failures += 1

    def succeeded(self) -> None:
        """Forget the failures."""
        self._failures = 0

    def cancel(self) -> None:
        """End the pause without a call of `over`."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        self._timer = None
        self._over()


class Pool:
    """The work connections of one attachment that wait for a dial.

    Args:
        attachment: its number, which the daemon gave.
        connect: begins to connect to the daemon.
        room: the bounds that all pools share.
        lost: called with the number of one that was taken, when its socket is gone.
        relays: has sockets wait; or a `SecureDoor`, which has them wait under TLS.
        failed: called when the daemon was not reached; returns whether to try again later.
    """

    def __init__(
        self,
        attachment: int,
        connect: Callable[[Connected], Attempt],
        *,
        room: Room,
        lost: Callable[[int], None],
        relays: Relays | SecureDoor,
        failed: Callable[[], bool] = lambda: True,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._attachment = attachment
        self._connect = connect
        self._relays = relays
        self._pause = _Pause(loop, self.fill)
        self._room = room
        self._lost = lost
        self._failed = failed
        self._tickets: deque[tuple[int, bytes]] = deque(maxlen=TICKETS_KEPT)
        self._wanted = 0
        self._parked: dict[int, Work] = {}
        self._opening: dict[int, Attempt] = {}
        self._entered: set[int] = set()  # numbers in `_opening` that were added to `_parked`

    def __len__(self) -> int:
        """The number of waiting connections."""
        return len(self._parked)

    def add_tickets(self, first: int, tickets: tuple[bytes, ...]) -> None:
        """Take leave for some more; of more than are kept the oldest are forgotten."""
        self._tickets.extend(enumerate(tickets, first))
        self.fill()

    def park(self, connections: int) -> None:
        """Set the number of connections that wait."""
        self._wanted = min(connections, self._room.most)
        for number in tuple(self._parked)[: max(0, len(self) - self._wanted - SURPLUS_MAX)]:
            self._unpark(number).close()
        self.fill()

    def take(self, number: int) -> Work | None:
        """Take one out for a dial, if it is still there; another one is opened for it."""
        work = self._unpark(number) if number in self._parked else None
        self.fill()
        return work

    def close(self) -> None:
        """Close all waiting connections, and open no new ones."""
        self._wanted = 0
        self._room.forget(self)
        self._pause.cancel()
        for number, attempt in tuple(self._opening.items()):
            if number not in self._entered:  # one that has entered may be a relay by now
                attempt.cancel()
                self._end(number)
        for number in tuple(self._parked):
            self._unpark(number).reset()

    def tend(self) -> None:
        """Turn on the keep-alives of the waiting connections. To be called now and then."""
        for work in self._parked.values():
            work.tend()

    def fill(self) -> None:
        """Open connections until the wanted number waits, or no place is free."""
        if self._pause.is_on:
            return
        while self._tickets and self._coming() < self._wanted:
            if not self._room.take(self):
                return
            number, ticket = self._tickets.popleft()
            if number in self._parked or number in self._opening:  # a daemon that counts wrongly
                self._room.give()
                continue
            self._opening[number] = self._connect(partial(self._connected, number, ticket))
            seconds = self._room.pause()
            if seconds:
                self._pause.begin(seconds)
                return

    def _coming(self) -> int:
        """Return the number of connections that wait or soon will; one that entered counts once."""
        return len(self._parked) + len(self._opening) - len(self._entered)

    def _connected(self, number: int, ticket: bytes, outcome: socket.socket | OSError) -> None:
        """Have a new connection wait behind its preface; `_enter` is called when it waits."""
        if isinstance(outcome, OSError):
            del self._opening[number]
            if self._failed():
                self._tickets.appendleft((number, ticket))  # the daemon has not received it
                self._pause.back_off()
            self._room.give()
            return
        self._pause.succeeded()
        attempt: Attempt | None = None
        try:
            attempt = self._park(outcome, number, ticket)
        finally:
            if attempt is None:
                self._opened(number)
            else:
                self._opening[number] = attempt

    def _park(self, sock: socket.socket, number: int, ticket: bytes) -> Attempt | None:
        return self._relays.begin_park(
            sock,
            Preface(self._attachment, number, ticket).encode(),
            partial(self._gone, number),
            partial(self._enter, number),
            partial(self._opened, number),
        )

    def _opened(self, number: int) -> None:
        """One waits now, or broke before."""
        self._end(number)
        self.fill()

    def _end(self, number: int) -> None:
        """Forget the attempt to open one; its place is free, unless it waits."""
        del self._opening[number]
        if number in self._entered:
            self._entered.discard(number)
        else:
            self._room.give()

    def _enter(self, number: int, work: Work) -> None:
        """Add one before the daemon has its ticket: an order may be the answer."""
        if number not in self._opening:  # the end of its handshake came with the pool's
            work.reset()
            return
        self._parked[number] = work
        self._entered.add(number)

    def _gone(self, number: int) -> None:
        if number not in self._parked:
            self._lost(number)
        else:
            self._unpark(number)
            self.fill()

    def _unpark(self, number: int) -> Work:
        work = self._parked.pop(number)
        self._room.give()
        return work
