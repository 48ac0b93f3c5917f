"""Waiting for a condition instead of sleeping for luck."""

import asyncio
import time
from collections.abc import Awaitable, Callable

# Half of a test's time limit, so that the failure names the wait that timed out. No test waits for
# it to be over; a machine with ten times the work that it can do has needed 20 s for the start of a
# daemon.
PATIENCE_SECONDS = 60.0
STEP_SECONDS = 0.01
# A test that has waited for long looks less often: a look can be a request to a daemon, or reads of
# all processes of the machine.
LONGEST_STEP_SECONDS = 0.05
STEP_SHARE = 0.05  # of the time so far


def _step(began: float) -> float:
    """Return the pause before the next look of a wait that began at that monotonic time."""
    return min(LONGEST_STEP_SECONDS, max(STEP_SECONDS, STEP_SHARE * (time.monotonic() - began)))


async def until(
    condition: Callable[[], bool | Awaitable[bool]],
    what: str = "",
    *,
    seconds: float = PATIENCE_SECONDS,
) -> None:
    """Wait until a condition, plain or awaitable, holds."""
    began = time.monotonic()
    while True:
        outcome = condition()
        if isinstance(outcome, Awaitable):
            outcome = await outcome
        if outcome:
            return
        if time.monotonic() > began + seconds:
            raise AssertionError(f"never came true: {what or condition}")
        await asyncio.sleep(_step(began))


def until_true(condition: Callable[[], bool], what: str | Callable[[], str] = "") -> None:
    """Wait, in a test without a loop, until a condition holds; `what` names it in the failure."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + PATIENCE_SECONDS:
            told = what() if callable(what) else what
            raise AssertionError(f"never came true: {told or condition}")
        time.sleep(_step(began))
