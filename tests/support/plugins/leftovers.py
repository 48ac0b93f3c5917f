"""Leftovers of a failed test, reported with that test: a plugin of pytest.

A test that fails halfway leaves connections and files open, and each complains when it is collected
as garbage. Without this that happens during a later test, which then fails without a reason of its
own.
"""

import gc
import sys
from collections.abc import Iterator

import pytest

_HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Note that a test has failed."""
    node.stash[_HAS_FAILED] = True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Collect the objects that a failed test has left, and fail its teardown with the complaints.

    Raises:
        AssertionError: something was left open.
    """
    try:
        return (yield)
    finally:
        if item.stash.get(_HAS_FAILED, False):
            complaints = _collected()
            assert not complaints, f"the failed test has left open: {'; '.join(complaints)}"


def _collected() -> list[str]:
    """Collect garbage, and return the complaints of its objects."""
    # pytest keeps the failure there until the next test, and by its traceback all that was open.
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)
    complaints: list[str] = []
    reported, sys.unraisablehook = (
        sys.unraisablehook,
        lambda each: complaints.append(f"{each.exc_value}"),
    )
    try:
        gc.collect()
    finally:
        sys.unraisablehook = reported
    return complaints
