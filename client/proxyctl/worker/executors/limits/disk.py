"""How much a job has written: looked at from outside, since no kernel bounds a plain folder.

A file system of fixed size would be the better wall; but one in memory takes away from the job's
memory, and one in an image file needs root, and its files are gone from the agent's sight at the
end. So the folder is added up every second, and a job that has written too much is ended. In that
second it can write as fast as the disk takes it, so that the disk's last bytes are watched, too.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from proxyctl.worker.beneath import FOLDER_FLAGS, make_accessible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

EVERY_SECONDS: Final = 1.0
# Adding up takes a tenth of the time at most, however many files there are.
SHARE: Final = 0.1
# What a job cannot have on a disk that is nearly full, so that the machine goes on working.
RESERVE_BYTES: Final = 512 << 20
ENTRIES_MAX: Final = 200_000  # files and folders; each takes an inode, and time to add up
DEPTH_MAX: Final = 100  # folders within folders; each open while those below it are added up
_BLOCK_BYTES: Final = 512  # st_blocks, whatever the file system has


class TooMuchError(Exception):
    """A job has written more than it may; the message says what."""


def is_short(place: str | Path | int, reserve_bytes: int | None = None) -> bool:
    """Return whether a disk has no more free than the device keeps for itself.

    Args:
        place: a path on the disk, or a descriptor.
        reserve_bytes: in the place of `RESERVE_BYTES`.
    """
    reserve = RESERVE_BYTES if reserve_bytes is None else reserve_bytes
    return free_bytes(place) < reserve


def free_bytes(place: str | Path | int) -> int:
    """Return the bytes of a disk that are free for ordinary users."""
    free = os.statvfs(place)
    return free.f_bavail * free.f_frsize


def measure(path: Path, max_bytes: int, depth_max: int = DEPTH_MAX) -> int:
    """Return the bytes that a file, or a folder with its content, takes on the disk.

    A file counts with its size where that is more than its blocks.

    Raises:
        TooMuchError: more than `max_bytes`, or too many or too deep folders.
        FileNotFoundError: the path is gone.
    """
    total = Total(max_bytes, depth_max, with_holes=True)
    total.add_path(path)
    return total.bytes


class DiskWatch:
    """Adds up what one job has written.

    Attributes:
        pause_seconds: until the next look.
        is_short: the disk of the machine is nearly full, whoever has filled it.

    Args:
        folder: that the job writes to, and that is there as long as the job is.
        max_bytes: it may hold.
        reserve_bytes: that must stay free where the folder is.
        processes: returns those of the job; what they have removed and not closed takes room, too.
    """

    def __init__(
        self,
        folder: str | Path,
        max_bytes: int,
        *,
        reserve_bytes: int = RESERVE_BYTES,
        processes: Callable[[], Iterable[int]] = tuple,
    ) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._reserve_bytes = reserve_bytes
        self._processes = processes
        self.pause_seconds = EVERY_SECONDS
        self.is_short = False

    def look(self) -> str:
        """Return why the job must end, or nothing; then pause for `pause_seconds`."""
        started_at = time.monotonic()
        try:
            # First what it has written itself: who fills a disk is not excused by its being full.
            total = Total(self._max_bytes)
            total.add(self._folder)
            total.add_removed(self._processes(), os.stat(self._folder).st_dev)  # noqa: PTH116 - text or path
            self._require_reserve()
        except TooMuchError as error:
            return str(error)
        except FileNotFoundError:
            return ""  # cleaned meanwhile
        except OSError as error:  # nothing that a job does there may end whoever looks
            return f"something that cannot be added up: {error.strerror}"
        took = time.monotonic() - started_at
        self.pause_seconds = max(EVERY_SECONDS, took / SHARE)
        return ""

    def _require_reserve(self) -> None:
        if is_short(self._folder, self._reserve_bytes):
            self.is_short = True
            megabytes = self._reserve_bytes >> 20
            raise TooMuchError(f"less than {megabytes} MiB are free on the disk of this machine")


class Total:
    """The sum of several folders; raises `TooMuchError` at the first bound that they pass.

    Attributes:
        bytes: so far.
    """

    def __init__(
        self, max_bytes: int, depth_max: int | None = None, *, with_holes: bool = False
    ) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._depth_max = DEPTH_MAX if depth_max is None else depth_max
        self._with_holes = with_holes  # as if a sparse file had all of its blocks
        self._entries = 0

    def add_path(self, path: Path) -> None:
        """Add a file, or a folder with its content."""
        status = path.lstat()
        self.add_status(status)
        if stat.S_ISDIR(status.st_mode):
            self.add(path)

    def add(self, folder: str | Path) -> None:
        """Add the content of a folder."""
        descriptor = _open_folder(str(folder), None)
        if descriptor is None:
            return
        try:
            self._add_below(descriptor, 1)
        finally:
            os.close(descriptor)

    def add_removed(self, processes: Iterable[int], device: int) -> None:
        """Add files that have no name any more, and are there until nobody has them open."""
        counted = set()
        for pid in processes:
            with suppress(OSError):  # it has ended
                for descriptor in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208 - as below
                    status = _status_of(f"/proc/{pid}/fd/{descriptor}")
                    is_removed = status is not None and not status.st_nlink
                    if status is None or not is_removed or status.st_dev != device:
                        continue
                    if stat.S_ISREG(status.st_mode) and status.st_ino not in counted:
                        counted.add(status.st_ino)
                        self.add_status(status)

    def add_status(self, status: os.stat_result) -> None:
        """Add a file without a name."""
        size = status.st_blocks * _BLOCK_BYTES
        if self._with_holes and stat.S_ISREG(status.st_mode):
            size = max(size, status.st_size)
        self.bytes += size
        if self.bytes > self._max_bytes:
            raise TooMuchError(f"more than the {self._max_bytes} bytes that the job may write")

    def _add_below(self, folder: int, depth: int) -> None:
        if depth > self._depth_max:
            raise TooMuchError(f"folders within folders, more than {self._depth_max} deep")
        with os.scandir(folder) as entries:
            for entry in entries:
                self._count(entry, folder, depth)

    def _count(self, entry: os.DirEntry[str], folder: int, depth: int) -> None:
        self._entries += 1
        if self._entries > ENTRIES_MAX:
            raise TooMuchError(f"more than {ENTRIES_MAX} files and folders")
        try:
            status = _status(entry.name, folder)
        except FileNotFoundError:  # the job has removed it meanwhile
            return
        self.add_status(status)
        if stat.S_ISDIR(status.st_mode):
            below = _open_folder(entry.name, folder)
            if below is not None:
                try:
                    self._add_below(below, depth + 1)
                finally:
                    os.close(below)


def _open_folder(name: str, parent: int | None) -> int | None:
    """Open a folder that the job may have closed to hide what is in it; None when it is gone."""
    try:
        try:
            return os.open(name, FOLDER_FLAGS, dir_fd=parent)
        except PermissionError:
            with suppress(OSError):
                make_accessible(name, parent)
            return os.open(name, FOLDER_FLAGS, dir_fd=parent)
    except PermissionError:
        raise TooMuchError("a folder that cannot be looked into") from None
    except OSError:  # gone, or something else by now, which the next look finds
        return None


def _status_of(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - thousands of them, every second
    except OSError:  # closed meanwhile
        return None


def _status(name: str, folder: int) -> os.stat_result:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except PermissionError:  # the folder shows its names, and nothing of what they stand for
        os.fchmod(folder, stat.S_IRWXU)
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
