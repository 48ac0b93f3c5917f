"""Kernel pipes for splicing, taken for a moment each and used again (pipe(7), splice(2))."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Final

# The most that an unprivileged process may have (pipe-max-size): a fast stream costs a third less
# through it than through 256 KiB.
PIPE_BYTES: Final = 1024 * 1024
IDLE_MAX_PIPES: Final = 4  # one is enough while sinks keep up; each slow sink fills one
# Half of the memory of pipe-user-pages-soft (64 MiB); a stream that gets none is copied.
LENT_MAX_PIPES: Final = 32
USEFUL_PIPE_BYTES: Final = 64 * 1024  # past the soft limit a pipe has two pages: a copy is faster
_SET_SIZE: Final = 1031  # F_SETPIPE_SZ and F_GETPIPE_SZ, which Python names from 3.10 on
_GET_SIZE: Final = 1032


class Pipe:
    """A kernel pipe; `fill` is how many bytes are in it.

    Raises:
        OSError: there is no descriptor or no memory for it.
    """

    __slots__ = ("fill", "read_fd", "write_fd")

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.fill = 0
        with suppress(OSError):  # past pipe-user-pages-soft it stays small
            fcntl.fcntl(self.write_fd, _SET_SIZE, PIPE_BYTES)

    @property
    def capacity(self) -> int:
        """The bytes that it holds when its pages are filled."""
        return fcntl.fcntl(self.write_fd, _GET_SIZE)

    def close(self) -> None:
        """Close both ends; the bytes inside are lost."""
        os.close(self.read_fd)
        os.close(self.write_fd)


class PipePool:
    """Lends pipes."""

    def __init__(self) -> None:
        self._idle: list[Pipe] = []
        self._lent = 0

    def take(self) -> Pipe | None:
        """Return an empty pipe; None when there are too many, or a new one is refused."""
        if not self._idle and self._lent >= LENT_MAX_PIPES:
            return None
        pipe = self._idle.pop() if self._idle else self._make()
        self._lent += pipe is not None
        return pipe

    def give(self, pipe: Pipe) -> None:
        """Take a pipe back; one with bytes left in it is never lent again."""
        self._lent -= 1
        if pipe.fill or len(self._idle) >= IDLE_MAX_PIPES:
            pipe.close()
        else:
            self._idle.append(pipe)

    def close(self) -> None:
        """Close those that are idle."""
        while self._idle:
            self._idle.pop().close()

    @staticmethod
    def _make() -> Pipe | None:
        try:
            pipe = Pipe()
        except OSError:
            return None
        if pipe.capacity < USEFUL_PIPE_BYTES:
            pipe.close()
            return None
        return pipe
