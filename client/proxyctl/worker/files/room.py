"""Room on the disk for the files of one attempt: its own bytes, and the reserve of the device.

The bytes are the attempt's share of the lent disk, or the job's `disk_gb`: inputs and files of the
job share them. Beyond them the job is at fault. A device that lends more than its free disk refuses
the attempt.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.base.base import TaskError
from proxyctl.worker.executors.limits import disk

if TYPE_CHECKING:
    from pathlib import Path

# Folders above an input, and those within it; each may be as deep as a folder of a job.
_DEPTH_MAX: Final = 2 * disk.DEPTH_MAX
_NO_ROOM: Final = frozenset((errno.ENOSPC, errno.EDQUOT))
_OF_THE_DEVICE: Final = frozenset(
    (errno.EIO, errno.EROFS, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
)


class NoRoomError(Exception):
    """The disk of the device is nearly full, by no fault of this attempt."""


class Room:
    """The bytes that one attempt may still take.

    Args:
        max_bytes: of the disk, for all of the attempt together.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._total = disk.Total(max_bytes, disk.SumBounds(depth_max=_DEPTH_MAX), with_holes=True)

    @property
    def left(self) -> int:
        """Bytes that are not spent."""
        return max(0, self._max_bytes - self._total.bytes)

    def spend(self, path: Path) -> None:
        """Count a file or a folder permanently.

        Raises:
            TooMuchError: it takes more than is left.
        """
        self._total.add_path(path)

    def check(self) -> None:
        """Check that the device still has its reserve; to be called with each piece of a file.

        Raises:
            NoRoomError: it does not.
        """
        if disk.is_short(self._folder):
            raise NoRoomError


def takes_more(path: Path, max_bytes: int) -> bool:
    """Return whether a folder of another process takes more than `max_bytes`."""
    try:
        disk.measure(path, max_bytes, _DEPTH_MAX)
    except disk.TooMuchError:
        return True
    except OSError:  # a folder that cannot be read proves nothing
        return False
    return False


def used_bytes(path: Path, max_bytes: int) -> int:
    """Return the bytes that a folder takes on the disk; `max_bytes` if it takes more."""
    try:
        return disk.measure(path, max_bytes, _DEPTH_MAX)
    except disk.TooMuchError:
        return max_bytes


def failure_of(error: OSError | NoRoomError, words: str, kind: str) -> TaskError:
    """Return the error of the attempt for an error of the system.

    Args:
        error: the attempt has kept to its bytes.
        words: the name of the file.
        kind: where it is not the device's fault, so that no file has the device blamed.
    """
    if isinstance(error, NoRoomError) or error.errno in _NO_ROOM:
        return TaskError("refused", f"{words} cannot be kept: the disk of this device is full")
    if error.errno not in _OF_THE_DEVICE:
        return TaskError(kind, f"{words} cannot be kept: {error.strerror}")
    return TaskError("host", f"{words} cannot be kept: {error.strerror}")
