"""Apps as they were a moment ago, so that not each request costs a query."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import monotonic

from market.deploys.apps import App

# A page asks for a hundred files. A job that has ended meanwhile is refused by its device.
FRESH_SECONDS = 2.0
KNOWN_MAX = 10_000


class KnownApps:
    """Apps that the store returned, kept for a moment.

    Args:
        find: asks the store.
    """

    def __init__(self, find: Callable[[str], Awaitable[App | None]]) -> None:
        self._find = find
        self._known: OrderedDict[str, tuple[App | None, float]] = OrderedDict()
        self._asking: dict[str, object] = {}  # by app: the latest question under way

    def recent(self, app_id: str) -> bool:
        """Return whether `find` will answer without the store."""
        known = self._known.get(app_id)
        return known is not None and known[1] > monotonic()

    async def find(self, app_id: str) -> App | None:
        """Return an app; None for none that has a key.

        Raises:
            StoreError: the store does not answer.
        """
        known = self._known.get(app_id)
        if known is not None and known[1] > monotonic():
            return known[0]
        self._known.pop(app_id, None)
        asked_at, question = monotonic(), object()
        self._asking[app_id] = question
        try:
            app = await self._find(app_id)
        finally:
            is_latest = self._asking.get(app_id) is question
            if is_latest:
                del self._asking[app_id]
        if is_latest:  # else the answer may be from before a change
            self._known[app_id] = app, asked_at + FRESH_SECONDS
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return app

    def forget(self, app_id: str) -> None:
        """Forget an app, so that the next `find` queries the store."""
        self._asking.pop(app_id, None)
        self._known.pop(app_id, None)
