"""Tasks that one object owns: it starts them as it needs them, and none of them outlives it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any


class OwnedTasks:
    """The tasks of one owner that are not over.

    A task that fails is logged with its traceback, and the others go on.

    Args:
        words: name of the failed work for the log.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, logger: logging.Logger, words: str) -> None:
        self._loop = loop
        self._logger = logger
        self._words = words
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(
        self,
        work: Coroutine[Any, Any, Any],
        if_cancelled: Callable[[], None] | None = None,
    ) -> asyncio.Task[Any]:
        """Run `work` until it is done, or is cancelled here.

        Args:
            work: none of it runs if it is cancelled before its first step.
            if_cancelled: is called when the task was cancelled, also before its first step.
        """
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if if_cancelled is not None:
            task.add_done_callback(lambda task: if_cancelled() if task.cancelled() else None)
        return task

    def cancel(self) -> None:
        """Cancel all tasks; `wait` waits until they are over."""
        for task in self._tasks:
            task.cancel()

    async def wait(self) -> None:
        """Wait until all tasks are over; their errors are not raised."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self._logger.error("%s", self._words, exc_info=task.exception())
