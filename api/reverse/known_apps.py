"""Apps as they were a moment ago, so that not each request asks the store."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import monotonic

from market.apps import App

# A page asks for a hundred files. A job that has ended meanwhile is refused by its device.
FRESH_SECONDS = 2.0
KNOWN_MAX = 10_000


class KnownApps:
    """What was found of apps, for a moment.

    Args:
        find: asks the store.
    """

    def __init__(self, find: Callable[[str], Awaitable[App | None]]) -> None:
        self._find = find
        self._known: OrderedDict[str, tuple[App | None, float]] = OrderedDict()
        self._forgotten = 0  # how many times; what is found around one of them is not kept

    def recent(self, app_id: str) -> bool:
        """Say whether the store need not be asked."""
        known = self._known.get(app_id)
        return known is not None and known[1] > monotonic()

    async def find(self, app_id: str) -> App | None:
        """Return an app; None for none that has a key.

        Raises:
            StoreError: it cannot be asked.
        """
        known = self._known.get(app_id)
        if known is not None and known[1] > monotonic():
            return known[0]
        self._known.pop(app_id, None)
        asked_at, forgotten = monotonic(), self._forgotten
        app = await self._find(app_id)
        if forgotten == self._forgotten:
            self._known[app_id] = app, asked_at + FRESH_SECONDS
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return app

    def forget(self, app_id: str) -> None:
        """Ask the store the next time."""
        self._forgotten += 1
        self._known.pop(app_id, None)
