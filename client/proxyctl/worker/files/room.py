"""Room on the disk for the files of one attempt: its own bytes, and the reserve of the device.

The bytes are those that the device lends to the attempt, or that the job says it needs: inputs and
what the job writes share them. What the job has caused is told as its fault. A device without room
for what it lends refuses the attempt.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from proxyctl.worker.executors.base import TaskError
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
    """What one attempt may still take.

    Args:
        folder: of the attempt.
        max_bytes: of the disk, for all of the attempt together.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._total = disk.Total(max_bytes, _DEPTH_MAX, with_holes=True)

    @property
    def left(self) -> int:
        """Bytes that are not spent."""
        return max(0, self._max_bytes - self._total.bytes)

    def spend(self, path: Path) -> None:
        """Count a file or a folder for good.

        Raises:
            TooMuchError: it takes more than is left.
        """
        self._total.add_path(path)

    def check(self) -> None:
        """See that the device still has its reserve; to be called with each piece of a file.

        Raises:
            NoRoomError: it does not.
        """
        if disk.is_short(self._folder):
            raise NoRoomError


def takes_more(path: Path, max_bytes: int) -> bool:
    """Return whether a folder that another process has filled takes more than so many bytes."""
    try:
        disk.measure(path, max_bytes, _DEPTH_MAX)
    except disk.TooMuchError:
        return True
    except OSError:  # what cannot be looked at is not held against anybody
        return False
    return False


def used_bytes(path: Path, max_bytes: int) -> int:
    """Return the bytes that a folder takes on the disk; `max_bytes` if it takes more."""
    try:
        return disk.measure(path, max_bytes, _DEPTH_MAX)
    except disk.TooMuchError:
        return max_bytes


def failure_of(error: OSError | NoRoomError, words: str, kind: str) -> TaskError:
    """Return how an error of the system is told to the marketplace.

    Args:
        error: the attempt has kept to its bytes.
        words: of what could not be kept.
        kind: where it is not the device's fault, so that no file has the device blamed.
    """
    if isinstance(error, NoRoomError) or error.errno in _NO_ROOM:
        return TaskError("refused", f"{words} cannot be kept: the disk of this device is full")
    if error.errno not in _OF_THE_DEVICE:
        return TaskError(kind, f"{words} cannot be kept: {error.strerror}")
    return TaskError("host", f"{words} cannot be kept: {error.strerror}")
