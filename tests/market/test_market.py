"""The marketplace that the daemon and these tests build by the same code."""

from msgspec.structs import replace
from support.market.market import RULES, Market

from market.accounts.bounds import Bounds
from storage.engines.store import Store


async def test_other_bounds_reach_every_service_that_has_some(market: Market) -> None:
    bounds = Bounds(sessions=1, devices=2, jobs=3)
    assert bounds != RULES.bounds
    market.change_bounds(bounds)
    of_services = [each.__dict__ for each in (market.bandwidth, market.devices, market.jobs)]
    of_services += [market.jobs.outcomes.__dict__, market.dispatch.claims.__dict__]
    for fields in of_services:
        assert (fields.get("bounds") or fields["_bounds"])() is bounds


async def test_a_market_set_aside_differs_only_in_the_store(market: Market) -> None:
    context = market.context.set_aside()
    assert context.store is market.store.set_aside()
    assert replace(context, store=market.store) == market.context


async def test_services_share_one_store_and_one_clock(market: Market, store: Store) -> None:
    services = [each for each in vars(market).values() if hasattr(each, "_store")]
    assert {id(each._store) for each in services} == {id(store)}
    clocks = [each._now for each in services if hasattr(each, "_now")]
    assert all(clock == market.clock.seconds for clock in clocks)
