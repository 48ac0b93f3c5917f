"""The bounds of the code: small, frozen values, and `build` hands each to its part."""

from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
from support.daemons.service import running_in
from support.exits.device import EXITS

from api.http.limits import ConnectionTimes
from proxyd.exits.choosing.bounds import DirectoryBounds
from proxyd.exits.dialling.dial import DialTimes
from proxyd.exits.watching.bounds import CanaryBounds
from proxyd.gateway import ClientBounds
from proxyd.metering.meter import MeterBounds
from proxyd.metering.sessions import MemoryBounds
from proxyd.relay.closing import ClosingBounds
from proxyd.wiring.bounds import Bounds, ExitBounds
from proxyd.wiring.market_work import CheckTimes

FIELDS_MAX = 12


def parts(bounds: Any) -> Iterator[Any]:
    """Yield bounds, and all those within them."""
    yield bounds
    for each in fields(bounds):
        value = getattr(bounds, each.name)
        if is_dataclass(value):
            yield from parts(value)


@pytest.mark.parametrize("part", [*parts(Bounds())], ids=lambda part: type(part).__name__)
def test_bounds_are_small_positive_and_unchanging(part: Any) -> None:
    assert 0 < len(fields(part)) <= FIELDS_MAX
    values = {each.name: getattr(part, each.name) for each in fields(part)}
    assert all(is_dataclass(value) or value > 0 for value in values.values())
    for name, value in values.items():
        with pytest.raises(FrozenInstanceError):
            setattr(part, name, value)


async def test_each_part_of_a_daemon_gets_its_own(tmp_path: Path) -> None:
    bounds = Bounds(
        clients=ClientBounds(room_after_seconds=1.5, closing=ClosingBounds(patience_seconds=7.0)),
        metering=MeterBounds(memory=MemoryBounds(unseen_most=7)),
        exits=ExitBounds(
            directory=DirectoryBounds(gone_total=7),
            dials=DialTimes(unanswered_seconds=7.0),
            canaries=CanaryBounds(alive_seconds=7.0),
        ),
        checks=CheckTimes(expiry_seconds=7.0),
        api=ConnectionTimes(sweep_seconds=7.0),
    )
    async with running_in(tmp_path, bounds=bounds, **EXITS) as service:
        daemon = service.daemon
        assert daemon.gateway._room_after_seconds == 1.5
        assert daemon.http._limits.times is bounds.api
        assert daemon.gateway.closer.bounds is bounds.clients.closing
        assert daemon.core.meter.sessions._bounds is bounds.metering.memory
        exits, port = daemon.gateway._for_connections.exits, daemon.exit_port
        assert exits is not None
        assert port is not None
        assert exits.times is bounds.exits.dials
        assert exits.directory._bounds is bounds.exits.directory
        assert port.canaries._bounds is bounds.exits.canaries
        assert daemon.services is not None
        assert daemon.core.work._times is bounds.checks
