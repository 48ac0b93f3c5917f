"""Times of new attachments: immediate if another node may accept the exit, later if none does."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

STEADY_SECONDS: Final = 60.0  # after an attachment of this length, earlier losses count no more
# Each node that is replaced causes one loss. More losses within `STEADY_SECONDS` come from daemons
# that let the exit in and cut it off again.
LOSSES_MAX: Final = 5


@dataclass(frozen=True)
class RetryTimes:
    """Waits between attempts to attach.

    Attributes:
        least_seconds: after the first failed attempt.
        most_seconds: it is doubled with each further one, up to this.
        move_most_seconds: the exits that lose a node come to the next one within this time. So
            thousands do not come in one moment, and buyers hardly notice.
    """

    least_seconds: float = 1.0
    most_seconds: float = 60.0
    move_most_seconds: float = 0.3


USUAL: Final = RetryTimes()


class AttachRetries:
    """How long an exit waits before its next attempt to attach.

    Args:
        now: seconds of a clock that never goes back.
    """

    def __init__(self, now: Callable[[], float], times: RetryTimes = USUAL) -> None:
        self._times = times
        self._now = now
        self._failures = 0  # failed rounds over all nodes
        self._losses: list[float] = []  # when, lately
        self._is_unsteady = False

    def lose(self, seconds: float) -> bool:
        """An attachment is lost that a daemon had welcomed.

        Args:
            seconds: how long it had lasted.

        Returns:
            whether other nodes may be tried at once; not where one loss follows the other.
        """
        now = self._now()
        if seconds > STEADY_SECONDS:
            self._losses.clear()
            self._is_unsteady = False
        self._losses = [each for each in self._losses if now - each < STEADY_SECONDS]
        self._losses.append(now)
        if len(self._losses) > LOSSES_MAX:
            self._is_unsteady = True
        if self._is_unsteady:  # until one has lasted: else it would be hurried again and again
            return False
        self._failures = 0
        return True

    def delay(self, *, is_exhausted: bool) -> float:
        """Return the seconds to wait after a failed attempt.

        Args:
            is_exhausted: whether all nodes were tried; while other nodes are left, the pauses do
                not grow.
        """
        self._failures += is_exhausted
        # Full jitter: a thousand exits that lost the same daemon do not come back together.
        least = self._times.least_seconds
        most = min(self._times.most_seconds, least * 2 ** min(self._failures, 10))
        return random.uniform(least, most)  # noqa: S311 - no secret

    def short_delay(self) -> float:
        """Return the seconds to wait before the exit tries another node."""
        return random.uniform(0, self._times.move_most_seconds)  # noqa: S311 - no secret
