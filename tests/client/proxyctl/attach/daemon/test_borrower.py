"""An exit that is lent to other daemons of its service, over real sockets."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from support.base.ports import silent_port
from support.base.waiting import until
from support.exits.daemon import ExitDaemon
from support.targets import targets

from proxyctl.attach.daemon import borrower as module
from proxyctl.attach.daemon.borrower import Borrower
from proxyctl.attach.network.lan import NEVER_PORTS, Guard
from proxyctl.attach.network.surroundings import Surroundings
from proxyctl.exit.agent.agent import Agent, AgentBounds
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.exit.base.record import Consent
from proxyctl.exit.base.retries import RetryTimes
from proxyctl.exit.carrying.carrier import CarryingBounds
from proxyctl.protocol.frames import (
    DialOutcome,
    For,
    Lend,
    Park,
    Ping,
    Return,
    ServiceLimits,
    encode,
)
from proxyctl.protocol.policy import Policy

LOOPBACK = (ip_address("127.0.0.1"),)
HOME = ip_address("198.51.100.7")
PUBLIC = "93.184.215.14"


def guard(*allowed: str) -> Guard:
    return Guard(
        policy=Policy(blocked_ports=NEVER_PORTS),
        surroundings=Surroundings(set),
        kernel=None,
        allow=[ip_network(text) for text in allowed],
    )


QUICK = AgentBounds(retries=RetryTimes(least_seconds=0.01, most_seconds=0.05))


@asynccontextmanager
async def running(
    home: ExitDaemon,
    folder: Path,
    *,
    limits: DeviceLimits | None = None,
    allow: tuple[str, ...] = ("127.0.0.0/8",),
    bounds: AgentBounds = QUICK,
) -> AsyncIterator[Agent]:
    """Run an agent that is attached to its home."""
    consent = Consent(
        api="http://127.0.0.1:1",
        host=home.host,
        port=home.port,
        pin=home.pin,
        token="a worker token",
        terms="ab" * 32,
        agreed_at="2026-01-01T00:00:00+00:00",
        limits=limits or DeviceLimits(),
    )
    agent = Agent(
        consent,
        folder,
        guard=guard(*allow),
        now=lambda: datetime.now(UTC),
        read_power=lambda: "",
        bounds=bounds,
    )
    task = asyncio.create_task(agent.run())
    try:
        await home.attached()
        yield agent
    finally:
        agent.stop("the test is over")
        await task


@pytest.fixture
async def daemons(tmp_path: Path) -> AsyncIterator[list[ExitDaemon]]:
    """The home of an exit, and two others."""
    async with AsyncExitStack() as stack:
        made = []
        for name in ("home", "first", "second"):
            folder = tmp_path / name
            folder.mkdir()
            made.append(await stack.enter_async_context(ExitDaemon(folder).serving()))
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "exit"


async def test_a_borrower_leaves_through_an_exit_that_is_attached_elsewhere(
    daemons: list[ExitDaemon], folder: Path
) -> None:
    home, first, second = daemons
    data = targets.pattern(300_000)
    async with running(home, folder) as agent, targets.echo() as target:
        assert "lend" in home.hellos[0].features
        assert [await home.lend(1, first), await home.lend(2, second)] == ["", ""]
        for daemon in daemons:
            await daemon.park(2)
        assert agent.describe()["parked"] == 6
        for daemon in daemons:
            dialled, (reader, writer) = await daemon.dial(LOOPBACK, target.port)
            assert dialled.outcome is DialOutcome.CONNECTED
            writer.write(data)
            writer.write_eof()
            assert await reader.read(-1) == data
            writer.close()
        assert not any(daemon.refused for daemon in daemons)


async def test_the_limits_of_the_device_are_over_all(
    daemons: list[ExitDaemon], folder: Path
) -> None:
    home, first, _ = daemons
    async with running(home, folder), targets.sink() as target:
        home.control.send(ServiceLimits(1, 0, 0, (target.port,)))
        await home.lend(1, first)
        await home.park(1)
        await first.park(1)
        assert (await first.dial(LOOPBACK, 443))[0].outcome is DialOutcome.NOT_ALLOWED
        assert (await first.dial(LOOPBACK, target.port))[0].outcome is DialOutcome.CONNECTED
        assert (await home.dial(LOOPBACK, target.port))[0].outcome is DialOutcome.AT_LIMIT


async def test_the_bound_on_connections_that_wait_is_over_all(
    daemons: list[ExitDaemon], folder: Path
) -> None:
    bounds = replace(QUICK, carrying=CarryingBounds(parked_max=5))
    home, first, second = daemons
    limits = DeviceLimits(dials_per_second=1000)
    async with running(home, folder, limits=limits, bounds=bounds) as agent:
        await home.lend(1, first)
        await home.lend(2, second)
        await home.park(5)
        for daemon in (first, second):
            daemon.give_tickets(10)
            daemon.control.send(Park(3))
        await said(home, 2)
        assert (agent.describe()["parked"], len(first.parked), len(second.parked)) == (5, 0, 0)
        home.control.send(Park(0))
        for _, writer in home.parked.values():
            writer.close()
        await until(lambda: len(first.parked) + len(second.parked) == 5, "others have the room")
        first.control.send(Park(0))
        for _, writer in first.parked.values():
            writer.close()
        await until(lambda: len(second.parked) == 3, "the last ones, too")


async def said(home: ExitDaemon, number: int) -> None:
    """Wait until an exit has acted on all earlier frames for it and for a borrower."""
    borrower, payload = home.loans[number].daemon, secrets.token_bytes(8)
    borrower.control.send(Ping(payload))
    await until(lambda: payload in borrower.pongs, "it has answered for a borrower")


async def test_new_connections_in_a_second_are_bounded_over_all(
    daemons: list[ExitDaemon], folder: Path
) -> None:
    home, first, second = daemons
    async with running(home, folder, limits=DeviceLimits(dials_per_second=2)) as agent:
        for number, daemon in enumerate((first, second), 1):
            await home.lend(number, daemon)
            daemon.give_tickets(10)
            daemon.control.send(Park(10))
        await until(lambda: agent.describe()["parked"] >= 3)
        # Two that had gathered, one in advance for each, and those of a fraction of a second.
        assert agent.describe()["parked"] <= 6


async def test_a_returned_loan_is_closed_and_relays_go_on(
    daemons: list[ExitDaemon], folder: Path
) -> None:
    home, first, _ = daemons
    async with running(home, folder) as agent, targets.echo() as target:
        await home.lend(1, first)
        await first.park(2)
        _, (reader, writer) = await first.dial(LOOPBACK, target.port)
        home.control.send(Return(1))
        await until(lambda: agent.describe()["parked"] == 0)
        writer.write(b"words")
        assert await reader.readexactly(5) == b"words"
        home.control.send(For(1, encode(Park(3))))  # was on its way
        home.control.send(Return(1))
        assert await home.lend(2, first) == ""
        assert agent.describe()["parked"] == 0
        writer.close()


async def test_a_pause_and_the_loss_of_the_home_are_over_all(
    daemons: list[ExitDaemon], folder: Path
) -> None:
    home, first, _ = daemons
    async with running(home, folder) as agent:
        await home.lend(1, first)
        await first.park(2)
        agent._carrier.pause("on battery")
        await until(lambda: agent.describe()["parked"] == 0)
        agent._carrier.pause("")
        first.give_tickets(4)
        await until(lambda: agent.describe()["parked"] == 2, "as many as before")
        assert home.control.transport is not None
        home.control.transport.abort()
        await home.attached(2)
        assert agent.describe()["parked"] == 0
        assert await home.lend(1, first) == "", "the number is free"


@pytest.mark.parametrize("where", ["silent", "nobody"])
async def test_an_unreachable_borrower_is_reported_at_once(
    daemons: list[ExitDaemon], folder: Path, where: str
) -> None:
    bounds = replace(QUICK, carrying=CarryingBounds(borrower_seconds=0.2))
    home, first, _ = daemons
    async with running(home, folder, bounds=bounds) as agent:
        with silent_port() as port:
            host = "127.0.0.1" if where == "silent" else "127.0.0.9"
            assert await home.lend(1, first, host, port) == ""
            first.give_tickets(4)
            first.control.send(Park(2))
            await until(lambda: home.lent[1] == "unreachable")
        assert not agent._carrier._borrowers
        assert agent._carrier._room._taken == 0
        await home.park(2)


@pytest.mark.parametrize(
    ("host", "listens_at"),
    [
        ("127.0.0.2", "127.0.0.2"),
        ("::ffff:127.0.0.2", "127.0.0.2"),
        ("localhost", "127.0.0.1"),
        ("router.lan", "127.0.0.2"),
        ("192.168.1.1", "127.0.0.2"),
        ("169.254.169.254", "127.0.0.2"),
    ],
)
async def test_a_home_cannot_make_an_exit_connect_to_near_addresses(
    daemons: list[ExitDaemon], folder: Path, host: str, listens_at: str
) -> None:
    home, first, _ = daemons
    with socket.create_server((listens_at, 0)) as near:
        near.setblocking(False)
        async with running(home, folder, allow=()):
            assert await home.lend(1, first, host, near.getsockname()[1]) == ""
            first.give_tickets(1)
            first.control.send(Park(1))
            await until(lambda: home.lent[1] == "unreachable")
            with pytest.raises(BlockingIOError):
                near.accept()
            assert await home.lend(2, first) == "", "where it has attached to is permitted"
            await first.park(1)


async def test_names_are_judged_by_their_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[tuple[str, int]] = []

    async def connect(address: object, port: int, _seconds: float) -> None:
        reached.append((str(address), port))

    async def getaddrinfo(name: str, port: int, **_: object) -> list[tuple[object, ...]]:
        rows = {"node.example.net.": ["192.168.1.1", PUBLIC], "near.example.net.": ["10.0.0.1"]}
        return [(0, 0, 0, "", (each, port)) for each in rows[name]]

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    await Borrower("node.example.net", 1090, HOME, guard(), loop).connect()
    assert reached == [(PUBLIC, 1090)]
    with pytest.raises(PermissionError):
        await Borrower("near.example.net", 1090, HOME, guard(), loop).connect()
    for port in (25, 0, 70_000):
        with pytest.raises(PermissionError):
            await Borrower(PUBLIC, port, HOME, guard(), loop).connect()
    await Borrower(str(HOME), 1090, HOME, guard(), loop).connect()
    assert reached == [(PUBLIC, 1090), (str(HOME), 1090)]


async def test_more_borrowers_than_a_service_has_are_refused(
    daemons: list[ExitDaemon], folder: Path
) -> None:
    bounds = replace(QUICK, carrying=CarryingBounds(borrowers_max=1))
    home, first, second = daemons
    async with running(home, folder, bounds=bounds):
        assert await home.lend(1, first) == ""
        assert await home.lend(2, second) == "too_many"
        home.control.send(Return(1))
        assert await home.lend(3, second) == ""


@pytest.mark.parametrize(
    "data",
    [
        encode(Lend(0, "127.0.0.1", 1, 1)),
        encode(Lend(1, "127.0.0.1", 1, 1)) * 2,
        encode(Lend(1, "127.0.0.1", 1, 1)) + encode(For(1, b"\x00\x01")),
    ],
    ids=["its own number", "a number twice", "no frame"],
)
async def test_a_home_that_does_not_speak_the_protocol_is_left(
    daemons: list[ExitDaemon], folder: Path, data: bytes
) -> None:
    home = daemons[0]
    async with running(home, folder):
        assert home.control.transport is not None
        home.control.transport.write(data)
        await home.attached(2)
