"""The bytes of logs: the two streams of a job, in files of a mebibyte each.

A stream is as long as the bytes that came of it; its beginning and its end are kept, and the middle
of a long one is cut out. A segment is a file whose name is its number, so that a folder shows the
received length: all of it, up to the end of its last segment. Nothing else is written down.

Written bytes are in the kernel's hands: it survives a kill of this process. A power failure may
take the last seconds. It shows as a segment that is too short, and then the stream ends there and
the device, which still has the bytes, sends them again. `sync` makes a log durable, before a job is
over and its device forgets it.

Everything here blocks: it belongs into a thread.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import ENOSPC
from pathlib import Path
from typing import NamedTuple

SEGMENT_BYTES = 1024 * 1024
# A reader looks anew when a segment has gone since it looked: each time it is further on.
LOOKS_MAX = 10
_DIGITS = 12  # of the number of a segment: names sort like numbers, up to an exabyte


class Attempt(NamedTuple):
    """The owner of a log: an attempt at a job, by the job's identifier and the attempt's number."""

    job_id: str
    number: int


class Extent(NamedTuple):
    """Received length of a stream, and the kept parts of it: from, and up to, in bytes."""

    size: int
    kept: tuple[tuple[int, int], ...]


class Part(NamedTuple):
    """Bytes of a stream of `size` bytes, from `offset` on: later than asked for if that was cut."""

    offset: int
    data: bytes
    size: int


class LogFiles:
    """See above.

    Args:
        folder: where they lie; it is made when the first log comes.
        keep_bytes: how much of the beginning, and of the end, of each stream is kept at least.
        reserve_bytes: how much of the disk is left to others.
        is_shared: whether other processes write here: a device may send to several of them.
        segment_bytes: the size of a file; all who share a folder have the same.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep_bytes: int,
        reserve_bytes: int = 0,
        is_shared: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._kept_segments = max(1, -(-keep_bytes // segment_bytes))
        self._reserve_bytes = reserve_bytes
        self._is_shared = is_shared

    def recover(self, attempt: Attempt, stream: str) -> int:
        """Return the received size of a stream, and remove segments that a power failure left.

        Raises:
            OSError: the files cannot be read.
        """
        with self._alone(attempt):
            segments = self._segments(attempt, stream)
            size = _extent(segments, self._segment_bytes).size
            last = size // self._segment_bytes
            for index in segments:
                if index > last or self._is_in_the_middle(index, last):
                    self._path(attempt, stream, index).unlink(missing_ok=True)
            return size

    def write(self, attempt: Attempt, stream: str, offset: int, data: bytes) -> None:
        """Write at an offset that is not behind the end; bytes already there are the same.

        Raises:
            OSError: they were not written, or not all of them; ENOSPC where there is no room.
        """
        rest = memoryview(data)
        with self._alone(attempt):
            while rest:
                index, at = divmod(offset, self._segment_bytes)
                left = self._segment_bytes - at
                part, rest = rest[:left], rest[left:]
                if at == 0:
                    self._begin(attempt, stream, index)
                _write(self._path(attempt, stream, index), part, at)
                offset += len(part)

    def extent(self, attempt: Attempt, stream: str) -> Extent:
        """Return the received length of a stream, and the kept parts of it.

        Raises:
            OSError: the files cannot be read.
        """
        return _extent(self._segments(attempt, stream), self._segment_bytes)

    def read(self, attempt: Attempt, stream: str, offset: int, limit: int) -> Part:
        """Return at most `limit` bytes from an offset on, or from the next kept bytes behind a cut.

        An empty result means that no bytes have arrived yet.

        Raises:
            OSError: the files cannot be read.
        """
        for _ in range(LOOKS_MAX):
            extent = self.extent(attempt, stream)
            start, end = _range_at(extent, offset)
            with suppress(FileNotFoundError):  # it was cut out since
                data = self._read(attempt, stream, start, min(end, start + limit))
                return Part(start, data, extent.size)
        raise FileNotFoundError(f"the log of {attempt.job_id} is being removed")

    def sync(self, attempt: Attempt) -> None:
        """Make the written bytes of a log durable.

        Raises:
            OSError: it may not be durable.
        """
        folder = self._of(attempt)
        for name in _names(folder):
            with suppress(FileNotFoundError):
                _sync(folder / name)
        for each in (folder, folder.parent, self._folder):
            with suppress(FileNotFoundError):
                _sync(each)

    def kept_bytes(self, attempt: Attempt) -> int:
        """Return how many bytes the files of a log have.

        Raises:
            OSError: they cannot be read.
        """
        folder, size = self._of(attempt), 0
        for name in _names(folder):
            with suppress(FileNotFoundError):
                size += (folder / name).stat().st_size
        return size

    def remove(self, attempt: Attempt) -> None:
        """Remove a log; one that is not there is removed already.

        Raises:
            OSError: some of it is left.
        """
        folder = self._of(attempt)
        for name in _names(folder):
            (folder / name).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            folder.rmdir()

    @contextmanager
    def _alone(self, attempt: Attempt) -> Iterator[None]:
        """Keep other processes out within the block, so that none takes half a write for a loss."""
        if not self._is_shared:
            yield
            return
        folder = self._of(attempt)
        _make(folder)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _of(self, attempt: Attempt) -> Path:
        # The last digits of an identifier are random: 256 folders of about the same size.
        return self._folder / attempt.job_id[-2:] / f"{attempt.job_id}-{attempt.number}"

    def _path(self, attempt: Attempt, stream: str, index: int) -> Path:
        return self._of(attempt) / f"{stream}-{index:0{_DIGITS}}"

    def _segments(self, attempt: Attempt, stream: str) -> dict[int, int]:
        """Return the size of each segment of a stream, by its number."""
        beginning, folder = f"{stream}-", self._of(attempt)
        found = {}
        for name in _names(folder):
            if name.startswith(beginning):
                with suppress(FileNotFoundError):
                    found[int(name.removeprefix(beginning))] = (folder / name).stat().st_size
        return found

    def _is_in_the_middle(self, index: int, last: int) -> bool:
        """Return whether a segment is cut out of a stream that has a later one."""
        return self._kept_segments <= index < last - self._kept_segments

    def _begin(self, attempt: Attempt, stream: str, index: int) -> None:
        """Make room for a segment: the one is cut out that is not among the last any more."""
        folder = self._of(attempt)
        try:
            room = os.statvfs(folder)
        except FileNotFoundError:
            _make(folder)
            room = os.statvfs(folder)
        if room.f_bavail * room.f_frsize < self._reserve_bytes:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        gone = index - self._kept_segments - 1
        if self._is_in_the_middle(gone, index):
            self._path(attempt, stream, gone).unlink(missing_ok=True)

    def _read(self, attempt: Attempt, stream: str, start: int, end: int) -> bytes:
        pieces = []
        while start < end:
            index, at = divmod(start, self._segment_bytes)
            size = min(self._segment_bytes - at, end - start)
            with self._path(attempt, stream, index).open("rb", buffering=0) as file:
                piece = os.pread(file.fileno(), size, at)
            pieces.append(piece)
            start += len(piece)
            if len(piece) < size:
                break
        return b"".join(pieces)


def _make(folder: Path) -> None:
    """Make the folder of a log, and those around it."""
    root = folder.parent.parent
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700, exist_ok=True)


def _names(folder: Path) -> Iterator[str]:
    try:
        yield from os.listdir(folder)  # noqa: PTH208 - names are enough
    except FileNotFoundError:
        return


def _extent(segments: dict[int, int], segment_bytes: int) -> Extent:
    """Return the extent of a stream, from the numbers and sizes of its segments.

    A segment is full, but for the last one. If another one is short, a power failure has taken its
    end, and the segments behind it do not count any more.
    """
    kept: list[tuple[int, int]] = []
    is_full = True
    for index in sorted(segments):
        if not is_full:
            break
        start = index * segment_bytes
        end = start + segments[index]
        is_full = segments[index] >= segment_bytes
        if kept and kept[-1][1] == start:
            kept[-1] = (kept[-1][0], end)
        else:
            kept.append((start, end))
    return Extent(kept[-1][1] if kept else 0, tuple(kept))


def _range_at(extent: Extent, offset: int) -> tuple[int, int]:
    """Return the kept range from an offset on: its start, which may be later, and its end."""
    for start, end in extent.kept:
        if offset < end:
            return max(offset, start), end
    return offset, offset


def _write(path: Path, data: memoryview, at: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        while data:
            written = os.pwrite(descriptor, data, at)
            data, at = data[written:], at + written
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
