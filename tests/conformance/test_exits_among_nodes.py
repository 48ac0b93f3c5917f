"""Buyers on one daemon leave through exits of another one, on one PostgreSQL, over real links."""

import asyncio
import base64
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path

import pytest
from support.base.waiting import until
from support.clients.story import buy, reached, used
from support.daemons.bounded import check_bounds
from support.daemons.mesh import all_know, linked, mesh_of, node_settings, nodes
from support.daemons.service import Bought, Service, running
from support.database import postgres
from support.exits.device import (
    NO_LIMITS,
    Consented,
    Device,
    all_is_shared,
    consented,
    listener_of,
)
from support.targets import targets

from proxyctl.attach.network.lan import NEVER_PORTS, Guard
from proxyctl.attach.network.surroundings import Surroundings
from proxyctl.exit.agent.agent import Agent
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.exit.base.record import Consent
from proxyctl.protocol.policy import Policy
from proxyd.exits.nodes.loans import Loans

WISHES = "-country-xx"


@pytest.fixture
async def url(postgres_server: str, postgres_template: str) -> AsyncIterator[str]:
    """The URL of a database on PostgreSQL, without data."""
    name = f"test_{uuid.uuid4().hex}"
    async with postgres.database(postgres_server, name, template=postgres_template) as made:
        yield made


@asynccontextmanager
async def agent_of(
    service: Service, device: Consented, folder: Path, *allowed: str
) -> AsyncIterator[Agent]:
    """Run the agent of a device that is attached to a daemon; it may reach `allowed`."""
    assert service.daemon.exit_port is not None
    door = service.daemon.exit_port.door()
    assert door is not None
    agreement = Consent(
        api=service.url,
        host="127.0.0.1",
        port=door.port,
        pin=door.certificate_sha256,
        token=device.first.token,
        terms=device.first.terms,
        agreed_at="2026-01-01T00:00:00+00:00",
        limits=DeviceLimits(bytes_per_day=0, connections=1000, dials_per_second=1000),
    )
    guard = Guard(
        policy=Policy(blocked_ports=NEVER_PORTS),
        surroundings=Surroundings(set),
        kernel=None,
        allow=[ip_network(each) for each in allowed or ("127.0.0.0/8",)],
    )
    agent = Agent(
        agreement, folder, guard=guard, now=lambda: datetime.now(UTC), read_power=lambda: ""
    )
    task = asyncio.get_running_loop().create_task(agent.run())
    try:
        await carries_anything(service, device)
        yield agent
    finally:
        agent.stop("the test is over")
        await task


async def carries_anything(service: Service, device: Consented) -> None:
    """Wait until a device is attached to a daemon, and let it carry to any port."""
    roster = listener_of(service).roster
    await until(lambda: roster.attached_here(device.device_id) is not None, "it is attached")
    attached = roster.attached_here(device.device_id)
    assert attached is not None
    attached.grant(NO_LIMITS)  # targets of tests are at any port
    attached.say(NO_LIMITS)
    mesh_of(service).changed(attached)


def loans_of(service: Service) -> Loans:
    loans = listener_of(service).loaner
    assert isinstance(loans, Loans)
    return loans


async def attached_at(service: Service, device: Consented) -> Device:
    """Attach a device, which knows no other node, and announce its limits."""
    made = await device.attach(service)
    mesh_of(service).changed(listener_of(service).roster.by_device[device.device_id])
    return made


async def may_carry(service: Service, device: Consented) -> None:
    """Wait until a daemon may choose a device of another one, for any port."""

    def is_known() -> bool:
        remote = mesh_of(service).find(device.device_id)
        return remote is not None and not remote.limits.ports  # an agent has limits of its own

    await until(is_known, "it is known")


async def head_of(service: Service, bought: Bought, port: int) -> str:
    """Ask for a tunnel by HTTP, and return the head of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.proxy_port)
    shown = base64.b64encode(f"{bought.username}:{bought.password}".encode()).decode()
    head = f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: Basic {shown}\r\n"
    writer.write(f"{head}\r\n".encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return answer.decode()


async def test_every_byte_is_counted_once(url: str, tmp_path: Path) -> None:
    payload = targets.pattern(200_000)
    async with nodes(url, tmp_path, 2) as (edge, home), targets.echo() as target:
        device = await consented(home)
        home.wishes = WISHES
        person, bought = await buy(home)
        async with agent_of(home, device, tmp_path / "agent"):
            await may_carry(edge, device)
            for service in (edge, home, edge):
                client = await reached(service, bought, target)
                await client.send(payload)
                assert await client.receive(len(payload)) == payload
                client.end()
                assert await client.rest() == b""
                await client.close()
            assert "X-Exit: country=xx" in await head_of(edge, bought, target.port)

            shown = "borrowed", "lent"
            for service, numbers in ((edge, (1, 0)), (home, (0, 1))):
                async with service.http.get(f"{service.url}/metrics") as response:
                    lines = (await response.text()).splitlines()
                for name, number in zip(shown, numbers, strict=True):
                    assert f"proxyd_exits_{name} {float(number)}" in lines

            async def all_is_reported() -> bool:
                return await used(home, person, bought) == 6 * len(payload)

            await until(all_is_reported)
            await all_is_shared(home)
            await home.end(person, bought)
            answer = await home.call(
                "GET", f"/api/bandwidth/sessions/{bought.id}/exits", token=person.token
            )
            assert sum(each["bytes"] for each in answer.body["countries"]) == 6 * len(payload)
            await home.assert_audit()


async def test_labels_keep_their_exit_on_every_node(url: str, tmp_path: Path) -> None:
    async with nodes(url, tmp_path, 3) as services, targets.echo() as target:
        made = [await consented(services[0]) for _ in range(4)]
        devices = [
            await each.attach(services[number % 3], f"127.9.0.{number + 1}")
            for number, each in enumerate(made)
        ]
        for service in services:
            for attached in listener_of(service).roster.by_device.values():
                mesh_of(service).changed(attached)
        await all_know(services, {each.device_id for each in made})
        for service in services:
            for each in made:
                if listener_of(service).roster.attached_here(each.device_id) is None:
                    await may_carry(service, each)
        _, bought = await buy(services[0])
        for label in range(12):  # in vain once in ten million times: four devices share them
            name = f"{bought.username}{WISHES}-session-label{label}-strict"
            named = Bought(bought.id, name, bought.password, 0)
            heads = [await head_of(each, named, target.port) for each in (*services, *services)]
            shown = {line for head in heads for line in head.split("\r\n") if "X-Exit: " in line}
            assert len(shown) == 1, "the same exit, wherever it is asked for"
        assert sum(bool(each.dials) for each in devices) > 1
        for each in devices:
            await each.kill()


@pytest.mark.parametrize("how", ["pause", "revoke"])
async def test_a_withdrawn_exit_is_cut_on_every_node_by_a_notice(
    url: str, tmp_path: Path, how: str
) -> None:
    bounds = check_bounds(exit_look_seconds=1e6)  # no node looks by itself
    async with nodes(url, tmp_path, 2, bounds) as (edge, home), targets.echo() as target:
        device = await consented(home)
        home.wishes = WISHES
        _, bought = await buy(home)
        async with agent_of(home, device, tmp_path / "agent"):
            await may_carry(edge, device)
            client = await reached(edge, bought, target)
            await client.send(b"words")
            assert await client.receive(5) == b"words"
            path = "exit/pause" if how == "pause" else "token/revoke"
            body = {"token_id": device.device_id}
            # Where the buyer is: so the exit's own node has to be notified.
            answer = await edge.call("POST", f"/api/worker/{path}", body, token=device.owner.token)
            assert answer.status == 200, answer.body
            with suppress(ConnectionError):
                assert await client.rest() == b""
            await client.close()
            assert " 503 " in await head_of(edge, bought, target.port)
            await until(lambda: not len(loans_of(edge)._borrowing), "nothing is borrowed")


async def test_when_the_home_ends_the_next_connections_leave_elsewhere(
    url: str, tmp_path: Path
) -> None:
    """The device attaches to no other node: a label would find it there."""
    async with nodes(url, tmp_path, 2) as services, targets.echo() as target:
        edge, other = services
        async with running(node_settings(url, tmp_path, 2)) as home:
            await linked([*services, home])
            first, second = await consented(edge), await consented(edge)
            edge.wishes = f"{WISHES}-session-label"
            person, bought = await buy(edge)
            early = await attached_at(home, first)
            await may_carry(edge, first)
            client = await reached(edge, bought, target)
            await client.send(b"words")
            assert await client.receive(5) == b"words"
            late = await attached_at(other, second)
            await may_carry(edge, second)
        again = await reached(edge, bought, target)
        await again.send(b"more words")
        assert await again.receive(10) == b"more words"
        assert (len(early.dials), len(late.dials)) == (1, 1)
        await again.close()
        await client.close()
        await early.kill()
        await late.kill()
        await until(lambda: edge.daemon.gateway.connections == 0)
        await all_is_shared(edge)
        await edge.end(person, bought)
        await edge.assert_audit()


async def test_a_label_finds_its_exit_at_the_next_node_when_the_home_ends(
    url: str, tmp_path: Path
) -> None:
    async with nodes(url, tmp_path, 1) as [edge], targets.echo() as target:
        async with AsyncExitStack() as stack:
            first, second = await consented(edge), await consented(edge)
            edge.wishes = f"{WISHES}-session-label"
            person, bought = await buy(edge)
            async with running(node_settings(url, tmp_path, 1)) as home:
                await linked([edge, home])
                await stack.enter_async_context(agent_of(home, first, tmp_path / "agent"))
                await may_carry(edge, first)
                before = await head_of(edge, bought, target.port)
                assert "X-Exit: country=xx" in before
                other = await second.attach(edge, "127.9.0.1")
            await carries_anything(edge, first)
            assert await head_of(edge, bought, target.port) == before
            assert other.dials == []
            await other.kill()
        await until(lambda: edge.daemon.gateway.connections == 0)
        await all_is_shared(edge)
        await edge.end(person, bought)
        await edge.assert_audit()
