"""Byte counters over a store: alone on it, and as a node that other nodes know."""

from collections.abc import AsyncIterator

import pytest
from support.market.market import Market
from support.market.metering import Node, node_of

from proxyd.metering.meter import USUAL, Meter, MeterBounds, solo_meter


@pytest.fixture
def bounds() -> MeterBounds:
    """The bounds of the meter and the node; a test may be parametrized with others."""
    return USUAL


@pytest.fixture
async def meter(market: Market, bounds: MeterBounds) -> AsyncIterator[Meter]:
    """A meter over the market's store."""
    made = solo_meter(
        market.leases, market.clock.seconds, connections_per_session=10, bounds=bounds
    )
    yield made
    await made.stop()


@pytest.fixture
async def node(market: Market, bounds: MeterBounds) -> AsyncIterator[Node]:
    """A node that others know."""
    made = await node_of(market, bounds=bounds)
    yield made
    await made.meter.stop()
