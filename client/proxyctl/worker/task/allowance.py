"""The limits for the ports of jobs: the rate, and the bytes in a day of the device.

A file says how much of the day is spent, and says it before it is: it does so in steps, and a
killed agent loses the rest of one step. So the day's bound holds even if the agent is killed.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from proxyctl import files
from proxyctl.attach.network.pace import Pace

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

_logger = logging.getLogger("worker")

# The file counts this many bytes as spent in one step: a file a second at a gigabit a second.
STEP_BYTES: Final = 128 << 20
_STEPS_LEAST: Final = 64  # of a day; a small allowance goes in smaller steps
_RETRY_SECONDS: Final = 10.0  # behind a file that cannot be written; the users outside set the pace
_BURST_SECONDS: Final = 0.5  # a page comes in one burst, and the bound still shows in each second


class Allowance:
    """Counts the bytes through ports, both ways together; belongs to one thread.

    Args:
        bytes_per_day: of the device's own calendar; with 0 nothing goes through.
        bytes_per_second: on average.
        now: the device's own time, aware of its zone.
        monotonic: a clock that never goes back, in seconds.
    """

    def __init__(
        self,
        path: Path,
        bytes_per_day: int,
        bytes_per_second: float,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
    ) -> None:
        self.bytes_per_day = bytes_per_day
        self._path = path
        self._now = now
        self._monotonic = monotonic
        self._tries_at = 0.0
        self._pace = Pace(bytes_per_second, _BURST_SECONDS, monotonic)
        self._step = max(1, min(STEP_BYTES, bytes_per_day // _STEPS_LEAST))
        self._day = ""
        self.spent = 0
        self._noted = 0  # as spent, in the file
        self._load()

    @property
    def is_spent(self) -> bool:
        """Whether nothing may go through any more today; any thread may ask."""
        if not self.bytes_per_day:
            return True
        return self.spent >= self.bytes_per_day and self._day == self._now().date().isoformat()

    def left(self) -> int:
        """Return how many bytes may go through now, at least; 0 when the day's are spent.

        It is less than the rest of the day: the file counts the returned bytes as spent.
        """
        self._turn()
        # A day that is spent is in the file already: a user that connects then must cost the disk
        # nothing.
        if self.spent >= self._noted < self.bytes_per_day and self._monotonic() >= self._tries_at:
            self._note(min(self.spent + self._step, self.bytes_per_day))
        return max(0, self._noted - self.spent)

    def take(self, size: int) -> float:
        """Count bytes; return the seconds to wait before more bytes pass."""
        self.spent += size
        return self._pace.take(size)

    def close(self) -> None:
        """Write the true number of spent bytes to the file."""
        if self._noted > self.spent:
            self._note(self.spent)

    def _turn(self) -> None:
        """Begin a new day if one has begun."""
        day = self._now().date().isoformat()
        if day != self._day:
            self._day, self.spent, self._noted = day, 0, 0

    def _note(self, spent: int) -> None:
        """Write a number of spent bytes to the file; if that fails, nothing more goes through."""
        try:
            files.write(self._path, {"day": self._day, "spent_bytes": spent})
        except files.FileError as error:
            self._tries_at = self._monotonic() + _RETRY_SECONDS
            _logger.warning("nothing goes through ports of jobs: %s", error)
        else:
            self._noted = spent

    def _load(self) -> None:
        try:
            stored = files.read(self._path) or {}
            day, spent = str(stored["day"]), int(stored["spent_bytes"])
        except (files.FileError, KeyError, TypeError, ValueError):
            return  # none yet, or broken: a day begins
        self._day, self.spent, self._noted = day, spent, spent
