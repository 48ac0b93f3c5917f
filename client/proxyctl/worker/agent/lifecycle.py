"""State that the threads of an agent share: why it takes no work, and whether it ends."""

from __future__ import annotations

import threading

from proxyctl.words import OwnerError


class AgentError(OwnerError):
    """A mistake of this program, which its log describes. Jobs run on until the next agent."""


class Lifecycle:
    """Flags that the threads of an agent share, and pauses that the end of the agent cuts short.

    Attributes:
        changed: set when the main thread should look at the flags.
        drains: the number of requests to end the agent.
        rest: why it takes no work at this moment, in words.
        is_leaving: the agent ends now, and its jobs run on.
        is_revoked: the marketplace does not know the token of this device.
        is_broken: one of the threads has failed.
    """

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.drains = 0
        self.rest = ""
        self.is_leaving = False
        self.is_revoked = False
        self.is_broken = False
        self._ending = False
        self._pauses = threading.Condition()
        self._resumed = 0  # how often `resume` was called

    @property
    def is_ending(self) -> bool:
        """Whether all threads should end."""
        return self._ending

    def end(self) -> None:
        """End all threads and all pauses permanently."""
        with self._pauses:
            self._ending = True
            self._pauses.notify_all()
        self.changed.set()

    def resume(self) -> None:
        """End all pauses."""
        with self._pauses:
            self._resumed += 1
            self._pauses.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait until the time is over, the agent ends, or `resume` is called."""
        with self._pauses:
            count = self._resumed
            self._pauses.wait_for(lambda: self._ending or self._resumed != count, seconds)

    def fail(self) -> None:
        """Note that a thread has failed."""
        self.is_broken = True
        self.changed.set()
