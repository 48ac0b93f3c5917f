"""A PostgreSQL that dies, hangs, moves, or refuses: the daemons recover without a hand.

In each case two daemons have traffic meanwhile. Nothing acknowledged is lost or done twice, no
relay is cut, nothing is billed beyond delivery, and the ledger agrees.
"""

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Any

import asyncpg
import pytest
from support.base import mounts
from support.base.waiting import until
from support.clients.socks import tunnel
from support.daemons.service import running, settings_for
from support.database.postgres_cluster import DATABASE, USER, Cluster, Member
from support.outages.drill import Drill, drilling
from support.targets import targets

from storage.engines.postgres import LOST_ATTEMPTS

Show = Callable[[str], None]

# A failover of a manager such as Patroni takes longer; no promise depends on it.
AWAY_SECONDS = 2.0
# From the moment that a server accepts writes to the first acknowledgement.
RECOVERY_SECONDS = 5.0
# The patience of load balancers.
PROBE_SECONDS = 3.5
# In a row. A unit that loses one connection more is refused. On a slow machine a unit may lose all
# of them.
TERMINATIONS = 3
assert TERMINATIONS < LOST_ATTEMPTS


async def off_loop(call: Callable[..., Any], *args: Any) -> Any:
    """Run something that blocks, beside the daemons of this process."""
    return await asyncio.to_thread(call, *args)


async def recovers(drill: Drill, seconds: float = RECOVERY_SECONDS) -> None:
    """Check that writes go on in time."""
    began = time.monotonic()
    await drill.goes_on()
    took = time.monotonic() - began
    assert took < seconds + 3, f"writes went on after {took:.1f} s"


async def finished(drill: Drill, show: Show, name: str, database: Member) -> None:
    """Let the traffic go on for a moment, check all of it, and show its figures."""
    await drill.goes_on()
    await drill.end()
    await drill.check(database)
    show(drill.seen.line(name))
    slowest = max(seconds for *_, seconds in drill.seen.readiness)
    assert slowest < PROBE_SECONDS, f"/readyz took {slowest:.1f} s"


def reasons(drill: Drill) -> set[str]:
    """Return why daemons were not ready."""
    return {why for status, why, _ in drill.seen.readiness if status != 200}


async def test_killed(cluster: Cluster, show: Show) -> None:
    async with drilling(cluster.url) as drill:
        await off_loop(cluster.primary.kill)
        await asyncio.sleep(AWAY_SECONDS)
        await off_loop(cluster.fail_over)
        await recovers(drill)
        await finished(drill, show, "killed", cluster.standby)
        # Two seconds are within patience; only commits whose answer was lost are refused.
        assert set(drill.seen.refusals) <= {"outcome_unknown"}


async def test_silent(cluster: Cluster, show: Show) -> None:
    """A machine that lost its power answers nothing, and refuses nothing."""
    async with drilling(cluster.url) as drill:
        cluster.primary.wire.freeze()
        await until(lambda: bool(reasons(drill)), "the probes say so")
        await off_loop(cluster.fail_over)
        await recovers(drill)
        # A daemon that starts now finds the new primary behind the silent one.
        began = time.monotonic()
        async with running(settings_for(cluster.url)) as service:
            assert time.monotonic() - began < 8
            assert (await service.call("GET", "/readyz")).status == 200
        await off_loop(cluster.primary.kill)
        cluster.primary.wire.thaw()
        await finished(drill, show, "silent", cluster.standby)


async def test_read_only(cluster: Cluster, show: Show) -> None:
    async with drilling(cluster.url) as drill:
        await off_loop(lambda: cluster.primary.set(default_transaction_read_only="on"))
        await until(lambda: "store: read_only" in reasons(drill), "the probes say so")
        await off_loop(cluster.fail_over)
        await recovers(drill)
        await finished(drill, show, "read-only", cluster.standby)


async def test_behind_one_address(cluster: Cluster, show: Show) -> None:
    """A balancer leads to a standby for three seconds, and then to the primary."""
    wire = cluster.primary.wire
    url = f"postgresql://{USER}@127.0.0.1:{wire.port}/{DATABASE}"
    async with drilling(url) as drill:
        wire.lead_to(cluster.standby.port)
        await until(lambda: "store: read_only" in reasons(drill), "the probes say so")
        wire.lead_to(cluster.primary.port)
        await recovers(drill)
        await finished(drill, show, "behind one address", cluster.primary)


async def test_the_answer_to_a_commit_is_lost(cluster: Cluster, show: Show) -> None:
    async with drilling(cluster.url) as drill:

        async def is_in_doubt() -> bool:
            # A daemon repeats a request with a key once; its own commits are hit as well.
            cluster.primary.wire.lose_answers_to_commits(4)
            await asyncio.sleep(0.1)
            return "outcome_unknown" in drill.seen.refusals

        await until(is_in_doubt, "a writer is in doubt")
        cluster.primary.wire.lose_answers_to_commits(0)
        await finished(drill, show, "commit without answer", cluster.primary)


async def test_the_synchronous_standby_is_lost(cluster: Cluster, show: Show) -> None:
    """Nothing is acknowledged that one server alone has, however often it is repeated."""
    async with drilling(cluster.url) as drill:
        await off_loop(cluster.standby.kill)
        before = len(drill.seen.acknowledged)
        await until(
            lambda: any("no commit for" in why for why in reasons(drill)), "the probes say so"
        )
        assert len(drill.seen.acknowledged) <= before + 3  # commits in progress
        await off_loop(cluster.standby.start)
        await recovers(drill, 20)  # a client is in the middle of its wait
        await off_loop(cluster.primary.kill)
        await off_loop(cluster.fail_over)
        await recovers(drill)
        await finished(drill, show, "standby lost, then primary", cluster.standby)


async def test_the_disk_is_full(cluster: Cluster, show: Show) -> None:
    with mounts.small_disk(cluster.primary.folder.parent / "small", 64) as disk:
        await off_loop(prepare_small_disk, cluster, str(disk))
        async with drilling(cluster.url) as drill:
            filler = await off_loop(mounts.fill, disk)
            await until(lambda: len(drill.seen.refusals) > 20, "writes are refused")
            assert set(drill.seen.refusals) == {"store_unavailable"}
            assert reasons(drill) == set()  # reads and relays work
            filler.unlink()
            await recovers(drill)
            await finished(drill, show, "disk full", cluster.primary)
        await off_loop(cluster.primary.kill)


def prepare_small_disk(cluster: Cluster, disk: str) -> None:
    """Move the database to a small disk, without its standby."""
    shutil.chown(disk, USER)
    cluster.primary.set(synchronous_standby_names="")
    cluster.standby.kill()
    cluster.primary.execute(f"CREATE TABLESPACE small LOCATION '{disk}'", database="postgres")
    cluster.primary.execute(f"ALTER DATABASE {DATABASE} SET TABLESPACE small", database="postgres")


async def test_connections_are_used_up_and_terminated(cluster: Cluster, show: Show) -> None:
    await off_loop(cluster.primary.execute, "CREATE ROLE guest LOGIN")
    guest = cluster.primary.url.replace(f"//{USER}@", "//guest@")
    async with drilling(cluster.url) as drill, AsyncExitStack() as stack:
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                stack.push_async_callback((await asyncpg.connect(guest)).close)
        await drill.goes_on()  # on the connections that the pools have
        await off_loop(terminate, cluster.primary)
        await asyncio.sleep(AWAY_SECONDS)
        await stack.aclose()
        await recovers(drill)
        await finished(drill, show, "connections used up", cluster.primary)


def terminate(member: Member) -> None:
    """End the connections of all daemons."""
    member.execute(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        f"WHERE usename = '{USER}' AND application_name = 'proxyd'"
    )


async def test_connections_are_terminated_again_and_again(cluster: Cluster, show: Show) -> None:
    async with drilling(cluster.url) as drill:
        for _ in range(2):
            for _ in range(TERMINATIONS):
                await off_loop(terminate, cluster.primary)
                await asyncio.sleep(0.5)
            await drill.catches_up()
        await recovers(drill)
        await finished(drill, show, "connections terminated", cluster.primary)
        assert set(drill.seen.refusals) <= {"outcome_unknown"}


async def test_away_for_longer_than_the_timeout_of_nodes(cluster: Cluster, show: Show) -> None:
    async with drilling(cluster.url, node_timeout_seconds=8) as drill:
        await off_loop(cluster.primary.kill)
        await asyncio.sleep(12)
        await off_loop(cluster.primary.start)
        await recovers(drill)
        await finished(drill, show, "away for 12 s", cluster.primary)


async def test_a_session_ends_exactly_during_a_failover(cluster: Cluster) -> None:
    quota = 30_000_000
    async with drilling(cluster.url) as drill, targets.source(2 * quota) as source:
        node = drill.nodes[0]
        bought = await node.buy(drill.person, quota=quota)
        client = await tunnel(
            node.proxy_port, bought.username, bought.password, source.host, source.port
        )
        received = 0
        killing: asyncio.Task[Any] | None = None
        while True:
            data = await client.reader.read(65_536)
            if not data:
                break
            received += len(data)
            if killing is None and received > quota // 4:
                killing = asyncio.create_task(off_loop(lose_primary, cluster))
            await asyncio.sleep(0.01)
        await client.close()
        assert killing is not None
        await killing
        assert received <= quota

        async def is_over() -> bool:
            return bool((await node.session(drill.person, bought))["status"] == "exhausted")

        await until(is_over, "the session is settled")
        used = int((await node.session(drill.person, bought))["bytes_used"])
        assert received == used == quota
        await recovers(drill)
        await drill.end()
        await node.assert_audit()
        assert drill.seen.cut == 0


def lose_primary(cluster: Cluster) -> None:
    """Kill the primary, and promote the standby after a while."""
    cluster.primary.kill()
    time.sleep(AWAY_SECONDS)
    cluster.fail_over()


async def test_a_database_that_went_back_in_time_is_left(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """An old primary returns after its standby has taken over, and is the only one."""
    async with drilling(cluster.url) as drill:
        cluster.primary.wire.freeze()
        await off_loop(cluster.fail_over)
        await recovers(drill, 20)
        await off_loop(cluster.standby.kill)
        cluster.primary.set(synchronous_standby_names="")
        cluster.primary.wire.thaw()
        await until(lambda: "store: went_back" in reasons(drill), "the daemons notice it")
        acknowledged = len(drill.seen.acknowledged)
        await asyncio.sleep(AWAY_SECONDS)
        assert len(drill.seen.acknowledged) == acknowledged
        assert "the database went back in time: it is at timeline 1" in caplog.text
        assert drill.seen.cut == 0
