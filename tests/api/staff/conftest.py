"""A running daemon with a staff API."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.clients.staff import StaffApi, staffed


@pytest.fixture
async def staff(tmp_path: Path) -> AsyncIterator[StaffApi]:
    async with staffed(tmp_path) as running:
        yield running
