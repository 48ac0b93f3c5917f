"""Counts are written down, of what moved and of nothing else."""

import pytest
from support.market import Market
from support.metering import Stalled, bought_and_used, node_of, use, written

from market.states import SessionStatus
from proxyd.metering.meter import Meter
from proxyd.metering.session import LiveSession


@pytest.mark.parametrize("among_nodes", [False, True])
async def test_a_flush_looks_at_the_sessions_that_moved_and_at_no_other(
    market: Market, meter: Meter, monkeypatch: pytest.MonkeyPatch, among_nodes: bool
) -> None:
    monkeypatch.setattr("proxyd.metering.cluster_writer.FLUSH_SECONDS", 0.0)
    meter = (await node_of(market)).meter if among_nodes else meter
    sessions = await bought_and_used(market, meter, 20)
    for _ in range(2):  # to write them down, and to see that they are
        await meter.flush()
    asked: list[str] = []
    certain = LiveSession.certain

    def asking(session: LiveSession) -> int:
        asked.append(session.id)
        return certain(session)

    monkeypatch.setattr(LiveSession, "certain", asking)
    for session in sessions[:2]:
        use(session, 5)
    assert len(meter._writer._changed) == 2, "a flush goes through no more than these"
    await meter.flush()
    assert sorted(asked) == sorted(each.id for each in sessions[:2])
    assert [await written(market, each) for each in sessions[:3]] == [6, 6, 1]
    await meter.flush()
    assert len(asked) == 2
    assert not meter._writer._changed
    await meter.stop()


async def test_what_is_uncertain_is_written_down_once_it_is_certain(
    market: Market, meter: Meter
) -> None:
    [session] = await bought_and_used(market, meter, 1)
    sink = Stalled()
    session.take(10, None)
    session.deliver(10, sink)
    for _ in range(2):
        await meter.flush()
        assert await written(market, session) == 1
    sink.waiting = 0
    await meter.flush()
    assert await written(market, session) == 11


async def test_what_a_session_used_is_written_down_after_a_cut_that_is_taken_back(
    market: Market, meter: Meter
) -> None:
    [session] = await bought_and_used(market, meter, 1)
    meter.cut(session.id, SessionStatus.ENDED)
    await meter.flush()
    meter.restore(session.id)
    await meter.flush()
    assert await written(market, session) == 1
