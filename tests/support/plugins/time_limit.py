"""The time limit of a test, on a loop that sleeps too; a plugin of pytest-timeout.

pytest-timeout raises an ordinary exception in its signal handler. uvloop runs that handler inside a
callback of its own, and hands the exception of an ordinary callback to the loop's exception
handler: the test goes on sleeping. A `SystemExit` leaves the loop. Where a test fails by it, its
teardown may hang for the same reason, so the alarm goes off again and again until the test is over:
it raises while the test's own code runs, and never while pytest reports the outcome. Where even
that is in vain (a call that never returns to the interpreter) the run ends with a traceback.

Hypothesis takes a `SystemExit` for a failure of the example, repeats the example, and reports that
the second run differs: that the data generation is inconsistent, for instance. So a test that ends
with another exception after its limit fails by the limit, and the other exception is the cause.
"""

import asyncio
import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

REPEAT_SECONDS = 5.0
LAST_RESORT_SECONDS = 120.0

_LIMIT = pytest.StashKey[float]()
_IN_TEST = pytest.StashKey[bool]()
_EXCEEDED = pytest.StashKey[bool]()
_STDERR = pytest.StashKey[int]()


class TimeLimitExceeded(SystemExit):
    """A test took longer than it may."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real standard error, from before pytest captures it."""
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Close it again."""
    os.close(config.stash[_STDERR])


@pytest.hookimpl
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Start the clock of a test: setup, call and teardown."""
    item.stash[_LIMIT] = settings.timeout
    item.stash[_EXCEEDED] = False
    _arm(item, settings.timeout)
    return True


@pytest.hookimpl
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    """Stop the clock."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.cancel_dump_traceback_later()
    return True


def _in_test(item: pytest.Item) -> Iterator[None]:
    """Enable the alarm while a phase of a test runs, inside all other wrappers."""
    item.stash[_IN_TEST] = True
    try:
        return (yield)
    except Exception as error:
        if item.stash.get(_EXCEEDED, False):
            raise _exceeded(item) from error
        raise
    finally:
        item.stash[_IN_TEST] = False


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """See `_in_test`."""
    return (yield from _in_test(item))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """See `_in_test`."""
    return (yield from _in_test(item))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """See `_in_test`."""
    return (yield from _in_test(item))


@pytest.hookimpl(wrapper=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> Iterator[None]:
    """Start the clock again for the teardown of a test that failed: both plugins stop theirs."""
    yield
    limit = node.stash.get(_LIMIT, 0.0)
    if limit and isinstance(node, pytest.Item):
        _arm(node, limit)


def _arm(item: pytest.Item, seconds: float) -> None:
    def ring(_number: int, _frame: FrameType | None) -> None:
        if not item.stash.get(_IN_TEST, False):
            return
        _print_stacks()
        item.stash[_EXCEEDED] = True
        raise _exceeded(item)

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, min(seconds, REPEAT_SECONDS))
    faulthandler.dump_traceback_later(
        seconds + LAST_RESORT_SECONDS, exit=True, file=item.config.stash[_STDERR]
    )


def _exceeded(item: pytest.Item) -> TimeLimitExceeded:
    limit = item.stash[_LIMIT]
    return TimeLimitExceeded(f"the test took longer than its limit of {limit:g} s")


def _print_stacks() -> None:
    """Print the stacks of the other threads and of every task of the running loop."""
    for number, top in sys._current_frames().items():
        if number != threading.get_ident():  # pytest prints where this one is
            sys.stderr.write(f"--- thread {number}\n")
            traceback.print_stack(top, file=sys.stderr)
    if asyncio._get_running_loop() is None:
        return
    for task in asyncio.all_tasks():
        sys.stderr.write(f"--- task {task.get_name()}\n")
        stack = traceback.StackSummary.extract(_frames(task.get_coro()))
        sys.stderr.writelines(stack.format())


def _frames(awaited: Any) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of a coroutine and of the coroutines that it awaits, outermost first."""
    while awaited is not None:
        for kind in ("cr", "gi", "ag"):
            frame = getattr(awaited, f"{kind}_frame", None)
            if frame is not None:
                yield frame, frame.f_lineno
                awaited = getattr(awaited, f"{kind}_await", getattr(awaited, "gi_yieldfrom", None))
                break
        else:
            return
