"""Kernel pipes for splicing, taken for a moment each and used again (pipe(7), splice(2))."""

import fcntl
import os
from contextlib import suppress

PIPE_BYTES = 256 * 1024
IDLE_MAX_PIPES = 16


class Pipe:
    """A kernel pipe; `fill` is how many bytes are in it."""

    __slots__ = ("fill", "read_fd", "write_fd")

    def __init__(self, size: int) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.fill = 0
        with suppress(PermissionError):  # past pipe-user-pages-soft it keeps its 64 KiB
            fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, size)

    def close(self) -> None:
        """Close both ends; what is inside is gone."""
        os.close(self.read_fd)
        os.close(self.write_fd)


class PipePool:
    """Lends pipes. One is enough for all whose sinks keep up; each that does not keeps one filled.

    Args:
        limit: how many may exist at once.
        size: how many bytes each should hold.
    """

    def __init__(self, limit: int, size: int = PIPE_BYTES) -> None:
        self._limit = limit
        self._size = size
        self._idle: list[Pipe] = []
        self.lent = 0

    def take(self) -> Pipe | None:
        """Return an empty pipe; None when there are too many, or no descriptors for one."""
        if self._idle:
            self.lent += 1
            return self._idle.pop()
        if self.lent >= self._limit:
            return None
        try:
            pipe = Pipe(self._size)
        except OSError:
            return None
        self.lent += 1
        return pipe

    def give(self, pipe: Pipe) -> None:
        """Take a pipe back; one with bytes left in it is never lent again."""
        self.lent -= 1
        if pipe.fill or len(self._idle) >= IDLE_MAX_PIPES:
            pipe.close()
        else:
            self._idle.append(pipe)

    def close(self) -> None:
        """Close those that nobody has."""
        while self._idle:
            self._idle.pop().close()
