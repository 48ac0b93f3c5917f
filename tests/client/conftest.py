"""Devices have Python's own event loop, so their programs are tested on that one."""

import asyncio
from collections.abc import Callable


def pytest_asyncio_loop_factories(config: object, item: object) -> dict[str, Callable]:
    """Replace the daemon's loop for the tests below this folder."""
    return {"asyncio": asyncio.new_event_loop}
