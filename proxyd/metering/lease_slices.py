"""A session of which this node holds a part: the budget may grow, shrink, or be out of time."""

from collections.abc import Callable

from market.leases import SLICE_FIRST_BYTES, Grant
from proxyd.metering.pace import Pace
from proxyd.metering.session import LiveSession

SLICE_MOST_BYTES = 64 * 1024 * 1024
LOW_BYTES = 64 * 1024
BRISK_SECONDS = 1.0
SLACK_SECONDS = 5.0
RETRY_FIRST_SECONDS = 0.05
RETRY_MOST_SECONDS = 0.5


class Fence:
    """Until when this node may hand out bytes, by a clock that goes on while the machine sleeps.

    Args:
        boottime: that clock, in seconds.
    """

    __slots__ = ("_boottime", "until")

    def __init__(self, boottime: Callable[[], float]) -> None:
        self._boottime = boottime
        self.until = 0.0

    @property
    def is_up(self) -> bool:
        """Whether the time is over, so that nothing may be handed out."""
        return self._boottime() >= self.until


class SharedSession(LiveSession):
    """A session of which other nodes may hold parts too.

    `retry_at` (loop time) is when it is worth asking for more again; `idle_since` is when its last
    connection was found gone, None while there are any.
    """

    __slots__ = (
        "_fence",
        "_low",
        "_on_low",
        "_pause",
        "_slice",
        "_topped_at",
        "idle_since",
        "retry_at",
    )

    def __init__(
        self,
        grant: Grant,
        on_low: Callable[["SharedSession"], None],
        on_spent: Callable[[LiveSession], None],
        fence: Fence,
        pace: Pace | None = None,
        changed: set[LiveSession] | None = None,
    ) -> None:
        super().__init__(grant, on_spent, pace, changed)
        self._on_low = on_low
        self._fence = fence
        self._slice = SLICE_FIRST_BYTES
        self._low = grant.granted_bytes // 2
        self._topped_at = 0.0
        self._pause = RETRY_FIRST_SECONDS
        self.retry_at = 0.0
        self.idle_since: float | None = None

    def allowance(self, taker: object) -> int:
        """See `LiveSession.allowance`; asks for more in time, and gives nothing out of time."""
        if self.available < self._low:
            self._low = 0
            self._on_low(self)
        return 0 if self._fence.is_up else super().allowance(taker)

    def wait(self, resume: Callable[[], None]) -> None:
        """See `LiveSession.wait`."""
        if self.available <= 0:
            self._on_low(self)
        super().wait(resume)

    @property
    def is_waited_for(self) -> bool:
        """Whether connections wait for bytes, or the last ones granted are still to be reported."""
        return bool(self._waiting) or (self.used == self.granted != self.reported)

    def wanted(self, now: float) -> int:
        """Return how much to ask for: twice as much when the last slice was soon used up."""
        if now - self._topped_at < BRISK_SECONDS:
            self._slice = min(2 * self._slice, SLICE_MOST_BYTES)
        elif now - self._topped_at > SLACK_SECONDS:
            self._slice = SLICE_FIRST_BYTES
        return self._slice

    def spare(self) -> int:
        """Give up what others may use better, and return how much is granted after that.

        All of it when nobody here uses it, half of it otherwise.
        """
        keep = self.available // 2 if self.connections and self.available > LOW_BYTES else 0
        gone = max(0, self.available - keep)
        self.available -= gone
        self.granted -= gone
        return self.granted

    def answered(self, granted: int, now: float, *, asked: bool) -> None:
        """Take what the store says is granted in all.

        Args:
            granted: never less than is granted here.
            now: loop time.
            asked: whether more was asked for.
        """
        more = granted - self.granted
        self.granted = granted
        if asked and more > 0:
            self._topped_at = now
            self._pause = RETRY_FIRST_SECONDS
            self._low = min(more, self._slice) // 2
            self.retry_at = now
        elif asked:
            self._low = LOW_BYTES
            self.retry_at = now + self._pause
            self._pause = min(2 * self._pause, RETRY_MOST_SECONDS)
        self.give_back(more)
