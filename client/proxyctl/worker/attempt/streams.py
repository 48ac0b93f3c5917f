"""The output of the program of an attempt: pipes, logs, and the bell that wakes the agent."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from proxyctl.worker.base import names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_READ_BYTES: Final = 1 << 18  # four times the size of a pipe, unless it was made larger
_READS_A_TURN: Final = 8  # of one stream, before the other stream has its turn
_PIPE_BYTES: Final = 1 << 20  # the largest pipe that an ordinary user may have
_RING_SECONDS: Final = 0.005  # a job that prints byte by byte rings 200 times a second at most


class Bell:
    """Wakes the agent when there is news of an attempt, for its logs 200 times a second at most."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._rung_at = 0.0  # monotonic; for the logs, whose first bytes wait for no other ring
        self._is_due = False

    def ring(self, *, of_log: bool = False) -> None:
        """Wake the agent, if there is one; it also looks without the bell every second.

        Args:
            of_log: whether only the logs have changed.
        """
        self._is_due = False
        if of_log:
            self._rung_at = time.monotonic()
        name = f"{self._name}{names.OF_LOG}" if of_log else self._name
        with suppress(OSError):
            self._socket.sendto(name.encode(), names.BELL)

    def ring_soon(self) -> None:
        """Have `ring_if_due` ring for the logs, once their last ring is long enough ago."""
        self._is_due = True

    def ring_if_due(self) -> None:
        """Ring for the logs, if `ring_soon` was called and their last ring is long enough ago."""
        if self._is_due and time.monotonic() >= self._rung_at + _RING_SECONDS:
            self.ring(of_log=True)

    def seconds_left(self, seconds: float) -> float:
        """Return a wait, shortened to the time of the next ring for the logs."""
        if self._is_due:
            return min(seconds, max(0.0, self._rung_at + _RING_SECONDS - time.monotonic()))
        return seconds


def make_pipes() -> tuple[list[int], list[int]]:
    """Return a pipe for each stream: the ends for the supervisor, and those for the program."""
    readers, writers = [], []
    for _ in names.LOGS:
        reader, writer = os.pipe()
        with suppress(OSError):  # the limit of the machine for pipes is reached
            fcntl.fcntl(writer, getattr(fcntl, "F_SETPIPE_SZ", 1031), _PIPE_BYTES)
        os.set_blocking(reader, False)
        readers.append(reader)
        writers.append(writer)
    return readers, writers


class Streams:
    """The pipes that a program prints to, and the logs that keep the output.

    Args:
        full: called when the disk has no room for output.
    """

    def __init__(self, bell: Bell, full: Callable[[], None]) -> None:
        self._bell = bell
        self._full = full
        self._logs: dict[int, _Log] = {}
        self._poll = select.poll()
        self._wake = -1

    def open(self, folder: str, log_bytes: int, readers: Sequence[int]) -> None:
        """Make the logs for the bytes of the pipes.

        Args:
            folder: of the attempt.
            log_bytes: to keep of each stream.
            readers: the ends of `make_pipes` for the supervisor.
        """
        for reader, (stream, name) in zip(readers, names.LOGS.items()):
            self._logs[reader] = _Log(stream, f"{folder}/{name}", log_bytes)
            self._poll.register(reader, select.POLLIN)

    def watch_signals(self) -> int:
        """Make signals end a `turn`; return the descriptor that signals are written to."""
        self._wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll.register(self._wake, select.POLLIN)
        return waker

    def turn(self, seconds: float) -> None:
        """Wait for output or a signal, and append output to the logs."""
        seconds = self._bell.seconds_left(seconds)
        for descriptor, _ in self._poll.poll(max(0.0, seconds) * 1000):
            if descriptor == self._wake:
                with suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            else:
                self._take(descriptor)
        self._bell.ring_if_due()

    def drain(self, seconds: float) -> None:
        """Append the rest of the output to the logs, when the program has ended."""
        deadline = time.monotonic() + seconds
        while not all(log.is_over for log in self._logs.values()):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self.turn(left)

    def stop(self) -> None:
        """Keep no further output; it is still read and counted."""
        for log in self._logs.values():
            log.stop()

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes that the program has printed, by stream."""
        return {log.stream: log.size for log in self._logs.values()}

    @property
    def kept(self) -> dict[str, int]:
        """The bytes that the logs hold, by stream."""
        return {log.stream: log.kept for log in self._logs.values()}

    def _take(self, descriptor: int) -> None:
        log = self._logs[descriptor]
        for _ in range(_READS_A_TURN):
            try:
                data = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._poll.unregister(descriptor)
                log.is_over = True
                return
            try:
                log.append(data)
            except OSError:
                self._full()
            self._bell.ring_soon()


class _Log:
    """Log of one stream of a program: counts all bytes, and keeps the first `most`."""

    def __init__(self, stream: str, path: str, most: int) -> None:
        self.stream = stream
        self.size = self.kept = 0
        self.is_over = False
        self._most = most
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def append(self, data: bytes) -> None:
        self.size += len(data)
        view = memoryview(data)[: max(0, self._most - self.kept)]
        while view:
            count = os.write(self._file, view)
            self.kept += count
            view = view[count:]

    def stop(self) -> None:
        self._most = self.kept

    def close(self) -> None:
        with suppress(OSError):  # the daemon finds that these bytes are missing
            os.fsync(self._file)
        os.close(self._file)
