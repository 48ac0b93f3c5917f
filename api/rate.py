"""How often a caller may ask: a bucket of tokens each, filled at a steady rate."""

from collections import OrderedDict
from collections.abc import Callable

from market.networks import enclosing

CALLERS_MAX = 100_000
BURST_SECONDS = 2.0


class RateLimit:
    """Lets each caller ask so many times a second, and twice as many at once.

    A network takes from the buckets of those around it too, which hold their share.

    Args:
        per_second: the rate; 0 for no limit.
        now: a steady clock, in seconds.
    """

    def __init__(self, per_second: float, now: Callable[[], float]) -> None:
        self._per_second = per_second
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, caller: str) -> bool:
        """Take one token from a caller's bucket; False when it is empty."""
        if not self._per_second:
            return True
        now = self._now()
        found = [(name, self._tokens(name, share, now)) for name, share in enclosing(caller)]
        allowed = all(tokens >= 1 for _, tokens in found)
        for name, tokens in found:
            self._buckets[name] = (tokens - 1 if allowed else tokens, now)
            self._buckets.move_to_end(name)
        while len(self._buckets) > CALLERS_MAX:
            self._buckets.popitem(last=False)
        return allowed

    def _tokens(self, name: str, share: int, now: float) -> float:
        """Return what is in a bucket by now."""
        most = self._per_second * BURST_SECONDS * share
        tokens, since = self._buckets.get(name, (most, now))
        return min(tokens + (now - since) * self._per_second * share, most)
