"""Work that a cancelled caller does not break off, because the next step needs its outcome.

A cancellation during a write leaves open whether the write was committed. A caller that took its
preparations back then could undo what the database has.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def finished(work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of work; a cancelled caller waits until the work is over.

    A second cancellation also cancels the work, so that a caller that must end can end.

    Raises:
        CancelledError: the caller was cancelled; the work may have succeeded or failed.
    """
    task = asyncio.get_running_loop().create_task(work, name="finishing")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        try:
            await asyncio.wait([task])
        finally:
            task.cancel()  # it is over, unless the second cancellation has come
        if not task.cancelled():
            task.exception()  # the caller is gone, and the work has handled its error
        raise
