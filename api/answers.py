"""Answers kept encoded, for as long as nobody has changed anything."""

from collections.abc import Awaitable, Callable, Hashable

from api.routes import Encoded, Reply, encode

KEPT_MAX = 256


class Answers:
    """Keeps the encoded answers to what is asked often.

    An answer is given again only while the store says that no commit was made since it was read; so
    nobody is ever told what is no longer so.

    Args:
        version: the store's version; None when it cannot be told, and nothing is kept.
    """

    def __init__(self, version: Callable[[], bytes | None]) -> None:
        self._version = version
        self._kept: dict[Hashable, tuple[bytes, Encoded]] = {}

    async def get(self, question: Hashable, ask: Callable[[], Awaitable[Reply]]) -> Encoded:
        """Return the answer to a question, from memory or by asking."""
        version = self._version()
        kept = self._kept.get(question)
        if kept is not None and kept[0] == version:
            return kept[1]
        answer = Encoded(body=encode(await ask()))
        if version is not None:
            if len(self._kept) >= KEPT_MAX:
                self._kept.clear()
            self._kept[question] = (version, answer)
        return answer
