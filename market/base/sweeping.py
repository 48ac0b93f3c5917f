"""Sweeps: processing of everything that is due, in which one failure delays no other item."""

import logging
from collections.abc import Awaitable, Callable

from storage.engines.errors import UnavailableError

# Pause before a failed item is retried. A permanent failure needs the operator. The pause is short
# enough to notice a repair soon, and long enough for only a few lines in the log.
PUT_OFF_SECONDS = 300


class Sweep:
    """Processing of due items, a bounded number at a time.

    Args:
        failure: the log line for an item that fails, with %s for its identifier.
    """

    def __init__(self, failure: str, logger: logging.Logger) -> None:
        self._failure = failure
        self._logger = logger
        # Identifiers of items that failed, and when to retry them (UTC seconds).
        self._put_off: dict[str, int] = {}

    async def run(
        self,
        find: Callable[[int], Awaitable[list[str]]],
        act: Callable[[str], Awaitable[object]],
        *,
        most: int,
        now: int,
    ) -> int:
        """Process some items; return the number that succeeded.

        Args:
            find: returns the identifiers of due items, as many as its argument at most.
            act: acts on one.
            most: how many items to act on at most.
            now: UTC seconds.

        Raises:
            UnavailableError: the store did not answer, so that the rest would fail as well.
        """
        self._put_off = {item: until for item, until in self._put_off.items() if until > now}
        # Items that are put off are still due: enough to find `most` others beside them.
        due = await find(most + len(self._put_off))
        successes = 0
        for item in [item for item in due if item not in self._put_off][:most]:
            try:
                await act(item)
            except UnavailableError:
                raise
            except Exception:
                self._logger.exception(self._failure, item)
                self._put_off[item] = now + PUT_OFF_SECONDS
            else:
                successes += 1
        return successes
