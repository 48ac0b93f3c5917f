"""Coroutines that run to their end in a thread, whether or not a loop runs in the caller's."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


def run_aside(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine on a new loop in another thread, and return its result."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
