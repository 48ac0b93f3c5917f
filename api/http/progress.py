"""Bytes that arrive and leave on a connection, counted to detect a client that stalls."""

from typing import TYPE_CHECKING

from aiohttp.streams import EMPTY_PAYLOAD

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.streams import StreamReader

# Of a body; a client that sends less in `stalled_seconds` (`limits.py`) makes no progress.
PROGRESS_BYTES = 1024


class Incoming:
    """Arriving bytes: of a head, or of a body while the server reads it (`is_read`)."""

    __slots__ = ("_uncounted", "body", "head_bytes", "is_read")

    def __init__(self) -> None:
        self.head_bytes = 0
        self.body: StreamReader = EMPTY_PAYLOAD
        self.is_read = False
        self._uncounted = 0

    def end(self) -> None:
        """Forget the body: nothing arrives any more."""
        self.body = EMPTY_PAYLOAD

    def is_progress(self, size: int) -> bool:
        """Count bytes of a body; True whenever another `PROGRESS_BYTES` are complete."""
        self._uncounted += size
        if self._uncounted < PROGRESS_BYTES:
            return False
        self._uncounted = 0
        return True


class Outgoing:
    """Leaving bytes: the number that were written, and the number that the kernel has taken.

    `waiting` is always the size of the transport's buffer: the bytes written that have not left.
    """

    __slots__ = ("_due", "_due_since", "_left", "_left_then", "_writer", "_written_before")

    def __init__(self) -> None:
        self._writer: AbstractStreamWriter | None = None
        self._written_before = 0  # by the writers of earlier answers
        self._left = 0
        # All bytes up to `_due` must leave in a time that began at `_due_since`; `_left_then` had.
        self._due = 0
        self._due_since = 0.0
        self._left_then = 0

    def begin(self, writer: "AbstractStreamWriter") -> None:
        """Begin to count the bytes that this writer writes."""
        self.end()
        self._writer = writer

    def end(self) -> None:
        """Forget the writer: nothing leaves any more."""
        if self._writer is not None:
            self._written_before += self._writer.output_size
            self._writer = None

    def has_left_more(self, waiting: int) -> bool:
        """Return whether more has left than at the last call."""
        left = self._written - waiting
        if left <= self._left:
            return False
        self._left = left
        return True

    def watch(self, now: float, waiting: int) -> None:
        """Begin to measure the time in which the waiting bytes must leave."""
        self._left = self._written - waiting
        self._expect(now)

    def is_overdue(self, now: float, patience_seconds: float, bytes_per_second_min: int) -> bool:
        """Return whether the waiting bytes should have left by now.

        They have `patience_seconds`, and one more second for each `bytes_per_second_min` that did
        leave: a client that takes a byte now and then does not keep the connection by that.
        """
        if self._left >= self._due:
            self._expect(now)
            return False
        taken = self._left - self._left_then
        return now - self._due_since > patience_seconds + taken / bytes_per_second_min

    @property
    def _written(self) -> int:
        return self._written_before + (0 if self._writer is None else self._writer.output_size)

    def _expect(self, now: float) -> None:
        self._due, self._due_since, self._left_then = self._written, now, self._left
