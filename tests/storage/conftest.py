"""Where processes meet that share an SQLite database."""

from pathlib import Path

import pytest

from storage.engines.node_folder import NodeFolder


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    """The folder beside a database that is not there yet."""
    made = NodeFolder(tmp_path / "proxyd.db")
    made.make()
    return made
