"""A gate before SQLite's write lock, at which the writers of several processes take turns.

A SQLite connection that finds the database locked sleeps, up to a tenth of a second, and tries
again. Beside a process that writes all the time such a writer waits for seconds. So writers line up
at two locks of their own: the holder of `next` waits for `turn`, and releases `next` when it has
that. A process that has just written cannot be quicker than the one that waits, because `next` is
not free.

The gate only determines the next writer; that one writes at a time is SQLite's affair. So it may be
passed without: one that hangs at the gate is left with the file that it has locked, and the others
go on with a new one, which it finds when it comes back. The locks are flock(2)'s: the kernel
releases the locks of a process that dies.
"""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Self

from storage.engines.node_folder import NodeFolder

# Shorter than a durable commit on most disks, so that turns follow closely; and the looks cost next
# to nothing: two thousand a second take half a hundredth of a core.
STEP_SECONDS = 0.0005
# At `next` all wait but two, so of many processes each looks more rarely: all together as often as
# these few. Whose turn is next need only be known before the present one is over.
LOOKING_AT_FULL_PACE = 2
# Some hundred times the duration of a group of units; and shorter than the timeout of a node, which
# must be able to say that it lives. It counts from when anybody had a turn last, however many are
# ahead.
PATIENCE_SECONDS = 2.0

_logger = logging.getLogger("storage")


class WriteGate:
    """See above. It is entered by one thread.

    Args:
        makes_files: whether it makes files that are missing.
        patience_seconds: after which a process that has a lock is taken to hang.

    Raises:
        OSError: they cannot be opened.
    """

    def __init__(
        self,
        folder: NodeFolder,
        *,
        makes_files: bool,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.patience_seconds = patience_seconds
        self._next = _Lock(folder, "next", makes_files=makes_files, is_crowded=True)
        try:
            self._turn = _Lock(folder, "turn", makes_files=makes_files, is_crowded=False)
        except OSError:
            self._next.close()
            raise

    @classmethod
    def of_members(cls, folder: NodeFolder) -> Self:
        """Return the gate of a process that shares the database.

        Raises:
            OSError: its locks cannot be opened.
        """
        return cls(folder, makes_files=True)

    @classmethod
    def of_a_guest(cls, folder: NodeFolder) -> Self | None:
        """Return the gate for a program beside them, such as a command of the operator's.

        It makes no files, which could be another user's. None where there is no gate.
        """
        try:
            return cls(folder, makes_files=False)
        except OSError:
            return None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Wait for this process's turn, and have it until the end of the block."""
        self._next.acquire(self.patience_seconds)
        try:
            self._turn.acquire(self.patience_seconds)
        finally:
            self._next.release()
        try:
            yield
        finally:
            self._turn.release()

    def close(self) -> None:
        """Close the locks, after the last writer has left."""
        self._next.close()
        self._turn.close()


class _Lock:
    """A lock on a file that is replaced if another process has it for too long.

    Args:
        makes_files: whether it makes the file if it is missing.
        is_crowded: whether all processes may wait for it at the same time.
    """

    def __init__(
        self, folder: NodeFolder, name: str, *, makes_files: bool, is_crowded: bool
    ) -> None:
        self._folder = folder
        self._path = folder.path / name
        self._makes_files = makes_files
        self._is_crowded = is_crowded
        self._descriptor = folder.open_lock(name, create=makes_files)

    def acquire(self, patience_seconds: float) -> None:
        """Wait for the lock, on the file that the others have now."""
        while self._is_locked_in_time(patience_seconds):
            if self._is_in_place() or not self._reopen():
                return
        _logger.warning("a process hangs while it writes, or writes for long; its turn is skipped")
        if self._makes_files and self._is_in_place():
            with suppress(OSError):
                self._path.unlink()
        self._reopen()
        self._is_locked()

    def _is_locked_in_time(self, patience_seconds: float) -> bool:
        """Wait for the lock on this file; False if its owner has not changed for too long."""
        since, seen = time.monotonic(), 0
        while not self._is_locked():
            now, changed = time.monotonic(), os.fstat(self._descriptor).st_mtime_ns
            if changed != seen:
                seen, since = changed, now
            elif now - since >= patience_seconds:
                return False
            crowd = self._folder.known / LOOKING_AT_FULL_PACE if self._is_crowded else 1.0
            time.sleep(STEP_SECONDS * max(1.0, crowd))
        return True

    def _is_locked(self) -> bool:
        """Lock this file if it is free, and set its time, as a sign of life for the others."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        with suppress(OSError):  # of a full disk: then patience ends too soon, as it would without
            os.utime(self._descriptor)
        return True

    def release(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._descriptor)

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._descriptor))
        except OSError:
            return False

    def _reopen(self) -> bool:
        """Switch to a new file, or to that of another process; False to keep this one."""
        try:
            descriptor = self._folder.open_lock(self._path.name, create=self._makes_files)
        except OSError:
            return False
        os.close(self._descriptor)
        self._descriptor = descriptor
        return True
