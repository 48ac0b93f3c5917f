"""Asynchronous generators that are dropped before their end: their owner has not closed them."""

import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def watched(report: Callable[[str], None]) -> Iterator[None]:
    """Report the name of each generator that begins in the block and is dropped before its end.

    Such a generator stays as it is, where an event loop would close it by a task of its own.
    """

    def dropped(generator: AsyncGenerator[Any, Any]) -> None:
        report(generator.__qualname__)

    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(finalizer=dropped)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*before)
