"""Drills with a real Patroni: kills, switchovers, partitions and a frozen primary, under load.

`make patroni` runs them: KILLS=10 SWITCHOVERS=10 are the numbers of rounds. The measured figures
are printed after the last drill.
"""

import asyncio
import os
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic

import asyncpg
import pytest
from support.base.waiting import until
from support.clients.socks import tunnel
from support.daemons import process
from support.daemons.process import Process
from support.outages.outage_load import Load, Seen
from support.outages.patroni import CLIENTS, TTL_SECONDS, URL, Cluster, Machine
from support.targets import targets

pytestmark = pytest.mark.timeout(1200)

KILLS = int(os.environ.get("KILLS") or 10)
SWITCHOVERS = int(os.environ.get("SWITCHOVERS") or 10)
# From a machine's death: Patroni notices it after its ttl, and promotes a standby.
DEATH_SECONDS = TTL_SECONDS + 5.0
# A lost machine may have led etcd as well: its leases live anew with etcd's next leader, after its
# election, and a standby that asks the silent machine waits for two seconds.
CUT_DEATH_SECONDS = DEATH_SECONDS + 3.0
# In strict mode a commit waits for a standby besides, and Patroni 3.0 lets the third machine sleep
# for two seconds before it follows another primary.
SWITCHOVER_SECONDS = 6.0 if os.environ.get("STRICT") == "1" else 3.0
# The patience of a load balancer with a probe.
PROBE_SECONDS = 5.0
# The time that a network is cut.
CUT_SECONDS = {"everybody": 50, "peers": 45, "clients": 30}
FREEZE_SECONDS = 30
ETCD_SECONDS = 30
# A daemon searches twice a second, and may have lost packets to repeat.
FOUND_SECONDS = 5.0
CALM_SECONDS = 2.0
# A daemon that noticed the new primary late has its lease by then.
END_SECONDS = 60.0
QUOTA = 20_000_000
GB = 1_000_000_000
FIGURES: list[tuple[str, list[Seen]]] = []


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    """Prints the figures of all drills."""
    yield
    if not FIGURES:
        return
    head = (*("drill", "rounds", "writes stop", "refused", "slowest answer"), "not ready")
    rows = [(*head, "slowest probe", "relay stalls", "dials refused")]
    for name, seen in FIGURES:
        columns = [tuple(each) for each in seen]
        figures = [
            f"{statistics.median(column):.1f} / {max(column):.1f}"
            for column in zip(*columns, strict=True)
        ]
        rows.append((name, str(len(seen)), *figures))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print("\nmedian / most of the rounds, in seconds or requests")  # noqa: T201
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(" | ".join(cells))  # noqa: T201


@asynccontextmanager
async def loaded(
    cluster: Cluster, daemons: Sequence[Process], buyer: tuple[str, str]
) -> AsyncIterator[Load]:
    """Load the daemons, and compare the books with the customers' records."""
    await asyncio.to_thread(cluster.wait_healthy)
    load = Load(daemons, *buyer)
    try:
        async with load.running():
            yield load
            await asyncio.to_thread(cluster.wait_healthy)
            await load.written_after(monotonic(), seconds=DEATH_SECONDS)
        assert load.surprises == []
        assert [each for each in load.relays if each.cut] == []
        await nothing_is_lost(load)
        await nothing_is_billed_beyond_delivery(load)
        await asyncio.to_thread(process.assert_audit, URL)
    except BaseException:
        print(cluster.report())  # noqa: T201
        for each in daemons:
            print(f"\n--- a daemon\n{each.output[-4000:]}")  # noqa: T201
        raise
    print(f"{len(load.accepted)} writes acknowledged, 0 lost")  # noqa: T201


async def nothing_is_lost(load: Load) -> None:
    rows = await query("SELECT id, title FROM jobs")
    there = {row["id"]: row["title"] for row in rows}
    lost = {each for each, title in load.accepted.items() if there.get(each) != title}
    assert not lost, f"{len(lost)} of {len(load.accepted)} acknowledged jobs are lost"
    titles = list(there.values())
    assert len(set(titles)) == len(titles), "a repeated request made another job"


async def nothing_is_billed_beyond_delivery(load: Load) -> None:
    delivered: dict[str, int] = {}
    for each in load.relays:
        delivered[each.session] = delivered.get(each.session, 0) + each.received

    async def is_reported() -> bool:
        billed = await used(list(delivered))
        assert all(billed[each] <= size for each, size in delivered.items()), (billed, delivered)
        return billed == delivered

    # Every byte is reported as well: no daemon died.
    await until(is_reported, "all counts are written")


async def used(sessions: Sequence[str]) -> dict[str, int]:
    rows = await query(
        "SELECT id, bytes_used FROM bandwidth_sessions WHERE id = ANY($1)", list(sessions)
    )
    return {row["id"]: row["bytes_used"] for row in rows}


async def query(statement: str, *arguments: object) -> list[asyncpg.Record]:
    connection = await asyncpg.connect(URL, target_session_attrs="read-write")
    try:
        return await connection.fetch(statement, *arguments)
    finally:
        await connection.close()


async def measured(
    cluster: Cluster,
    load: Load,
    outage: Callable[[Machine], Awaitable[None]],
) -> Seen:
    """Return the effects of an outage of the leader, until the cluster is healthy again."""
    leader = await asyncio.to_thread(cluster.wait_healthy)
    await asyncio.sleep(CALM_SECONDS)
    begin = monotonic()
    await outage(leader)
    await load.written_after(monotonic(), seconds=DEATH_SECONDS)
    await asyncio.to_thread(cluster.wait_healthy)
    end = monotonic()
    seen = load.seen(begin, end)
    refusals = load.refusals(begin, end)
    shown = "\n  ".join([*refusals[:4], *refusals[4:][-4:]])
    print(f"\n{leader.name}: {seen}\n  {shown}", flush=True)  # noqa: T201
    return seen


async def test_a_switchover_refuses_nothing(
    cluster: Cluster, daemons: list[Process], buyer: tuple[str, str]
) -> None:
    async def switch(leader: Machine) -> None:
        await asyncio.to_thread(cluster.switch_over, leader)
        assert await asyncio.to_thread(cluster.wait_led_by_another, leader)

    async with loaded(cluster, daemons, buyer) as load:
        seen = [await measured(cluster, load, switch) for _ in range(SWITCHOVERS)]
    FIGURES.append(("switchover", seen))
    assert [each.refused for each in seen] == [0] * SWITCHOVERS
    assert max(each.slowest for each in seen) < SWITCHOVER_SECONDS
    assert max(each.slowest_probe for each in seen) < PROBE_SECONDS


async def test_a_killed_primary_stops_writes_no_longer_than_patroni_needs(
    cluster: Cluster, daemons: list[Process], buyer: tuple[str, str]
) -> None:
    async with loaded(cluster, daemons, buyer) as load:

        async def kill(leader: Machine) -> None:
            begin = monotonic()
            leader.kill()
            await load.written_after(begin + CALM_SECONDS, seconds=2 * DEATH_SECONDS)
            leader.start()

        seen = [await measured(cluster, load, kill) for _ in range(KILLS)]
    FIGURES.append(("kill -9", seen))
    assert max(each.writes_stopped for each in seen) <= DEATH_SECONDS
    assert max(each.slowest_probe for each in seen) < PROBE_SECONDS


@pytest.mark.parametrize("name", list(CUT_SECONDS))
async def test_a_partition(
    name: str, cluster: Cluster, daemons: list[Process], buyer: tuple[str, str]
) -> None:
    async def cut(leader: Machine) -> None:
        if name == "everybody":
            leader.cut_off()
        elif name == "peers":
            leader.cut_from([each.address for each in cluster.others(leader)])
        else:
            leader.cut_from([CLIENTS])
        await asyncio.sleep(CUT_SECONDS[name])
        leader.reconnect()
        if not leader.is_running():
            leader.start()  # its watchdog has reset it, as a primary without etcd may be

    async with loaded(cluster, daemons, buyer) as load:
        seen = await measured(cluster, load, cut)
    FIGURES.append((f"cut from {name}", [seen]))
    bound = CUT_SECONDS[name] + FOUND_SECONDS if name == "clients" else CUT_DEATH_SECONDS
    assert seen.writes_stopped <= bound
    assert seen.slowest_probe < PROBE_SECONDS


async def test_etcd_without_a_majority_stops_nothing(
    cluster: Cluster, daemons: list[Process], buyer: tuple[str, str]
) -> None:
    async def lose(leader: Machine) -> None:
        lost = [leader, cluster.others(leader)[0]]
        for each in lost:
            each.kill_etcd()
        await asyncio.sleep(ETCD_SECONDS)
        for each in lost:
            each.start_etcd()

    async with loaded(cluster, daemons, buyer) as load:
        seen = await measured(cluster, load, lose)
    FIGURES.append(("etcd lost on two machines", [seen]))
    assert seen.writes_stopped <= FOUND_SECONDS
    assert seen.refused == 0


async def test_a_frozen_primary_is_reset_by_its_watchdog(
    cluster: Cluster, daemons: list[Process], buyer: tuple[str, str]
) -> None:
    async def freeze(leader: Machine) -> None:
        resets = leader.watchdog.resets
        leader.freeze()
        await asyncio.sleep(FREEZE_SECONDS)
        assert leader.watchdog.resets == resets + 1
        assert not leader.is_running()
        leader.start()

    async with loaded(cluster, daemons, buyer) as load:
        seen = await measured(cluster, load, freeze)
    FIGURES.append(("frozen, reset by the watchdog", [seen]))
    assert seen.writes_stopped <= DEATH_SECONDS
    assert seen.slowest_probe < PROBE_SECONDS


async def test_a_session_is_used_to_its_last_byte_over_a_failover(
    cluster: Cluster, daemons: list[Process], buyer: tuple[str, str]
) -> None:
    received = 0

    async def read(index: int, proxy: dict[str, str], port: int) -> None:
        nonlocal received
        daemon = daemons[index]
        client = await tunnel(
            daemon.proxy_port, proxy["username"], proxy["password"], "127.0.0.1", port
        )
        try:
            while data := await client.reader.read(65_536):
                received += len(data)
        except ConnectionError:
            pass  # cut at the end of its session
        finally:
            client.writer.close()

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            writer.write(b"x" * 8192)
            await writer.drain()
            await asyncio.sleep(0.02)

    leader = await asyncio.to_thread(cluster.wait_healthy)
    bought = daemons[0].buy(daemons[0].log_in(*buyer), gb=QUOTA / GB)
    async with targets.serving(send) as target:
        reads = [
            asyncio.create_task(read(index, bought["proxy"], target.port))
            for index in range(len(daemons))
        ]
        await until(lambda: received > QUOTA // 4, "a quarter is used")
        leader.kill()
        assert await asyncio.to_thread(cluster.wait_led_by_another, leader)
        before = received
        async with asyncio.timeout(END_SECONDS):
            await asyncio.gather(*reads)
    leader.start()
    assert before < QUOTA  # it ended after the failover
    session = bought["session_id"]

    async def is_settled() -> bool:
        [row] = await query("SELECT status FROM bandwidth_sessions WHERE id = $1", session)
        return row["status"] == "exhausted"

    await until(is_settled, "the session is settled")
    assert (await used([session]))[session] == QUOTA
    assert received == QUOTA
    await asyncio.to_thread(cluster.wait_healthy)
    process.assert_audit(URL)
