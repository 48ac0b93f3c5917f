"""A node shares sessions with others: it releases, gives back and forgets bytes in time."""

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from support.base.waiting import until
from support.market.market import Market
from support.market.metering import (
    HERE,
    Node,
    Stalled,
    admitted,
    bought_and_used,
    node_of,
    use,
    written,
)

from api.http.limits import ConnectionTimes
from market.bandwidth import lease_transactions
from market.bandwidth.leases import RECALL_SECONDS, Grant, Leases, Usage
from market.bandwidth.notices import Notice, Topic
from market.base.states import SessionStatus
from market.money.money import GB
from proxyd.metering.cluster_writer import USUAL, ClusterTimes
from proxyd.metering.meter import MeterBounds
from proxyd.metering.session import LiveSession
from proxyd.wire.events import Refusal
from storage.bandwidth.sessions import find, leased_elsewhere
from storage.engines.store import Transaction


def timed(**times: float) -> pytest.MarkDecorator:
    """Have the node report and let go at these times (`ClusterTimes`)."""
    return pytest.mark.parametrize(
        "bounds", [MeterBounds(cluster=ClusterTimes(**times))], ids=["timed"]
    )


async def test_a_session_that_ended_elsewhere_leaves_nothing_behind(
    market: Market, node: Node
) -> None:
    """Its addresses had kept it in memory for as long as the node lived."""
    user = await market.person("10")
    bought = await market.bandwidth.buy(
        user,
        quota_bytes=GB,
        price_per_gb=None,
        allow_ips=["203.0.113.7"],
        client="203.0.113.7",
    )
    answer: asyncio.Future[LiveSession | Refusal] = asyncio.get_running_loop().create_future()
    assert node.meter.admit_address(0, "203.0.113.7", HERE, answer.set_result) is None
    assert isinstance(await answer, LiveSession)
    node.writer.hear(Notice(Topic.CUT, bought.session_id, SessionStatus.ENDED, "elsewhere").text)
    await node.meter.flush()
    del answer
    gc.collect()
    kept = [each for each in gc.get_objects() if isinstance(each, LiveSession)]
    assert [each for each in kept if each.id == bought.session_id] == []


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


@timed(cut_seconds=0.0)
async def test_a_session_that_is_not_ended_after_all_is_refused_for_a_moment_only(
    market: Market, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
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


async def test_a_session_that_ends_lets_no_client_in_on_a_node_that_has_no_lease_of_it(
    market: Market, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients that one node cuts come to the next: a lease there kept the end waiting, and cost."""
    there = await node_of(market, "there", Leases(market.context))
    elsewhere = await node_of(market, "elsewhere", Leases(market.context))
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    session = await admitted(there.meter, bought)
    assert isinstance(session, LiveSession)
    use(session, 1_000)
    write = market.store.write
    is_recalled = asyncio.Event()

    async def delivered(work: Callable[..., Any], *args: Any, **options: Any) -> object:
        result = await write(work, *args, **options)
        if work is lease_transactions.settle_or_recall and not result:
            cut = Notice(Topic.CUT, bought.session_id, SessionStatus.ENDED, options["node_id"])
            for other in (there, elsewhere):
                other.writer.hear(cut.text)
            is_recalled.set()
        return result

    monkeypatch.setattr(market.store, "write", delivered)
    end = asyncio.create_task(market.bandwidth.end(user, bought.session_id))
    await is_recalled.wait()
    assert await admitted(elsewhere.meter, bought) is Refusal.OVER
    for other in (there, elsewhere):
        await other.meter.flush()
    await end
    assert await written(market, session) == 1_000
    for other in (there, elsewhere):
        await other.meter.stop()


async def test_a_session_whose_end_is_taken_back_while_it_is_leased_is_let_go_of_no_more(
    market: Market, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease was closed with bytes that had not left yet, and were given back too late."""
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    lease = market.leases.open

    async def slow(session_id: str) -> Grant | None:
        node.meter.cut(session_id, SessionStatus.ENDED)
        return await lease(session_id)

    with monkeypatch.context() as patch:
        patch.setattr(market.leases, "open", slow)
        assert await admitted(node.meter, bought) is Refusal.OVER
    node.meter.restore(bought.session_id)
    session = await admitted(node.meter, bought)
    assert isinstance(session, LiveSession)
    sink = Stalled()
    sink.waiting = 400
    use(session, 500, sink)
    await node.meter.flush()
    assert node.meter.sessions.get(session.id) is session
    assert (session.status, await written(market, session)) == (SessionStatus.ACTIVE, 100)
    sink.waiting = 0


async def test_an_end_that_fails_after_the_last_report_takes_nothing_back(
    market: Market, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is closed in the store, or may be: clients need another one."""
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    lease, release = market.leases.open, market.leases.release

    async def cut_meanwhile(session_id: str) -> Grant | None:
        node.meter.cut(session_id, SessionStatus.ENDED)
        return await lease(session_id)

    async def restored_meanwhile(usages: list[Usage]) -> None:
        node.meter.restore(bought.session_id)
        assert await admitted(node.meter, bought) is Refusal.OVER
        await release(usages)

    with monkeypatch.context() as patch:
        patch.setattr(market.leases, "open", cut_meanwhile)
        patch.setattr(market.leases, "release", restored_meanwhile)
        assert await admitted(node.meter, bought) is Refusal.OVER
        await node.meter.flush()
    assert node.meter.sessions.get(bought.session_id) is None


@pytest.mark.long
@timed(cut_seconds=3.0)
async def test_a_client_that_keeps_trying_is_refused_no_longer_than_others(
    market: Market, node: Node
) -> None:
    """Each try leases the session and lets it go; that once began the refusal anew."""
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    assert isinstance(await admitted(node.meter, bought), LiveSession)
    node.writer.hear(Notice(Topic.CUT, bought.session_id, SessionStatus.ENDED, "there").text)
    refused = 0
    async with asyncio.timeout(60):
        while not isinstance(await admitted(node.meter, bought), LiveSession):
            refused += 1
            await node.meter.flush()
            node.meter.sessions.forget_old(())
            await asyncio.sleep(0.05)
    assert refused > 1


async def test_a_node_that_is_declared_dead_while_it_lets_go_has_forgotten_everything(
    market: Market, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    [session] = await bought_and_used(market, node.meter, 1)
    release = market.leases.release

    async def slow(usages: list[Usage]) -> None:
        await release(usages)
        node.writer.forget_all()

    monkeypatch.setattr(market.leases, "release", slow)
    node.writer.hear(Notice(Topic.CUT, session.id, SessionStatus.ENDED, "there").text)
    await node.meter.flush()
    assert list(node.meter.sessions) == []


async def leased(market: Market, session: LiveSession) -> int:
    """Return how many bytes of a session are leased, in the store."""
    return int((await market.store.read(find, session.id)).bytes_leased)


@timed(flush_seconds=0.0, idle_seconds=0.0)
async def test_unused_bytes_are_returned_and_a_session_at_rest_is_left_alone(
    market: Market, node: Node
) -> None:
    [session] = await bought_and_used(market, node.meter, 1)

    async def at_rest() -> bool:
        await node.meter.flush()
        return not node.writer._holding._sessions

    await until(at_rest, "it is seen to be idle, then it returns everything")
    assert (await leased(market, session), session.available) == (0, 0)
    session.wait(lambda: None)  # a client is back, and wants bytes
    await node.meter.flush()
    assert session.available == await leased(market, session) == 1_000 - 1
    await until(at_rest, "it leaves again")
    assert (await leased(market, session), session.available) == (0, 0)
    assert await written(market, session) == 1


@timed(flush_seconds=0.0, idle_seconds=0.0)
async def test_a_session_whose_cut_is_taken_back_returns_its_unused_bytes(
    market: Market, node: Node
) -> None:
    [session] = await bought_and_used(market, node.meter, 1)
    node.meter.cut(session.id, SessionStatus.ENDED)
    await node.meter.flush()
    assert not node.writer._holding._sessions
    node.meter.restore(session.id)

    async def is_returned() -> bool:
        await node.meter.flush()
        return await leased(market, session) == 0

    await until(is_returned)
    assert await written(market, session) == 1


async def test_a_lease_that_another_program_reduced_cuts_only_its_session(
    market: Market, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = await bought_and_used(market, node.meter, 2)

    async def reduce(tx: Transaction) -> None:
        for table, column, key in (
            ("bandwidth_leases", "granted_bytes", "session_id"),
            ("bandwidth_sessions", "bytes_leased", "id"),
        ):
            await tx.run(
                f"UPDATE {table} SET {column} = {column} - 10 WHERE {key} = :id", id=first.id
            )

    await market.store.write(reduce)
    await node.meter.flush()
    assert f"session {first.id}: lease reduced" in caplog.text
    assert first.status is SessionStatus.ENDED
    assert second.status is SessionStatus.ACTIVE


def test_a_cut_session_is_refused_for_longer_than_its_end_waits() -> None:
    """Or a client that is let in again pays for bytes that it got after the end."""
    assert USUAL.cut_seconds > RECALL_SECONDS


def test_a_request_that_ends_a_session_has_the_time_to_do_so_while_the_api_stops() -> None:
    assert ConnectionTimes().shutdown_seconds > RECALL_SECONDS
