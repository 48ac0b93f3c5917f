"""Readiness of many sockets by one epoll(7), which hangs in the event loop; Linux alone has it.

The loop's own `add_reader` and transports make and drop objects for every change of interest. For a
short connection this is most of the cost. Here a socket is registered once, and leaves the kernel's
set by being closed.

epoll is edge-triggered: an event is reported once. A watcher that stops reading early must remember
that data is left.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from proxyctl.attach.relay.attempts import Deadlines
from proxyctl.attach.relay.dial import new_socket
from proxyctl.protocol.addresses import text_of

if TYPE_CHECKING:
    import asyncio

    from proxyctl.attach.relay.attempts import Connected
    from proxyctl.protocol.addresses import Address

# Further events are reported in the next turn of the loop, after other work. The list of the
# kernel's answer, 12 bytes for each event, fits into Python's own memory pool (512 bytes).
EVENTS_PER_TURN: Final = 42
# A stream that is served for a while costs half of one that is served a little and often, since its
# ends stay awake; and everything else waits no longer than this behind it.
SLICE_SECONDS: Final = 0.002

WRITABLE: Final = select.EPOLLOUT
FAILED: Final = select.EPOLLERR
GONE: Final = select.EPOLLHUP | FAILED
HUNG_UP: Final = select.EPOLLRDHUP | GONE
URGENT: Final = select.EPOLLPRI
READS: Final = select.EPOLLIN | URGENT | HUNG_UP

_ALL: Final = select.EPOLLIN | URGENT | select.EPOLLRDHUP | WRITABLE | select.EPOLLET

_logger = logging.getLogger("exit")


class Watcher(Protocol):
    """Acts on the events of one socket."""

    def ready(self, events: int) -> None:
        """Act on events: `WRITABLE`, and some of `READS`: `HUNG_UP`, `GONE`, `FAILED` say more."""

    def fail(self) -> None:
        """Release the socket after an unexpected exception of `ready`."""


class Mover(Protocol):
    """Object with bulk data to move in turns."""

    def turn(self) -> None:
        """Move some of it."""

    def fail(self) -> None:
        """Release the sockets after an unexpected exception of `turn`."""


class Poller:
    """Reports events of sockets to their watchers, and gives movers their turns.

    Raises:
        OSError: there is no epoll, or no descriptor for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.deadlines = Deadlines(loop)
        self._epoll = select.epoll()
        self._watchers: dict[int, Watcher] = {}
        # A new socket may get the number of a socket that was closed in the same turn; it must not
        # get the events of its predecessor.
        self._new: set[int] = set()
        self._moving: deque[Mover] = deque()
        self._is_scheduled = False
        loop.add_reader(self._epoll.fileno(), self._dispatch)

    def close(self) -> None:
        """Report nothing any more."""
        if not self._epoll.closed:
            self.loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
        self.deadlines.close()
        self._watchers.clear()
        self._moving.clear()

    def watch(self, fd: int, watcher: Watcher) -> None:
        """Report events of a socket. The next turn reports its present state.

        A socket that has connected in this turn is watched already, and only events that the
        connect did not use up are reported again.

        Raises:
            OSError: the system watches no more.
        """
        if isinstance(self._watchers.get(fd), Connecting):
            self._watchers[fd] = watcher
            return
        try:
            self._epoll.modify(fd, _ALL)
        except FileNotFoundError:
            self._epoll.register(fd, _ALL)
        self._heard_by(watcher, fd)

    def watch_new(self, fd: int, watcher: Watcher) -> None:
        """Report events of a socket that was never watched; else like `watch`."""
        self._epoll.register(fd, _ALL)
        self._heard_by(watcher, fd)

    def report_again(self, fd: int) -> None:
        """Report the present state of a socket that is watched, in the next turn."""
        self._epoll.modify(fd, _ALL)

    def is_watched_by(self, fd: int, watcher: Watcher) -> bool:
        """Return whether a socket is reported to this watcher."""
        return self._watchers.get(fd) is watcher

    def replace(self, fd: int, watcher: Watcher) -> None:
        """Report further events of a socket that is watched to another watcher."""
        assert fd in self._watchers  # noqa: S101 - else its events would be lost
        self._watchers[fd] = watcher

    def forget(self, fd: int) -> None:
        """Stop reporting a socket; the caller closes it next, or another watcher takes it."""
        self._watchers.pop(fd, None)

    def release(self, fd: int) -> None:
        """Release a socket that stays open, such as one that a transport takes."""
        if self._watchers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def move(self, mover: Mover) -> None:
        """Give a mover a turn soon; it must not be waiting for one already."""
        self._moving.append(mover)
        self._schedule()

    def connect(self, address: Address, port: int, seconds: float, done: Connected) -> Connecting:
        """Begin to connect to an address; see `Relays.connect`."""
        return Connecting(self, address, port, seconds, done)

    def _heard_by(self, watcher: Watcher, fd: int) -> None:
        self._watchers[fd] = watcher
        self._new.add(fd)

    def _dispatch(self) -> None:
        self._new.clear()
        for fd, events in self._epoll.poll(0, EVENTS_PER_TURN):
            watcher = self._watchers.get(fd)
            if watcher is None or fd in self._new:
                continue
            try:
                watcher.ready(events)
            except Exception:
                _logger.exception("a connection failed; it is cut")
                watcher.fail()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self.loop.call_soon(self._slice)

    def _slice(self) -> None:
        """Give turns to movers for a time slice."""
        self._is_scheduled = False
        moving = self._moving
        until = time.monotonic() + SLICE_SECONDS
        for _ in range(len(moving)):
            mover = moving.popleft()
            try:
                mover.turn()
            except Exception:
                _logger.exception("a connection failed; it is cut")
                mover.fail()
            if time.monotonic() > until:
                break
        if moving:
            self._schedule()


class Connecting:
    """A socket on its way to an address; an `Attempt`.

    A receiver that has the socket watched before `done` returns gets the events from then on; the
    kernel is not asked to watch it once more.
    """

    __slots__ = ("_done", "_fd", "_poller", "_sock")

    def __init__(
        self, poller: Poller, address: Address, port: int, seconds: float, done: Connected
    ) -> None:
        self._poller = poller
        self._done: Connected | None = done
        self._sock: socket.socket | None = None
        self._fd = -1
        try:
            self._begin(address, port)
        except OSError as error:
            self._close()
            poller.loop.call_soon(self._finish, error)
        else:
            poller.deadlines.add(self, seconds)

    def cancel(self) -> None:
        """See `Attempt.cancel`."""
        self._done = None
        self._poller.deadlines.discard(self)
        self._close()

    def ready(self, events: int) -> None:
        """See `Watcher.ready`."""
        poller, sock = self._poller, self._sock
        if sock is None:  # its receiver has it
            return
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) if events & GONE else 0
        if number:
            self._fail(OSError(number, os.strerror(number)))
            return
        if events & READS:
            poller.report_again(self._fd)
        poller.deadlines.discard(self)
        self._sock = None
        try:
            self._finish(sock)
        finally:
            if poller.is_watched_by(self._fd, self):  # else its receiver has it watched
                stays_open = sock.fileno() == self._fd
                (poller.release if stays_open else poller.forget)(self._fd)

    def fail(self) -> None:
        """See `Watcher.fail`."""
        self._fail(ConnectionAbortedError(errno.ECONNABORTED, os.strerror(errno.ECONNABORTED)))

    def expire(self) -> None:
        """See `Expiring.expire`."""
        self._fail(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def _begin(self, address: Address, port: int) -> None:
        self._sock = sock = new_socket(address)
        number = sock.connect_ex((text_of(address), port))
        if number not in (0, errno.EINPROGRESS):
            raise OSError(number, os.strerror(number))
        self._fd = sock.fileno()
        self._poller.watch_new(self._fd, self)  # reports also a socket that is connected by now

    def _fail(self, error: OSError) -> None:
        self._poller.deadlines.discard(self)
        self._close()
        self._finish(error)

    def _finish(self, outcome: socket.socket | OSError) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(outcome)

    def _close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            self._poller.forget(self._fd)
            sock.close()
