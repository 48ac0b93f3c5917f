"""Measures the bytes of a job from outside, because no kernel bounds a plain folder.

A file system of fixed size would be the better wall; but one in memory takes away from the job's
memory, and one in an image file needs root, and its files are gone from the agent's sight at the
end. So the folder is added up every second, and a job that has written too much is ended. In that
second it can write as fast as the disk takes it, so the watch also looks at the disk's last bytes.

A count may take long: a job decides how many files and mappings it has. So a count is done in short
pieces, and the free room is read before each, which takes a microsecond. A job can neither delay
that reading nor stop its supervisor.
"""

from __future__ import annotations

import math
import os
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from proxyctl.worker.base.beneath import FOLDER_FLAGS, make_accessible
from proxyctl.worker.base.libc import LIBC

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from pathlib import Path

EVERY_SECONDS: Final = 1.0
# While less than eight reserves are free: a fast disk takes 512 MiB in half a second.
NEAR_SECONDS: Final = 0.1
_NEAR_RESERVES: Final = 8
# Adding up takes a tenth of the time at most, however many files there are.
SHARE: Final = 0.1
# A piece of a count while the disk is short: a usual folder is added up in it, and a fast job
# writes less than half of the reserve.
_HASTE_SECONDS: Final = 0.5
# For a second count without a pause, when one in pieces has found too much. It takes seconds, or
# longer on a slow disk; the supervisor does nothing else meanwhile.
_AGAIN_SECONDS: Final = 60.0
_STEPS: Final = 1000  # files, descriptors or mappings between two looks at the clock: milliseconds
# The part of a disk that no job can have, so that the machine goes on working.
RESERVE_BYTES: Final = 512 << 20
# Inodes that no job can have, because many file systems have a fixed number of them. The owner's
# programs need some thousands; a fast job makes 20,000 in two tenths of a second.
RESERVE_FILES: Final = 20_000
_RESERVE_FILES_SHARE: Final = 0.05  # of a small file system, which never has many free
DEPTH_MAX: Final = 100
_BLOCK_BYTES: Final = 512  # the unit of st_blocks on every file system
_DELETED: Final = b" (deleted)"  # behind the path of a mapping, proc(5)
_SYS_KCMP: Final = {"x86_64": 312, "aarch64": 272}
_KCMP_FILES: Final = 2


@dataclass(frozen=True)
class SumBounds:
    """The bounds on the sums of files, descriptors and mappings.

    Attributes:
        depth_max: folders within folders; each is open while those below it are added up.
        entries_max: files and folders; each takes an inode, and time to add up.
        handles_max: open descriptors, and removed files that are mapped. The state of each is read,
            in some 10 microseconds. Jobs that work have half of it: 512 processes with 100
            descriptors. Threads that share their descriptors count once.
        mappings_max: of all processes; each is a line to read, in a microsecond or two. Jobs that
            work have half of it: 64 processes with the 2,000 of a large library.
    """

    depth_max: int = DEPTH_MAX
    entries_max: int = 200_000
    handles_max: int = 100_000
    mappings_max: int = 300_000


USUAL: Final = SumBounds()


class TooMuchError(Exception):
    """A job has written more than it may; the message names the exceeded limit."""


class Free(NamedTuple):
    """The room of a disk that is free for ordinary users.

    Attributes:
        bytes: free.
        files: free files and folders.
        files_max: number of files that the disk can have at all; 0 if it has no bound.
    """

    bytes: int
    files: int = 0
    files_max: int = 0

    def is_below(self, reserve_bytes: int, reserves: float = 1) -> bool:
        """Return whether less is free than a number of reserves, or a part of one."""
        return self.bytes < reserve_bytes * reserves or self.is_below_in_files(reserves)

    def is_below_in_files(self, reserves: float = 1) -> bool:
        """Return the same for files alone."""
        return self.files < self.files_reserve * reserves

    @property
    def files_reserve(self) -> int:
        """The files that no job can have."""
        return min(RESERVE_FILES, int(self.files_max * _RESERVE_FILES_SHARE))


def free_of(place: str | Path | int) -> Free:
    """Return the free room of the disk with a path or a descriptor."""
    free = os.statvfs(place)
    return Free(free.f_bavail * free.f_frsize, free.f_favail, free.f_files)


def free_bytes(place: str | Path | int) -> int:
    """Return the bytes of a disk that are free for ordinary users."""
    return free_of(place).bytes


def is_short(place: str | Path | int) -> bool:
    """Return whether the free room of the disk is within the device's reserve."""
    return free_of(place).is_below(RESERVE_BYTES)


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
        self._count: _Count | None = None  # that has begun, and is not over
        self._free: Free | None = None  # at the last look
        self._usual: _Found | None = None  # by the last whole count before the disk was short
        self._found: _Found | None = None  # by the last count; None while one is not over

    def look(self) -> str:
        """Add up all, anew. Return why the job must end, or nothing."""
        self._drop()
        return self._look(math.inf)

    def look_on(self) -> str:
        """Add up for a tenth of the pause at most; the next call goes on with the same count.

        Return why the job must end, or nothing; then pause for `pause_seconds`. While the disk is
        short, the count begins anew, and its pieces are longer.
        """
        return self._look(SHARE * self.pause_seconds)

    def _look(self, seconds: float) -> str:
        try:
            self._read_free()
            if self.is_short:
                seconds = max(seconds, _HASTE_SECONDS)
            # First the job's own files: a full disk is no excuse for the job that has filled it.
            self._add_up(seconds)
        except TooMuchError as error:
            if self._drop():
                # The parts of the count were added up at different times, and a file that the job
                # has moved, or written anew, meanwhile may have counted twice.
                return self._look(_AGAIN_SECONDS)
            self.is_short = False
            return str(error)
        except FileNotFoundError:
            self._drop()
            return ""  # cleaned meanwhile
        except OSError as error:  # no file of a job may end the watch
            self._drop()
            return f"something that cannot be added up: {error.strerror}"
        return self.shortage()

    def shortage(self) -> str:
        """Return why the job must end for the sake of the disk, or nothing, as it is now."""
        with suppress(FileNotFoundError):  # cleaned meanwhile
            free = self._read_free()
            if self.is_short:
                least = f"{self._reserve_bytes >> 20} MiB"
                if free.is_below_in_files():
                    least = f"{free.files_reserve} files and folders"
                return f"less than {least} are free on the disk of this machine"
        return ""

    def is_half_gone(self) -> bool:
        """Return whether half of the reserve is used up, so that nothing can wait any more."""
        return free_of(self._folder).is_below(self._reserve_bytes, 0.5)

    def is_suspect(self) -> bool:
        """Return whether the job may be the one that has made the disk short.

        It is if half of the room that went since the last count before went into its files, or if
        half of the reserve is used up before a count of its files is over.
        """
        if self._found is None:
            return self.is_half_gone()
        if self._usual is None:  # the disk was short from the start
            return True
        before, now = self._usual, self._found
        if now.free.is_below_in_files():
            return 2 * (now.entries - before.entries) >= before.free.files - now.free.files
        return 2 * (now.bytes - before.bytes) >= before.free.bytes - now.free.bytes

    def judge(self) -> str:
        """Return why the job was at fault when the disk was short; "" if it was not.

        To be called when all of its processes are gone. Bytes that came back by their end were the
        job's, in files that no look could see: removed ones in flight in a socket, for example.
        """
        named = Total(self._max_bytes, self._bounds)
        try:
            named.add(self._folder)
            free = free_of(self._folder)
            back = 0 if self._free is None else max(0, free.bytes - self._free.bytes)
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

    def _read_free(self) -> Free:
        was_short = self.is_short
        free = self._free = free_of(self._folder)
        self.is_short = free.is_below(self._reserve_bytes)
        if self.is_short and not was_short:
            self._drop()  # it may have passed the files that have made the disk short
        is_near = free.is_below(self._reserve_bytes, _NEAR_RESERVES)
        self.pause_seconds = NEAR_SECONDS if is_near else EVERY_SECONDS
        return free

    def _add_up(self, seconds: float) -> None:
        """Go on with the count, or begin one, for some seconds.

        A finite time ends earlier when the disk gets too full to wait.
        """
        began = time.monotonic()
        if self._count is None:
            self._count = _Count.of(self._folder, self._max_bytes, self._bounds, self._processes)
            self._found = None
        for _ in self._count.steps:
            took = time.monotonic() - began
            is_urgent = took >= _HASTE_SECONDS and seconds < math.inf and self.is_half_gone()
            if took >= seconds or is_urgent:
                self._count.is_in_pieces = True
                return
        total = self._count.total
        self._found = _Found(total.bytes, total.entries, free_of(self._folder))
        if not self.is_short:
            self._usual = self._found
        self._count = None

    def _drop(self) -> bool:
        """Forget the count that is not over. Return whether it was done in pieces."""
        count, self._count = self._count, None
        if count is None:
            return False
        count.steps.close()
        return count.is_in_pieces


class _Found(NamedTuple):
    """The result of a whole count: what the job has, and the free room of the disk then."""

    bytes: int
    entries: int
    free: Free


@dataclass
class _Count:
    """A count that has begun; each of its steps may be its last for now."""

    total: Total
    steps: Generator[None, None, None]
    is_in_pieces: bool = False

    @classmethod
    def of(
        cls,
        folder: str | Path,
        max_bytes: int,
        bounds: SumBounds,
        processes: Callable[[], Iterable[int]],
    ) -> _Count:
        total = Total(max_bytes, bounds)

        def steps() -> Generator[None, None, None]:
            yield from total.adding(folder)
            device = os.stat(folder).st_dev  # noqa: PTH116 - text or path
            yield from Removed(total, device, bounds).adding(processes())

        return cls(total, steps())


class Total:
    """The sum of several folders; raises `TooMuchError` at the first bound that they pass.

    Attributes:
        bytes: so far.
        entries: files and folders, so far.
    """

    def __init__(
        self, max_bytes: int, bounds: SumBounds = USUAL, *, with_holes: bool = False
    ) -> None:
        self.bytes = 0
        self._max_bytes = max_bytes
        self._bounds = bounds
        self._with_holes = with_holes  # as if a sparse file had all of its blocks
        self.entries = 0

    def add_path(self, path: Path) -> None:
        """Add a file, or a folder with its content."""
        status = path.lstat()
        self.add_status(status)
        if stat.S_ISDIR(status.st_mode):
            self.add(path)

    def add(self, folder: str | Path) -> None:
        """Add the content of a folder."""
        for _ in self.adding(folder):
            pass

    def adding(self, folder: str | Path) -> Generator[None, None, None]:
        """Add the content of a folder, in steps."""
        descriptor = _open_folder(str(folder), None)
        if descriptor is None:
            return
        try:
            yield from self._adding_below(descriptor, 1)
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

    def _adding_below(self, folder: int, depth: int) -> Generator[None, None, None]:
        if depth > self._bounds.depth_max:
            raise TooMuchError(f"folders within folders, more than {self._bounds.depth_max} deep")
        with os.scandir(folder) as entries:
            for entry in entries:
                self.entries += 1
                if self.entries % _STEPS == 0:
                    yield
                below = self._count(entry, folder)
                if below is not None:
                    try:
                        yield from self._adding_below(below, depth + 1)
                    finally:
                        os.close(below)

    def _count(self, entry: os.DirEntry[str], folder: int) -> int | None:
        """Add a file or a folder itself. Return the descriptor of a folder."""
        if self.entries > self._bounds.entries_max:
            raise TooMuchError(f"more than {self._bounds.entries_max} files and folders")
        try:
            status = _status(entry.name, folder)
        except FileNotFoundError:  # the job has removed it meanwhile
            return None
        self.add_status(status)
        return _open_folder(entry.name, folder) if stat.S_ISDIR(status.st_mode) else None


class Removed:
    """Adds files that have no name any more, and are there until no process has them.

    Args:
        device: number of the file system that counts.
        bounds: on what is looked at.
    """

    def __init__(self, total: Total, device: int, bounds: SumBounds) -> None:
        self._bounds = bounds
        self._total = total
        self._device = device
        self._in_maps = f" {os.major(device):02x}:{os.minor(device):02x} ".encode()
        self._counted: set[int] = set()  # numbers of files
        self._seen: set[tuple[bytes, bytes]] = set()  # mapped files, as the lines name them
        self._mapped: dict[int, int] = {}  # bytes of a file, by its number
        self._handles = 0
        self._mappings = 0

    def adding(self, processes: Iterable[int]) -> Generator[None, None, None]:
        """Add those that these processes have open or mapped, in steps."""
        for pid in processes:
            threads = _names(f"/proc/{pid}/task")
            # A thread may have a table of files of its own, and the first one may have ended.
            last = ""
            for thread in threads:
                if last and _share_files(last, thread):
                    continue
                last = thread
                for descriptor in _names(f"/proc/{thread}/fd"):
                    if self._count_handle():
                        yield
                    self._add_file(_status_of(f"/proc/{thread}/fd/{descriptor}"))
            for thread in threads:
                before = self._mappings
                yield from self._adding_mappings(thread)
                if self._mappings > before:
                    break  # all threads of a process have the same memory

    def _adding_mappings(self, thread: str) -> Generator[None, None, None]:
        """Add the mapped files of a thread; none if it has no memory any more."""
        for line in _lines(f"/proc/{thread}/maps"):
            self._mappings += 1
            if self._mappings > self._bounds.mappings_max:
                raise TooMuchError(f"more than {self._bounds.mappings_max} mappings")
            if self._mappings % _STEPS == 0:
                yield
            if line.endswith(_DELETED):
                self._add_mapping(thread, line)

    def _add_mapping(self, thread: str, line: bytes) -> None:
        places, _, offset, device, number, *_ = line.split()
        if (device, number) in self._seen:
            return
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
        else:
            self._count_handle()
            self._seen.add((device, number))

    def _add_file(self, status: os.stat_result | None) -> None:
        if status is None or status.st_nlink or status.st_dev != self._device:
            return
        if stat.S_ISREG(status.st_mode) and status.st_ino not in self._counted:
            self._counted.add(status.st_ino)
            self._total.add_status(status)

    def _count_handle(self) -> bool:
        """Count a file whose state is read. Return whether a step is over."""
        self._handles += 1
        if self._handles > self._bounds.handles_max:
            raise TooMuchError(f"more than {self._bounds.handles_max} open files and mapped ones")
        return self._handles % _STEPS == 0


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


def _lines(path: str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - spares pathlib
            for line in file:
                yield line.rstrip(b"\n")
    except OSError:  # it has ended
        return


def _share_files(thread: str, other: str) -> bool:
    """Return whether two threads have the same descriptors; False where that cannot be known."""
    number = _SYS_KCMP.get(os.uname().machine)
    if number is None:
        return False
    return int(LIBC.syscall(number, int(thread), int(other), _KCMP_FILES, 0, 0)) == 0


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
