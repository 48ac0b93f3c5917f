"""The agent against a daemon that judges nothing, over real sockets and TLS."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
from support.base.descriptors import descriptors
from support.base.ports import resetting_port, silent_port
from support.base.waiting import until
from support.exits.daemon import NO_LIMITS, ExitDaemon
from support.targets import targets

from proxyctl import files
from proxyctl.attach.network.lan import NEVER_PORTS, Guard
from proxyctl.attach.network.surroundings import Surroundings
from proxyctl.attach.relay import relay, relay_linux
from proxyctl.attach.relay import relays as relays_module
from proxyctl.attach.relay.relay import reset
from proxyctl.exit.agent.agent import Agent, AgentBounds, Stop
from proxyctl.exit.base import names
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.exit.base.record import Consent
from proxyctl.exit.base.retries import RetryTimes
from proxyctl.exit.carrying.carrier import CarryingBounds
from proxyctl.protocol.frames import (
    Call,
    Deny,
    Dial,
    DialOutcome,
    Drain,
    Park,
    Ping,
    ServiceLimits,
    Sorry,
)
from proxyctl.protocol.policy import Policy

LOOPBACK = (ip_address("127.0.0.1"),)


def consent_for(daemon: ExitDaemon, limits: DeviceLimits | None = None) -> Consent:
    return Consent(
        api="http://127.0.0.1:1",
        host=daemon.host,
        port=daemon.port,
        pin=daemon.pin,
        token="a worker token",
        terms="ab" * 32,
        agreed_at="2026-01-01T00:00:00+00:00",
        limits=limits or DeviceLimits(),
    )


def guard(*allowed: str) -> Guard:
    return Guard(
        policy=Policy(blocked_ports=NEVER_PORTS),
        surroundings=Surroundings(set),
        kernel=None,
        allow=[ip_network(text) for text in allowed],
    )


@pytest.fixture(autouse=True, params=["epoll", "asyncio"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How connections are carried: as on Linux, and as everywhere else."""
    monkeypatch.setenv(relays_module.CHOICE, request.param)
    return str(request.param)


QUICK = AgentBounds(retries=RetryTimes(least_seconds=0.01, most_seconds=0.05))
ATTENTIVE = replace(QUICK, watch_seconds=0.01)


@asynccontextmanager
async def running(
    daemon: ExitDaemon,
    folder: Path,
    *,
    consent: Consent | None = None,
    limits: DeviceLimits | None = None,
    allow: tuple[str, ...] = ("127.0.0.0/8",),
    power: Callable[[], str] = lambda: "",
    bounds: AgentBounds = QUICK,
) -> AsyncIterator[tuple[Agent, asyncio.Task[Stop]]]:
    agent = Agent(
        consent or consent_for(daemon, limits),
        folder,
        guard=guard(*allow),
        now=lambda: datetime.now(UTC),
        read_power=power,
        bounds=bounds,
    )
    task = asyncio.create_task(agent.run())
    try:
        yield agent, task
    finally:
        agent.stop("the test is over")
        await task


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[ExitDaemon]:
    made = ExitDaemon(tmp_path)
    async with made.serving():
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "exit"


async def test_an_exit_names_itself_and_is_let_in(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder):
        await daemon.attached()
        (hello,) = daemon.hellos
        assert (hello.token, hello.terms, hello.paused) == ("a worker token", "ab" * 32, "")
        assert hello.protocol == 1
        await until(lambda: (files.read(folder / names.STATE) or {}).get("attached"), "it is told")
    assert not (folder / names.STATE).exists()


async def test_bytes_pass_both_ways_and_are_counted(daemon: ExitDaemon, folder: Path) -> None:
    data = targets.pattern(3_000_000)
    async with running(daemon, folder), targets.echo() as target:
        await daemon.attached()
        await daemon.park(1)
        dialled, (reader, writer) = await daemon.dial(LOOPBACK, target.port)
        assert dialled.outcome is DialOutcome.CONNECTED
        assert dialled.number >= 100
        writer.write(data)
        writer.write_eof()
        assert await reader.read(-1) == data
        writer.close()
        assert (target.received, target.sent, target.ended) == (len(data), len(data), 1)
    journal = files.read(folder / names.JOURNAL)
    assert journal is not None
    assert journal["bytes_today"] == journal["bytes_this_month"] == 2 * len(data)
    assert journal["ports"] == {str(target.port): 1}
    assert journal["targets"][0][1:] == ["127.0.0.1", target.port]


async def test_the_journal_has_the_name_that_a_client_says(
    daemon: ExitDaemon, folder: Path
) -> None:
    async with running(daemon, folder), targets.sink(b"HTTP/1.1 200 OK\r\n\r\n") as target:
        await daemon.attached()
        await daemon.park(1)
        _, (reader, writer) = await daemon.dial(LOOPBACK, target.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")
        writer.write_eof()
        await reader.read(-1)
        writer.close()
    journal = files.read(folder / names.JOURNAL) or {}
    assert journal["targets"][0][1:] == ["example.org", target.port]


async def test_half_closes_pass_in_both_directions(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder), targets.sink(b"the answer") as target:
        await daemon.attached()
        await daemon.park(1)
        _, (reader, writer) = await daemon.dial(LOOPBACK, target.port)
        writer.write(b"the question")
        await until(lambda: target.data == b"the question")
        assert not target.ended
        writer.write_eof()
        assert await reader.read(-1) == b"the answer"
        writer.close()

    async def speak_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"first")
        writer.write_eof()
        said.append(await reader.read(-1))

    said: list[bytes] = []
    async with running(daemon, folder), targets.serving(speak_first) as target:
        await daemon.attached(2)
        daemon.parked.clear()
        await daemon.park(1)
        _, (reader, writer) = await daemon.dial(LOOPBACK, target.port)
        assert await reader.read(-1) == b"first"
        writer.write(b"much later")
        writer.write_eof()
        await until(lambda: said == [b"much later"])
        writer.close()


@pytest.mark.parametrize("side", ["work", "target"])
async def test_a_reset_is_passed_on_as_a_reset(daemon: ExitDaemon, folder: Path, side: str) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while await reader.read(65_536):
            pass

    async with running(daemon, folder), targets.serving(hold) as target:
        await daemon.attached()
        await daemon.park(1)
        _, (reader, writer) = await daemon.dial(LOOPBACK, target.port)
        await until(lambda: bool(writers))
        if side == "work":
            reset(writer.transport)
            await until(lambda: target.resets == 1)
        else:
            reset(writers[0].transport)
            with pytest.raises(ConnectionResetError):
                await reader.read(1)


@pytest.mark.parametrize("side", ["work", "target"])
async def test_a_reset_behind_the_end_of_a_stream_is_passed_on(
    daemon: ExitDaemon, folder: Path, side: str
) -> None:
    writers: list[asyncio.StreamWriter] = []
    ended = asyncio.Event()
    over = asyncio.Event()

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if side == "work":
            await reader.read(-1)
            ended.set()
        await over.wait()

    async with (
        running(daemon, folder, bounds=ATTENTIVE) as (agent, _),
        targets.serving(hold) as target,
    ):
        await daemon.attached()
        await daemon.park(1)
        _, (reader, writer) = await daemon.dial(LOOPBACK, target.port)
        await until(lambda: bool(writers))
        if side == "work":
            writer.write_eof()
            await ended.wait()
            reset(writer.transport)
        else:
            writers[0].write_eof()
            assert await reader.read(-1) == b""
            reset(writers[0].transport)
        await until(lambda: agent.describe()["connections"] == 0)
        over.set()


async def test_urgent_bytes_are_passed_on_in_their_place(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder), targets.sink() as target:
        await daemon.attached()
        await daemon.park(1)
        _, (_, writer) = await daemon.dial(LOOPBACK, target.port)
        sock = socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))
        with sock:
            sock.setblocking(True)
            sock.sendall(b"before")
            await until(lambda: target.data == b"before")
            sock.send(b"!", socket.MSG_OOB)
            sock.sendall(b"behind")
        writer.write_eof()
        await until(lambda: target.data == b"before!behind")


async def test_a_slow_reader_holds_the_sender_back(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder), targets.source(None) as target:
        await daemon.attached()
        await daemon.park(1)
        _, (_, writer) = await daemon.dial(LOOPBACK, target.port)
        before = -1
        while before != target.sent:  # it stands still once all buffers on the way are full
            before = target.sent
            for _ in range(30):
                await asyncio.sleep(0.01)
        assert target.sent < 64_000_000
        writer.transport.abort()


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "192.168.1.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::c0a8:101"],
)
async def test_near_addresses_are_not_dialled(daemon: ExitDaemon, folder: Path, host: str) -> None:
    async with running(daemon, folder, allow=()):
        await daemon.attached()
        await daemon.park(1)
        dialled, _ = await daemon.dial((ip_address(host),), 80)
        assert dialled.outcome is DialOutcome.NOT_ALLOWED


@pytest.mark.parametrize("port", [22, 25, 445, 5555])
async def test_ports_outside_the_limits_are_not_dialled(
    daemon: ExitDaemon, folder: Path, port: int
) -> None:
    async with running(daemon, folder, allow=()):
        await daemon.attached()
        await daemon.park(1)
        dialled, _ = await daemon.dial((ip_address("93.184.215.14"),), port)
        assert dialled.outcome is DialOutcome.NOT_ALLOWED


async def test_no_order_leads_to_the_service_itself(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder), targets.echo() as target:
        await daemon.attached()
        await daemon.park(1)
        for text in (daemon.host, f"::ffff:{daemon.host}"):
            dialled, _ = await daemon.dial((ip_address(text),), daemon.port)
            assert dialled.outcome is DialOutcome.NOT_ALLOWED
        assert (await daemon.dial(LOOPBACK, target.port))[0].outcome is DialOutcome.CONNECTED
        daemon.control.send(Deny((), ("127.0.0.1",), (target.port,)))
        assert (await daemon.dial(LOOPBACK, target.port))[0].outcome is DialOutcome.NOT_ALLOWED


async def test_addresses_that_the_service_denies_are_denied_for_names(
    daemon: ExitDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def getaddrinfo(_host: str, port: int, **_: object) -> list[tuple]:
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    name = "name.example.org"
    async with running(daemon, folder), targets.echo() as target:
        await daemon.attached()
        await daemon.park(1)
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        assert (await daemon.dial(name, target.port))[0].outcome is DialOutcome.CONNECTED
        daemon.control.send(Deny(("127.0.0.0/24",), (), (), left=1))
        daemon.control.send(Deny(("::1/128",), (), ()))
        assert (await daemon.dial(name, target.port))[0].outcome is not DialOutcome.CONNECTED
        daemon.control.send(Deny(("127.0.1.0/24",), (), ()))
        assert (await daemon.dial(name, target.port))[0].outcome is DialOutcome.CONNECTED


async def test_the_daemon_has_itself_called_where_it_is(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder):
        await daemon.attached()
        daemon.control.send(Call(b"n" * 16, ip_address(daemon.host), daemon.port ^ 1))
        daemon.control.send(Call(b"m" * 16, ip_address("192.168.1.1"), daemon.port))
        daemon.control.send(Call(b"c" * 16, ip_address(daemon.host), daemon.port))
        await until(lambda: bool(daemon.calls), "it is called")
        assert daemon.calls == [b"c" * 16]


async def test_the_daemons_limits_hold(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder), targets.sink() as target:
        await daemon.attached()
        await daemon.park(3)
        daemon.control.send(ServiceLimits(1, 0, 0, (target.port,)))
        assert (await daemon.dial(LOOPBACK, 443))[0].outcome is DialOutcome.NOT_ALLOWED
        assert (await daemon.dial(LOOPBACK, target.port))[0].outcome is DialOutcome.CONNECTED
        assert (await daemon.dial(LOOPBACK, target.port))[0].outcome is DialOutcome.AT_LIMIT


async def test_a_held_order_that_the_daemon_gives_up_is_over(
    daemon: ExitDaemon, folder: Path
) -> None:
    async with running(daemon, folder), targets.sink() as target:
        await daemon.attached()
        await daemon.park(2)
        daemon.control.send(ServiceLimits(1, 0, 0, (target.port,)))
        assert (await daemon.dial(LOOPBACK, target.port))[0].outcome is DialOutcome.CONNECTED
        number, (_, writer) = daemon.order(LOOPBACK, target.port)
        daemon.control.send(Ping(b"12345678"))
        await until(lambda: bool(daemon.pongs), "the exit has the order")
        writer.close()
        await until(lambda: daemon.overs == [number], "its end is reported")
        assert number not in daemon.dialled


async def test_a_dial_reports_its_failure(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder), targets.sink() as target:
        await daemon.attached()
        await daemon.park(1)
        nobody = (ip_address("127.0.0.2"),)
        dialled, (reader, writer) = await daemon.dial(nobody, target.port)
        assert dialled.outcome is DialOutcome.REFUSED
        writer.close()
        assert await reader.read(1) == b""


async def test_the_next_address_is_tried(daemon: ExitDaemon, folder: Path) -> None:
    nobody, somebody = ip_address("127.0.0.2"), ip_address("127.0.0.1")
    async with running(daemon, folder), targets.echo() as target:
        await daemon.attached()
        await daemon.park(1)
        dialled, _ = await daemon.dial((nobody, somebody), target.port)
        assert dialled.outcome is DialOutcome.CONNECTED


async def test_as_many_work_connections_wait_as_were_asked_for(
    daemon: ExitDaemon, folder: Path
) -> None:
    async with running(daemon, folder), targets.echo() as target:
        await daemon.attached()
        await daemon.park(4)
        numbers = set(daemon.parked)
        await daemon.dial(LOOPBACK, target.port)
        await until(lambda: len(daemon.parked) == 4, "the one that was taken is replaced")
        assert numbers != set(daemon.parked)
        _, writer = daemon.parked.pop(next(iter(daemon.parked)))
        writer.close()
        await until(lambda: len(daemon.parked) == 4, "the one that died is replaced")
        assert daemon.refused == 0


async def test_a_work_connection_that_closes_ends_its_dial(
    daemon: ExitDaemon, folder: Path
) -> None:
    async with running(daemon, folder) as (agent, _):
        await daemon.attached()
        await daemon.park(1)
        with silent_port() as port:
            number, (_, writer) = daemon.order(LOOPBACK, port)
            await until(lambda: agent.describe()["connections"] == 1)
            writer.close()
            await until(lambda: agent.describe()["connections"] == 0)
        assert number not in daemon.dialled


async def test_a_daemon_that_speaks_before_the_dial_is_cut_off(
    daemon: ExitDaemon, folder: Path
) -> None:
    async with running(daemon, folder):
        await daemon.attached()
        await daemon.park(1)
        (reader, writer) = daemon.parked.pop(next(iter(daemon.parked)))
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await reader.read(1)


async def test_another_certificate_gets_no_bytes(
    daemon: ExitDaemon, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "exit")
    consent = consent_for(daemon)
    other = Consent(**{**vars(consent), "pin": "00" * 32})
    async with running(daemon, folder, consent=other):
        await until(lambda: "another certificate" in caplog.text)
        assert all(control.received == b"" for control in daemon.controls)
    assert daemon.hellos == []
    assert "a worker token" not in caplog.text


async def test_a_certificate_without_a_pin_needs_an_authority(
    daemon: ExitDaemon, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "exit")
    consent = Consent(**{**vars(consent_for(daemon)), "pin": ""})
    async with running(daemon, folder, consent=consent):
        await until(lambda: "no authority vouches" in caplog.text)
    assert daemon.hellos == []


async def test_a_refusal_is_shown_to_the_owner(daemon: ExitDaemon, folder: Path) -> None:
    daemon.reply = Sorry("terms_changed", "The \x1b[31mterms\nare new.", 0)
    async with running(daemon, folder) as (_, task):
        stop = await task
    assert stop.in_vain
    assert "terms" in stop.words
    assert stop.words.isprintable()
    assert "proxyctl exit consent" in stop.words


async def test_a_withdrawal_in_the_account_ends_it(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder) as (_, task), targets.echo() as target:
        await daemon.attached()
        await daemon.park(1)
        _, (reader, _) = await daemon.dial(LOOPBACK, target.port)
        daemon.control.send(Sorry("consent_needed", "Your consent was withdrawn.", 0))
        stop = await task
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
    assert stop.in_vain
    assert "Your consent was withdrawn; log in" in stop.words


async def test_a_local_withdrawal_is_reported_although_the_daemon_ends_it_first(
    daemon: ExitDaemon, folder: Path
) -> None:
    async with running(daemon, folder) as (_, task):
        await daemon.attached()
        files.write(folder / names.CONTROL, {"revoked": True})
        daemon.control.send(Sorry("consent_needed", "Your consent was withdrawn.", 0))
        assert await task == Stop("the consent of this device was withdrawn", in_vain=False)


async def test_a_daemon_that_welcomes_twice_is_left(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder):
        await daemon.attached()
        daemon.control.send(daemon.reply)
        await until(lambda: daemon.controls[0].is_lost)
        await daemon.attached(2)


JUNK = (
    b"\xff\xff\x01",
    b"\x00\x00\x01",
    b"\x00\x03\x02{}",
    b"\x00\x02\x06a",
    b"GET / HTTP/1.1\r\n\r\n",
)


@pytest.mark.parametrize("junk", JUNK)
async def test_a_daemon_that_sends_junk_is_left(
    daemon: ExitDaemon, folder: Path, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "exit")
    async with running(daemon, folder):
        await daemon.attached()
        assert daemon.control.transport is not None
        daemon.control.transport.write(junk)
        await until(lambda: daemon.controls[0].is_lost)
        await daemon.attached(2)
    assert "does not speak the protocol" in caplog.text


async def test_a_daemon_that_asks_for_much_gets_a_bounded_part(
    daemon: ExitDaemon, folder: Path
) -> None:
    limits = DeviceLimits(dials_per_second=1_000)
    bounds = replace(QUICK, carrying=CarryingBounds(parked_max=6))
    async with running(daemon, folder, limits=limits, bounds=bounds) as (agent, _):
        await daemon.attached()
        for number in range(50):
            daemon.control.send(Dial(number, LOOPBACK, 80))
            daemon.control.send(Ping(number.to_bytes(8, "big")))
        await daemon.park(6, tickets=128)
        daemon.give_tickets(128)
        daemon.control.send(Park(65_535))
        daemon.control.send(Ping(b"all done"))
        await until(lambda: b"all done" in daemon.pongs)
        assert {each.outcome for each in daemon.dialled.values()} == {DialOutcome.FAILED}
        assert len(daemon.dialled) == 50
        assert agent.describe()["parked"] <= 6
        assert len(daemon.parked) <= 6


async def test_new_connections_are_opened_no_faster_than_the_limit(
    daemon: ExitDaemon, folder: Path
) -> None:
    loop = asyncio.get_running_loop()
    async with running(daemon, folder, limits=DeviceLimits(dials_per_second=4)):
        await daemon.attached()
        began = loop.time()
        await daemon.park(8)  # four at once, and four within the next second
        assert loop.time() - began > 0.7


async def test_many_dials_that_the_daemon_gives_up_leave_nothing(
    daemon: ExitDaemon, folder: Path
) -> None:
    limits = DeviceLimits(dials_per_second=1_000, connections=0)
    async with running(daemon, folder, limits=limits) as (agent, _):
        await daemon.attached()
        await daemon.park(20)
        before = descriptors()
        with silent_port() as port:
            orders = [daemon.order(LOOPBACK, port) for _ in range(20)]
            await until(lambda: agent.describe()["connections"] == 20)
            for number, (_, writer) in orders:
                writer.transport.abort()
                await until(lambda number=number: number in daemon.overs)
        assert agent.describe()["connections"] == 0
        assert sorted(daemon.overs) == sorted(number for number, _ in orders), "each once"
        assert not daemon.dialled
        daemon.control.send(Park(0))
        await until(lambda: descriptors() <= before, "nothing is left open")


async def test_a_lost_daemon_ends_the_dials_that_are_under_way(
    daemon: ExitDaemon, folder: Path
) -> None:
    async with running(daemon, folder) as (agent, _):
        await daemon.attached()
        await daemon.park(2)
        with silent_port() as port:
            orders = [daemon.order(LOOPBACK, port) for _ in range(2)]
            await until(lambda: agent.describe()["connections"] == 2)
            assert daemon.control.transport is not None
            daemon.control.transport.abort()
            for _, (reader, _) in orders:
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)
        assert agent.describe()["connections"] == 0


async def test_a_number_that_is_ordered_twice_takes_no_second_dial(
    daemon: ExitDaemon, folder: Path
) -> None:
    """Both dials would count as one connection, and a pause would end only one of them."""
    async with running(daemon, folder) as (agent, _):
        await daemon.attached()
        await daemon.park(1, tickets=1)
        with silent_port() as port:
            number, (reader, _) = daemon.order(LOOPBACK, port)
            await until(lambda: agent.describe()["connections"] == 1)
            daemon._next = number
            await daemon.park(1, tickets=1)
            assert daemon.order(LOOPBACK, port)[0] == number
            assert (await daemon.result(number)).outcome is DialOutcome.FAILED
            assert agent.describe()["connections"] == 1, "the first goes on"
            assert daemon.control.transport is not None
            daemon.control.transport.abort()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)


async def test_the_end_of_an_earlier_attachments_relay_ends_no_dial(
    daemon: ExitDaemon, folder: Path
) -> None:
    async with running(daemon, folder) as (agent, _), targets.echo() as target:
        await daemon.attached()
        await daemon.park(1, tickets=1)
        number, (_, writer) = daemon.order(LOOPBACK, target.port)
        assert (await daemon.result(number)).outcome is DialOutcome.CONNECTED
        assert daemon.control.transport is not None
        daemon.control.transport.abort()
        await daemon.attached(2)
        daemon._next = number
        await daemon.park(1, tickets=1)
        with silent_port() as port:
            assert daemon.order(LOOPBACK, port)[0] == number
            await until(lambda: agent.describe()["connections"] == 2)
            writer.transport.abort()
            await until(lambda: agent.describe()["connections"] < 2)
            daemon.control.send(Ping(b"12345678"))
            await until(lambda: bool(daemon.pongs))
            assert agent.describe()["connections"] == 1
            assert number not in daemon.overs


async def test_a_target_that_resets_at_once_is_answered_and_leaves_nothing(
    daemon: ExitDaemon, folder: Path
) -> None:
    limits = DeviceLimits(dials_per_second=1_000, connections=0)
    async with running(daemon, folder, limits=limits) as (agent, _):
        await daemon.attached()
        await daemon.park(16)
        with resetting_port() as port:
            orders = [daemon.order(LOOPBACK, port) for _ in range(16)]
            for number, _ in orders:
                await daemon.result(number)
        for number, (reader, writer) in orders:
            outcome = daemon.dialled[number].outcome
            assert outcome in (DialOutcome.CONNECTED, DialOutcome.REFUSED)
            if outcome is DialOutcome.CONNECTED:
                with pytest.raises(ConnectionResetError):
                    await reader.read(1)
            writer.close()
        await until(lambda: agent.describe()["connections"] == 0)
        outcomes = [each.outcome for each in daemon.dialled.values()]
        await until(lambda: len(daemon.overs) >= outcomes.count(DialOutcome.CONNECTED))
        assert len(daemon.overs) == len(set(daemon.overs))


async def test_work_connections_notice_a_dead_peer(
    daemon: ExitDaemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[socket.socket] = []
    for module in (relay, relay_linux):
        monkeypatch.setattr(module, "keep_alive", kept.append)
    async with running(daemon, folder, bounds=ATTENTIVE), targets.echo() as target:
        await daemon.attached()
        await daemon.park(1)
        await until(lambda: len(kept) >= 1, "it waits")
        _, (_, writer) = await daemon.dial(LOOPBACK, target.port)
        await until(lambda: len(kept) >= 2, "so does the next one")
        assert len({id(each) for each in kept}) == len(kept), "each is asked for once"
        writer.close()


async def test_an_exit_comes_again_after_a_refusal(daemon: ExitDaemon, folder: Path) -> None:
    welcome = daemon.reply
    daemon.reply = Sorry("exit_paused", "Paused in your account.", 1)
    async with running(daemon, folder):
        await until(lambda: len(daemon.hellos) == 1)
        daemon.reply = welcome
        await daemon.attached()


async def test_an_exit_comes_back_when_its_daemon_does(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder), targets.echo() as target:
        await daemon.attached()
        await daemon.park(1)
        _, (reader, writer) = await daemon.dial(LOOPBACK, target.port)
        assert daemon.control.transport is not None
        daemon.control.transport.abort()
        await daemon.attached(2)
        writer.write(b"still here")  # a relay does not need the control connection
        assert await reader.readexactly(10) == b"still here"
        daemon.parked.clear()
        await daemon.park(2)
        dialled, _ = await daemon.dial(LOOPBACK, target.port)
        assert dialled.outcome is DialOutcome.CONNECTED


async def test_an_exit_waits_for_a_daemon_that_is_gone(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "exit")
    daemon = ExitDaemon(tmp_path)
    async with daemon.serving():
        agent = running(daemon, folder)
        await agent.__aenter__()
        await daemon.attached()
    try:
        await until(lambda: "cannot be reached" in caplog.text)
        async with daemon.serving():
            await daemon.attached(2)
    finally:
        await agent.__aexit__(None, None, None)


async def test_a_daemon_that_says_nothing_is_left(daemon: ExitDaemon, folder: Path) -> None:
    daemon.reply = daemon.reply._replace(heartbeat_seconds=1)
    async with running(daemon, folder):
        await daemon.attached()
        daemon.is_mute = True
        await until(lambda: daemon.controls[0].is_lost, "the connection is given up")
        daemon.is_mute = False
        await daemon.attached(2)


async def test_the_owner_pauses_and_resumes(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder), targets.echo() as target:
        await daemon.attached()
        await daemon.park(2)
        _, (reader, _) = await daemon.dial(LOOPBACK, target.port)
        files.write(folder / names.CONTROL, {"paused": True})
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        await until(lambda: daemon.states[-1] == "paused by the owner of this device")
        daemon.parked.clear()  # the agent has reset them
        files.write(folder / names.CONTROL, {"paused": False})
        await until(lambda: daemon.states[-1] == "")
        assert (await daemon.dial(LOOPBACK, target.port))[0].outcome is DialOutcome.CONNECTED


async def test_a_withdrawn_consent_ends_it(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder) as (_, task):
        await daemon.attached()
        files.write(folder / names.CONTROL, {"revoked": True})
        stop = await task
    assert stop == Stop("the consent of this device was withdrawn", in_vain=False)
    await until(lambda: daemon.control.is_lost)


async def test_a_pause_outlives_a_restart(daemon: ExitDaemon, folder: Path) -> None:
    files.write(folder / names.CONTROL, {"paused": True})
    async with running(daemon, folder):
        await daemon.attached()
        assert daemon.hellos[0].paused == "paused by the owner of this device"
        daemon.give_tickets(4)
        daemon.control.send(Park(2))
        daemon.control.send(NO_LIMITS)
        await until(lambda: bool(daemon.states))
        assert daemon.parked == {}


async def test_the_limit_of_a_day_cuts_at_once(daemon: ExitDaemon, folder: Path) -> None:
    limits = DeviceLimits(bytes_per_day=1_000_000)
    async with running(daemon, folder, limits=limits), targets.source(None) as target:
        await daemon.attached()
        await daemon.park(1)
        _, (reader, _) = await daemon.dial(LOOPBACK, target.port)
        with pytest.raises(ConnectionResetError):
            await reader.read(-1)
        await until(lambda: daemon.states[-1] == "the limit of bytes for today is reached")
    journal = files.read(folder / names.JOURNAL) or {}
    assert 1_000_000 <= journal["bytes_today"] < 1_300_000


async def test_a_device_on_battery_rests(daemon: ExitDaemon, folder: Path) -> None:
    async with running(daemon, folder, power=lambda: "on battery below 50 %"):
        await daemon.attached()
        assert daemon.hellos[0].paused == "on battery below 50 %"


async def test_a_battery_that_runs_low_lets_connections_end_for_a_while(
    daemon: ExitDaemon, folder: Path
) -> None:
    reasons, bounds = [""], replace(ATTENTIVE, grace_seconds=2.0)
    async with (
        running(daemon, folder, power=lambda: reasons[0], bounds=bounds),
        targets.echo() as target,
    ):
        await daemon.attached()
        await daemon.park(2)
        _, (reader, writer) = await daemon.dial(LOOPBACK, target.port)
        reasons[0] = "on battery below 50 %"
        await until(lambda: daemon.states[-1] == "on battery below 50 %")
        writer.write(b"not yet over")
        assert await reader.readexactly(12) == b"not yet over"
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        daemon.parked.clear()
        reasons[0] = ""
        await until(lambda: daemon.states[-1] == "")
        assert (await daemon.dial(LOOPBACK, target.port))[0].outcome is DialOutcome.CONNECTED


async def test_a_daemon_that_stops_is_left_and_asked_again(
    daemon: ExitDaemon, folder: Path
) -> None:
    async with running(daemon, folder, bounds=replace(QUICK, drain_grace_seconds=0.01)):
        await daemon.attached()
        daemon.control.send(Drain(0))
        await daemon.attached(2)
        assert daemon.controls[0].is_lost


async def test_a_relay_that_is_silent_for_long_is_cut(daemon: ExitDaemon, folder: Path) -> None:
    bounds = replace(ATTENTIVE, carrying=CarryingBounds(idle_seconds=0.1))
    async with running(daemon, folder, bounds=bounds), targets.echo() as target:
        await daemon.attached()
        await daemon.park(1)
        _, (reader, _) = await daemon.dial(LOOPBACK, target.port)
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        await until(lambda: target.resets == 1)


async def test_an_exit_goes_on_where_nothing_can_be_written(
    daemon: ExitDaemon,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise files.FileError("exit-state.json cannot be written: No space left on device")

    async with running(daemon, folder, bounds=ATTENTIVE), targets.echo() as target:
        await daemon.attached()
        await daemon.park(1)
        with monkeypatch.context() as patched:
            patched.setattr(files, "write", full)
            _, (reader, writer) = await daemon.dial(LOOPBACK, target.port)
            await until(lambda: "the exit continues without it" in caplog.text)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            writer.close()
    assert caplog.text.count("the exit continues without it") <= 2
    assert (files.read(folder / names.JOURNAL) or {})["bytes_today"] == 10


async def test_a_rate_is_kept(daemon: ExitDaemon, folder: Path) -> None:
    limits = DeviceLimits(bytes_per_second=2_000_000)
    loop = asyncio.get_running_loop()
    async with running(daemon, folder, limits=limits), targets.source(3_000_000) as target:
        await daemon.attached()
        await daemon.park(1)
        began = loop.time()
        _, (reader, writer) = await daemon.dial(LOOPBACK, target.port)
        assert len(await reader.read(-1)) == 3_000_000
        assert loop.time() - began > 1.0  # a bound that a slow machine only exceeds
        writer.close()
