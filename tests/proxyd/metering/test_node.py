"""A node among others: deaths, and the sweeper."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest
from support.market import nodes
from support.market.market import Market
from support.market.metering import admitted

from market.bandwidth import lease_transactions
from market.bandwidth.leases import Leases
from market.base.ids import Identifiers
from market.money.money import GB
from proxyd.loop.clock import ObservedTime
from proxyd.metering.fence import Fence
from proxyd.metering.meter import cluster_meter
from proxyd.metering.node import Node, Reaper
from proxyd.wire.events import Refusal
from proxyd.wiring.membership import Membership
from proxyd.wiring.tasks import Tasks

TIMEOUT_SECONDS = 15.0


class FakeLink:
    """A link whose ended nodes the test sets."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.asked_to_sweep = 0
        self.is_free = False
        self.has_lock = True

    async def connect(self, on_notice: Callable[[str], None], on_lost: Callable[[], None]) -> None:
        """No notice arrives."""

    async def register(self, node_id: str) -> None:
        """No record is kept."""

    async def renew(self, node_id: str) -> bool:
        return True

    async def exited(self, node_ids: Collection[str]) -> list[str]:
        return [each for each in node_ids if each in self.ended]

    async def end_hanging(self) -> int:
        return 0

    async def try_to_sweep(self) -> bool:
        self.asked_to_sweep += 1
        return self.has_lock

    async def is_unswept(self) -> bool:
        return self.is_free

    async def close(self) -> None:
        """Nothing is open."""


class Time:
    """A clock that a test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_node_that_has_ended_is_reaped_at_once_and_a_silent_one_after_the_timeout(
    market: Market,
) -> None:
    for name in ("ended", "silent"):
        await market.store.write(nodes.register, name, market.clock.seconds())
    link, time = FakeLink(), Time()
    reaper = Reaper(market.leases, link, ObservedTime(time, 2.0), TIMEOUT_SECONDS)
    assert await reaper.reap() == (0, 0, 0)
    link.ended.append("ended")
    assert await reaper.reap() == (0, 1, 0)
    assert [row.id for row in await market.leases.nodes()] == ["silent"]
    for _ in range(int(TIMEOUT_SECONDS) - 1):
        time.now += 1.0
        assert await reaper.reap() == (0, 0, 0)
    time.now += 1.0
    assert await reaper.reap() == (0, 0, 1)
    assert await market.leases.nodes() == []


@pytest.mark.parametrize(
    ("may_sweep", "is_free", "reaps"),
    [(True, True, True), (False, False, False), (False, True, True)],
)
async def test_a_node_that_must_not_sweep_leaves_the_lock_to_others_and_reaps_without_them(
    market: Market, may_sweep: bool, is_free: bool, reaps: bool
) -> None:
    link, time = FakeLink(), Time()
    link.is_free = is_free
    fence = Fence(time)
    _, writer = cluster_meter(
        market.leases, market.clock.seconds, fence, connections_per_session=10
    )
    node = Node(
        link,
        market.leases,
        writer,
        fence,
        Identifiers(lambda: 0),
        time,
        ObservedTime(time, 2.0),
        timeout_seconds=TIMEOUT_SECONDS,
        may_sweep=may_sweep,
    )
    await node.start()
    assert (node.duties.sweeps, node.duties.reaps) == (may_sweep, reaps)
    assert link.asked_to_sweep == int(may_sweep)


async def test_a_node_that_takes_over_the_lock_has_watched_the_others_before(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    await market.store.write(nodes.register, "silent", market.clock.seconds())
    looks: asyncio.Queue[None] = asyncio.Queue()
    read = market.leases.nodes

    async def noted() -> Any:
        rows = await read()
        looks.put_nowait(None)
        return rows

    monkeypatch.setattr(market.leases, "nodes", noted)
    link, time = FakeLink(), Time()
    link.has_lock = False
    fence = Fence(time)
    _, writer = cluster_meter(
        market.leases, market.clock.seconds, fence, connections_per_session=10
    )
    node = Node(
        link,
        market.leases,
        writer,
        fence,
        Identifiers(lambda: 0),
        time,
        ObservedTime(time, 2.0),
        timeout_seconds=TIMEOUT_SECONDS,
    )
    await node.start()
    membership = Membership(market.leases, node, check_seconds=0.01)
    tasks = Tasks(lambda: False)
    membership.spawn_tasks(tasks)
    try:
        async with asyncio.timeout(5.0):
            for _ in range(2 * int(TIMEOUT_SECONDS)):
                await looks.get()
                time.now += 1.0
        assert [row.id for row in await read()] == ["silent"]
        link.has_lock = True
        await node.duties.take()  # the time stands still from here on
        async with asyncio.timeout(5.0):
            while await read():
                await asyncio.sleep(0.01)
    finally:
        await tasks.end()


async def test_a_lease_that_arrives_while_a_dead_node_registers_again_is_not_used(
    market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other nodes have taken its bytes back: a client had them once more."""
    user = await market.person("10")
    bought = await market.bandwidth.buy(user, quota_bytes=GB, price_per_gb=None)
    is_leased, is_answered, is_decided = asyncio.Event(), asyncio.Event(), asyncio.Event()
    write = market.store.write

    async def late(work: Callable[..., Any], *args: Any, **options: Any) -> object:
        result = await write(work, *args, **options)
        if work is lease_transactions.open_lease:
            is_leased.set()
            await is_answered.wait()
        return result

    monkeypatch.setattr(market.store, "write", late)
    link, time = FakeLink(), Time()

    async def register(node_id: str) -> None:
        await write(nodes.register, node_id, market.clock.seconds())
        if is_leased.is_set():
            is_answered.set()
            await is_decided.wait()

    async def renew(node_id: str) -> bool:
        return node_id in [row.id for row in await market.leases.nodes()]

    monkeypatch.setattr(link, "register", register)
    monkeypatch.setattr(link, "renew", renew)
    fence = Fence(time)
    meter, writer = cluster_meter(
        market.leases, market.clock.seconds, fence, connections_per_session=10
    )
    node = Node(
        link,
        market.leases,
        writer,
        fence,
        Identifiers(lambda: 0),
        time,
        ObservedTime(time, 2.0),
        timeout_seconds=TIMEOUT_SECONDS,
    )
    await node.start()
    admission = asyncio.create_task(admitted(meter, bought))
    async with asyncio.timeout(5.0):
        await is_leased.wait()
        time.now += TIMEOUT_SECONDS
        assert await Leases(market.context).reap(await market.leases.nodes()) == 1
        admission.add_done_callback(lambda _: is_decided.set())
        renewals = asyncio.create_task(node.run())
        decision = await admission
        while fence.is_up:
            await asyncio.sleep(0.01)
    renewals.cancel()
    assert decision is Refusal.UNAVAILABLE
    assert list(meter.sessions) == []
    again = await admitted(meter, bought)
    assert not isinstance(again, Refusal)
    assert again.allowance(None) > 0
    await meter.stop()
