"""How often a caller may ask: a bucket of tokens each, filled at a steady rate."""

from collections import OrderedDict
from collections.abc import Callable

CALLERS_MAX = 100_000
BURST_SECONDS = 2.0


class RateLimit:
    """Lets each caller ask so many times a second, and twice as many at once.

    Args:
        per_second: the rate; 0 for no limit.
        now: a steady clock, in seconds.
    """

    def __init__(self, per_second: int, now: Callable[[], float]) -> None:
        self._per_second = per_second
        self._burst = per_second * BURST_SECONDS
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, caller: str) -> bool:
        """Take one token from a caller's bucket; False when it is empty."""
        if not self._per_second:
            return True
        now = self._now()
        tokens, since = self._buckets.get(caller, (self._burst, now))
        tokens = min(tokens + (now - since) * self._per_second, self._burst)
        allowed = tokens >= 1
        self._buckets[caller] = (tokens - 1 if allowed else tokens, now)
        self._buckets.move_to_end(caller)
        if len(self._buckets) > CALLERS_MAX:
            self._buckets.popitem(last=False)
        return allowed
