"""Steps that were begun, and report their end by a callback; a coroutine can be one.

A task, a future and a timer for each connect would be a quarter of the cost of a short connection.
"""

from __future__ import annotations

import errno
import inspect
import os
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, Union

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable, Coroutine

    Connected = Callable[[Union[socket.socket, OSError]], None]

Result = TypeVar("Result")

TICK_SECONDS: Final = 0.05  # the longest delay of a deadline; more frequent looks cost more


class Attempt(Protocol):
    """A step that was begun.

    Its callback is called once, in a later turn of the loop, and never after `cancel`.
    """

    def cancel(self) -> object:
        """Give up, and release what the step has; without effect when the step is over."""


class TaskAttempt(Generic[Result]):
    """A coroutine as an attempt.

    Args:
        done: called with the result of the coroutine, or with its OSError.
        spare: called with a result that comes after `cancel`; None to drop it.
        owned: closed by a `cancel` before the coroutine's first step, after which none is taken.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Result],
        done: Callable[[Result | OSError], None],
        spare: Callable[[Result], None] | None = None,
        owned: socket.socket | None = None,
    ) -> None:
        self._done: Callable[[Result | OSError], None] | None = done
        self._spare = spare
        self._owned = owned
        self._coroutine = coroutine
        self.task = loop.create_task(coroutine)
        self.task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """See `Attempt.cancel`; the coroutine ends in the next turns of the loop."""
        self._done = None
        self.task.cancel()
        has_begun = inspect.getcoroutinestate(self._coroutine) != inspect.CORO_CREATED
        if self._owned is not None and not has_begun:
            self._owned.close()

    def _ended(self, task: asyncio.Task[Result]) -> None:
        done, self._done = self._done, None
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            if done is not None:
                done(error if isinstance(error, OSError) else OSError(*_CANCELLED))
            if error is not None and not isinstance(error, OSError):
                raise error  # a mistake: the loop logs it
        elif (receiver := done or self._spare) is not None:
            receiver(task.result())


def close_spare(sock: socket.socket) -> None:
    """Close a socket whose attempt was cancelled."""
    sock.close()


class Expiring(Protocol):
    """Has a time that ends."""

    def expire(self) -> None:
        """The time is over."""


class Deadlines:
    """Ends what lasts too long, by one timer for all of it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ends: dict[Expiring, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = 0.0

    def add(self, expiring: Expiring, seconds: float) -> None:
        """Call `expire` after this time."""
        ends = self._loop.time() + seconds
        self._ends[expiring] = ends
        if self._timer is None or ends < self._looks_at:
            self._look_at(ends)

    def discard(self, expiring: Expiring) -> None:
        """Forget one that may have a time; the timer stays for others."""
        self._ends.pop(expiring, None)

    def close(self) -> None:
        """Call nothing any more."""
        self._ends.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._loop.time()
        try:
            for expiring in [each for each, ends in self._ends.items() if ends <= now]:
                if self._ends.pop(expiring, None) is not None:
                    expiring.expire()
        finally:  # also after a mistake, which the loop logs
            if self._ends:
                self._look_at(max(min(self._ends.values()), now + TICK_SECONDS))


_CANCELLED: Final = (errno.ECANCELED, os.strerror(errno.ECANCELED))
