"""Nodes that lend one another exits are killed while connections go through them."""

import json
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg
import pytest
from support.base.brief import brief
from support.base.waiting import until_true
from support.clients.downloads import Download, downloading
from support.daemons import process
from support.daemons.process import Process
from support.database import postgres
from support.exits.process import LISTENS, ExitAgent
from support.targets import threads

from proxyctl.exit.base.names import NODES
from proxyd.exits.attached.certificate import own_certificate

MB = 1_000_000
# Transfers continue, and leave the processor to the rest of the test.
PACED = {"PROXYD_LIMITS__SESSION_BYTES_PER_SECOND": str(5 * MB)}


@pytest.fixture
async def url(postgres_server: str) -> AsyncIterator[str]:
    """The URL of an empty database on PostgreSQL."""
    async with postgres.database(postgres_server, f"test_{uuid.uuid4().hex}") as made:
        yield made


@contextmanager
def nodes(url: str, folder: Path, port: int) -> Iterator[tuple[Process, Process]]:
    """Run two daemons whose exits carry to a port."""
    with ExitStack() as stack:
        daemons = []
        for number in range(2):
            certificate = str(own_certificate(folder / f"node-{number}", 1_700_000_000))
            daemon = Process(
                url,
                **PACED,
                PROXYD_EXITS__HOST="127.0.0.1",
                PROXYD_EXITS__PORT="0",
                PROXYD_EXITS__TLS_CERT=certificate,
                PROXYD_EXITS__TLS_KEY=certificate,
                PROXYD_EXITS__PORTS=json.dumps([port]),
                PROXYD_EXITS__CONNECTIONS="1000",
                PROXYD_EXITS__BYTES_PER_DAY="0",
                PROXYD_GEO__KNOWN='{"127.0.0.0/8": "xx"}',
            )
            stack.callback(daemon.stop, signal.SIGKILL)
            daemons.append(daemon)
        for daemon in daemons:
            daemon.wait_ready()
        yield daemons[0], daemons[1]


@contextmanager
def agent_at(home: Process, token: str, folder: Path) -> Iterator[ExitAgent]:
    """Run an agent that is attached to a daemon."""
    listens = LISTENS.search(home.output)
    assert listens is not None, home.output
    agent = ExitAgent(folder, int(listens[1]))
    agent.agree(home, token)
    agent.start()
    try:
        yield agent
    finally:
        agent.kill()


def knows_exit(daemon: Process) -> bool:
    _, answer = daemon.call("GET", "/api/exits/coverage")
    return bool(answer["countries"])


@pytest.mark.long
async def test_an_exit_goes_straight_to_another_node_when_its_own_stops_at_once(
    url: str, tmp_path: Path
) -> None:
    """As a node does that drains while nothing is connected: nothing keeps it."""
    owner = process.funded(url, name="owner")
    with (
        nodes(url, tmp_path, 1) as (edge, home),
        agent_at(home, home.log_in(*owner), tmp_path / "exit") as agent,
    ):
        until_true(lambda: knows_exit(edge) and knows_exit(home), "both know the exit")
        until_true((tmp_path / "exit" / NODES).exists, "the exit knows the other node")
        home.stop()
        log = agent.folder / "log"
        until_true(lambda: log.read_text().count(" attached to ") == 2, "it is at the other one")
        assert "cannot be reached" not in log.read_text()
        until_true(lambda: knows_exit(edge), "the other one has it")


@pytest.mark.parametrize("victim", brief(["home", "buyer's node"]))
async def test_a_node_is_killed_while_an_exit_carries(
    url: str, tmp_path: Path, victim: str
) -> None:
    email, password = process.funded(url)
    owner = process.funded(url, name="owner")
    with (
        threads.endless() as target,
        nodes(url, tmp_path, target.port) as (edge, home),
        agent_at(home, home.log_in(*owner), tmp_path / "exit") as agent,
    ):
        until_true(lambda: knows_exit(edge) and knows_exit(home), "both know the exit")
        # Or it would know of no other place to go to when its home is killed.
        until_true((tmp_path / "exit" / NODES).exists, "the exit knows the other node")
        token = home.log_in(email, password)
        bought = home.buy(token, gb=10)
        proxy = bought["proxy"]
        proxy["username"] += "-country-xx"
        with downloading([edge], proxy, target.port) as [download]:
            until_true(lambda: download.received > MB, "it leaves through the other's exit")
            (home if victim == "home" else edge).stop(signal.SIGKILL)
            if victim == "home":
                # Bytes do not go over the home, where the agent carries for the borrower itself.
                before = download.received
                until_true(lambda: download.received > before + 10 * MB, "it goes on")
            else:
                until_true(lambda: download.is_over, "it is broken")
            survivor = edge if victim == "home" else home
            again = leaving(survivor, proxy, target.port)
            until_true(lambda: again.received > MB, "the exit carries for the other one")
            again.close()
            again.join()
        assert agent.is_running
        status, _ = survivor.call(
            "POST", "/api/bandwidth/end", {"session_id": bought["session_id"]}, token
        )
        assert status == 200
        await all_is_shared(url)
    process.assert_audit(url)


async def all_is_shared(url: str) -> None:
    """See that the exit has carried all that was used, to the byte."""
    connection = await asyncpg.connect(url)
    try:
        used = await connection.fetchval("SELECT SUM(bytes_used) FROM bandwidth_sessions")
        carried = await connection.fetchval("SELECT SUM(used_bytes) FROM exit_usage")
    finally:
        await connection.close()
    assert used == carried > MB


def leaving(daemon: Process, proxy: dict[str, str], port: int) -> Download:
    """Return a download through a daemon, as soon as that has an exit again."""
    made: list[Download] = []

    def is_connected() -> bool:
        try:
            made.append(Download(daemon, proxy, port))
        except OSError:
            return False
        return True

    until_true(is_connected, "there is an exit")
    made[0].start()
    return made[0]
