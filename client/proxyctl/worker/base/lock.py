"""Lock of an agent's folder: two agents in one folder would run every job twice."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from proxyctl.files import FileError
from proxyctl.worker.base import names

if TYPE_CHECKING:
    from pathlib import Path

_TRIES: Final = 5
_AGAIN_SECONDS: Final = 0.05  # a query of the lock's holder takes less than a thousandth of that


class Lock:
    """The lock of an agent's folder, held until it is closed or the process ends, however it does.

    Raises:
        FileError: another agent has it.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / names.LOCK
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise FileError(f"{path} cannot be used: {error.strerror}") from None
        if not _take(self._file):
            pid = os.read(self._file, 20).decode("ascii", "replace").strip()
            os.close(self._file)
            raise FileError(
                f"an agent works in {folder} already, as process {pid}; "
                "a second one needs a folder and a token of its own (--folder)"
            )
        os.ftruncate(self._file, 0)
        os.write(self._file, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        """Release the folder for another agent."""
        os.close(self._file)


def _take(descriptor: int) -> bool:
    """Lock a file; return False if another process has it. `holder` has it for a moment."""
    for _ in range(_TRIES):
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_AGAIN_SECONDS)
    return False


def holder(folder: Path) -> int | None:
    """Return the process that has the folder now, if one does."""
    with suppress(OSError):
        descriptor = os.open(folder / names.LOCK, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            text = os.read(descriptor, 20).strip()
            return int(text) if text.isdigit() else 0
        finally:
            os.close(descriptor)
    return None
