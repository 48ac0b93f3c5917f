"""Run the tricks of a hostile buyer against the exits of a market, all together."""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from proxyctl.attach.daemon.control import ControlConnection
from proxyctl.attach.network.lan import make_guard
from proxyctl.exit.agent import attaching
from proxyctl.exit.agent.agent import Agent
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.exit.base.record import Consent
from proxyctl.protocol.frames import Frame, Hello
from support.base.ports import closed_port, silent_port
from support.base.waiting import until
from support.clients.socks import Client
from support.daemons.service import Bought, Service, running_in
from support.exits.device import EXITS, NO_LIMITS, consented, listener_of
from support.targets import targets

RESET = struct.pack("ii", 1, 0)
MALLORY = "127.0.0.2"  # where the hostile buyer's clients come from
AGAIN_SECONDS = 0.05  # before a trick is played anew: the machine of a test has other work
HELD = 24  # connections that are kept open: more than an exit takes
Trick = Callable[["Hostile"], Awaitable[None]]


class Hostile:
    """A buyer that tries to take the exits from all others.

    `played` counts the results of each trick.

    Args:
        service: sells the exits.
        sessions: of one account.
        places: the ports of targets, by name.
    """

    def __init__(self, service: Service, sessions: list[Bought], places: dict[str, int]) -> None:
        self.service = service
        self.sessions = sessions
        self.places = places
        self.played: Counter[str] = Counter()

    async def client(self, wishes: str = "", number: int = 0) -> Client:
        """Return a client that has logged in, by one of the sessions."""
        bought = self.sessions[number % len(self.sessions)]
        client = await Client.open(self.service.proxy_port, source=MALLORY)
        try:
            assert await client.log_in(bought.username + wishes, bought.password) == 0
        except BaseException:
            client.writer.transport.abort()
            raise
        return client

    async def reach(self, place: str, wishes: str = "", number: int = 0) -> Client | None:
        """Return a client that has reached a target, or None."""
        client = await self.client(wishes, number)
        try:
            async with asyncio.timeout(5):
                code = await client.connect("127.0.0.1", self.places[place])
        except BaseException:
            client.writer.transport.abort()
            raise
        if code == 0:
            return client
        await client.close()
        return None


async def keep_idle(it: Hostile) -> None:
    """Hold connections that carry no byte, and replace each that is cut."""
    client = await it.reach("echo", number=it.played["keep_idle"])
    if client is not None:
        try:
            await client.rest()
        finally:
            client.writer.transport.abort()


async def trickle(it: Hostile) -> None:
    """Hold connections that carry a byte a second."""
    client = await it.reach("echo", number=it.played["trickle"])
    if client is not None:
        try:
            while not client.writer.is_closing():
                await client.send(b"x")
                await client.receive(1)
                await asyncio.sleep(1)
        finally:
            client.writer.transport.abort()


async def leave_half_closed(it: Hostile) -> None:
    """Close a client whose target never ends its stream."""
    client = await it.reach("patient", number=it.played["leave_half_closed"])
    if client is not None:
        await client.close()


async def leave_unread(it: Hostile) -> None:
    """Send bytes that the target never reads, and close."""
    secure = "-secure" if it.played["leave_unread"] % 2 else ""
    client = await it.reach("deaf", secure)
    if client is not None:
        try:
            client.writer.write(bytes(300_000))
            await asyncio.sleep(0.1)
        finally:
            client.writer.transport.abort()


async def fail(it: Hostile) -> None:
    """Dial a target that refuses, as fast as an exit answers."""
    await it.reach("closed", number=it.played["fail"])


async def be_reset(it: Hostile) -> None:
    """Dial a target that resets each connection at once, by labels for different exits."""
    client = await it.reach("resetting", f"-session-r{it.played['be_reset'] % 50}-strict")
    if client is not None:
        client.writer.transport.abort()


async def give_up(it: Hostile) -> None:
    """Dial a target that never answers, and leave."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await it.reach("silent", number=it.played["give_up"])


async def associate(it: Hostile) -> None:
    """Request more associations of one label than its exit takes."""
    client = await it.client("-session-udp")
    try:
        await client.connect("0.0.0.0", 0, command=3)
        await asyncio.sleep(1)
    finally:
        client.writer.transport.abort()


async def burst(it: Hostile) -> None:
    """Dial by connections under TLS."""
    client = await it.reach("echo", "-secure", it.played["burst"])
    if client is not None:
        client.writer.transport.abort()


TRICKS: dict[Trick, int] = {
    keep_idle: HELD,
    trickle: HELD,
    leave_half_closed: 4,
    leave_unread: 4,
    fail: 14,
    be_reset: 4,
    give_up: 8,
    associate: 12,
    burst: 14,
}


@asynccontextmanager
async def besieged(
    it: Hostile, tricks: Mapping[Trick, int] = MappingProxyType(TRICKS)
) -> AsyncIterator[None]:
    """Repeat attacks, each with its number of connections."""

    async def play(trick: Trick) -> None:
        while True:
            it.played[trick.__name__] += 1
            with suppress(OSError, EOFError, TimeoutError):
                await trick(it)
            await asyncio.sleep(AGAIN_SECONDS)

    tasks = [
        asyncio.create_task(play(each)) for each, count in tricks.items() for _ in range(count)
    ]
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in outcomes), outcomes


@asynccontextmanager
async def hostile_targets() -> AsyncIterator[dict[str, int]]:
    """Serve the targets of tricks; yield their ports."""

    async def wait(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            while not writer.transport.is_closing():
                await asyncio.sleep(0.2)

    async def be_deaf(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()
        writer.write_eof()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()

    async def end(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()

    async with AsyncExitStack() as stack:
        served = {"echo": await stack.enter_async_context(targets.echo())}
        for name, handler in (("patient", wait), ("deaf", be_deaf), ("resetting", end)):
            served[name] = await stack.enter_async_context(targets.serving(handler))
        ports = {name: each.port for name, each in served.items()}
        ports["closed"] = stack.enter_context(closed_port())
        ports["silent"] = stack.enter_context(silent_port())
        yield ports


@asynccontextmanager
async def market_with_exits(
    folder: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> AsyncIterator[tuple[Service, dict[str, int]]]:
    """Run a service with exits that are attached; yield it and the ports of the targets."""
    async with (
        running_in(folder, **EXITS) as service,
        hostile_targets() as places,
        agents_at(service, folder, monkeypatch, count),
    ):
        service.wishes = "-country-xx"
        yield service, places


@asynccontextmanager
async def agents_at(
    service: Service, folder: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> AsyncIterator[None]:
    """Run agents with default limits, each attached from another address."""
    sources: dict[str, str] = {}
    open_control = attaching.open_control

    async def open_from(host: str, port: int, hello: Frame, **about: Any) -> ControlConnection:
        assert isinstance(hello, Hello)
        source = sources[hello.token]

        async def connect() -> socket.socket:
            sock = socket.create_connection((host, port), source_address=(source, 0))
            sock.setblocking(False)
            return sock

        return await open_control(host, port, hello, **{**about, "connect": connect})

    monkeypatch.setattr(attaching, "open_control", open_from)
    listener, door = listener_of(service), service.daemon.exit_port.door()
    guard, routes = make_guard([ip_network("127.0.0.0/8")])
    running: list[tuple[Agent, asyncio.Task[Any]]] = []
    try:
        for number in range(count):
            device = await consented(service)
            sources[device.first.token] = f"127.0.2.{number + 1}"
            (folder / str(number)).mkdir()
            agent = Agent(
                Consent(
                    api=service.url,
                    host=door.host,
                    port=door.port,
                    pin=door.certificate_sha256,
                    token=device.first.token,
                    terms=device.first.terms,
                    agreed_at="2026-01-01T00:00:00+00:00",
                    limits=DeviceLimits(udp=True),
                ),
                folder / str(number),
                guard=guard,
                now=lambda: datetime.now(UTC),
                read_power=lambda: "",
            )
            running.append((agent, asyncio.create_task(agent.run())))
            await until(lambda: len(listener) > len(running) - 1, "it is attached")
            attached = listener.roster.by_device[device.device_id]
            attached.grant(NO_LIMITS)  # targets of tests are at any port
            listener.roster.control_of(attached).send(NO_LIMITS)
        await until(lambda: listener.counters.parked >= count, "a connection of each waits")
        yield
    finally:
        for agent, task in running:
            agent.stop("the test is over")
            await task
        if routes is not None:
            routes.close()
