"""Kernel pipes for splicing, taken for a moment each and used again (pipe(7), splice(2)).

There are two kinds. A wide pipe takes a whole slice of a fast stream in one pair of calls: with it,
and with bounded buffers, bulk on a short path costs half the CPU or less at 16 and 64 streams,
compared with others. But the number of a user's pipe pages is limited (pipe-user-pages-soft), so
most pipes are smaller; and one of the other kind is better than none.

A pipe is borrowed for one turn, and returned when it is empty. So one pipe is enough for all
connections whose receivers keep up. Where a pipe or splice is refused, bytes are copied.
"""

import fcntl
import os
from contextlib import suppress
from typing import Final, final

PIPE_BYTES: Final = 256 * 1024  # for sinks on longer paths, whose queues take less at once
# The most that an unprivileged process may have (pipe-max-size).
WIDE_PIPE_BYTES: Final = 1024 * 1024
WIDE_MAX_PIPES: Final = 64  # as many as use up the default of pipe-user-pages-soft (64 MiB)
IDLE_MAX_PIPES: Final = 64  # of each kind; to keep more would only hold memory of the kernel
# Past the soft limit a pipe has two pages, and a copy is faster.
USEFUL_PIPE_BYTES: Final = 64 * 1024


@final
class Pipe:
    """A kernel pipe; `fill` is how many bytes are in it."""

    __slots__ = ("fill", "is_wide", "read_fd", "write_fd")

    def __init__(self, *, is_wide: bool = False) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.fill = 0
        self.is_wide = is_wide
        with suppress(OSError):  # past pipe-user-pages-soft, or for want of memory, it stays small
            size = WIDE_PIPE_BYTES if is_wide else PIPE_BYTES
            fcntl.fcntl(self.write_fd, fcntl.F_SETPIPE_SZ, size)

    @property
    def capacity(self) -> int:
        """The bytes that it holds when its pages are filled."""
        return fcntl.fcntl(self.write_fd, fcntl.F_GETPIPE_SZ)

    def close(self) -> None:
        """Close both ends; bytes inside are lost."""
        os.close(self.read_fd)
        os.close(self.write_fd)


@final
class PipePool:
    """Lends pipes. One serves all streams with fast sinks; each slow sink keeps one filled.

    Args:
        limit: limit of existing pipes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: list[Pipe] = []
        self._idle_wide: list[Pipe] = []
        self._lent_wide = 0
        self.lent = 0

    def take(self, *, wide: bool = False) -> Pipe | None:
        """Return an empty pipe; None when there are too many, or a new one is refused.

        Args:
            wide: whether it should be one of the few that hold more; it may be another.
        """
        wide = wide and self._lent_wide < WIDE_MAX_PIPES
        first, others = self._idle, self._idle_wide
        if wide:
            first, others = others, first
        pipe = first.pop() if first else None
        if pipe is None and self.lent + len(others) < self._limit:
            pipe = self._make(wide=wide)
        if pipe is None and others:
            pipe = others.pop()
        if pipe is not None:
            self.lent += 1
            self._lent_wide += pipe.is_wide
        return pipe

    def give(self, pipe: Pipe) -> None:
        """Take a pipe back; a pipe with bytes left in it is never lent again."""
        self.lent -= 1
        self._lent_wide -= pipe.is_wide
        idle = self._idle_wide if pipe.is_wide else self._idle
        if pipe.fill or len(idle) >= IDLE_MAX_PIPES:
            pipe.close()
        else:
            idle.append(pipe)

    def _make(self, *, wide: bool) -> Pipe | None:
        """Make a pipe; None where it is refused, or has only two pages (pipe-user-pages-soft)."""
        try:
            pipe = Pipe(is_wide=wide)
        except OSError:
            return None
        if pipe.capacity < USEFUL_PIPE_BYTES:
            pipe.close()
            return None
        return pipe

    def close(self) -> None:
        """Close the idle pipes."""
        for idle in (self._idle, self._idle_wide):
            while idle:
                idle.pop().close()
