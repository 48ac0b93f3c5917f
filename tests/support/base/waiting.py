"""Waiting for a condition instead of sleeping for luck."""

import asyncio
import time
from collections.abc import Awaitable, Callable

# Half of a test's time limit, so that the failure names the wait that timed out. No test waits for
# it to be over; a machine with ten times the work that it can do has needed 20 s for the start of a
# daemon.
PATIENCE_SECONDS = 60.0
STEP_SECONDS = 0.01


async def until(
    condition: Callable[[], bool | Awaitable[bool]],
    what: str = "",
    *,
    seconds: float = PATIENCE_SECONDS,
) -> None:
    """Wait until a condition, plain or awaitable, holds."""
    deadline = time.monotonic() + seconds
    while True:
        outcome = condition()
        if isinstance(outcome, Awaitable):
            outcome = await outcome
        if outcome:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"never came true: {what or condition}")
        await asyncio.sleep(STEP_SECONDS)


def until_true(condition: Callable[[], bool], what: str | Callable[[], str] = "") -> None:
    """Wait, in a test without a loop, until a condition holds; `what` names it in the failure."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            told = what() if callable(what) else what
            raise AssertionError(f"never came true: {told or condition}")
        time.sleep(STEP_SECONDS)
