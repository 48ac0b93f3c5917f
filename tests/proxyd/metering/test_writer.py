"""Counts are written for sessions that moved, and for no other."""

import pytest
from support.market.exits import exit_device
from support.market.market import Market
from support.market.metering import Stalled, admitted, bought_and_used, node_of, use, written

from market.bandwidth.leases import Ask, LeaseReply, Leases, Tally, Usage
from market.bandwidth.notices import Notice, Topic
from market.base.states import SessionStatus
from market.money.money import GB
from proxyd.metering.cluster_writer import ClusterTimes
from proxyd.metering.meter import Meter, MeterBounds
from proxyd.metering.session import LiveSession
from proxyd.wire.events import Refusal
from storage.bandwidth import sessions as session_queries
from storage.engines.errors import UnavailableError
from storage.engines.store import Transaction

AT_ONCE = MeterBounds(cluster=ClusterTimes(flush_seconds=0.0))


@pytest.mark.parametrize("among_nodes", [False, True])
async def test_a_flush_looks_at_the_sessions_that_moved_and_at_no_other(
    market: Market, meter: Meter, monkeypatch: pytest.MonkeyPatch, among_nodes: bool
) -> None:
    meter = (await node_of(market, bounds=AT_ONCE)).meter if among_nodes else meter
    sessions = await bought_and_used(market, meter, 20)
    for _ in range(2):  # to write them down, and to see that they are
        await meter.flush()
    asked: list[str] = []
    certain_usage = LiveSession.certain_usage

    def asking(session: LiveSession) -> Usage:
        asked.append(session.id)
        return certain_usage(session)

    monkeypatch.setattr(LiveSession, "certain_usage", asking)
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


async def test_uncertain_bytes_are_written_down_once_they_are_certain(
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


async def test_the_bytes_of_a_session_are_written_down_after_a_cut_that_is_taken_back(
    market: Market, meter: Meter
) -> None:
    [session] = await bought_and_used(market, meter, 1)
    meter.cut(session.id, SessionStatus.ENDED)
    await meter.flush()
    meter.restore(session.id)
    await meter.flush()
    assert await written(market, session) == 1


async def test_a_stored_end_whose_answer_was_lost_lets_no_client_in(
    market: Market, meter: Meter
) -> None:
    """The bytes of such a client were not billed."""
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    session = await admitted(meter, bought)
    usage = meter.cut(bought.session_id, SessionStatus.ENDED)
    await market.leases.end(bought.session_id, SessionStatus.ENDED, usage)
    meter.restore(bought.session_id)
    assert await admitted(meter, bought) is Refusal.OVER
    await meter.flush()
    assert await admitted(meter, bought) is Refusal.OVER
    assert isinstance(session, LiveSession)
    assert session.available == GB


async def test_a_session_whose_end_was_not_stored_is_usable_after_a_report(
    market: Market, meter: Meter
) -> None:
    [session] = await bought_and_used(market, meter, 1)
    meter.cut(session.id, SessionStatus.ENDED)
    meter.restore(session.id)
    assert not session.is_leased
    await meter.flush()
    assert session.is_leased


async def test_a_report_from_before_the_doubt_confirms_no_session(
    market: Market, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have read the lease before the end was stored."""
    [session] = await bought_and_used(market, meter, 1)
    report = Leases.report
    reported: list[int] = []

    async def doubted_meanwhile(
        leases: Leases, usages: list[Usage], tallies: list[Tally]
    ) -> list[LeaseReply]:
        replies = await report(leases, usages, tallies)
        reported.append(len(usages))
        if len(reported) == 1:
            meter.cut(session.id, SessionStatus.ENDED)
            meter.restore(session.id)
        return replies

    monkeypatch.setattr(Leases, "report", doubted_meanwhile)
    await meter.flush()
    assert not session.is_leased
    use(session, 1)  # it had been read from the client before
    await meter.flush()
    assert session.is_leased
    assert reported == [1, 1]
    assert await written(market, session) == 2


async def test_a_stop_releases_a_session_whose_end_is_in_doubt(
    market: Market, meter: Meter
) -> None:
    [session] = await bought_and_used(market, meter, 1)
    meter.cut(session.id, SessionStatus.ENDED)
    meter.restore(session.id)
    await meter.stop()
    assert await written(market, session) == 1
    row = await market.store.read(session_queries.find, session.id)
    assert row is not None
    assert row.bytes_leased == 0


class Reports:
    """Reports of a session's exits to the store, by every call that carries them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: list[tuple[int, dict[str, int]]] = []
        exchange, release, settle = Leases.exchange, Leases.release, Leases.settle

        async def exchanging(
            leases: Leases, asks: list[Ask], tallies: list[Tally]
        ) -> list[LeaseReply]:
            self.note([ask.usage for ask in asks])
            return await exchange(leases, asks, tallies)

        async def releasing(leases: Leases, usages: list[Usage]) -> None:
            self.note(usages)
            await release(leases, usages)

        async def settling(
            leases: Leases, session_id: str, status: SessionStatus, usage: Usage | None
        ) -> bool:
            self.note([usage] if usage is not None else [])
            return await settle(leases, session_id, status, usage)

        monkeypatch.setattr(Leases, "exchange", exchanging)
        monkeypatch.setattr(Leases, "release", releasing)
        monkeypatch.setattr(Leases, "settle", settling)

    def note(self, usages: list[Usage]) -> None:
        """Keep it, if exits appear in it: a node also reports unchanged counts."""
        self.counts += [(each.used_bytes, dict(each.exits)) for each in usages if each.exits]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    return Reports(monkeypatch)


@pytest.fixture
async def one(market: Market) -> str:
    """An exit."""
    return (await exit_device(market)).id


@pytest.fixture
async def two(market: Market) -> str:
    """Another one."""
    return (await exit_device(market)).id


def through(session: LiveSession, device_id: str, size: int, sink: Stalled | None = None) -> None:
    """Deliver bytes through an exit."""
    session.take(size, None)
    session.share_of(device_id).deliver(size, sink)


async def carried(market: Market, session: LiveSession) -> dict[str, int]:
    """Return the stored bytes that each exit has carried of a session."""

    async def counts(tx: Transaction) -> list[tuple[str, int]]:
        return await tx.all(
            lambda device_id, size: (device_id, int(size)),
            """SELECT device_id, SUM(used_bytes) FROM exit_usage
               WHERE session_id = :session_id GROUP BY device_id""",
            session_id=session.id,
        )

    return dict(await market.store.read(counts))


@pytest.mark.parametrize("among_nodes", [False, True])
async def test_exits_are_reported_with_the_session_when_theirs_is_certain(
    market: Market, meter: Meter, reports: Reports, among_nodes: bool, one: str, two: str
) -> None:
    meter = (await node_of(market, bounds=AT_ONCE)).meter if among_nodes else meter
    [session] = await bought_and_used(market, meter, 1)
    sink = Stalled()
    through(session, one, 100)
    through(session, two, 50, sink)
    await meter.flush()
    assert reports.counts == [(141, {one: 100, two: 40})]
    await meter.flush()
    sink.waiting = 0
    use(session, 3)
    await meter.flush()
    assert reports.counts[1:] == [(154, {two: 50})], "the first is not told again"
    through(session, one, 1)
    await meter.stop()
    assert reports.counts[2:] == [(155, {one: 101})]
    assert await written(market, session) == 155
    assert await carried(market, session) == {one: 101, two: 50}


@pytest.mark.parametrize("among_nodes", [False, True])
async def test_unwritten_counts_are_reported_again(
    market: Market,
    meter: Meter,
    reports: Reports,
    monkeypatch: pytest.MonkeyPatch,
    among_nodes: bool,
    one: str,
) -> None:
    meter = (await node_of(market, bounds=AT_ONCE)).meter if among_nodes else meter
    [session] = await bought_and_used(market, meter, 1)
    through(session, one, 100)

    async def failing(_: Leases, asks: list[Ask], tallies: list[Tally]) -> list[LeaseReply]:
        raise UnavailableError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr(Leases, "exchange", failing)
        await meter.flush()
    assert reports.counts == []
    await meter.flush()
    assert reports.counts == [(101, {one: 100})]
    assert await carried(market, session) == {one: 100}


async def test_a_session_that_is_used_up_is_settled_with_its_exits(
    market: Market, meter: Meter, reports: Reports, one: str, two: str
) -> None:
    [session] = await bought_and_used(market, meter, 1)
    sink = Stalled()
    through(session, one, 400)
    await meter.flush()
    through(session, two, 599, sink)
    await meter.flush()
    assert reports.counts == [(401, {one: 400}), (990, {two: 589})]
    sink.waiting = 0
    await meter.flush()
    assert reports.counts[2:] == [(1000, {two: 599})]
    assert await carried(market, session) == {one: 400, two: 599}


@pytest.mark.parametrize("among_nodes", [False, True])
async def test_a_cut_reports_the_same_bytes_of_the_exits_and_the_session(
    market: Market, meter: Meter, among_nodes: bool, one: str
) -> None:
    meter = (await node_of(market, bounds=AT_ONCE)).meter if among_nodes else meter
    [session] = await bought_and_used(market, meter, 1)
    through(session, one, 100)
    usage = meter.cut(session.id, SessionStatus.ENDED)
    assert usage == Usage(session.id, session.lease_id or "", 101, ((one, 100),))
    await meter.stop()


async def test_a_session_that_a_node_is_called_back_for_is_released_with_its_exits(
    market: Market, reports: Reports, one: str
) -> None:
    node = await node_of(market)
    [session] = await bought_and_used(market, node.meter, 1)
    through(session, one, 100)
    node.writer.hear(Notice(Topic.CUT, session.id, SessionStatus.ENDED, "there").text)
    await node.meter.flush()
    assert (101, {one: 100}) in reports.counts
    await node.meter.stop()
