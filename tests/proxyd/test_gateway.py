"""The gateway counts its clients, also when one is closed to make room for another."""

import asyncio
import socket
from types import SimpleNamespace

from support.base.waiting import until
from support.market.market import Market

from proxyctl.protocol.policy import Policy
from proxyd.egress.direct import DirectExit
from proxyd.gateway import ClientBounds, Gateway
from proxyd.limits import ProxyLimits
from proxyd.loop.reactor import Reactor
from proxyd.metering.meter import solo_meter

ONE = ProxyLimits(
    handshake_seconds=30,
    dial_seconds=5,
    idle_seconds=60,
    connections_per_address=100,
    connections_total=1,
    dials_waiting=10,
    racers=1,
    pipes=0,
    associations=1,
    datagrams_per_second=0,
)


async def test_a_client_that_had_the_only_other_one_shed_is_waited_for(market: Market) -> None:
    bounds = ClientBounds(room_after_seconds=-1.0)
    reactor, policy, unused = Reactor(asyncio.get_running_loop(), 0), Policy(), SimpleNamespace()
    meter = solo_meter(
        market.leases, market.clock.seconds, connections_per_session=1, bytes_per_second=0
    )
    exit_ = DirectExit(reactor, unused, policy, 5)
    gateway = Gateway(reactor, meter, exit_, unused, policy, ONE, bounds=bounds)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        gateway.start(listener)
        with socket.create_connection(address):
            await until(lambda: gateway.counters.accepted == 1, "the first is served")
            with socket.create_connection(address):
                await until(lambda: gateway.counters.accepted == 2, "the second is, instead")
                gateway.stop_accepting()
                assert await gateway.drain(0.2) == 1, "it was not waited for"
                assert not gateway._clients._empty.is_set()
    gateway.close()
    reactor.close()
