"""Folder of the files of a run: on a real disk, without threads, full or without power at times.

The product opens, writes and locks real files. A killed process loses its open files, and so its
locks. A machine that dies loses bytes that were not synced.
"""

import fcntl
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EBADF
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from storage.blobs import local
from storage.logs import files as log_files

if TYPE_CHECKING:
    from tests.sim.loop import SimLoop, World

# Above the numbers of real files.
FIRST = 1_000_000
# In memory, where the machine has such a folder.
PLACE = Path("/dev/shm")
ROOM_BYTES = 1 << 40
# Longer than one write to the kernel takes here: the rest needs another one.
WRITE_MOST = 30_000
_BY_NUMBER = ("fstat", "pread", "truncate")


class Folder:
    """Folder of a run, and the open files of its processes.

    Args:
        world: the time and the draws.
        full: from when, and until when, the disk is full; None for never.

    Attributes:
        root: the path of the folder.
        is_small: whether the disk is full at times.
        has_lost: whether bytes of logs can be missing: for lack of room, or because a machine has
            died before they were synced.
    """

    def __init__(self, world: "World", full: tuple[float, float] | None) -> None:
        place = str(PLACE) if PLACE.is_dir() else None
        self.root = Path(tempfile.mkdtemp(prefix="simulated-", dir=place))
        self.is_small = self.has_lost = full is not None
        self._world = world
        self._full = full
        self._number = FIRST
        # By number: the descriptor, the loop of its process, and the path.
        self._open: dict[int, tuple[int, SimLoop | None, str]] = {}
        # By path: the bytes that are synced, where some are not.
        self._unsynced: dict[str, int] = {}

    # --- calls of the product --------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        """Return a function of `os`; those of open files take the numbers of `open`."""
        call = getattr(os, name)
        if name not in _BY_NUMBER:
            return call
        return lambda file, *args: call(self._descriptor(file), *args)

    def open(self, path: Any, flags: int, mode: int = 0o777) -> int:
        """See `os.open`."""
        self._number += 1
        self._open[self._number] = os.open(path, flags, mode), self._world.current, str(path)
        return self._number

    def close(self, file: int) -> None:
        """See `os.close`; the files of a killed process are closed already."""
        entry = self._open.pop(file, None)
        if entry is not None:
            os.close(entry[0])

    def pwrite(self, file: int, data: Any, at: int) -> int:
        """See `os.pwrite`; a long write is cut off."""
        descriptor, path = self._descriptor(file), self._open[file][2]
        self._unsynced.setdefault(path, min(at, os.fstat(descriptor).st_size))
        return os.pwrite(descriptor, data[:WRITE_MOST], at)

    def fsync(self, file: int) -> None:
        """Note that the bytes of a file survive the death of its machine."""
        self._descriptor(file)
        self._unsynced.pop(self._open[file][2], None)

    def statvfs(self, place: Any) -> Any:
        """Return the room of the disk."""
        if isinstance(place, Path):
            place.stat()  # raises an error as the original does
        is_full = self._full is not None and self._full[0] <= self._world.now < self._full[1]
        return SimpleNamespace(f_bavail=0 if is_full else ROOM_BYTES, f_frsize=1)

    def flock(self, file: int, operation: int) -> None:
        """See `fcntl.flock`."""
        fcntl.flock(self._descriptor(file), operation)

    def _descriptor(self, file: Any) -> Any:
        if not isinstance(file, int) or file < FIRST:
            return file
        if file not in self._open:
            raise OSError(EBADF, "the process was killed")
        return self._open[file][0]

    # --- faults ----------------------------------------------------------------------------------

    def died(self, loop: "SimLoop") -> None:
        """Close the files of a process that has ended."""
        for number in [each for each, entry in self._open.items() if entry[1] is loop]:
            self.close(number)

    def lose_power(self) -> None:
        """Lose a part of the bytes that were not synced."""
        for path, synced in self._unsynced.items():
            a, _, _, _ = self._world.numbers("power", len(path), synced, self._world.now)
            with suppress(FileNotFoundError):
                size = Path(path).stat().st_size
                if size > synced:
                    os.truncate(path, synced + int(a * (size - synced)))
                    self.has_lost = True
        self._unsynced.clear()

    def age(self, seconds: float) -> None:
        """Let the times of all files be longer ago."""
        for each in self.root.rglob("*"):
            at = each.stat().st_mtime - seconds
            os.utime(each, (at, at))

    # --- the run ---------------------------------------------------------------------------------

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Give the product this folder's calls within the block."""
        calls = SimpleNamespace(flock=self.flock, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB)
        modules: tuple[ModuleType, ...] = (local, log_files)
        # A killed process can be in the middle of a write.
        warnings.filterwarnings("ignore", "coroutine '_File.use' was never awaited")
        sync = local.sync_folder
        for module in modules:
            vars(module).update(os=self, fcntl=calls)
        vars(local).update(sync_folder=lambda _: None)
        try:
            yield
        finally:
            for module in modules:
                vars(module).update(os=_Afterwards(), fcntl=fcntl)
            vars(local).update(sync_folder=sync)
            for number in tuple(self._open):
                self.close(number)
            shutil.rmtree(self.root)


class _Afterwards:
    """Calls for generators that are collected after a run, whose files are closed already."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def close(self, file: int) -> None:
        """See `os.close`."""
        if file < FIRST:
            os.close(file)
