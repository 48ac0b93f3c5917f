"""The background tasks: each has a name and one owner, and the daemon does not outlive it."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from proxyd.loop import cancellation
from storage.engines.errors import StoreError, level_of

_logger = logging.getLogger("daemon")


class Tasks:
    """Starts, watches and ends tasks.

    A task that fails stops the daemon: it is drained as on SIGTERM, and `has_failed` says that its
    exit status is not 0, so that the service manager starts it anew.

    Args:
        sweeps: returns whether this daemon does the work that only one on the database should do.
    """

    def __init__(self, sweeps: Callable[[], bool]) -> None:
        self._sweeps = sweeps
        self._tasks: list[asyncio.Task[None]] = []
        self._writers: list[asyncio.Task[None]] = []
        self.has_failed = False

    def spawn(
        self, name: str, work: Coroutine[Any, Any, None], *, is_writer: bool = False
    ) -> asyncio.Task[None]:
        """Run `work` until it is done, or is ended here.

        Args:
            name: the name of the task, for the log.
            work: its code, which ends at its cancellation at the latest.
            is_writer: whether it writes counts down, and so is ended before the last are written.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        task.add_done_callback(self._watch)
        (self._writers if is_writer else self._tasks).append(task)
        return task

    def every(
        self, seconds: float, name: str, sweep: Callable[[], Awaitable[object]], what: str
    ) -> asyncio.Task[None]:
        """Spawn a sweep, which runs periodically on the sweeping daemon of a database.

        A sweep that fails is run again the next time. Its failure is logged once, until it has
        succeeded again.

        Args:
            seconds: the wait before each run.
            name: the name of the task.
            sweep: the sweep's code.
            what: waits meanwhile, for the log.
        """
        return self.spawn(name, self._sweep(seconds, sweep, what))

    async def end_writers(self) -> None:
        """End the tasks that write counts down, so that the last ones can be written."""
        await cancellation.end(self._writers)

    async def end_named(self, name: str) -> None:
        """End the tasks of a name, before the others."""
        await cancellation.end(self.named(name))

    def named(self, name: str) -> list["asyncio.Task[None]"]:
        """Return the tasks of a name; writers of counts are not among them."""
        return [task for task in self._tasks if task.get_name() == name]

    async def end(self) -> None:
        """End every task."""
        await cancellation.end([*self._writers, *self._tasks])

    def stop_daemon(self, reason: str) -> None:
        """Drain because a necessary part has ended; the exit status will show a failure."""
        _logger.critical("%s; the daemon stops", reason)
        self.has_failed = True
        signal.raise_signal(signal.SIGTERM)

    def _watch(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and task.exception() is not None:
            _logger.critical("the %s task failed", task.get_name(), exc_info=task.exception())
            self.stop_daemon(f"without its {task.get_name()} task")

    async def _sweep(
        self, seconds: float, sweep: Callable[[], Awaitable[object]], what: str
    ) -> None:
        is_failing = False
        while True:
            await asyncio.sleep(seconds)
            try:
                if self._sweeps():
                    await sweep()
            except StoreError as error:
                if not is_failing:
                    _logger.log(
                        level_of(error, logging.WARNING),
                        "%s wait for the store to return: %s",
                        what,
                        error,
                    )
                is_failing = True
            except Exception:  # any other error: the proxy and the other sweeps go on
                if not is_failing:
                    _logger.exception("%s wait: the sweep failed", what)
                is_failing = True
            else:
                is_failing = False
