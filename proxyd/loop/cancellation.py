"""Ending tasks within a bound, even if a library mishandles a cancellation.

A cancellation can be lost: `asyncio.wait_for` of Python 3.11 returns the result that it waited for
when both come in the same turn of the loop, and the task continues as if it had not been cancelled.
A caller that then waits for the task's end waits for ever.
"""

import asyncio
import logging
from collections.abc import Awaitable, Collection
from typing import Any

# A task of ours has nothing to do after a cancellation that takes longer, and one that was lost is
# made good by the next. Together they stay far below the unit's TimeoutStopSec of 45 s.
ATTEMPTS = 5
ATTEMPT_SECONDS = 1.0

_logger = logging.getLogger("tasks")


async def end(tasks: Collection[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Cancel tasks repeatedly until they have ended; return the tasks that do not end.

    Takes at most `ATTEMPTS` times `ATTEMPT_SECONDS`. The results and errors of the tasks are not
    raised.
    """
    pending = set(tasks)
    for _ in range(ATTEMPTS):
        if not pending:
            break
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=ATTEMPT_SECONDS)
    for task in pending:
        _logger.error("the task %s ignores every cancellation; it is abandoned", task.get_name())
    return pending


async def within(seconds: float, awaitable: Awaitable[Any], name: str) -> None:
    """Wait for something to close, for a bounded time; `name` is its name in the log.

    Raises:
        Exception: its own error, if it raised one in time.
    """

    async def wait() -> None:
        await awaitable

    task = asyncio.get_running_loop().create_task(wait(), name=name)
    done, _ = await asyncio.wait([task], timeout=seconds)
    if done:
        task.result()
    else:
        _logger.error("%s takes longer than %g s; it is cut short", name, seconds)
        await end([task])
