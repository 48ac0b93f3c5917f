"""No buyer reaches the service's own ports through an exit, by address or by name."""

import asyncio
from collections.abc import AsyncIterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from support.base.names import Localhost
from support.base.waiting import until
from support.clients.socks import Client
from support.clients.story import buy
from support.daemons.service import Service, running_in
from support.exits.device import EXITS, Device, consented, listener_of
from support.targets.targets import echo

from market.exits.consents import Door
from proxyctl.protocol.frames import DENIED_MAX, DENY, Deny, encode
from proxyd.egress.resolve import LookupFailedError
from proxyd.exits.choosing.own_ports import NETWORKS_MAX, OwnPorts
from proxyd.ops.processes.listening import bound_port

HERE, OUTSIDE = ip_address("127.0.0.1"), ip_address("93.184.220.2")
DENIED = "11.9.9.0/24"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A daemon with exits, whose operator denies a network."""
    egress = {"allow": ["127.0.0.0/8"], "deny": [DENIED]}
    async with running_in(tmp_path, egress=egress, **EXITS) as running:
        yield running


async def test_no_buyer_reaches_the_service_through_an_exit(service: Service) -> None:
    made = await consented(service)
    device = await made.attach(service)
    listeners = service.daemon.listeners
    ports = [
        bound_port(listeners.exits),
        bound_port(listeners.proxy),
        *listeners.passwordless_ports,
    ]
    service.wishes = "-country-xx"
    _, bought = await buy(service)
    for host in ("127.0.0.1", "127.0.0.5", "localhost"):
        for port in ports:
            client = await Client.open(service.proxy_port)
            assert await client.log_in(bought.username, bought.password) == 0
            assert await client.connect(host, port) == 2, (host, port)
            await client.close()
    assert device.dials == []
    async with echo() as target:
        client = await Client.open(service.proxy_port)
        assert await client.log_in(bought.username, bought.password) == 0
        assert await client.connect("127.0.0.1", target.port) == 0
        await client.close()
    await device.kill()


async def test_an_agent_gets_the_addresses_that_names_may_not_lead_to(service: Service) -> None:
    made = await consented(service)
    device = Device(bound_port(service.daemon.listeners.exits))
    await device.attach(made.first._replace(features=(DENY,)))
    await until(lambda: any(isinstance(each, Deny) for each in device.frames), "it is told")
    told = [each for each in device.frames if isinstance(each, Deny)][-1]
    assert told.networks == (DENIED,)
    assert bound_port(service.daemon.listeners.exits) in told.ports
    exit_port = service.daemon.exit_port
    assert exit_port is not None
    own_ports = exit_port._own_ports
    device.frames.clear()
    assert await own_ports.look([Door(str(OUTSIDE), 1090, "")])
    exit_port.listener.notices.deny_changed()
    await until(lambda: bool(device.frames), "it is told of a node that has come")
    assert str(OUTSIDE) in device.frames[-1].addresses
    await device.kill()


class Failing(Localhost):
    """A resolver that answers until a test lets it fail."""

    is_failing = False

    async def resolve(self, host: str, owner: str = "") -> list:
        if self.is_failing:
            raise LookupFailedError
        return await super().resolve(host, owner)


async def test_the_service_is_known_by_its_names_on_every_node() -> None:
    resolver = Failing(str(OUTSIDE))
    own = OwnPorts(lambda each: each == HERE, resolver, (1080, 0), ("", "localhost"), ())
    assert own.has(HERE, 1080)
    assert not own.has(HERE, 0)
    assert not own.has(OUTSIDE, 1080)
    doors = [Door("localhost", 1090, ""), Door("::ffff:45.33.32.156", 443, "")]
    assert await own.look(doors)
    for address in (HERE, OUTSIDE, ip_address("45.33.32.156")):
        assert own.has(address, 1090)
        assert own.has(address, 443)
        assert not own.has(address, 80)
    resolver.is_failing = True
    assert not await own.look(doors)
    assert own.has(OUTSIDE, 1090), "a name server that is away opens nothing"


def test_denied_networks_fit_into_frames_however_many_they_are() -> None:
    networks = [f"2001:db8:1111:2222:3333:4444:5555:{each:04x}/128" for each in range(200)]
    own = OwnPorts(lambda _: False, Localhost("127.0.0.1"), (1080,), (), networks)
    frames = own.frames()
    assert [each for frame in frames for each in frame.networks] == networks
    assert [frame.left for frame in frames] == [3, 2, 1, 0]
    assert max(len(frame.networks) for frame in frames) == DENIED_MAX
    assert all(encode(frame) for frame in frames)


async def test_where_more_is_denied_than_agents_take_no_exit_looks_names_up(
    tmp_path: Path,
) -> None:
    networks = [f"11.{each // 256}.{each % 256}.0/24" for each in range(NETWORKS_MAX + 1)]
    async with running_in(tmp_path, egress={"deny": networks}, **EXITS) as service:
        made = await consented(service)
        device = Device(bound_port(service.daemon.listeners.exits))
        await device.attach(made.first._replace(features=(DENY,)))
        assert listener_of(service).roster.by_device[made.device_id].features == ()
        await device.kill()


async def test_the_look_goes_on_until_it_is_cancelled() -> None:
    own = OwnPorts(lambda _: False, Localhost(str(OUTSIDE)), (1080,), ("localhost",), ())
    changed = asyncio.Event()
    running = asyncio.create_task(own.run(list, changed.set))
    await until(changed.is_set, "it has looked")
    assert own.has(OUTSIDE, 1080)
    running.cancel()
