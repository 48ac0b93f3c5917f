"""Interruptions of an attempt: its bell, the reason to stop it, and the end of the agent."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxyctl.worker.task.journal import Stop


class Interruption:
    """Wakes the thread of an attempt, and keeps why the attempt should end; several threads use it.

    Args:
        stop: the reason that the journal holds, if there is one.
    """

    def __init__(self, stop: Stop | None) -> None:
        self._stop = stop
        self._is_leaving = False
        self._lock = threading.Lock()
        self._rung = threading.Event()

    @property
    def stop(self) -> Stop | None:
        """The reason why the attempt should end before its own end."""
        return self._stop

    @property
    def is_leaving(self) -> bool:
        """Whether the agent ends, and leaves the job to the next agent."""
        return self._is_leaving

    @property
    def is_unwanted(self) -> bool:
        """Whether the daemon wants no report of the attempt any more."""
        stop = self._stop
        return stop is not None and not stop.kind

    @property
    def ends_work(self) -> bool:
        """Whether the thread should stop its work for this attempt."""
        return self.is_leaving or self.is_unwanted

    def request(self, stop: Stop) -> bool:
        """Keep a reason to stop; return False if an earlier reason prevails.

        A stop that makes the report unwanted replaces any other stop, and nothing replaces it.
        """
        with self._lock:
            before = self._stop
            if before is not None and (not before.kind or stop.kind):
                return False
            self._stop = stop
        return True

    def leave(self) -> None:
        """Make the thread end, and let the job run on."""
        self._is_leaving = True

    def ring(self) -> None:
        """Wake the thread of the attempt."""
        self._rung.set()

    def wait(self, seconds: float) -> None:
        """Wait until the time is over, or until `ring` is called."""
        if self._rung.wait(seconds):
            self._rung.clear()
