"""Answers kept encoded, for as long as nobody has changed anything."""

from collections.abc import Awaitable, Callable, Hashable

from api.routes import Encoded, Reply, encode

KEPT_MAX = 256
KEPT_MAX_BYTES = 16 * 1024 * 1024


class Answers:
    """Keeps the encoded answers to what is asked often, a bounded number of bounded bytes.

    An answer is given again only while the store says that no commit was made since it was read; so
    nobody is ever told what is no longer so.

    Args:
        version: the store's version; None when it cannot be told, and nothing is kept.
    """

    def __init__(self, version: Callable[[], bytes | None]) -> None:
        self._version = version
        self._as_of: bytes | None = None
        self._kept: dict[Hashable, Encoded] = {}
        self._kept_bytes = 0

    async def get(self, question: Hashable, ask: Callable[[], Awaitable[Reply]]) -> Encoded:
        """Return the answer to a question, from memory or by asking."""
        version = self._version()
        if version != self._as_of:
            self._forget(version)
        kept = self._kept.get(question)
        if kept is not None:
            return kept
        answer = Encoded(body=encode(await ask()))
        if version is not None and version == self._as_of:
            self._keep(question, answer)
        return answer

    def _keep(self, question: Hashable, answer: Encoded) -> None:
        size = len(answer.body)
        if question in self._kept or size > KEPT_MAX_BYTES:
            return
        if len(self._kept) >= KEPT_MAX or self._kept_bytes + size > KEPT_MAX_BYTES:
            self._forget(self._as_of)
        self._kept[question] = answer
        self._kept_bytes += size

    def _forget(self, version: bytes | None) -> None:
        self._as_of = version
        self._kept.clear()
        self._kept_bytes = 0
