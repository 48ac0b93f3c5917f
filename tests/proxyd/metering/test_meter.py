"""The meter's memory of sessions agrees with the store, whatever fails in between."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
from support import nodes
from support.market import Market
from support.sessions import Stalled, use
from support.statements import counted
from support.waiting import until

from market.bandwidth import Purchase
from market.credentials import new_credentials
from market.leases import Grant
from market.money import GB
from market.notices import Notice, Topic
from market.states import SessionStatus
from proxyd.metering import single_flight
from proxyd.metering.cluster_writer import ClusterWriter
from proxyd.metering.lease_slices import Fence
from proxyd.metering.meter import Meter, cluster_meter, solo_meter
from proxyd.metering.session import LiveSession
from proxyd.metering.single_flight import LOOKUPS_MAX, RUNNING_MAX
from proxyd.wire.events import Refusal
from storage.bandwidth import find, leased_elsewhere
from storage.errors import UnavailableError

HERE, THERE = "198.51.100.1", "198.51.100.2"


async def admitted(meter: Meter, bought: Purchase, network: str = HERE) -> LiveSession | Refusal:
    """Show a session's credentials."""
    return await shown(meter, bought.username, bought.password, network)


async def shown(meter: Meter, username: str, password: str, network: str) -> LiveSession | Refusal:
    """Show any credentials."""
    answer: asyncio.Future[LiveSession | Refusal] = asyncio.get_running_loop().create_future()
    decision = meter.admit(username.encode(), password.encode(), network, answer.set_result)
    return decision if decision is not None else await answer


async def test_a_cut_that_is_taken_back_leaves_a_session_usable_that_was_being_leased(
    market: Market,
) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    meter = solo_meter(market.leases, market.clock.seconds, connections_per_session=10)
    asking = asyncio.create_task(admitted(meter, bought))
    await asyncio.sleep(0)
    meter.cut(bought.session_id, SessionStatus.ENDED)
    assert await asking is Refusal.OVER
    meter.restore(bought.session_id)
    session = await admitted(meter, bought)
    assert isinstance(session, LiveSession)
    assert session.available == GB
    await meter.stop()


async def test_a_session_past_its_time_is_not_made_usable_by_a_cut_that_is_taken_back(
    market: Market,
) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    meter = solo_meter(market.leases, market.clock.seconds, connections_per_session=10)
    market.clock.now += 31 * 86_400
    assert await admitted(meter, bought) is Refusal.OVER
    meter.cut(bought.session_id, SessionStatus.EXPIRED)
    meter.restore(bought.session_id)
    assert meter.live == 0
    await meter.stop()


async def test_a_session_that_ended_elsewhere_leaves_nothing_behind(market: Market) -> None:
    """Its addresses had kept it in memory for as long as the node lived."""
    market.leases.node_id = "here"
    await market.store.write(nodes.register, "here", market.clock.seconds())
    user = await market.person("10")
    bought = await market.bandwidth.buy(
        user,
        quota_bytes=GB,
        price_per_gb=None,
        allow_ips=["203.0.113.7"],
        client="203.0.113.7",
    )
    fence = Fence(lambda: 0.0)
    meter, writer = cluster_meter(
        market.leases, market.clock.seconds, fence, connections_per_session=10
    )
    answer: asyncio.Future[LiveSession | Refusal] = asyncio.get_running_loop().create_future()
    assert meter.admit_address(0, "203.0.113.7", HERE, answer.set_result) is None
    assert isinstance(await answer, LiveSession)
    writer.hear(Notice(Topic.CUT, bought.session_id, SessionStatus.ENDED, "elsewhere").text)
    await meter.flush()
    del answer
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, LiveSession)]
    assert [each for each in kept if each.id == bought.session_id] == []
    await meter.stop()


class Node(NamedTuple):
    """What counts the bytes of a node that others know."""

    meter: Meter
    writer: ClusterWriter


async def node_of(market: Market) -> Node:
    """Return a node that others know."""
    market.leases.node_id = "here"
    await market.store.write(nodes.register, "here", market.clock.seconds())
    fence = Fence(lambda: 0.0)
    return Node(
        *cluster_meter(market.leases, market.clock.seconds, fence, connections_per_session=10)
    )


@pytest.fixture
async def node(market: Market) -> AsyncIterator[Node]:
    """A node that others know."""
    made = await node_of(market)
    yield made
    await made.meter.stop()


@pytest.mark.parametrize("committed", [False, True])
async def test_a_session_that_is_ended_elsewhere_while_it_is_leased_is_let_go_at_once(
    market: Market,
    node: Node,
    monkeypatch: pytest.MonkeyPatch,
    committed: bool,
) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    cut = Notice(Topic.CUT, bought.session_id, SessionStatus.ENDED, "there").text
    lease = market.leases.open

    async def slow(session_id: str) -> Grant | None:
        if not committed:
            node.writer.hear(cut)
        grant = await lease(session_id)
        node.writer.hear(cut)
        return grant

    monkeypatch.setattr(market.leases, "open", slow)
    assert await admitted(node.meter, bought) is Refusal.OVER
    await node.meter.flush()
    assert not await market.store.read(leased_elsewhere, bought.session_id, "there")
    assert (await market.store.read(find, bought.session_id)).bytes_leased == 0


async def test_a_session_that_is_not_ended_after_all_is_refused_for_a_moment_only(
    market: Market, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxyd.metering.cluster_writer.CUT_SECONDS", 0.0)
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    cut = Notice(Topic.CUT, bought.session_id, SessionStatus.ENDED, "there").text
    lease = market.leases.open

    async def slow(session_id: str) -> Grant | None:
        node.writer.hear(cut)
        return await lease(session_id)

    with monkeypatch.context() as patch:
        patch.setattr(market.leases, "open", slow)
        assert await admitted(node.meter, bought) is Refusal.OVER
    await node.meter.flush()
    node.meter.sessions.forget_old(())
    assert isinstance(await admitted(node.meter, bought), LiveSession)


async def test_the_meter_gives_back_what_it_is_not_sure_to_have(
    market: Market, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    write = market.store.write

    async def unanswered(*unit: object, **values: object) -> None:
        await write(*unit, **values)
        raise UnavailableError("connection lost")

    with monkeypatch.context() as patch:
        patch.setattr(market.store, "write", unanswered)
        assert await admitted(node.meter, bought) is Refusal.UNAVAILABLE
    assert (await market.store.read(find, bought.session_id)).bytes_leased > 0
    await node.meter.flush()
    assert (await market.store.read(find, bought.session_id)).bytes_leased == 0


async def test_a_session_that_cannot_be_settled_holds_up_no_other(
    market: Market, caplog: pytest.LogCaptureFixture
) -> None:
    user = await market.person("10")
    sold = [await market.bandwidth.buy(user, quota_bytes=10, price_per_gb=None) for _ in range(3)]
    meter = solo_meter(market.leases, market.clock.seconds, connections_per_session=10)
    running = asyncio.create_task(meter.run())
    async with market.without_hold(sold[0]):
        for bought in sold:
            session = await admitted(meter, bought)
            assert isinstance(session, LiveSession)
            session.take(10, None)
            session.deliver(10)

        async def settled() -> bool:
            sessions = await market.bandwidth.page(user, status=None, before="", limit=10)
            over = {each.id for each in sessions if each.status is SessionStatus.EXHAUSTED}
            return over == {each.session_id for each in sold[1:]}

        await until(settled, "the others are settled")
        assert f"session {sold[0].session_id}: used up and cannot be settled" in caplog.text
        assert await admitted(meter, sold[0]) is Refusal.EXHAUSTED
        left = await market.store.read(find, sold[0].session_id)
        assert (left.status, left.bytes_used, left.bytes_leased) == ("active", 10, 0)
        assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await meter.stop()
    await market.leases.recover()


async def test_where_the_store_is_away_one_session_waits_for_it_and_not_each_in_turn(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = await market.person("10")
    sold = [await market.bandwidth.buy(user, quota_bytes=10, price_per_gb=None) for _ in range(3)]
    meter = solo_meter(market.leases, market.clock.seconds, connections_per_session=10)
    for bought in sold:
        session = await admitted(meter, bought)
        assert isinstance(session, LiveSession)
        session.take(10, None)
        session.deliver(10)
    tried: list[str] = []

    async def away(session_id: str, *_: object) -> None:
        tried.append(session_id)
        raise UnavailableError("away")

    with monkeypatch.context() as patched:
        patched.setattr(market.leases, "settle", away)
        await meter.flush()
        assert len(tried) == 1
        await meter.flush()
        assert len(set(tried)) == 2  # whoever met that is the last to meet it again
    await meter.flush()
    await meter.stop()
    sessions = await market.bandwidth.page(user, status=None, before="", limit=10)
    assert {each.status for each in sessions} == {SessionStatus.EXHAUSTED}


# --- wrong credentials ---------------------------------------------------------------------------


@pytest.fixture
async def meter(market: Market) -> AsyncIterator[Meter]:
    """A meter over the market's store."""
    made = solo_meter(market.leases, market.clock.seconds, connections_per_session=10)
    yield made
    await made.stop()


@pytest.fixture
def reads(market: Market, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list as long as the number of times that the store was read."""
    return counted(market.store, "read", monkeypatch)


@pytest.mark.parametrize(
    "username",
    ["", "admin", "a" * 15, "a" * 17, "A" * 16, "0" * 16, "a" * 15 + "\n", "ü" * 8, "é" * 16],
)
async def test_a_user_name_that_was_never_made_is_wrong_without_a_question_to_the_store(
    meter: Meter, reads: list[int], username: str
) -> None:
    assert await shown(meter, username, "secret", HERE) is Refusal.WRONG
    assert reads == []


async def test_credentials_that_open_nothing_are_asked_about_once_in_a_while(
    meter: Meter, market: Market, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_flight, "NEGATIVE_SECONDS", 1000.0)
    bought = await market.bandwidth.buy(
        await market.person("10"), quota_bytes=GB, price_per_gb=None
    )
    del reads[:]
    unknown = new_credentials()
    for _ in range(20):
        assert await shown(meter, unknown.username, unknown.password, HERE) is Refusal.WRONG
        assert await shown(meter, bought.username, "wrong", THERE) is Refusal.WRONG
    assert len(reads) == 2
    assert isinstance(await admitted(meter, bought), LiveSession)


async def test_what_is_remembered_of_wrong_credentials_is_bounded_and_forgotten(
    meter: Meter, reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(single_flight, "NEGATIVE_SECONDS", 1000.0)
    monkeypatch.setattr(single_flight, "NEGATIVE_MAX", 2)
    one, two, three = (new_credentials() for _ in range(3))
    for each in (one, two, three, three, two, one):  # the third drives the first out
        assert await shown(meter, each.username, "secret", HERE) is Refusal.WRONG
    assert len(reads) == 4
    monkeypatch.setattr(single_flight, "NEGATIVE_SECONDS", 0.0)
    for _ in range(2):
        assert await shown(meter, new_credentials().username, "secret", HERE) is Refusal.WRONG
    other = new_credentials()
    for _ in range(2):
        assert await shown(meter, other.username, "secret", HERE) is Refusal.WRONG
    assert len(reads) == 8


async def test_a_network_that_floods_with_made_up_credentials_holds_up_itself_alone(
    meter: Meter, market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    bought = await market.bandwidth.buy(
        await market.person("10"), quota_bytes=GB, price_per_gb=None
    )
    find, asked = market.leases.find, []

    async def noting(username: str, password: bytes) -> str | None:
        asked.append(username)
        return await find(username, password)

    monkeypatch.setattr(market.leases, "find", noting)
    outcomes: list[LiveSession | Refusal] = []
    for _ in range(LOOKUPS_MAX):
        username = new_credentials().username.encode()
        decision = meter.admit(username, b"secret", HERE, outcomes.append)
        if decision is not None:
            outcomes.append(decision)
    assert outcomes == [Refusal.UNAVAILABLE] * (LOOKUPS_MAX // 2)
    assert isinstance(await admitted(meter, bought, THERE), LiveSession)
    assert asked.index(bought.username) <= RUNNING_MAX + 1, "it has waited for the flood"
    await until(lambda: len(outcomes) == LOOKUPS_MAX, "the flood is answered, too")
    assert outcomes.count(Refusal.WRONG) == LOOKUPS_MAX // 2


# --- writing counts down -------------------------------------------------------------------------


async def bought_and_used(market: Market, meter: Meter, count: int) -> list[LiveSession]:
    """Return sessions that have used a byte each."""
    user = await market.person("100")
    sessions = []
    for _ in range(count):
        bought = await market.bandwidth.buy(user, quota_bytes=1_000, price_per_gb=None)
        session = await admitted(meter, bought)
        assert isinstance(session, LiveSession)
        use(session, 1)
        sessions.append(session)
    return sessions


async def written(market: Market, session: LiveSession) -> int:
    """Return how many bytes the store says that a session has used."""
    return int((await market.store.read(find, session.id)).bytes_used)


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
