"""Tasks of the exits' port, which begins no task once it stops."""

import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine
from typing import Any, final

from proxyd.loop.owned_tasks import OwnedTasks

_logger = logging.getLogger("exits")


@final
class Work:
    """The tasks that are under way for exits."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.is_stopping = False
        self._tasks = OwnedTasks(loop, _logger, "serving an exit failed")

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, unless the port stops."""
        if self.is_stopping:
            work.close()
        else:
            self._tasks.spawn(work)

    def run(self, work: Coroutine[Any, Any, None], if_cancelled: Callable[[], None]) -> None:
        """Run `work`, which owns a socket; `if_cancelled` closes that if none of it has run."""
        self._tasks.spawn(work, if_cancelled)

    def stop(self) -> None:
        """Begin no more tasks; running tasks continue."""
        self.is_stopping = True

    def cancel(self) -> None:
        """Cancel all running tasks."""
        self._tasks.cancel()

    async def wait(self) -> None:
        """Wait until no task runs any more."""
        await self._tasks.wait()
