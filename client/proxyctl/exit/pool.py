"""Work connections ahead of need: as many as the daemon asks for wait, each behind its preface.

The number of new connections in a second is bounded, because carriers and routers at home take a
burst for an attack, and so is the number of those that wait, whatever the daemon asks for.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from proxyctl.exit.pace import Pace
from proxyctl.protocol.frames import TICKETS_MAX, Preface

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from proxyctl.exit.relays import Relays, Work
    from proxyctl.protocol.addresses import Address

PARKED_MAX: Final = 64  # four times what a daemon asks for; a router at home maps some thousand
SURPLUS_MAX: Final = 8  # so many more than asked for may wait: the daemon may ask for fewer
TICKETS_KEPT: Final = 4 * TICKETS_MAX
CONNECT_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 1.0  # after the first that failed; doubled with each further one
RETRY_MAX_SECONDS: Final = 30.0

# A mapping of the router's that died is noticed after a minute and a half, and replaced.
KEEPALIVE_IDLE_SECONDS: Final = 60
KEEPALIVE_INTERVAL_SECONDS: Final = 10
KEEPALIVE_PROBES: Final = 3


class Pool:
    """The work connections of one attachment that wait for a dial.

    Args:
        attachment: its number, which the daemon gave.
        address: the daemon's, as the control connection reached it.
        port: the daemon's.
        per_second: how many new connections may be opened in a second.
        lost: called with the number of one that was taken, when its socket is gone.
        relays: connects sockets, and has them wait.
        loop: the event loop.
    """

    def __init__(
        self,
        attachment: int,
        address: Address,
        port: int,
        *,
        per_second: int,
        lost: Callable[[int], None],
        relays: Relays,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._attachment = attachment
        self._endpoint = address, port
        self._lost = lost
        self._relays = relays
        self._loop = loop
        self._tickets: deque[tuple[int, bytes]] = deque(maxlen=TICKETS_KEPT)
        self._wanted = 0
        self._parked: dict[int, Work] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._pace = Pace(per_second, 1.0, loop.time)
        self._failures = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """How many wait."""
        return len(self._parked)

    def add_tickets(self, first: int, tickets: tuple[bytes, ...]) -> None:
        """Take leave for some more; of more than are kept the oldest are forgotten."""
        self._tickets.extend(enumerate(tickets, first))
        self._fill()

    def park(self, connections: int) -> None:
        """Have so many wait from now on."""
        self._wanted = min(connections, PARKED_MAX)
        for number in tuple(self._parked)[: max(0, len(self) - self._wanted - SURPLUS_MAX)]:
            self._parked.pop(number).close()
        self._fill()

    def take(self, number: int) -> Work | None:
        """Take one out for a dial, if it is still there; another one is opened for it."""
        work = self._parked.pop(number, None)
        self._fill()
        return work

    def close(self) -> None:
        """Close all that wait, and open no more."""
        self._wanted = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in tuple(self._opening):
            task.cancel()
        for work in tuple(self._parked.values()):
            work.reset()
        self._parked.clear()

    def _fill(self) -> None:
        if self._timer is not None:
            return
        while self._tickets and len(self._parked) + len(self._opening) < self._wanted:
            number, ticket = self._tickets.popleft()
            task = self._loop.create_task(self._open(number, ticket))
            self._opening.add(task)
            task.add_done_callback(self._opened)
            seconds = self._pace.take(1)
            if seconds:
                self._wait(seconds)
                return

    def _wait(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._go_on)

    def _go_on(self) -> None:
        self._timer = None
        self._fill()

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if not task.cancelled():
            task.result()
            self._fill()

    async def _open(self, number: int, ticket: bytes) -> None:
        try:
            sock = await self._relays.connect(*self._endpoint, CONNECT_SECONDS)
        except OSError:
            self._tickets.appendleft((number, ticket))  # nobody has seen it
            self._wait(min(RETRY_MAX_SECONDS, RETRY_SECONDS * 2 ** min(self._failures, 10)))
            self._failures += 1
            return
        self._failures = 0
        preface = Preface(self._attachment, number, ticket).encode()
        try:
            keep_alive(sock)
            work = await self._relays.park(sock, preface, partial(self._gone, number))
        except OSError:
            sock.close()
            return
        except BaseException:
            sock.close()
            raise
        if not work.is_lost:
            self._parked[number] = work

    def _gone(self, number: int) -> None:
        if self._parked.pop(number, None) is None:
            self._lost(number)
        else:
            self._fill()


def keep_alive(sock: socket.socket) -> None:
    """Have the system find out that the other side is gone, where it can be told how soon."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPALIVE", KEEPALIVE_IDLE_SECONDS),  # macOS calls it so
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            with suppress(OSError):  # a name that Python knows and this system does not
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
