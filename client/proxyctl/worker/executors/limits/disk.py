"""Measures the bytes of a job from outside, because no kernel bounds a plain folder.

A file system of fixed size would be the better wall; but one in memory takes away from the job's
memory, and one in an image file needs root, and its files are gone from the agent's sight at the
end. So the folder is added up every second, and a job that has written too much is ended. In that
second it can write as fast as the disk takes it, so the watch also looks at the disk's last bytes.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from proxyctl.worker.base.beneath import FOLDER_FLAGS, make_accessible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

EVERY_SECONDS: Final = 1.0
# Adding up takes a tenth of the time at most, however many files there are.
SHARE: Final = 0.1
# The part of a disk that no job can have, so that the machine goes on working.
RESERVE_BYTES: Final = 512 << 20
DEPTH_MAX: Final = 100
_BLOCK_BYTES: Final = 512  # the unit of st_blocks on every file system
_DELETED: Final = b" (deleted)"  # behind the path of a mapping, proc(5)


@dataclass(frozen=True)
class SumBounds:
    """The bounds on the sums of files, descriptors and mappings.

    Attributes:
        depth_max: folders within folders; each is open while those below it are added up.
        entries_max: files and folders; each takes an inode, and time to add up.
        handles_max: descriptors and mappings of one job: adding them up takes a second or two. Jobs
            that work have a tenth of it: 512 processes with 100 descriptors and a library of each
            kind.
    """

    depth_max: int = DEPTH_MAX
    entries_max: int = 200_000
    handles_max: int = 1_000_000


USUAL: Final = SumBounds()


class TooMuchError(Exception):
    """A job has written more than it may; the message names the exceeded limit."""


def is_short(place: str | Path | int, reserve_bytes: int | None = None) -> bool:
    """Return whether the free space of a disk is within the device's reserve.

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
    total = Total(max_bytes, SumBounds(depth_max=depth_max), with_holes=True)
    total.add_path(path)
    return total.bytes


class DiskWatch:
    """Adds up the bytes that one job has written.

    Attributes:
        pause_seconds: until the next look.
        is_short: the disk of the machine is nearly full, for any reason.

    Args:
        folder: that the job writes to, and that is there as long as the job is.
        max_bytes: it may hold.
        reserve_bytes: that must stay free where the folder is.
        processes: returns those of the job; files that they have removed and not closed also take
            room.
    """

    def __init__(
        self,
        folder: str | Path,
        max_bytes: int,
        *,
        reserve_bytes: int | None = None,
        processes: Callable[[], Iterable[int]] = tuple,
        bounds: SumBounds = USUAL,
    ) -> None:
        self._bounds = bounds
        self._folder = folder
        self._max_bytes = max_bytes
        self._reserve_bytes = RESERVE_BYTES if reserve_bytes is None else reserve_bytes
        self._processes = processes
        self.pause_seconds = EVERY_SECONDS
        self.is_short = False
        self._free_when_short = 0

    def look(self) -> str:
        """Return why the job must end, or nothing; then pause for `pause_seconds`."""
        started_at = time.monotonic()
        try:
            # First the job's own files: a full disk is no excuse for the job that has filled it.
            total = Total(self._max_bytes, self._bounds)
            total.add(self._folder)
            device = os.stat(self._folder).st_dev  # noqa: PTH116 - text or path
            Removed(total, device, self._bounds.handles_max).add(self._processes())
            self._require_reserve()
        except TooMuchError as error:
            return str(error)
        except FileNotFoundError:
            return ""  # cleaned meanwhile
        except OSError as error:  # no file of a job may end the watch
            return f"something that cannot be added up: {error.strerror}"
        took = time.monotonic() - started_at
        self.pause_seconds = max(EVERY_SECONDS, took / SHARE)
        return ""

    def _require_reserve(self) -> None:
        self.is_short = is_short(self._folder, self._reserve_bytes)
        if self.is_short:
            self._free_when_short = free_bytes(self._folder)
            megabytes = self._reserve_bytes >> 20
            raise TooMuchError(f"less than {megabytes} MiB are free on the disk of this machine")

    def is_half_gone(self) -> bool:
        """Return whether half of the reserve is used up, so that nothing can wait any more."""
        return is_short(self._folder, self._reserve_bytes // 2)

    def judge(self) -> str:
        """Return why the job was at fault when the disk was short; "" if it was not.

        To be called when all of its processes are gone. Bytes that came back by their end were the
        job's, in files that no look could see: removed ones in flight in a socket, for example.
        """
        named = Total(self._max_bytes, self._bounds)
        try:
            named.add(self._folder)
            back = max(0, free_bytes(self._folder) - self._free_when_short)
        except TooMuchError as error:
            return str(error)
        except OSError:  # cleaned meanwhile
            return ""
        if named.bytes + back <= self._max_bytes:
            return ""
        return (
            f"more than the {self._max_bytes} bytes that the job may write, {back} of them in files"
            " without a name"
        )


class Total:
    """The sum of several folders; raises `TooMuchError` at the first bound that they pass.

    Attributes:
        bytes: so far.
    """

    def __init__(
        self, max_bytes: int, bounds: SumBounds = USUAL, *, with_holes: bool = False
    ) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._bounds = bounds
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

    def add_status(self, status: os.stat_result) -> None:
        """Add a file without a name."""
        size = status.st_blocks * _BLOCK_BYTES
        if self._with_holes and stat.S_ISREG(status.st_mode):
            size = max(size, status.st_size)
        self.add_bytes(size)

    def add_bytes(self, size: int) -> None:
        """Add bytes of something else."""
        self.bytes += size
        if self.bytes > self._max_bytes:
            raise TooMuchError(f"more than the {self._max_bytes} bytes that the job may write")

    def _add_below(self, folder: int, depth: int) -> None:
        if depth > self._bounds.depth_max:
            raise TooMuchError(f"folders within folders, more than {self._bounds.depth_max} deep")
        with os.scandir(folder) as entries:
            for entry in entries:
                self._count(entry, folder, depth)

    def _count(self, entry: os.DirEntry[str], folder: int, depth: int) -> None:
        self._entries += 1
        if self._entries > self._bounds.entries_max:
            raise TooMuchError(f"more than {self._bounds.entries_max} files and folders")
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


class Removed:
    """Adds files that have no name any more, and are there until no process has them.

    Args:
        device: number of the file system that counts.
        handles_max: how many descriptors and mappings are looked at.
    """

    def __init__(self, total: Total, device: int, handles_max: int) -> None:
        self._handles_max = handles_max
        self._total = total
        self._device = device
        self._in_maps = f" {os.major(device):02x}:{os.minor(device):02x} ".encode()
        self._counted: set[int] = set()  # numbers of files
        self._mapped: dict[int, int] = {}  # bytes of a file, by its number
        self._handles = 0

    def add(self, processes: Iterable[int]) -> None:
        """Add those that these processes have open or mapped."""
        for pid in processes:
            threads = _names(f"/proc/{pid}/task")
            # A thread may have a table of files of its own, and the first one may have ended.
            for thread in threads:
                for descriptor in _names(f"/proc/{thread}/fd"):
                    self._count_handle()
                    self._add_file(_status_of(f"/proc/{thread}/fd/{descriptor}"))
            for thread in threads:
                if self._add_mappings(thread):
                    break  # all threads of a process have the same memory

    def _add_mappings(self, thread: str) -> bool:
        """Add the mapped files of a thread. Return whether it has any memory."""
        try:
            with open(f"/proc/{thread}/maps", "rb") as file:  # noqa: PTH123 - spares pathlib
                lines = file.read().splitlines()
        except OSError:  # it has ended
            return False
        for line in lines:
            self._count_handle()
            if line.endswith(_DELETED):
                self._add_mapping(thread, line)
        return bool(lines)

    def _add_mapping(self, thread: str, line: bytes) -> None:
        places, _, offset, _, number, *_ = line.split()
        start, end = (int(each, 16) for each in places.split(b"-"))
        try:
            self._add_file(os.stat(f"/proc/{thread}/map_files/{start:x}-{end:x}"))  # noqa: PTH116 - as above
        except PermissionError:
            # Only root can see that. Other users see only the position in the file.
            if self._in_maps not in line or int(number) in self._counted:
                return
            before = self._mapped.get(int(number), 0)
            size = max(before, int(offset, 16) + end - start)
            self._mapped[int(number)] = size
            self._total.add_bytes(size - before)
        except OSError:  # unmapped meanwhile
            return

    def _add_file(self, status: os.stat_result | None) -> None:
        if status is None or status.st_nlink or status.st_dev != self._device:
            return
        if stat.S_ISREG(status.st_mode) and status.st_ino not in self._counted:
            self._counted.add(status.st_ino)
            self._total.add_status(status)

    def _count_handle(self) -> None:
        self._handles += 1
        if self._handles > self._handles_max:
            raise TooMuchError(f"more than {self._handles_max} open files and mappings")


def _open_folder(name: str, parent: int | None) -> int | None:
    """Open a folder that the job may have closed to hide its content; None when it is gone."""
    try:
        try:
            return os.open(name, FOLDER_FLAGS, dir_fd=parent)
        except PermissionError:
            with suppress(OSError):
                make_accessible(name, parent)
            return os.open(name, FOLDER_FLAGS, dir_fd=parent)
    except PermissionError:
        raise TooMuchError("a folder that cannot be read") from None
    except OSError:  # gone, or something else by now, which the next look finds
        return None


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208 - thousands of them, every second
    except OSError:  # it has ended
        return []


def _status_of(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - thousands of them, every second
    except OSError:  # closed meanwhile
        return None


def _status(name: str, folder: int) -> os.stat_result:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except PermissionError:  # the folder shows its names, but not the state of its files
        os.fchmod(folder, stat.S_IRWXU)
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
