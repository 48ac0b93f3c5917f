"""Outcomes of connections are counted once, also while the store is away, and within a bound."""

from contextlib import suppress

import pytest
from support.base.cases import cases
from support.market.market import Market
from support.market.metering import Node, bought_and_used, node_of

from market.bandwidth.lease_book import Tally
from market.bandwidth.usage import Sum
from market.bandwidth.usage_range import UTC, Step, range_of
from proxyd.access import ENDING_OF_REFUSAL
from proxyd.metering.cluster_writer import ClusterTimes
from proxyd.metering.meter import Meter, MeterBounds, solo_meter
from proxyd.metering.tallies import Tallies, TallyBounds
from proxyd.wire.events import Refusal
from storage.engines.errors import UnavailableError

AT_ONCE = MeterBounds(cluster=ClusterTimes(flush_seconds=0.0))


@pytest.fixture(params=["alone", "among others"])
async def meter(request: pytest.FixtureRequest, market: Market) -> Meter:
    if request.param == "alone":
        return solo_meter(market.leases, market.clock.seconds, connections_per_session=10)
    node: Node = await node_of(market, bounds=AT_ONCE)
    return node.meter


async def written(market: Market) -> Sum:
    """Return the stored sum of all sessions; there is one buyer."""
    range_ = range_of(Step.HOUR, UTC, None, None, now=market.clock.seconds())
    buyer = await market.store.read(_buyer)
    return (await market.usage.series(buyer, range_)).total


async def _buyer(tx: object) -> str:
    [user_id] = await tx.all(str, "SELECT DISTINCT user_id FROM bandwidth_sessions")  # type: ignore[attr-defined]
    return str(user_id)


async def test_counts_are_written_once_and_with_the_bytes(market: Market, meter: Meter) -> None:
    [session, quiet] = await bought_and_used(market, meter, 2)
    meter.tallies.begin(session.id)
    meter.tallies.refuse(session.id, "timed_out")
    await meter.flush()
    await meter.flush()
    assert await written(market) == Sum(2, 2 * 1_000_000, 1, {"timed_out": 1})
    meter.tallies.begin(quiet.id)  # nothing else has changed
    await meter.flush()
    assert (await written(market)).connections == 2
    meter.tallies.refuse(quiet.id, "timed_out", 3)
    await meter.stop()
    assert (await written(market)).refusals == {"timed_out": 4}


async def test_counts_wait_for_a_store_that_is_away(
    market: Market, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    [session] = await bought_and_used(market, meter, 1)

    async def away(*_: object, **__: object) -> None:
        raise UnavailableError("away")

    meter.tallies.begin(session.id)
    with monkeypatch.context() as patched:
        patched.setattr(market.leases, "exchange", away)
        for _ in range(3):
            meter.tallies.refuse(session.id, "timed_out")
            with suppress(UnavailableError):
                await meter.flush()
    await meter.flush()
    assert await written(market) == Sum(1, 1_000_000, 1, {"timed_out": 3})


def test_unwritten_tallies_are_bounded() -> None:
    tallies = Tallies(TallyBounds(sessions_max=3, reported_max_sessions=2))
    for number in range(5):
        tallies.begin(str(number))
        tallies.refuse(str(number), "over", 2)
    tallies.begin("0")
    taken = tallies.take()
    assert taken == [Tally("0", 2, (("over", 2),)), Tally("1", 1, (("over", 2),))]
    assert tallies.take() == [Tally("2", 1, (("over", 2),))]
    assert tallies.take() == []
    tallies.put_back(taken)
    tallies.begin("1")
    assert tallies.take() == [taken[0], Tally("1", 2, (("over", 2),))]


@cases("refusal", Refusal)
def test_a_refusal_is_called_as_in_access_records(refusal: Refusal) -> None:
    assert ENDING_OF_REFUSAL[refusal] == refusal.name.lower()
