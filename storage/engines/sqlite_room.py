"""Whether an SQLite file has room for writes, as its refused writes and its disk say."""

import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from storage.engines.errors import Cause, UnavailableError
from storage.engines.health import Health

# Only room for some commits on the disk ends the trouble: an idle daemon writes nothing that would
# show it.
ROOM_BYTES = 1024 * 1024


class WriteRoom:
    """The refused writes of one process, by cause, and whether the disk is full.

    Args:
        folder: the folder of the file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failures: Counter[Cause] = Counter()
        self._is_full = False

    def note(self, errors: Iterable[Exception | None]) -> None:
        """Note the outcomes of a group of units: the error of each, or None.

        Success is no sign of room: a unit that changes nothing succeeds on a full disk as well.
        """
        causes = [each.cause for each in errors if isinstance(each, UnavailableError)]
        self._failures.update(causes)
        self._is_full |= Cause.FULL in causes

    def health(self) -> Health:
        """Return the state of the file."""
        if self._is_full and self._free_bytes() >= ROOM_BYTES:
            self._is_full = False
        return Health(Cause.FULL if self._is_full else None, failures=self._failures)

    def _free_bytes(self) -> int:
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize
