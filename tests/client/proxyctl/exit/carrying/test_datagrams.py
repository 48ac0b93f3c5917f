"""The agent and datagrams, against a daemon that judges nothing, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.base.waiting import until
from support.clients import datagrams as proxy
from support.clients.datagrams import Peer, peer
from support.exits.daemon import ExitDaemon, Streams

from proxyctl import files
from proxyctl.attach.network.lan import NEVER_PORTS, Guard
from proxyctl.attach.network.surroundings import Surroundings
from proxyctl.attach.relay import relays as relays_module
from proxyctl.attach.relay.dial import DialError
from proxyctl.exit.agent.agent import Agent, AgentBounds
from proxyctl.exit.base import names
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.exit.base.record import Consent
from proxyctl.exit.carrying import datagrams
from proxyctl.exit.carrying.carrier import CarryingBounds
from proxyctl.exit.carrying.datagrams import (
    DatagramError,
    DatagramRelay,
    DatagramTimes,
    unwrapped,
    wrapped,
)
from proxyctl.protocol.addresses import Address
from proxyctl.protocol.frames import DialOutcome
from proxyctl.protocol.policy import Policy


@pytest.fixture(autouse=True, params=["epoll", "asyncio"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How connections are carried: as on Linux, and as everywhere else."""
    monkeypatch.setenv(relays_module.CHOICE, request.param)


@asynccontextmanager
async def attached(
    folder: Path,
    *,
    allow: str = "127.0.0.0/8",
    bounds: CarryingBounds = CarryingBounds(),  # noqa: B008 - it is frozen
    **limits: object,
) -> AsyncIterator[tuple[ExitDaemon, Agent]]:
    """Give a daemon with an agent that carries datagrams."""
    daemon = ExitDaemon(folder)
    async with daemon.serving():
        consent = Consent(
            api="http://127.0.0.1:1",
            host=daemon.host,
            port=daemon.port,
            pin=daemon.pin,
            token="a worker token",
            terms="ab" * 32,
            agreed_at="",
            limits=DeviceLimits(**{"udp": True, **limits}),
        )
        guard = Guard(
            policy=Policy(blocked_ports=NEVER_PORTS),
            surroundings=Surroundings(set),
            kernel=None,
            allow=[ip_network(allow)],
        )
        agent = Agent(
            consent,
            folder / "exit",
            guard=guard,
            now=lambda: datetime.now(UTC),
            read_power=lambda: "",
            bounds=AgentBounds(carrying=bounds),
        )
        task = asyncio.create_task(agent.run())
        try:
            await daemon.attached()
            await daemon.park(2)
            yield daemon, agent
        finally:
            agent.stop("the test is over")
            await task


def order(host: str, port: int, payload: bytes) -> bytes:
    data = proxy.wrapped(host, port, payload)
    return len(data).to_bytes(2, "big") + data


async def answer(streams: Streams) -> tuple[str, int, bytes]:
    size = int.from_bytes(await streams[0].readexactly(2), "big")
    return proxy.unwrapped(await streams[0].readexactly(size))


async def exchange(streams: Streams, target: Peer, up: bytes, down: bytes) -> None:
    streams[1].write(order(*target.address, up))
    data, sender = await target.receive()
    assert data == up
    target.send(down, sender)
    assert await answer(streams) == (*target.address, down)


async def ends(streams: Streams) -> None:
    try:
        assert await streams[0].read(-1) == b""
    except ConnectionResetError:
        return


async def test_datagrams_pass_both_ways_and_are_counted(tmp_path: Path) -> None:
    async with attached(tmp_path) as (daemon, _):
        assert "udp" in daemon.hellos[0].features
        dialled, streams = await daemon.associate()
        assert dialled.outcome is DialOutcome.CONNECTED
        with peer() as target:
            await exchange(streams, target, b"u" * 1_200, b"d" * 1_400)
            await exchange(streams, target, b"", b"")
        streams[1].close()
    journal = files.read(tmp_path / "exit" / names.JOURNAL)
    assert journal is not None
    assert journal["bytes_today"] == 2_600
    assert journal["targets"][-1][1:] == list(target_address(journal))


def target_address(journal: dict) -> tuple[str, int]:
    (port,) = journal["ports"]
    return "127.0.0.1", int(port)


async def test_an_owner_without_consent_carries_no_datagrams(tmp_path: Path) -> None:
    async with attached(tmp_path, udp=False) as (daemon, _):
        assert "udp" not in daemon.hellos[0].features
        dialled, _ = await daemon.associate()
        assert dialled.outcome is DialOutcome.NOT_ALLOWED


async def test_a_datagram_that_the_owner_forbids_is_not_sent(tmp_path: Path) -> None:
    with peer("127.0.0.1") as allowed, peer("127.0.0.2") as elsewhere:
        async with attached(tmp_path, allow="127.0.0.1/32") as (daemon, _):
            _, streams = await daemon.associate()
            for host in ("127.0.0.2", "::ffff:127.0.0.2", "10.0.0.1", "224.0.0.251", "::1"):
                streams[1].write(order(host, elsewhere.port, b"forbidden"))
            for name in ("localhost", "printer.local", "192.168.1.1", "0x7f.1", "router"):
                streams[1].write(order(name, allowed.port, b"forbidden"))
            for port in sorted(NEVER_PORTS):
                streams[1].write(order("127.0.0.1", port, b"forbidden"))
            await exchange(streams, allowed, b"up", b"down")
            with pytest.raises(BlockingIOError):
                elsewhere.sock.recv(1)
            streams[1].close()


async def test_ports_outside_the_limits_are_not_sent_to(tmp_path: Path) -> None:
    async with attached(tmp_path) as (daemon, agent):
        carrier = agent._carrier
        assert not carrier._permits_port(ip_address("45.33.32.156"), 5_000)
        _, streams = await daemon.associate()
        streams[1].write(order("45.33.32.156", 5_000, b"not a port of the owner's"))
        with peer() as target:
            await exchange(streams, target, b"up", b"down")
        (relay,) = carrier._relays
        assert not relay._targets["45.33.32.156", 5_000].is_permitted
        streams[1].close()


async def test_answers_come_only_from_where_something_was_sent_to(tmp_path: Path) -> None:
    async with attached(tmp_path) as (daemon, _):
        _, streams = await daemon.associate()
        with peer() as target, peer() as stranger:
            streams[1].write(order(*target.address, b"up"))
            _, sender = await target.receive()
            stranger.send(b"of nobody", sender)
            target.send(b"down", sender)
            assert await answer(streams) == (*target.address, b"down")
        streams[1].close()


async def test_the_concurrent_associations_of_a_device_are_bounded(tmp_path: Path) -> None:
    async with attached(tmp_path, bounds=CarryingBounds(associations_max=1)) as (daemon, agent):
        dialled, streams = await daemon.associate()
        assert dialled.outcome is DialOutcome.CONNECTED
        dialled, _ = await daemon.associate()
        assert dialled.outcome is DialOutcome.AT_LIMIT
        streams[1].close()
        await until(lambda: not agent._carrier._relays)
        await daemon.park(1)
        dialled, streams = await daemon.associate()
        assert dialled.outcome is DialOutcome.CONNECTED
        streams[1].close()


@pytest.mark.parametrize(
    "garbage", [b"\0\0", b"\0\x03\0\0\0", b"\0\x09\0\0\0\x07abcde", b"\0\x07\0\0\0\x03\xffab"]
)
async def test_garbage_of_the_daemon_ends_it(tmp_path: Path, garbage: bytes) -> None:
    async with attached(tmp_path) as (daemon, agent):
        _, streams = await daemon.associate()
        streams[1].write(garbage)
        await ends(streams)
        await until(lambda: not agent._carrier._relays)


async def test_a_daemon_that_does_not_read_gets_the_latest(tmp_path: Path) -> None:
    async with attached(tmp_path) as (daemon, agent):
        _, streams = await daemon.associate()
        with peer() as target:
            streams[1].write(order(*target.address, b"up"))
            _, sender = await target.receive()
            (relay,) = agent._carrier._relays
            streams[1].transport.pause_reading()
            payload, sent = bytes(8_000), 0
            while not relay.work._waiting_bytes:
                target.send(payload, sender)
                sent += 1
                await asyncio.sleep(0)
            for number in range(100):
                target.send(number.to_bytes(2, "big") * 4_000, sender)
                await asyncio.sleep(0)
            target.send(b"the last one", sender)
            await until(lambda: relay.work._waiting[-1].endswith(b"the last one"))
            assert relay.work._waiting_bytes <= datagrams.WAITING_MAX_BYTES
            streams[1].transport.resume_reading()
            while (await answer(streams))[2] != b"the last one":
                pass
        streams[1].close()


async def test_one_that_is_idle_ends(tmp_path: Path) -> None:
    bounds = CarryingBounds(datagrams=DatagramTimes(idle_seconds=0.0))
    async with attached(tmp_path, bounds=bounds) as (daemon, _):
        _, streams = await daemon.associate()
        await ends(streams)


async def test_it_ends_with_a_pause(tmp_path: Path) -> None:
    async with attached(tmp_path) as (daemon, agent):
        _, streams = await daemon.associate()
        agent._carrier.cut()
        await ends(streams)


@given(
    st.sampled_from([IPv4Address("192.0.2.7"), IPv6Address("2001:db8::7")]),
    st.integers(0, 65_535),
    st.binary(max_size=2_000),
)
def test_a_wrapped_datagram_is_unwrapped(address: IPv4Address, port: int, payload: bytes) -> None:
    data = wrapped(address, port, payload)
    assert int.from_bytes(data[:2], "big") == len(data) - 2
    assert unwrapped(data[2:]) == (address, port, payload)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_datagram_or_an_error(data: bytes) -> None:
    try:
        host, port, payload = unwrapped(data)
    except DatagramError:
        return
    assert data.endswith(payload)
    assert 0 <= port < 1 << 16
    assert isinstance(host, (str, IPv4Address, IPv6Address))


def test_a_datagram_that_is_too_large_is_not_wrapped() -> None:
    assert wrapped(IPv6Address("::1"), 9, bytes(65_535 - 22))
    assert wrapped(IPv6Address("::1"), 9, bytes(65_535 - 21)) == b""


async def test_a_name_that_could_not_be_looked_up_is_looked_up_again() -> None:
    refusals = [DialOutcome.AT_LIMIT, DialOutcome.TIMED_OUT]

    async def look_up(_name: str, _port: int) -> list[Address]:
        if refusals:
            raise DialError(refusals.pop())
        return [ip_address("127.0.0.1")]

    relay = DatagramRelay(
        permits=lambda *_: True,
        look_up=look_up,
        meter=Free(),
        noted=lambda *_: None,
        over=lambda _: None,
        loop=asyncio.get_running_loop(),
        times=DatagramTimes(failed_name_seconds=0.0),
    )
    await relay.open()
    with peer() as target:
        _, port = target.address
        for _ in range(2):
            relay.send(proxy.wrapped("name.example.net", port, b"lost"))
            await until(lambda: not relay._lookups)
        relay.send(proxy.wrapped("name.example.net", port, b"words"))
        assert (await target.receive())[0] == b"words"
    relay.abort()


class Free:
    """Counts nothing."""

    def count(self, _size: int) -> float:
        return 0.0

    def most(self) -> int:
        return 1
