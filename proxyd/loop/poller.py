"""Edge-triggered readiness of the proxy's sockets (epoll(7)), on the event loop.

The loop's own `add_reader` makes and drops an object for every change of interest; a relayed
connection would pay for six of them. Here a socket is registered once, told of each change once,
and leaves the kernel's set by being closed. It is on its watcher to read until there is nothing
more: what it leaves unread is not announced again.
"""

import asyncio
import select
from typing import Protocol

EVENTS_PER_TURN = 256

WRITABLE = select.EPOLLOUT
GONE = select.EPOLLHUP | select.EPOLLERR
HUNG_UP = select.EPOLLRDHUP | GONE
URGENT = select.EPOLLPRI
READS = select.EPOLLIN | URGENT | HUNG_UP

_WATCH_READS = select.EPOLLIN | URGENT | select.EPOLLRDHUP | select.EPOLLET
_WATCH_BOTH = _WATCH_READS | select.EPOLLOUT


class Watcher(Protocol):
    """Whoever is told what became of a socket."""

    def ready(self, events: int) -> None:
        """Act on a change: some of `READS` (of which `HUNG_UP` and `GONE` say more), `WRITABLE`."""

    def fail(self, error: Exception) -> None:
        """Let go of the socket because `ready` made a mistake."""


class Poller:
    """Tells watchers of their sockets.

    Args:
        loop: the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._watchers: dict[int, Watcher] = {}
        self._fresh: set[int] = set()
        loop.add_reader(self._epoll.fileno(), self._turn)

    def __len__(self) -> int:
        return len(self._watchers)

    def watch(self, fd: int, watcher: Watcher, *, writes: bool = False) -> None:
        """Tell `watcher` when a socket can be read, and with `writes` when it can be written.

        A change that is there already is told too. For a socket that is watched, the watcher
        changes and nothing is told again.
        """
        if fd not in self._watchers:
            self._epoll.register(fd, _WATCH_BOTH if writes else _WATCH_READS)
            self._fresh.add(fd)
        self._watchers[fd] = watcher

    def watch_writes(self, fd: int) -> None:
        """Tell the watcher of a socket also when it can be written; now, if it can be now."""
        self._epoll.modify(fd, _WATCH_BOTH)

    def forget(self, fd: int) -> None:
        """Tell nobody of a socket any more; it must be closed at once."""
        self._watchers.pop(fd, None)

    def close(self) -> None:
        """Watch nothing any more; closing twice is harmless."""
        if self._epoll.closed:
            return
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()

    def _turn(self) -> None:
        """Tell each watcher once.

        A descriptor that was closed and taken anew within the turn is left out: what was told of it
        was about the old one.
        """
        fresh = self._fresh
        fresh.clear()
        watchers = self._watchers
        for fd, events in self._epoll.poll(0, EVENTS_PER_TURN):
            watcher = watchers.get(fd)
            if watcher is None or fd in fresh:
                continue
            try:
                watcher.ready(events)
            except Exception as error:  # noqa: BLE001 - it is logged there; the others go on
                watcher.fail(error)
