"""Where an exit attaches when its daemon is gone or drains: real daemons that judge nothing."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from support.base.waiting import until
from support.exits.daemon import ExitDaemon
from support.targets import targets

from proxyctl import files
from proxyctl.attach.network.lan import NEVER_PORTS, Guard
from proxyctl.attach.network.surroundings import Surroundings
from proxyctl.exit.agent.agent import Agent, AgentBounds
from proxyctl.exit.agent.doors import Doors
from proxyctl.exit.base import names, retries
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.exit.base.record import Consent
from proxyctl.exit.base.retries import AttachRetries, RetryTimes
from proxyctl.protocol.frames import Drain, Node, Nodes, Sorry
from proxyctl.protocol.policy import Policy

LOOPBACK = (ip_address("127.0.0.1"),)
HOME = Node("exits.example.com", 1090, "")
FIRST, SECOND = Node("192.0.2.1", 1090, "ab" * 32), Node("192.0.2.2", 1090, "cd" * 32)


QUICK = AgentBounds(retries=RetryTimes(least_seconds=0.01, most_seconds=0.05))


@asynccontextmanager
async def running(
    daemon: ExitDaemon,
    folder: Path,
    allow: tuple[str, ...] = ("127.0.0.0/8",),
    bounds: AgentBounds = QUICK,
) -> AsyncIterator[Agent]:
    """Run an agent whose owner has agreed with this daemon."""
    consent = Consent(
        api="http://127.0.0.1:1",
        host=daemon.host,
        port=daemon.port,
        pin=daemon.pin,
        token="a worker token",
        terms="ab" * 32,
        agreed_at="2026-01-01T00:00:00+00:00",
        limits=DeviceLimits(),
    )
    guard = Guard(
        policy=Policy(blocked_ports=NEVER_PORTS),
        surroundings=Surroundings(set),
        kernel=None,
        allow=[ip_network(text) for text in allow],
    )
    agent = Agent(
        consent,
        folder,
        guard=guard,
        now=lambda: datetime.now(UTC),
        read_power=lambda: "",
        bounds=bounds,
    )
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        agent.stop("the test is over")
        await task


@asynccontextmanager
async def daemon(folder: Path, name: str) -> AsyncIterator[ExitDaemon]:
    folder = folder / name
    folder.mkdir()
    async with ExitDaemon(folder).serving() as made:
        yield made


def node(made: ExitDaemon) -> Node:
    return Node(made.host, made.port, made.pin)


async def kept(folder: Path, *nodes: Node) -> None:
    """Wait until the agent has written down where else it may attach."""
    told = {"nodes": [list(each) for each in nodes]}
    await until(lambda: files.read(folder / names.NODES) == told, "they are kept")


async def test_when_its_daemon_is_gone_it_attaches_to_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "exit"
    async with daemon(tmp_path, "second") as second:
        async with daemon(tmp_path, "first") as first, running(first, folder):
            await first.attached()
            first.control.send(Nodes((node(second),)))
            await kept(folder, node(second))
            assert files.is_private(folder / names.NODES)
        assert not second.hellos
        async with running(first, folder):  # started anew, and its first daemon is still gone
            await second.attached()


async def test_when_its_daemon_dies_it_attaches_to_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "exit"
    async with daemon(tmp_path, "second") as second:
        async with daemon(tmp_path, "first") as first:
            agents = running(first, folder)
            await agents.__aenter__()
            await first.attached()
            first.control.send(Nodes((node(second),)))
            await kept(folder, node(second))
        await second.attached()
        second.control.send(Nodes(()))  # it knows of no other one, and is kept itself
        await kept(folder, node(second))
        await agents.__aexit__(None, None, None)


async def test_when_its_daemon_drains_it_leaves_and_its_streams_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "exit"
    async with (
        daemon(tmp_path, "first") as first,
        daemon(tmp_path, "second") as second,
        targets.echo() as target,
        running(first, folder),
    ):
        await first.attached()
        first.control.send(Nodes((node(second),)))
        await kept(folder, node(second))
        await first.park(1)
        _, (reader, writer) = await first.dial(LOOPBACK, target.port)
        first.control.send(Drain(600))
        await second.attached()
        await until(lambda: first.control.is_lost)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        await second.park(1)
        assert len(first.hellos) == 1


@pytest.mark.parametrize("says_so", [True, False], ids=["it drains", "it dies"])
async def test_when_its_daemon_ends_at_once_it_goes_straight_to_another_one(
    tmp_path: Path, says_so: bool
) -> None:
    """Without the delay of a failure, and without trying the one that has ended."""
    bounds = AgentBounds(retries=RetryTimes(least_seconds=600.0, most_seconds=600.0))
    folder = tmp_path / "exit"
    async with (
        daemon(tmp_path, "first") as first,
        daemon(tmp_path, "second") as second,
        running(first, folder, bounds=bounds),
    ):
        await first.attached()
        first.control.send(Nodes((node(second),)))
        await kept(folder, node(second))
        if says_so:
            first.control.send(Drain(600))
        first.control.transport.close()
        await second.attached()
        assert len(first.hellos) == 1


async def test_daemons_that_let_it_in_and_cut_it_off_are_not_tried_at_once_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds = AgentBounds(retries=RetryTimes(move_most_seconds=0.0))
    delays: list[bool] = []
    later = asyncio.Event()

    def delay(_: AttachRetries, *, is_exhausted: bool) -> float:
        delays.append(is_exhausted)
        later.set()
        return 600.0

    monkeypatch.setattr(AttachRetries, "delay", delay)
    folder = tmp_path / "exit"
    async with daemon(tmp_path, "first") as first, daemon(tmp_path, "second") as second:
        files.write(folder / names.NODES, {"nodes": [list(node(second))]})
        async with running(first, folder, bounds=bounds):
            for number in range(retries.LOSSES_MAX + 1):
                here = (first, second)[number % 2]
                await here.attached(number // 2 + 1)
                here.control.transport.close()
            await later.wait()
    assert delays == [True]
    assert len(first.hellos) + len(second.hellos) == retries.LOSSES_MAX + 1


async def test_a_daemon_that_says_again_and_again_that_it_stops_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "exit")
    folder = tmp_path / "exit"
    async with daemon(tmp_path, "first") as first, running(first, folder) as agent:
        await first.attached()
        for _ in range(100):
            first.control.send(Drain(65_535))
        await first.park(1)
        assert caplog.text.count("the daemon stops") == 1
        leaving = agent._attaching._attachment
        assert leaving is not None
        timer = leaving._timer
        assert timer is not None
        first.control.transport.abort()
        await first.attached(2)
        assert timer.cancelled()
        attachment = agent._attaching._attachment
        assert attachment is not None
        assert not attachment.is_leaving


async def test_a_daemon_that_refuses_exits_is_left_for_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "exit"
    async with (
        daemon(tmp_path, "first") as first,
        daemon(tmp_path, "second") as second,
    ):
        files.write(folder / names.NODES, {"nodes": [list(node(second))]})
        first.reply = Sorry("stopping", "The service stops here; come again.", 600)
        async with running(first, folder):
            await second.attached()


async def test_a_node_with_an_unannounced_certificate_gets_no_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "exit"
    async with daemon(tmp_path, "second") as second:
        async with daemon(tmp_path, "first") as first:
            wrong = node(second)._replace(certificate=first.pin)
            files.write(folder / names.NODES, {"nodes": [list(wrong)]})
        async with running(first, folder) as agent:
            await until(lambda: "another certificate" in agent.describe()["words"])
            assert not second.hellos


@pytest.mark.parametrize("host", ["127.0.0.2", "::ffff:127.0.0.2", "192.168.1.1", "router.lan"])
async def test_a_daemon_cannot_make_it_attach_to_near_addresses(tmp_path: Path, host: str) -> None:
    folder = tmp_path / "exit"
    with socket.create_server(("127.0.0.2", 0)) as near:
        near.setblocking(False)
        told = Node(host, near.getsockname()[1], "ab" * 32)
        async with daemon(tmp_path, "first") as first, daemon(tmp_path, "second") as second:
            async with running(first, folder, allow=()) as agent:
                await first.attached()
                first.control.send(Nodes((told, node(second))))
                await kept(folder, told, node(second))
                first.control.send(Drain(600))
                await second.attached()  # at the address that its owner has named
                assert "attached" in agent.describe()["words"]
            async with running(first, folder, allow=()):
                await first.attached(2)  # whose address it does not know yet
                first.reply = Sorry("stopping", "The service stops here; come again.", 600)
                first.control.transport.abort()
                await second.attached(2)
        with pytest.raises(BlockingIOError):
            near.accept()


async def test_a_daemon_that_has_announced_its_next_certificate_is_known_by_it(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "exit"
    for name in ("before", "next"):
        (tmp_path / name).mkdir()
    before, renewed = ExitDaemon(tmp_path / "before"), ExitDaemon(tmp_path / "next")
    async with before.serving(), running(before, folder):
        await before.attached()
        own = node(before)._replace(certificate=renewed.pin)
        before.control.send(Nodes((own,)))
        await kept(folder, own)
    renewed.port = before.port
    async with renewed.serving(), running(before, folder):  # tries the one before first, in vain
        await renewed.attached()
        told = {"nodes": [list(own)], "certificate": renewed.pin}
        await until(lambda: files.read(folder / names.NODES) == told, "it is kept")
    async with before.serving(), running(before, folder) as agent:
        await until(lambda: "another certificate" in agent.describe()["words"])
    assert (len(before.hellos), len(renewed.hellos)) == (1, 1)


# --- which one is next ---------------------------------------------------------------------------


def test_they_are_tried_one_after_the_other_and_home_again(tmp_path: Path) -> None:
    doors = Doors(HOME, tmp_path / "nodes")
    assert not doors.has_others
    doors.learn([FIRST, SECOND])
    tried = []
    for _ in range(4):
        tried.append((doors.current, doors.is_exhausted))
        doors.fail()
    assert tried == [(HOME, True), (FIRST, False), (SECOND, False), (HOME, True)]


def test_the_others_of_one_that_is_left_are_tried_at_once_and_each_once(tmp_path: Path) -> None:
    doors = Doors(HOME, tmp_path / "nodes")
    doors.learn([FIRST, SECOND])
    doors.fail()
    doors.attached()
    assert (doors.current, doors.is_untried) == (FIRST, False)
    doors.leave()
    tried = []
    for _ in range(4):
        tried.append((doors.current, doors.is_untried))
        doors.fail()
    assert tried == [(HOME, True), (SECOND, True), (FIRST, False), (SECOND, False)]
    doors.leave(in_a_hurry=False)
    assert not doors.is_untried
    doors.leave()
    doors.attached()
    assert not doors.is_untried


def test_one_that_is_not_known_any_more_is_not_tried(tmp_path: Path) -> None:
    doors = Doors(HOME, tmp_path / "nodes")
    doors.learn([FIRST, SECOND])
    doors.leave()
    doors.learn([FIRST])
    doors.fail()
    assert doors.current == HOME


def test_the_next_certificate_of_home_is_no_other_place(tmp_path: Path) -> None:
    home = HOME._replace(certificate="12" * 32)
    renewed = home._replace(certificate="34" * 32)
    doors = Doors(home, tmp_path / "nodes")
    doors.learn([renewed])
    assert not doors.has_others
    doors.leave()
    assert doors.current == home
    doors.learn([renewed, FIRST])
    tried = []
    for _ in range(4):
        tried.append(doors.current)
        doors.fail()
    assert tried == [home, renewed, FIRST, home]
    doors.attached()
    assert doors.current == renewed
    doors.fail()
    assert doors.current == FIRST
    assert Doors(home, tmp_path / "nodes").current == renewed
    (tmp_path / "nodes").unlink()
    assert Doors(home, tmp_path / "nodes").current == home


def test_the_attached_daemon_is_kept_when_others_are_announced(tmp_path: Path) -> None:
    doors = Doors(HOME, tmp_path / "nodes")
    doors.learn([FIRST, SECOND])
    doors.leave()
    assert doors.current == FIRST
    doors.learn([SECOND])
    assert doors.current == FIRST
    doors.learn([FIRST._replace(certificate="ef" * 32), SECOND])
    assert doors.current[:2] == FIRST[:2]
    doors.leave()
    assert doors.current == HOME
    assert Doors(HOME, tmp_path / "nodes").has_others


@pytest.mark.parametrize(
    "node",
    [
        ["192.0.2.1", 1090, ""],
        ["192.0.2.1", 1090, "AB" * 32],
        ["192.0.2.1", 0, "ab" * 32],
        ["192.0.2.1", 65_536, "ab" * 32],
        ["192.0.2.1", "1090", "ab" * 32],
        ["", 1090, "ab" * 32],
        ["a b", 1090, "ab" * 32],
        ["192.0.2.1", 1090],
        [],
        7,
    ],
)
def test_a_node_that_makes_no_sense_is_not_known(tmp_path: Path, node: object) -> None:
    path = tmp_path / "nodes"
    path.write_text(json.dumps({"nodes": [node]}))
    assert not Doors(HOME, path).has_others
    if isinstance(node, list) and len(node) == 3:
        doors = Doors(HOME, path)
        doors.learn([Node(*node)])
        assert not doors.has_others


@pytest.mark.parametrize("text", ["", "[]", '{"nodes": 7}', '{"nodes": [[1]]}', "\x00"])
def test_a_broken_file_is_no_reason_to_stop(tmp_path: Path, text: str) -> None:
    path = tmp_path / "nodes"
    path.write_text(text)
    assert not Doors(HOME, path).has_others
