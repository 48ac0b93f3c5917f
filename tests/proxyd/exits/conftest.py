"""The exits' port, for the tests of this folder."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.exits.device import Port

from proxyd.wiring.bounds import Bounds


@pytest.fixture
async def port(tmp_path: Path, bounds: Bounds) -> AsyncIterator[Port]:
    """Devices may attach there; nothing is left when the test is over."""
    opened = Port(tmp_path, bounds=bounds.exits)
    yield opened
    await opened.close()
    assert opened.counters.parked == 0
    assert len(opened.listener) == 0
