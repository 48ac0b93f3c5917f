"""How long to wait before something that did not succeed is tried again: longer each time."""

from __future__ import annotations

import random
from typing import Final

FIRST_SECONDS: Final = 1.0
MOST_SECONDS: Final = 60.0


class Retries:
    """Waits of one second, two, four, up to a minute; each a little different from the others'.

    All devices of a marketplace lose it at the same moment, and must not come back at the same.
    """

    def __init__(self) -> None:
        self._seconds = FIRST_SECONDS

    def succeeded(self) -> None:
        """Start again with the shortest wait."""
        self._seconds = FIRST_SECONDS

    def failed(self, at_least: float = 0.0) -> float:
        """Return the seconds to wait now.

        Args:
            at_least: the wait that the daemon has requested.
        """
        seconds = max(self._seconds, at_least)
        self._seconds = min(self._seconds * 2, MOST_SECONDS)
        return seconds * random.uniform(0.75, 1.25)  # noqa: S311 - nothing secret
