"""Where the console's tests have their files, and one browser for all that a process runs."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from support.base import memory
from support.console.browser import CHROMIUM, Visit, chromium, visiting


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory for a database."""
    with memory.folder() as made:
        yield made


@pytest.fixture(scope="session")
def devtools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running browser's DevTools."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    with chromium(tmp_path_factory.mktemp("chromium")) as address:
        yield address


@pytest.fixture
async def visit(devtools: str) -> AsyncIterator[Visit]:
    """A context of that browser; a complaint of its pages fails the test."""
    async with aiohttp.ClientSession() as http, visiting(devtools, http) as made:
        yield made
