"""Nodes that lend one another their exits: exits' ports, and links between them in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from proxyctl.attach.network.lan import NEVER_PORTS, Guard
from proxyctl.attach.network.surroundings import Surroundings
from proxyctl.exit.agent.agent import Agent, AgentBounds
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.exit.base.record import Consent
from proxyctl.exit.base.retries import RetryTimes
from proxyctl.protocol.frames import FrameError, ServiceLimits
from proxyctl.protocol.policy import Policy
from proxyd.exits.attached.attached import Attached
from proxyd.exits.attached.certificate import FILE_NAME, fingerprint
from proxyd.exits.choosing.entries import Place
from proxyd.exits.nodes.lending import Lending
from proxyd.exits.nodes.loans import Loans
from proxyd.wire.links import Frame, LinkReader, LoanNumbers, encode
from support.base.waiting import until
from support.daemons.service import Service, running_in
from support.exits.device import (
    EXITS,
    NO_LIMITS,
    Granted,
    Port,
    all_is_shared,
    borrowing_of,
    consented,
    listener_of,
)

PLACE = Place(country="xx")
QUICK = AgentBounds(retries=RetryTimes(least_seconds=0.01, most_seconds=0.05))


class Link:
    """One side of a link in memory; frames arrive in a later turn of the loop, as bytes.

    `sent` are the frames that this side has sent, `error` is the other side's error about one of
    them.
    """

    def __init__(self, ends_at: Loans, node_id: str, *, is_dialler: bool = False) -> None:
        self.ends_at = ends_at
        self.node_id = node_id
        self.loans = LoanNumbers(is_dialler=is_dialler)
        self.other: Link | None = None
        self.is_over = False
        self.sent: list[Frame] = []
        self.error: FrameError | None = None
        self._reader = LinkReader()

    def send(self, frame: Frame) -> None:
        if not self.is_over:
            self.sent.append(frame)
            assert self.other is not None
            asyncio.get_running_loop().call_soon(self.other.receive, encode(frame))

    def receive(self, data: bytes) -> None:
        for frame in self._reader.receive_data(data):
            try:
                if not self.is_over:
                    self.ends_at.lending(self, frame)  # type: ignore[arg-type]
            except FrameError as error:
                self.error = error
                self.cut()

    def cut(self) -> None:
        """Lose it, on both sides."""
        for each in (self, self.other):
            assert each is not None
            if not each.is_over:
                each.is_over = True
                each.ends_at.lost(each)


@dataclass
class Entry:
    """An exit that another node has announced."""

    device_id: str
    link: Link
    owner_id: str = "owner"
    min_price_per_gb: int = 0
    place: Place = PLACE
    network: str = "127.0.0.1"
    address: str = "127.0.0.1"
    limits: ServiceLimits = NO_LIMITS
    features: tuple[str, ...] = ("udp",)
    rtt: float = 0.0
    since: int = 1
    is_elsewhere: bool = False
    is_spent: bool = False
    is_behind: bool = False
    borrowed: Attached | None = None

    def has_place_for(self, buyer: str, *, datagrams: bool) -> bool:
        return self.borrowed is None or self.borrowed.has_place_for(buyer, datagrams=datagrams)

    def allows(self, port: int) -> bool:
        return not self.limits.ports or port in self.limits.ports


class Node(Port):
    """A port of exits that lends its own and borrows others.

    `host` and `number` are where it says that work connections come in.
    """

    def __init__(self, folder: Path, heartbeat_seconds: float = 15.0, **options: Any) -> None:
        folder.mkdir()
        super().__init__(folder, heartbeat_seconds=heartbeat_seconds, **options)
        self.folder = folder
        self.host, self.number = "127.0.0.1", self.port
        self._agents: list[tuple[Agent, asyncio.Task[Any]]] = []

    def reached_at(self) -> tuple[str, int]:
        """Return the address that this node announces for work connections."""
        return self.host, self.number

    def link(self, other: "Node") -> Link:
        """Link two nodes; return this side."""
        here, there = Link(self.loans, "other", is_dialler=True), Link(other.loans, "this")
        here.other, there.other = there, here
        return here

    def hear_of(self, device_id: str, link: Link, **about: Any) -> Entry:
        """Add an announced exit of another node to the directory."""
        entry = Entry(device_id, link, **about)
        self.directory.add(entry)  # type: ignore[arg-type]
        return entry

    def exit_of(self, device_id: str) -> Attached:
        """Return an exit that is attached here."""
        attached = self.listener.roster.attached_here(device_id)
        assert attached is not None
        return attached

    async def agent(self, token: str = "device", **limits: Any) -> Agent:
        """Return the agent of a device that has attached here."""
        consent = Consent(
            api="http://127.0.0.1:1",
            host="127.0.0.1",
            port=self.port,
            pin=fingerprint(self.folder / FILE_NAME),
            token=token,
            terms="ab" * 32,
            agreed_at="2026-01-01T00:00:00+00:00",
            limits=DeviceLimits(**{"bytes_per_day": 0, "dials_per_second": 1000, **limits}),
        )
        guard = Guard(
            policy=Policy(blocked_ports=NEVER_PORTS),
            surroundings=Surroundings(set),
            kernel=None,
            allow=[ip_network("127.0.0.0/8")],
        )
        agent = Agent(
            consent,
            self.folder / token,
            guard=guard,
            now=lambda: datetime.now(UTC),
            read_power=lambda: "",
            bounds=QUICK,
        )
        self._agents.append((agent, asyncio.get_running_loop().create_task(agent.run())))
        await until(lambda: self.listener.roster.attached_here(token) is not None, "it is attached")
        await until(lambda: len(self.exit_of(token).pool) > 0, "a connection waits")
        return agent

    async def close(self) -> None:
        """Close everything, and see that nothing is left."""
        for agent, task in self._agents:
            agent.stop("the test is over")
            await task
        await super().close()
        assert not len(self.borrowing)
        assert not len(self.lending)


@asynccontextmanager
async def running_over_nodes(folder: Path, **sections: dict[str, Any]) -> AsyncIterator[Service]:
    """Run a daemon that borrows the exit of another node; every session leaves through it.

    The device is a real agent, which opens its work connections to this daemon.
    """
    async with running_in(folder, **EXITS, **sections) as service:
        home, made = Node(folder / "home"), await consented(service)
        home.devices.grants[made.device_id] = Granted(made.device_id, "owner")
        listener, port = listener_of(service), service.daemon.exit_port
        assert port is not None
        exits = service.daemon.gateway._for_connections.exits
        assert exits is not None
        door, base = port.door(), listener._base
        assert door is not None
        loans = Loans(borrowing_of(base, lambda: (door.host, door.port)), Lending(listener.roster))
        # On SQLite a daemon is alone, and borrows nothing.
        listener.loaner = listener.arrivals._loaner = exits.borrower = loans
        here, there = Link(loans, "home", is_dialler=True), Link(home.loans, "edge")
        here.other, there.other = there, here
        service.wishes = "-country-xx"
        service.homes.append(home)
        try:
            await home.agent(made.device_id, connections=1000)
            home.exit_of(made.device_id).pool.demand.rtt = 0.001  # a burst asks for few connections
            exits.directory.add(Entry(made.device_id, here))
            attached = loans.exit_of(exits.directory.get(made.device_id))
            assert attached is not None
            attached.pool.open()
            await until(lambda: listener.counters.parked > 0, "a connection waits")
            yield service
            await all_is_shared(service)
        finally:
            here.cut()
            await home.close()
