"""Signals as readable bytes, for a loop that waits for descriptors."""

import signal
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)


class Signals:
    """Takes the signals of `HANDLED` until `close`."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, _ignore) for number in HANDLED}

    def fileno(self) -> int:
        """Return the descriptor that is readable when a signal has come."""
        return self._read.fileno()

    def read(self) -> bytes:
        """Return the numbers of the signals that have come, in order."""
        try:
            return self._read.recv(4096)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Handle signals as before."""
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._read.close()
        self._write.close()


@contextmanager
def blocked() -> Iterator[Collection[int]]:
    """Block every signal: a forked process would otherwise take one meant for this process.

    Returns:
        the mask of before, for the forked process.
    """
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield earlier
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)


def _ignore(_number: int, _frame: object) -> None:
    """Do nothing: the supervisor reads the signal's number from the descriptor."""
