"""Sessions with and without a store, nodes that have them, and sinks that hold their bytes."""

import asyncio
from typing import NamedTuple

from market.bandwidth.leases import Grant, Leases
from market.bandwidth.sessions import Purchase
from market.base.states import SessionStatus
from proxyd.metering.cluster_writer import ClusterWriter
from proxyd.metering.fence import Fence
from proxyd.metering.meter import USUAL, Meter, MeterBounds, cluster_meter
from proxyd.metering.session import LiveSession
from proxyd.wire.events import Refusal
from storage.bandwidth.sessions import find
from support.market import nodes
from support.market.market import Market

HERE, THERE = "198.51.100.1", "198.51.100.2"


class Stalled:
    """A sink that holds bytes until a test lets them go, and counts the calls of `unsent`."""

    def __init__(self) -> None:
        self.waiting = 10
        self.asked = 0

    def unsent(self) -> int:
        self.asked += 1
        return self.waiting


def grant_of(granted_bytes: int) -> Grant:
    """Return a grant of a session that no store knows."""
    return Grant(
        session_id="session",
        username="somebody",
        password_hash="",
        status=SessionStatus.ACTIVE,
        expires_at=2**40,
        lease_id="lease",
        granted_bytes=granted_bytes,
        entries=(),
    )


def session_of(granted_bytes: int) -> tuple[LiveSession, Grant]:
    """Return a session that no store knows, and its grant."""
    grant = grant_of(granted_bytes)
    return LiveSession(grant, lambda _: None), grant


def use(session: LiveSession, size: int, sink: Stalled | None = None) -> None:
    """Take bytes and deliver them."""
    session.take(size, None)
    session.deliver(size, sink)


async def admitted(meter: Meter, bought: Purchase, network: str = HERE) -> LiveSession | Refusal:
    """Show a session's credentials."""
    return await shown(meter, bought.username, bought.password, network)


async def shown(meter: Meter, username: str, password: str, network: str) -> LiveSession | Refusal:
    """Show any credentials."""
    answer: asyncio.Future[LiveSession | Refusal] = asyncio.get_running_loop().create_future()
    decision = meter.admit(username.encode(), password.encode(), network, answer.set_result)
    return decision if decision is not None else await answer


class Node(NamedTuple):
    """The byte counter of a node that other nodes know."""

    meter: Meter
    writer: ClusterWriter


async def node_of(
    market: Market,
    name: str = "here",
    leases: Leases | None = None,
    bounds: MeterBounds = USUAL,
) -> Node:
    """Return a registered node, with its own leases or with the market's."""
    leases = leases or market.leases
    leases.node_id = name
    await market.store.write(nodes.register, name, market.clock.seconds())
    fence = Fence(lambda: 0.0)
    return Node(
        *cluster_meter(
            leases,
            market.clock.seconds,
            fence,
            connections_per_session=10,
            bounds=bounds,
        )
    )


async def bought_and_used(market: Market, meter: Meter, count: int) -> list[LiveSession]:
    """Return sessions that have used a byte each."""
    user = await market.person("100")
    sessions = []
    for _ in range(count):
        bought = await market.bandwidth.buy(user, quota_bytes=1_000, price_per_gb=None)
        session = await admitted(meter, bought)
        assert isinstance(session, LiveSession)
        use(session, 1)
        sessions.append(session)
    return sessions


async def written(market: Market, session: LiveSession) -> int:
    """Return the stored used bytes of a session."""
    return int((await market.store.read(find, session.id)).bytes_used)
