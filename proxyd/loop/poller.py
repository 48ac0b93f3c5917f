"""Edge-triggered readiness of the proxy's sockets (epoll(7)), on the event loop.

The loop's own `add_reader` makes and drops an object for every change of interest: six of them for
a relayed connection, a quarter of a short one's processor time. Here a socket is registered once
and leaves the kernel's set by being closed.

epoll is edge-triggered: an event is reported once. A watcher that stops reading early must remember
that data is left.

An event of a socket that was closed in the same turn never reaches the socket that got its number.
"""

import asyncio
import errno
import select
from typing import Final, Protocol, final

# Further events are reported in the next turn of the loop, after other work. The list of the
# kernel's answer, 12 bytes for each event, fits into Python's own memory pool (512 bytes).
EVENTS_PER_TURN: Final = 42

WRITABLE: Final = select.EPOLLOUT
_EBADF: Final = errno.EBADF
GONE: Final = select.EPOLLHUP | select.EPOLLERR
HUNG_UP: Final = select.EPOLLRDHUP | GONE
URGENT: Final = select.EPOLLPRI
READS: Final = select.EPOLLIN | URGENT | HUNG_UP

_WATCH_READS: Final = select.EPOLLIN | URGENT | select.EPOLLRDHUP | select.EPOLLET
_WATCH_BOTH: Final = _WATCH_READS | select.EPOLLOUT


class Watcher(Protocol):
    """Acts on the events of one socket."""

    __slots__ = ()

    def ready(self, events: int) -> None:
        """Act on events: some of `READS` (`HUNG_UP` and `GONE` are details), and `WRITABLE`."""

    def fail(self, error: Exception) -> None:
        """Release the socket after `ready` has raised this error."""


class Epoll(Protocol):
    """The used part of `select.epoll`; tests put one in its place that refuses."""

    @property
    def closed(self) -> bool:
        """Whether it was closed."""

    def fileno(self) -> int:
        """Return the poller's own descriptor."""

    def register(self, fd: int, eventmask: int, /) -> None:
        """Begin to report events of a socket."""

    def modify(self, fd: int, eventmask: int, /) -> None:
        """Change the reported events."""

    def unregister(self, fd: int, /) -> None:
        """Stop reporting events of a socket."""

    def poll(self, timeout: float, maxevents: int, /) -> list[tuple[int, int]]:
        """Return the pending events by descriptor."""

    def close(self) -> None:
        """Stop reporting all events."""


@final
class Poller:
    """Calls `ready` of a socket's watcher when the socket has events."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll: Epoll = select.epoll()
        self._watchers: dict[int, Watcher] = {}
        self._fresh: set[int] = set()
        loop.add_reader(self._epoll.fileno(), self._turn)

    def __len__(self) -> int:
        return len(self._watchers)

    def watch(self, fd: int, watcher: Watcher, *, writes: bool = False) -> None:
        """Call `watcher.ready` when a socket can be read, and with `writes` when it can be written.

        If the socket is ready now, `watcher.ready` is called on the next turn. Watching an fd again
        only replaces its watcher; events that were reported are not repeated.

        Raises:
            OSError: the kernel watches no more, or this is closed.
        """
        if fd not in self._watchers:
            if self._epoll.closed:  # as of a socket: late callers are prepared for that
                raise OSError(_EBADF, "nothing is watched any more")
            self._epoll.register(fd, _WATCH_BOTH if writes else _WATCH_READS)
            self._fresh.add(fd)
        self._watchers[fd] = watcher

    def watch_writes(self, fd: int) -> None:
        """Report also when a socket can be written; on the next turn, if it can be now."""
        self._epoll.modify(fd, _WATCH_BOTH)

    def forget(self, fd: int) -> None:
        """Drop the watcher of a socket, which must be closed without delay."""
        self._watchers.pop(fd, None)

    def release(self, fd: int) -> None:
        """Release a socket that stays open for another watcher."""
        if self._watchers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        """Stop watching all sockets; closing twice is harmless."""
        if self._epoll.closed:
            return
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._watchers.clear()

    def _turn(self) -> None:
        """Call each watcher whose socket has events, once.

        A descriptor that was closed and opened anew within the turn is left out: the event was its
        predecessor's.
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
