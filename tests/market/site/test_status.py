"""The status: states, shares of time, and notices, with and without the database."""

import asyncio
from typing import Any

import pytest
from support.market.market import Market
from support.market.staff import ROOT

from market.base.errors import Code, MarketError
from market.site.status import COMPONENTS, State
from market.site.texts import Texts
from market.staff.site import site
from storage.engines.errors import Cause, UnavailableError
from storage.engines.store import Transaction
from storage.site import status as queries

HOUR = 3_600
ALL: dict[str, State] = {**dict.fromkeys(COMPONENTS, "working"), "exits": "off"}  # type: ignore[dict-item]


async def work(market: Market, seconds: int, *, failing: str = "") -> None:
    """Let the parts work for a whole hour or a part of it, which several looks would record."""
    worked = {name: seconds for name in COMPONENTS if name not in ("exits", failing)}
    await market.store.write(queries.record, market.clock.now, ALL, worked)
    market.clock.now += seconds


async def states(market: Market) -> dict[str, tuple[str, float | None, float | None]]:
    market.clock.now += 5
    report = await market.status.report()
    return {each.name: (each.state, each.day, each.ninety_days) for each in report.components}


@pytest.mark.both_engines
async def test_shares_count_failures_and_gaps(market: Market) -> None:
    market.clock.now = market.clock.now // HOUR * HOUR
    assert (await states(market))["api"] == ("unknown", None, None)
    market.clock.now -= 5
    await work(market, HOUR)
    await work(market, HOUR // 2)
    assert (await states(market))["api"][1] is None
    market.clock.now -= 5
    await work(market, HOUR // 2)
    for _ in range(3):
        await work(market, HOUR, failing="mail")
    market.clock.now += 5 * HOUR  # the daemon is away
    await work(market, HOUR)
    await market.status.look(ALL)
    found = await states(market)
    assert found["exits"] == ("off", None, None)
    state, day, ninety_days = found["api"]
    assert state == "working"
    assert day == pytest.approx(5 / 10, abs=0.01)
    assert day == ninety_days
    assert found["mail"][1] == pytest.approx(2 / 10, abs=0.01)
    market.clock.now += 60
    assert (await states(market))["api"][0] == "unknown"


async def test_visitors_at_the_same_time_cause_one_read(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts, reads, read = Texts(market.context), list[object](), market.store.read

    async def count(work: Any, *args: Any) -> Any:
        reads.append(work)
        return await read(work, *args)

    monkeypatch.setattr(market.store, "read", count)
    for _ in range(2):
        await asyncio.gather(*(market.status.report() for _ in range(50)))
        await asyncio.gather(*(texts.versions() for _ in range(50)))
        market.clock.now += 10
    assert len(reads) == 4


@pytest.mark.both_engines
async def test_hours_are_kept_for_ninety_days(market: Market) -> None:
    await market.status.look(ALL)
    market.clock.now += 91 * 86_400
    await market.status.look(ALL)

    async def count(tx: Transaction) -> int | None:
        return await tx.one(int, "SELECT COUNT(*) FROM status_hours WHERE component = 'api'")

    assert await market.store.read(count) == 1


@pytest.mark.both_engines
async def test_notices_are_shown_until_a_week_after_their_end(market: Market) -> None:
    row = await site.notify(
        market.context, ROOT, severity="warning", title="Work", body="Tonight.", why="planned"
    )
    report = await market.status.report()
    assert report.notices == (row,)
    market.clock.now += 10
    await site.finish(market.context, ROOT, row.id, "done")
    assert (await market.status.report()).notices[0].ended_at == market.clock.now
    with pytest.raises(MarketError) as caught:
        await site.finish(market.context, ROOT, row.id, "done")
    assert caught.value.code is Code.NOTICE_NOT_FOUND
    market.clock.now += 8 * 86_400
    assert (await market.status.report()).notices == ()
    for changes in ({"severity": "none"}, {"title": ""}, {"body": "x" * 2_001}):
        given = {"severity": "info", "title": "Work", "body": "", **changes}
        with pytest.raises(MarketError):
            await site.notify(market.context, ROOT, **given, why="planned")


async def test_a_report_is_cached_and_outlives_the_database(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    await market.status.look(ALL)
    first = await market.status.report()
    assert await market.status.report() is first
    market.clock.now += 5

    async def away(*_: Any, **__: Any) -> None:
        raise UnavailableError("no connection", Cause.UNREACHABLE)

    monkeypatch.setattr(market.store, "read", away)
    found = {each.name: each.state for each in (await market.status.report()).components}
    assert (found["database"], found["api"]) == ("failing", "unknown")
