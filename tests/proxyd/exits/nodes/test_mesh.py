"""Several daemons on one database: every node knows every exit, and all say the same of it."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path

import pytest
from support.base.waiting import until
from support.daemons.bounded import bounded, check_bounds, exit_bounds
from support.daemons.mesh import active, all_know, linked, mesh_of, node_settings, nodes
from support.daemons.service import Service, running
from support.database import postgres
from support.exits.device import Consented, Device, consented, listener_of, paused

from proxyctl import files
from proxyctl.attach.network.lan import make_guard
from proxyctl.exit.agent.agent import Agent
from proxyctl.exit.base import names
from proxyctl.exit.base.limits import DeviceLimits
from proxyctl.exit.base.record import Consent
from proxyd.exits.attached.certificate import own_certificate
from proxyd.exits.nodes.peers import MeshBounds
from proxyd.exits.nodes.remote import AnyExit
from proxyd.wiring.bounds import Bounds


@pytest.fixture
async def url(postgres_server: str, postgres_template: str) -> AsyncIterator[str]:
    """The URL of a database on PostgreSQL, without data."""
    name = f"test_{uuid.uuid4().hex}"
    async with postgres.database(postgres_server, name, template=postgres_template) as made:
        yield made


@pytest.fixture
async def three(url: str, tmp_path: Path, bounds: Bounds) -> AsyncIterator[list[Service]]:
    """Three daemons that are linked."""
    async with nodes(url, tmp_path, bounds=bounds) as services:
        yield services


async def attached(
    services: list[Service], count: int, *, address: str = ""
) -> list[tuple[Consented, Device]]:
    """Attach devices, to one daemon after the other."""
    made = []
    for number in range(count):
        device = await consented(services[0])
        at = services[number % len(services)]
        made.append((device, await device.attach(at, address or f"127.9.0.{number + 1}")))
    return made


def takes(entry: AnyExit) -> bool:
    return entry.has_place_for("somebody", datagrams=False)


async def end(devices: list[tuple[Consented, Device]]) -> None:
    for _, device in devices:
        await device.kill()


async def test_every_node_knows_every_exit_and_its_changes(three: list[Service]) -> None:
    devices = await attached(three, 6)
    ids = [each.device_id for each, _ in devices]
    await all_know(three, set(ids))

    devices[0][1].send(paused("on battery"))
    await all_know(three, set(ids[1:]))
    assert {mesh_of(each).state(ids[0]) for each in three[1:]} == {"on battery"}
    devices[0][1].send(paused(""))
    await all_know(three, set(ids))

    await devices[1][1].kill()
    await all_know(three, {*ids} - {ids[1]})
    await end(devices)
    await all_know(three, set())


async def test_a_node_that_comes_later_learns_all_and_one_that_ends_takes_its_own(
    url: str, tmp_path: Path
) -> None:
    async with nodes(url, tmp_path, 2) as services:
        devices = await attached(services, 4)
        ids = [each.device_id for each, _ in devices]
        async with running(node_settings(url, tmp_path, 2)) as third:
            await linked([*services, third])
            await all_know([third], set(ids))
            late = await consented(services[0])
            device = await late.attach(third, "127.9.1.1")
            await all_know([*services, third], {*ids, late.device_id})
        await device.kill()
        await all_know(services, set(ids))
        assert len(mesh_of(services[0]).peers.links) == 1
        await end(devices)


async def test_many_exits_are_announced_whole(url: str, tmp_path: Path) -> None:
    bounds = exit_bounds(mesh=MeshBounds(entries_per_turn=3))
    async with nodes(url, tmp_path, 1, bounds) as services:
        devices = await attached(services, 20)
        ids = {each.device_id for each, _ in devices}
        async with running(node_settings(url, tmp_path, 1), bounds) as second:
            await all_know([second], ids)
            mesh = mesh_of(second)
            for link in [*mesh.peers.links.values()]:
                link.close("the test says so")
            members = mesh._directory._files._members.values()
            assert not any(takes(each.entry) for each in members)
            await linked([services[0], second])
            await all_know([second], ids)
        await end(devices)


async def test_a_device_that_attaches_elsewhere_is_let_go_of(three: list[Service]) -> None:
    made = await consented(three[0])
    first = await made.attach(three[0])
    await all_know(three, {made.device_id})
    second = await made.attach(three[1])
    await until(lambda: first.sorry is not None)
    assert first.sorry.code == "attached_again"
    await until(lambda: len(listener_of(three[0])) == 0)
    await all_know(three, {made.device_id})
    remote = mesh_of(three[2]).find(made.device_id)
    await until(lambda: mesh_of(three[2]).find(made.device_id).node_id == node_id(three[1]))
    assert remote is not None

    third = await made.attach(three[0])  # back again: later than at the other node
    await until(lambda: second.sorry is not None)
    await until(lambda: mesh_of(three[2]).find(made.device_id).node_id == node_id(three[0]))
    assert third.sorry is None
    await third.kill()
    await all_know(three, set())


def node_id(service: Service) -> str:
    assert service.daemon.core.membership.leases.node_id is not None
    return service.daemon.core.membership.leases.node_id


async def test_of_one_line_the_same_exit_is_active_on_every_node(three: list[Service]) -> None:
    devices = await attached(three, 3, address="127.9.0.1")
    ids = [each.device_id for each, _ in devices]
    owner = devices[1][0].owner
    await all_know(three, {ids[0]})
    for each in three:
        answer = await each.call("GET", "/api/exits/me", token=owner.token)
        assert [row["state"] for row in answer.body["exits"]] == ["resting"]
    await devices[0][1].kill()
    await all_know(three, {ids[1]})
    for each in three:
        answer = await each.call("GET", "/api/exits/me", token=owner.token)
        assert [row["state"] for row in answer.body["exits"]] == ["online"]
    await end(devices)


async def test_every_node_says_the_same_of_exits(three: list[Service]) -> None:
    devices = await attached(three, 3)
    await all_know(three, {each.device_id for each, _ in devices})
    for each in three:
        answer = await each.call("GET", "/api/exits/coverage")
        assert [row["country"] for row in answer.body["countries"]] == ["xx"]
        assert mesh_of(each)._directory.coverage() == mesh_of(three[0])._directory.coverage()
        assert listener_of(each).offers.by_country() == {"xx": 3}
    await end(devices)


@bounded(check_bounds(exit_look_seconds=1e6))
async def test_a_consent_that_is_revoked_at_one_node_ends_it_at_another(
    three: list[Service],
) -> None:
    [(made, device)] = await attached(three, 1)
    await all_know(three, {made.device_id})
    answer = await three[2].call(
        "POST",
        "/api/worker/exit/pause",
        {"token_id": made.device_id},
        token=made.owner.token,
    )
    assert answer.status == 200, answer.body
    await all_know(three, set())
    assert mesh_of(three[1]).state(made.device_id) == "paused in the account"
    answer = await three[1].call(
        "POST",
        "/api/worker/token/revoke",
        {"token_id": made.device_id},
        token=made.owner.token,
    )
    assert answer.status == 200, answer.body
    await until(lambda: device.sorry is not None)
    assert device.sorry.code == "worker_unauthorized"
    await device.kill()


async def test_a_node_with_another_certificate_is_linked_anew_by_it(
    three: list[Service], tmp_path: Path
) -> None:
    renewed = str(own_certificate(tmp_path / "renewed", 1_700_000_000))
    port = three[1].daemon.exit_port
    assert port is not None
    port.change_certificate(renewed, renewed)
    shown = port.door().certificate_sha256
    await until(
        lambda: all(
            mesh_of(each).peers._rows[node_id(three[1])].certificate == shown
            for each in (three[0], three[2])
        )
    )
    for link in [*mesh_of(three[1]).peers.links.values()]:
        link.close("the test says so")
    await linked(three)


async def test_a_node_that_is_declared_dead_is_linked_under_its_new_name(
    three: list[Service],
) -> None:
    devices = await attached(three, 3)
    before = node_id(three[1])
    await three[0].daemon.store.write(forget_node, before)
    await until(lambda: node_id(three[1]) != before, "it is registered anew")
    await linked(three)
    await all_know(three, {each.device_id for each, _ in devices})
    await end(devices)


async def forget_node(tx: object, node_id: str) -> None:
    await tx.run("DELETE FROM nodes WHERE id = :id", id=node_id)  # type: ignore[attr-defined]


@asynccontextmanager
async def agents(services: list[Service], folder: Path, count: int) -> AsyncIterator[list[Agent]]:
    """Run agents whose owners have agreed with the first daemon."""
    door = services[0].daemon.exit_port.door()
    made, tasks, guards = [], [], []
    for number in range(count):
        device = await consented(services[0])
        consent = Consent(
            api=services[0].url,
            host=door.host,
            port=door.port,
            pin=door.certificate_sha256,
            token=device.first.token,
            terms=device.first.terms,
            agreed_at="2026-01-01T00:00:00+00:00",
            limits=DeviceLimits(),
        )
        guard, routes = make_guard([ip_network("127.0.0.0/8")])
        guards.append(routes)
        agent = Agent(
            consent,
            folder / f"agent-{number}",
            guard=guard,
            now=lambda: datetime.now(UTC),
            read_power=lambda: "",
        )
        made.append(agent)
        tasks.append(asyncio.create_task(agent.run()))
    try:
        yield made
    finally:
        for agent in made:
            agent.stop("the test is over")
        await asyncio.gather(*tasks)
        for routes in guards:
            if routes is not None:
                routes.close()


async def told(folder: Path, count: int, nodes: int) -> None:
    """Wait until each agent has written down `nodes` other nodes."""
    for number in range(count):
        path = folder / f"agent-{number}" / names.NODES
        await until(lambda path=path: len((files.read(path) or {}).get("nodes", ())) == nodes)


async def test_exits_of_a_node_that_drains_attach_to_the_others(
    three: list[Service], tmp_path: Path
) -> None:
    async with agents(three, tmp_path, 6):
        await until(lambda: len(listener_of(three[0])) == 6)
        await told(tmp_path, 6, 2)
        three[0].daemon.exit_port.drain(3600)
        await until(lambda: len(listener_of(three[0])) == 0, "all have left")
        await until(lambda: sum(len(listener_of(each)) for each in three[1:]) == 6)
        await until(
            lambda: all(
                {door.port for door in mesh_of(each).doors()}
                == {other.daemon.exit_port.door().port for other in three[1:] if other is not each}
                for each in three[1:]
            ),
            "no agent lists a node that drains",
        )


async def test_an_agent_is_notified_of_nodes_that_come_and_go(url: str, tmp_path: Path) -> None:
    async with nodes(url, tmp_path, 1) as services, agents(services, tmp_path, 1):
        await until(lambda: len(listener_of(services[0])) == 1)
        async with running(node_settings(url, tmp_path, 1)):
            await told(tmp_path, 1, 1)
        await told(tmp_path, 1, 0)


async def test_exits_of_others_are_not_chosen_where_nothing_can_be_borrowed(
    three: list[Service],
) -> None:
    [(made, device)] = await attached(three, 1)
    await all_know(three, {made.device_id})
    local = mesh_of(three[0])._directory.get(made.device_id)
    remote = mesh_of(three[1])._directory.get(made.device_id)
    assert local is not None
    assert remote is not None
    assert (takes(local), takes(remote)) == (True, True)
    remote.link.can_borrow = False
    assert not takes(remote)
    assert remote.text == local.text
    assert active(three[1]) == {made.device_id}
    await device.kill()
