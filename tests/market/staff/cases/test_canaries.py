"""A failed canary that is void bars its device no more, unless another finding does."""

import pytest
from support.market.books import refusal
from support.market.cases import cases_of, decide, failed_canary
from support.market.market import Market
from support.market.staff import ROOT

from market.base.errors import Code
from market.exits import canaries
from market.staff.audit import audit_all
from market.staff.cases.base import Decision, Kind
from market.staff.stopping import stopping

UPHELD, VOIDED = Decision.UPHELD, Decision.VOIDED


async def is_barred(market: Market, device_id: str) -> bool:
    return (await canaries.record(market.context, device_id)).row.barred_at is not None


@pytest.mark.both_engines
async def test_a_void_finding_lets_the_device_be_an_exit_again(market: Market) -> None:
    device, case_id = await failed_canary(market)
    shown = await cases_of(market).shown(ROOT, Kind.CANARY, case_id)
    facts = {each.name: each.value for each in shown.evidence.facts}
    assert (facts["evidence"], facts["exit"], facts["finding"]) == (
        "evil bytes",
        "barred",
        "content",
    )
    assert [each.what for each in shown.evidence.history] == ["given", "barred"]
    await decide(market, Kind.CANARY, case_id, VOIDED)
    found = await canaries.record(market.context, device.id)
    assert found.row.barred_at is None
    assert [each.event for each in found.history] == ["given", "barred", "pardoned"]
    assert found.findings[0].pardoned_at == market.clock.now
    assert await market.exits.authorize(device.token, market.exits.terms_hash)
    assert (await audit_all(market.store)).passed


async def test_another_finding_still_bars_the_device(market: Market) -> None:
    device, first = await failed_canary(market)
    await market.exit_canaries.bar(device.id, "junk", "y")
    [second] = await cases_of(market).listed(ROOT, Kind.CANARY, limit=1)
    await decide(market, Kind.CANARY, first, VOIDED)
    assert await is_barred(market, device.id)
    await decide(market, Kind.CANARY, second.case.id, VOIDED)
    assert not await is_barred(market, device.id)


async def test_an_upheld_finding_changes_nothing(market: Market) -> None:
    device, case_id = await failed_canary(market)
    await decide(market, Kind.CANARY, case_id, UPHELD)
    assert await is_barred(market, device.id)


async def test_a_bar_by_the_staff_stays(market: Market) -> None:
    device, case_id = await failed_canary(market)
    await stopping.pardon_device(market.context, ROOT, device.id, "a mistake")
    assert await refusal(decide(market, Kind.CANARY, case_id, VOIDED)) is Code.CASE_DECIDED
    await stopping.bar_device(market.context, ROOT, device.id, "a complaint")
    await market.exit_canaries.bar(device.id, "content", "evil again")
    [newest] = await cases_of(market).listed(ROOT, Kind.CANARY, limit=1)
    await decide(market, Kind.CANARY, newest.case.id, VOIDED)
    assert await is_barred(market, device.id)


async def test_a_bar_by_the_staff_after_a_finding_stays(market: Market) -> None:
    """An operator bars; finance decides the case, and must not lift that bar."""
    device, case_id = await failed_canary(market)
    await stopping.bar_device(market.context, ROOT, device.id, "a complaint")
    await decide(market, Kind.CANARY, case_id, VOIDED)
    assert await is_barred(market, device.id)
