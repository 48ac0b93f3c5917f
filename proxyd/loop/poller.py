"""Edge-triggered readiness of the proxy's sockets (epoll(7)), on the event loop.

The loop's own `add_reader` makes and drops an object for every change of interest: six of them for
a relayed connection, a quarter of a short one's processor time. Here a socket is registered once
and leaves the kernel's set by being closed.

epoll is edge-triggered: an event is reported once. A watcher that stops reading early must remember
that data is left.

An event of a socket that was closed in the same turn never reaches the socket that got its number.

A socket whose events come alone, turn after turn, is set apart: it gets an epoll set of its own,
which the loop watches directly. Such an event costs no query for its socket. The set is
level-triggered, so it needs no query to be emptied either; the watcher must read everything, and
the socket rejoins the others when it does not.
"""

import asyncio
import errno
import logging
import select
from typing import Final, Protocol, cast, final

# Further events are reported in the next turn of the loop, after other work. The list of the
# kernel's answer, 12 bytes for each event, fits into Python's own memory pool (512 bytes).
EVENTS_PER_TURN: Final = 42

# Consecutive turns with one event, after which its socket is set apart: that takes six system calls
# and saves one for each event.
ALONE_TURNS: Final = 64
# Each takes a descriptor. Where more are busy, events come together, and share their query.
APART_MAX: Final = 32
# With this number of events in a turn, a share of one query is cheaper than a set for a socket.
CROWD: Final = 8

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
_EBADF: Final = errno.EBADF
_logger = logging.getLogger("poller")
GONE: Final = select.EPOLLHUP | select.EPOLLERR
HUNG_UP: Final = select.EPOLLRDHUP | GONE
URGENT: Final = select.EPOLLPRI
READS: Final = select.EPOLLIN | URGENT | HUNG_UP

_WATCH_NOTHING: Final = select.EPOLLET  # but errors, which are always reported
_WATCH_READS: Final = select.EPOLLIN | URGENT | select.EPOLLRDHUP | select.EPOLLET
_WATCH_BOTH: Final = _WATCH_READS | select.EPOLLOUT


class Watcher(Protocol):
    """Acts on the events of one socket."""

    __slots__ = ()

    def ready(self, events: int) -> None:
        """Act on events: some of `READS` (`HUNG_UP` and `GONE` are details), and `WRITABLE`."""

    def fail(self, error: Exception) -> None:
        """Release the socket after `ready` has raised this error."""


class Reader(Watcher, Protocol):
    """A watcher whose socket can be set apart."""

    __slots__ = ()

    @property
    def is_at_ease(self) -> bool:
        """Whether it needs only to know when its socket can be read."""

    def read(self) -> bool:
        """Read what the socket has. Return False unless that was all of it, and it is at ease."""


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
        self._poll = self._epoll.poll
        self._fresh: set[int] = set()
        self._alone = 0
        self._apart: dict[int, _Apart] = {}
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
        elif fd in self._apart:
            self._rejoin(fd)
        self._watchers[fd] = watcher

    def watch_writes(self, fd: int) -> None:
        """Report also when a socket can be written; on the next turn, if it can be now."""
        if fd in self._apart:
            self._rejoin(fd)
        else:
            self._epoll.modify(fd, _WATCH_BOTH)

    def is_apart(self, fd: int) -> bool:
        """Return whether a socket is set apart: then nothing is reported of its writing."""
        return fd in self._apart

    def forget(self, fd: int) -> None:
        """Drop the watcher of a socket, which must be closed without delay."""
        if self._watchers.pop(fd, None) is not None and fd in self._apart:
            self._drop(fd)

    def release(self, fd: int) -> None:
        """Release a socket that stays open for another watcher."""
        if self._watchers.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            if fd in self._apart:
                self._drop(fd)

    def close(self) -> None:
        """Stop watching all sockets; closing twice is harmless."""
        if self._epoll.closed:
            return
        for fd in tuple(self._apart):
            self._drop(fd)
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._watchers.clear()

    def read_apart(self, apart: "_Apart") -> None:
        """Have the watcher of a socket read that is set apart; else the socket rejoins."""
        watcher = apart.watcher
        has_read_all = False
        try:
            has_read_all = watcher.read()
        except Exception as error:  # noqa: BLE001 - it is logged there; the others go on
            watcher.fail(error)
        # It may be closed by now, and its number be another's.
        if not has_read_all and self._apart.get(apart.fd) is apart:
            self._rejoin(apart.fd)

    def _turn(self) -> None:
        """Call each watcher whose socket has events, once.

        A descriptor that was closed and opened anew within the turn is left out: the event was its
        predecessor's.
        """
        fresh = self._fresh
        if len(fresh):
            fresh.clear()
        watchers = self._watchers
        found = self._poll(0, EVENTS_PER_TURN)
        for fd, events in found:
            watcher = watchers.get(fd)
            if watcher is None or (len(fresh) and fd in fresh):
                continue
            try:
                watcher.ready(events)
            except Exception as error:  # noqa: BLE001 - it is logged there; the others go on
                watcher.fail(error)
        if len(found) == 1:
            self._alone += 1
            if self._alone >= ALONE_TURNS:
                self._alone = 0
                self._set_apart(found[0][0])
        else:
            self._alone = 0
            if len(found) >= CROWD and len(self._apart):
                self._rejoin(next(iter(self._apart)))

    def _set_apart(self, fd: int) -> None:
        """Set a socket apart, the longest apart making room, if its watcher is a reader at ease."""
        if fd in self._apart or not hasattr(self._watchers.get(fd), "is_at_ease"):
            return
        watcher = cast(Reader, self._watchers[fd])
        if not watcher.is_at_ease:
            return
        if len(self._apart) >= APART_MAX:
            self._rejoin(next(iter(self._apart)))
        try:
            apart = _Apart(self, self._loop, fd, watcher)
        except OSError as error:  # no descriptor, or no watch: the socket stays with the others
            _logger.debug("a socket is not set apart: %s", error)
            return
        # It stays registered, so that it needs no memory to rejoin.
        self._epoll.modify(fd, _WATCH_NOTHING)
        self._apart[fd] = apart

    def _rejoin(self, fd: int) -> None:
        """Watch a socket with the others again, which was set apart."""
        self._drop(fd)
        self._epoll.modify(fd, _WATCH_BOTH)

    def _drop(self, fd: int) -> None:
        """Close the set of a socket that was set apart."""
        apart = self._apart.pop(fd)
        self._loop.remove_reader(apart.fileno())
        apart.close()


@final
class _Apart:
    """The epoll set of one socket, watched by the loop until `Poller` drops it.

    Raises:
        OSError: there is no descriptor for it, or the kernel watches no more.
    """

    __slots__ = ("_epoll", "_poller", "fd", "watcher")

    def __init__(
        self, poller: Poller, loop: asyncio.AbstractEventLoop, fd: int, watcher: Reader
    ) -> None:
        self._poller = poller
        self._epoll: Epoll = select.epoll()
        self.fd = fd
        self.watcher = watcher
        try:
            self._epoll.register(fd, READABLE)
            loop.add_reader(self._epoll.fileno(), self.turn)
        except OSError:
            self._epoll.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor of the set, which can be read while the socket can."""
        return self._epoll.fileno()

    def turn(self) -> None:
        """Read the socket."""
        self._poller.read_apart(self)

    def close(self) -> None:
        """Close the set, and leave the socket open."""
        self._epoll.close()
