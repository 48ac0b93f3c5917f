"""Doing something with all that is due: what fails is told, put off, and holds up nothing else."""

import logging
from collections.abc import Awaitable, Callable

from storage.errors import UnavailableError

# What fails for good needs a person, who does not come at once: often enough to see that it is
# mended, and seldom enough to be a few lines in the log.
PUT_OFF_SECONDS = 300


class Sweep:
    """Goes through what is due, a part at a time.

    Args:
        failure: what the log says of one that fails, with %s for its identifier.
        logger: where.
    """

    def __init__(self, failure: str, logger: logging.Logger) -> None:
        self._failure = failure
        self._logger = logger
        self._put_off: dict[str, int] = {}  # identifiers, and until when

    async def run(
        self,
        find: Callable[[int], Awaitable[list[str]]],
        act: Callable[[str], Awaitable[object]],
        *,
        most: int,
        now: int,
    ) -> int:
        """Do it with some; return with how many it was done.

        Args:
            find: returns so many identifiers of what is due, at most.
            act: does it with one.
            most: how many it is done with at most.
            now: UTC seconds.

        Raises:
            UnavailableError: the store did not answer; the others wait for it.
        """
        self._put_off = {each: until for each, until in self._put_off.items() if until > now}
        found = await find(most + len(self._put_off))
        done = 0
        for each in [each for each in found if each not in self._put_off][:most]:
            try:
                await act(each)
            except UnavailableError:
                raise
            except Exception:
                self._logger.exception(self._failure, each)
                self._put_off[each] = now + PUT_OFF_SECONDS
            else:
                done += 1
        return done
