"""How long an attempt prepares, and how long the servers of its buyer may keep it waiting.

The marketplace takes an attempt back whose work does not begin in time, and that counts against the
device. So the device ends it a little earlier, and reports the server that took the time: else a
buyer with a slow server would harm the reputation of devices for nothing.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from proxyctl.worker.executors.base.base import TaskError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

INPUT: Final = "input"
IMAGE: Final = "image"

# Of a daemon that gives no bound of its own: below the half hour that it has by default.
DEFAULT_SECONDS: Final = 1_680.0
_SECONDS_MAX: Final = 7 * 86_400
# For all servers of one kind together, with every connection, handshake and new try.
GRACE_SECONDS: Final = 120.0
# A quarter of a megabit. Below that a server holds the slot of the device for its own sake.
BYTES_PER_SECOND_MIN: Final = 32 << 10
_SERVERS: Final = {
    INPUT: "the servers of its inputs",
    IMAGE: "the registry of its image",
}


def seconds_of(work: Mapping[str, Any]) -> float:
    """Return the seconds in which an attempt must be ready, as the daemon gives them."""
    given = work.get("prepare_s")
    is_given = isinstance(given, int) and not isinstance(given, bool)
    return float(given) if is_given and 0 < given <= _SECONDS_MAX else DEFAULT_SECONDS  # type: ignore[arg-type, operator]


class Patience:
    """The time of one attempt to prepare. One thread waits with it; any thread may ask it.

    Args:
        seconds: that are left.
        is_stopped: says that the attempt is not wanted any more.
        grace_seconds: for all servers of one kind together.
        bytes_per_second_min: this number of their bytes buys one second more.
    """

    def __init__(
        self,
        seconds: float = float("inf"),
        is_stopped: Callable[[], bool] = lambda: False,
        *,
        grace_seconds: float = GRACE_SECONDS,
        bytes_per_second_min: int = BYTES_PER_SECOND_MIN,
    ) -> None:
        self._grace_seconds = grace_seconds
        self._bytes_per_second_min = bytes_per_second_min
        self._began = time.monotonic()
        self._seconds = seconds
        self._is_stopped = is_stopped
        self._waited = dict.fromkeys(_SERVERS, 0.0)
        self._bytes = dict.fromkeys(_SERVERS, 0)
        self._now_for = ""  # the kind of the server that is waited for now
        self._since = self._began
        self._failure: TaskError | None = None

    @property
    def left(self) -> float:
        """The seconds that are left, at least 0."""
        return max(0.0, self._began + self._seconds - time.monotonic())

    @contextmanager
    def waiting(self, kind: str) -> Iterator[None]:
        """Count the time of the block as that of the buyer's servers of a kind.

        Args:
            kind: `INPUT` or `IMAGE`.
        """
        self._since = time.monotonic()
        self._now_for = kind
        try:
            yield
        finally:
            waited = self._waited_for(kind)
            self._now_for = ""  # first: another thread must not count the block twice
            self._waited[kind] = waited

    def came(self, size: int) -> None:
        """Count bytes of the server that is waited for; bytes of the marketplace do not count."""
        if self._now_for:
            self._bytes[self._now_for] += size

    def is_over(self) -> bool:
        """Return whether continuing is useless: unwanted, or with a failure."""
        return self._is_stopped() or self.failure() is not None

    def failure(self) -> TaskError | None:
        """Return why the attempt ends here, always the same reason; None while it may continue.

        The kind is that of a server where it was too slow, or took half of all the time or more. A
        slow line of the device looks the same from here. So neither answer harms the device, and
        the job waits for another one. Otherwise the device itself was too slow, and refuses.
        """
        if self._failure is None:
            self._failure = self._reason()
        return self._failure

    def _reason(self) -> TaskError | None:
        for kind, words in _SERVERS.items():
            bought = self._bytes[kind] / self._bytes_per_second_min
            if self._waited_for(kind) > self._grace_seconds + bought:
                return TaskError(kind, f"{words} keep the device waiting for too long")
        if self.left > 0:
            return None
        slowest = max(_SERVERS, key=self._waited_for)
        if sum(map(self._waited_for, _SERVERS)) >= (time.monotonic() - self._began) / 2:
            words = f"{_SERVERS[slowest]} took most of the time to prepare, which is over"
            return TaskError(slowest, words)
        return TaskError("refused", "this device could not prepare it in time")

    def _waited_for(self, kind: str) -> float:
        is_now = self._now_for == kind
        return self._waited[kind] + (time.monotonic() - self._since if is_now else 0.0)
