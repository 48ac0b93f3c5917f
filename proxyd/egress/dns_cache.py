"""Answers of name servers, kept for their lifetime; pure, the time comes from outside."""

from collections import OrderedDict
from collections.abc import Callable, Iterable

from market.base.networks import Address

TTL_MIN_SECONDS = 1.0  # an answer with a lifetime of 0 would cost a query a connection
TTL_MAX_SECONDS = 3600.0  # a mistake in a zone is not kept for longer
NEGATIVE_SECONDS = 5.0  # little: a name that was just made is tried again soon


class DnsCache:
    """Answers by name; the least recently requested one makes room for the next.

    Args:
        entries_max: how many names are kept.
        now: a clock that never goes back, in seconds.
    """

    def __init__(self, entries_max: int, now: Callable[[], float]) -> None:
        self._entries_max = entries_max
        self._now = now
        self._entries: OrderedDict[str, tuple[float, tuple[Address, ...]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> list[Address] | None:
        """Return the addresses of a name, none if it has none; None if it is not cached."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        expires, addresses = entry
        if expires <= self._now():
            del self._entries[name]
            return None
        self._entries.move_to_end(name)
        return list(addresses)

    def put(self, name: str, addresses: Iterable[Address], ttl: float) -> None:
        """Keep an answer for `ttl` seconds, within bounds; one without addresses shortly."""
        entry = tuple(addresses)
        seconds = min(max(ttl, TTL_MIN_SECONDS), TTL_MAX_SECONDS) if entry else NEGATIVE_SECONDS
        self._entries[name] = (self._now() + seconds, entry)
        self._entries.move_to_end(name)
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
