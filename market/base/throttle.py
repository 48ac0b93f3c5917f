"""Limits attempts by key, and by the networks around it, over a sliding window."""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from market.base.errors import Code, MarketError
from market.base.networks import enclosing

KEYS_MAX = 100_000  # then the key with the oldest event is dropped


class Throttle:
    """Limit of the events of a key in any window of time.

    A key that is a network also counts for the networks around it, which have their share.

    Args:
        limit: the largest number of events; 0 for no limit.
        window_seconds: the length of the window.
        now: the wall clock, in UTC seconds.
        keys_max: the number of keys in memory.
    """

    def __init__(
        self,
        limit: int,
        window_seconds: int,
        now: Callable[[], int],
        keys_max: int = KEYS_MAX,
    ) -> None:
        self._keys_max = keys_max
        self._limit = limit
        self._window_seconds = window_seconds
        self._now = now
        self._events: OrderedDict[str, deque[int]] = OrderedDict()

    def take(self, key: str) -> None:
        """Count one event of a key, or refuse it if the key has used up its window.

        An event that may turn out to be none is counted first and taken back later: between a check
        and a later count, others would pass the same check.

        Raises:
            MarketError: `too_many_attempts`, as `check`; nothing is counted then.
        """
        self.check(key)
        self.count(key)

    def take_back(self, key: str) -> None:
        """Take back one event of a key, the latest."""
        for name, _ in enclosing(key):
            events = self._events.get(name)
            if events:
                events.pop()
                if not events:
                    del self._events[name]

    @contextmanager
    def attempt(self, key: str, failures: Collection[Code]) -> Iterator[None]:
        """Count one event if the block ends with one of these refusals.

        A cancelled block counts, because its outcome is unknown.

        Raises:
            MarketError: `too_many_attempts`, as `check`; the block does not run then.
        """
        self.take(key)
        try:
            yield
        except Exception as error:
            if not isinstance(error, MarketError) or error.code not in failures:
                self.take_back(key)
            raise
        else:
            self.take_back(key)

    def check(self, key: str) -> None:
        """Check that a key may have one more event.

        Raises:
            MarketError: `too_many_attempts`, with the seconds until it may try again.
        """
        for name, share in enclosing(key):
            events = self._recent(name)
            if self._limit and len(events) >= self._limit * share:
                wait = max(events[0] + self._window_seconds - self._now(), 1)
                message = f"Too many attempts; the next is possible in {wait} s."
                raise MarketError(Code.TOO_MANY_ATTEMPTS, message, retry_after_seconds=wait)

    def count(self, key: str) -> None:
        """Count one event of a key."""
        if not self._limit:
            return
        for name, share in enclosing(key):
            self._events.setdefault(name, deque(maxlen=self._limit * share)).append(self._now())
            self._events.move_to_end(name)
        while len(self._events) > self._keys_max:
            self._events.popitem(last=False)

    def forget(self, key: str) -> None:
        """Forget the events of a key; the networks around it keep theirs."""
        self._events.pop(key, None)

    def _recent(self, key: str) -> deque[int]:
        events = self._events.get(key)
        if events is None:
            return deque()
        now = self._now()
        while events and not now - self._window_seconds < events[0] <= now:
            events.popleft()  # over, or of a time that was set back since
        if not events:
            del self._events[key]
        return events
