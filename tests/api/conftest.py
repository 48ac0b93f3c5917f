"""Where the API's tests have their files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import memory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory: most tests here write a database, and run nothing from there."""
    with memory.folder() as made:
        yield made
