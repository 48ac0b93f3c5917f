"""Where the console's tests have their files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import memory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory: a database, and what a browser keeps."""
    with memory.folder() as made:
        yield made
