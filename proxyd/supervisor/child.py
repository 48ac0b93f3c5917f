"""One of the processes in the supervisor: its messages, and the time of its next start."""

import signal
import socket
from collections.abc import Callable, Collection

from proxyd.wiring.listeners import Listeners

PAUSE_FIRST_SECONDS = 0.1  # before a process is started again; clients wait in its queue
PAUSE_MOST_SECONDS = 10.0  # bounds the cost of a process that dies at every start
STEADY_SECONDS = 10.0  # after this time ready, the next pause is the shortest again
DATAGRAM_MAX_BYTES = 65_536


class Life:
    """Life of one process: the time of its start, and its reports since then.

    Args:
        now: the time of its start, in seconds.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.started_at = now
        self.fed_at: float | None = None
        self.ready_at = 0.0  # 0 before it was ever ready
        self.is_ready = False
        self.is_reloading = False
        self.must_reload = False
        self.status = ""

    @property
    def is_draining(self) -> bool:
        """Whether it was ready and has reported that it ends."""
        return self.ready_at > 0 and not self.is_ready

    @property
    def may_reload(self) -> bool:
        """Whether it must reload, and is ready to take the signal now."""
        return self.must_reload and self.is_ready and not self.is_reloading

    def reload(self) -> None:
        """Note that the signal to reload was sent to the process."""
        self.must_reload, self.is_reloading = False, True

    def take(self, name: str, value: str, now: float) -> None:
        """Process a line of a report."""
        if name == "READY":
            if not self.is_ready:
                self.ready_at = now
            self.is_ready = True
            self.is_reloading = False
        elif name == "STOPPING":
            self.is_ready = self.is_reloading = self.must_reload = False
        elif name == "STATUS":
            self.status = value
        elif name == "WATCHDOG":
            self.fed_at = now


class Child:
    """Process number, and the process that has it now.

    Args:
        monotonic: a clock, in seconds.
    """

    def __init__(self, index: int, listeners: Listeners, monotonic: Callable[[], float]) -> None:
        self.index = index
        self.listeners = listeners
        self._monotonic = monotonic
        self.pid = 0  # 0: no process
        self.channel: socket.socket | None = None
        self.was_ever_ready = False
        self._pause = PAUSE_FIRST_SECONDS
        self._has_failed = False
        self.due_at = monotonic()
        self.life = Life()

    @property
    def is_settled(self) -> bool:
        """Whether its first start has succeeded or failed."""
        return self.was_ever_ready or self._has_failed

    def started(self, pid: int, channel: socket.socket) -> None:
        """Record a started process, and this end of the channel to it."""
        self.pid, self.channel = pid, channel
        self.life = Life(self._monotonic())

    def hear(self) -> bool:
        """Read the messages of the process. Return False when the channel has ended."""
        while self.channel is not None:
            try:
                datagram = self.channel.recv(DATAGRAM_MAX_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not datagram:
                return False
            for line in datagram.decode(errors="replace").split("\n"):
                self._take(*line.partition("=")[::2])
        return False

    def _take(self, name: str, value: str) -> None:
        self.life.take(name, value, self._monotonic())
        if name == "READY":
            self.was_ever_ready = True
        elif name == "STOPPING":
            self.listeners.pause()

    def ended(self) -> float:
        """Note the end of the process. Return the seconds until the next start.

        New clients go to the other processes until it is ready: it listens only then.
        """
        now = self._monotonic()
        if self.life.ready_at and now - self.life.ready_at >= STEADY_SECONDS:
            self._pause = PAUSE_FIRST_SECONDS
        pause = self._pause
        self._pause = min(2 * pause, PAUSE_MOST_SECONDS)
        self._has_failed = True
        self.due_at = now + pause
        if self.channel is not None:
            self.channel.close()
        self.pid, self.channel = 0, None
        self.life = Life()
        self.listeners.pause()
        return pause

    def close(self, but: Collection[socket.socket] = ()) -> None:
        """Close its channel and its sockets, except for some sockets."""
        if self.channel is not None:
            self.channel.close()
        self.close_listeners(but)

    def close_listeners(self, but: Collection[socket.socket] = ()) -> None:
        """Close the sockets, except for some."""
        for sock in self.listeners.sockets:
            if sock not in but:
                sock.close()


def in_words(status: int) -> str:
    """Return how a process ended, from its status: below 0 it is the signal's number."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
