"""A cache of encoded responses, valid until the next commit of the store.

`Store.version` changes with every commit of any process. On SQLite it costs a look at the header of
the shared WAL index. PostgreSQL has nothing as cheap, so there each request reads the store.
"""

from collections.abc import Awaitable, Callable, Hashable

from api.routing.routes import Encoded, Reply, encode

KEPT_MAX = 256
KEPT_MAX_BYTES = 16 * 1024 * 1024


class Answers:
    """Caches the encoded responses to frequent requests, bounded in number and in bytes.

    A response is reused only while the store has the same version, that is without any commit since
    it was read; so a client never sees stale data.

    Args:
        version: returns the store's version; None when it is unknown, and nothing is cached.
        kept_max_bytes: the bytes of all responses.
    """

    def __init__(
        self, version: Callable[[], bytes | None], kept_max_bytes: int = KEPT_MAX_BYTES
    ) -> None:
        self._version = version
        self._kept_max_bytes = kept_max_bytes
        self._as_of: bytes | None = None
        self._cached: dict[Hashable, Encoded] = {}
        self._cached_bytes = 0

    async def get(self, key: Hashable, compute: Callable[[], Awaitable[Reply]]) -> Encoded:
        """Return the response for a key, from the cache or computed."""
        version = self._version()
        if version != self._as_of:
            self._forget(version)
        cached = self._cached.get(key)
        if cached is not None:
            return cached
        answer = Encoded(body=encode(await compute()))
        if version is not None and version == self._as_of:
            self._keep(key, answer)
        return answer

    def _keep(self, key: Hashable, answer: Encoded) -> None:
        size = len(answer.body)
        if key in self._cached or size > self._kept_max_bytes:
            return
        if len(self._cached) >= KEPT_MAX or self._cached_bytes + size > self._kept_max_bytes:
            self._forget(self._as_of)
        self._cached[key] = answer
        self._cached_bytes += size

    def _forget(self, version: bytes | None) -> None:
        self._as_of = version
        self._cached.clear()
        self._cached_bytes = 0
