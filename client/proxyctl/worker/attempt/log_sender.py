"""Sends the log of an attempt, from the offset that the daemon has stored.

The sender knows only the daemon's last answer: how much of a stream it has. Where it has less than
before, because its machine lost its power, the rest is sent once more.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from proxyctl.worker.base import names
from proxyctl.worker.base.link import LinkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHUNK_MAX_BYTES: Final = 1 << 20  # the daemon's limit for one request
# A sender without an answer asks for the offset of a longer log before it sends the log: one small
# request instead of bytes that the daemon has already.
_ASKED_BYTES: Final = 64 << 10
# Of a longer wait, the rest comes with the next call: the caller may want to stop.
_WAIT_MAX_SECONDS: Final = 1.0
_OFFSET_MAX: Final = 1 << 62


class LogSender:
    """Sends the streams of one attempt alternately, one request for each call.

    Args:
        folder: of the attempt, with the files that its supervisor appends to.
        post: sends bytes of a stream that stand at an offset, and returns the daemon's answer;
            raises `LinkError` and `RefusedError` as `Link.post` does.
    """

    def __init__(self, folder: Path, post: Callable[[str, int, bytes], dict[str, Any]]) -> None:
        self._post = post
        self._streams = [_Stream(name, folder / file) for name, file in names.LOGS.items()]
        self._not_before = 0.0

    @property
    def sent(self) -> dict[str, int]:
        """The bytes of each stream that the daemon has, as far as is known."""
        return {stream.name: stream.offset for stream in self._streams}

    def send(self) -> bool:
        """Send a piece of the log; return False after the last piece.

        Raises:
            LinkError: it may be tried again.
            RefusedError: a retry is useless.
        """
        waiting = [stream for stream in self._streams if stream.has_more()]
        if not waiting:
            return False
        seconds = self._not_before - time.monotonic()
        if seconds > 0:
            time.sleep(min(seconds, _WAIT_MAX_SECONDS))
            return True
        stream = waiting[0]
        self._streams.remove(stream)  # the other one is next
        self._streams.append(stream)
        has_moved = self._send(stream)
        return (has_moved and stream.has_more()) or len(waiting) > 1

    def _send(self, stream: _Stream) -> bool:
        """Send a chunk of a stream; return False if it has to be sent again."""
        offset, data = stream.chunk()
        answer = self._post(stream.name, offset, data)
        stored, wait_ms = answer.get("offset"), answer.get("next_after_ms", 0)
        if not isinstance(stored, int) or not 0 <= stored <= _OFFSET_MAX:
            raise LinkError("the marketplace does not say how much of a log it has")
        if isinstance(wait_ms, int) and wait_ms > 0:
            self._not_before = time.monotonic() + wait_ms / 1000
        stream.is_full = answer.get("is_full") is True
        stream.is_known = True
        stream.offset = stored
        return stored != offset or not data


class _Stream:
    """Log of one stream of a program, and the part of it that the daemon has."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.offset = 0
        self.is_known = False
        self.is_full = False
        self._path = path

    def has_more(self) -> bool:
        """Return whether there is something that the daemon has not, and has room for."""
        return not self.is_full and self._size() > self.offset

    def chunk(self) -> tuple[int, bytes]:
        """Return the next bytes to send, and their offset; no bytes ask for the daemon's offset."""
        size = self._size()
        if not self.is_known and size > _ASKED_BYTES:
            return size, b""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return self.offset, b""
        try:
            return self.offset, os.pread(descriptor, CHUNK_MAX_BYTES, self.offset)
        finally:
            os.close(descriptor)

    def _size(self) -> int:
        try:
            return self._path.lstat().st_size
        except FileNotFoundError:
            return 0
