"""A .tar file that is made while it is read: nothing of it is on the disk.

It has no owners and no times: of the same files it is always the same.
"""

from __future__ import annotations

import io
import os
import tarfile
from bisect import bisect_right
from typing import IO, TYPE_CHECKING, Final, NamedTuple

from proxyctl.words import short_line
from proxyctl.worker.files.archives import ArchiveError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_END: Final = bytes(2 * tarfile.BLOCKSIZE)  # of every archive


class Content(NamedTuple):
    """A file for the archive: its name, its size, and how to open it."""

    name: str
    size_bytes: int
    open: Callable[[], IO[bytes]]


class Packed(io.RawIOBase):
    """An archive of some files, to be read from anywhere in it; to be closed.

    Reading raises `ArchiveError` if a file has become shorter, and all that opening a file raises.

    Args:
        files: that it has.

    Attributes:
        size_bytes: of the archive.
    """

    def __init__(self, files: Iterable[Content]) -> None:
        super().__init__()
        self.size_bytes = 0
        self._parts: list[bytes | Content] = []
        self._starts: list[int] = []
        self._position = 0
        self._opened: tuple[Content, IO[bytes]] | None = None
        for each in files:
            self._add(_header_of(each))
            self._add(each)
            self._add(bytes(-each.size_bytes % tarfile.BLOCKSIZE))
        self._add(_END)

    def _add(self, part: bytes | Content) -> None:
        size = part.size_bytes if isinstance(part, Content) else len(part)
        if size:
            self._starts.append(self.size_bytes)
            self._parts.append(part)
            self.size_bytes += size

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position in the archive, and return it."""
        before = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size_bytes}
        self._position = max(0, before[whence] + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes; fewer at the end, all with -1."""
        left = self.size_bytes - self._position
        left = max(0, left if size < 0 else min(size, left))
        pieces = []
        while left:
            piece = self._piece(left)
            pieces.append(piece)
            self._position += len(piece)
            left -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Close the open file."""
        if self._opened is not None:
            self._opened[1].close()
            self._opened = None
        super().close()

    def _piece(self, most: int) -> bytes:
        """Return some bytes of the part that the position is in."""
        number = bisect_right(self._starts, self._position) - 1
        part, offset = self._parts[number], self._position - self._starts[number]
        if not isinstance(part, Content):
            return part[offset : offset + most]
        file = self._file_of(part)
        file.seek(offset)
        piece = file.read(min(most, part.size_bytes - offset))
        if not piece:
            raise ArchiveError(f"{short_line(part.name)} changed while it was read")
        return piece

    def _file_of(self, content: Content) -> IO[bytes]:
        if self._opened is None or self._opened[0] is not content:
            if self._opened is not None:
                self._opened[1].close()
                self._opened = None
            self._opened = (content, content.open())
        return self._opened[1]


def _header_of(content: Content) -> bytes:
    member = tarfile.TarInfo(content.name)
    member.size, member.mode = content.size_bytes, 0o644
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
