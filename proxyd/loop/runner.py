"""The event loop of a command."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from proxyd.loop import cancellation

Result = TypeVar("Result")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on a new loop, and return its result.

    Closing a loop waits for every task without a bound: where one ignores its cancellation the loop
    stays open, and the process ends all the same.
    """
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        return runner.run(work)
    finally:
        if not runner.run(_end_others()):
            runner.close()


async def _end_others() -> set[asyncio.Task[Any]]:
    return await cancellation.end(asyncio.all_tasks() - {asyncio.current_task()})
