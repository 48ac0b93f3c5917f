"""Links over real TLS: a node without proof gets none, and a wrong frame ends the sender's link."""

import asyncio
import ssl
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.base.brief import brief
from support.base.waiting import until
from support.daemons.bounded import bounded, exit_bounds
from support.daemons.mesh import Choosing, active, all_know, mesh_of, node_settings
from support.daemons.service import Service, running
from support.database import postgres
from support.exits.device import consented, context_of, listener_of

from proxyctl.protocol.frames import ServiceLimits
from proxyd.exits.attached.certificate import fingerprint, own_certificate
from proxyd.exits.nodes.link import LinkTimes, client_context
from proxyd.exits.nodes.peers import MeshBounds
from proxyd.ops.processes.listening import bound_port
from proxyd.wire.links import (
    DIALLED,
    DIALLER,
    Accepted,
    AnnouncedExit,
    Borrow,
    Borrowed,
    Exits,
    Frame,
    Gone,
    Greeting,
    LinkReader,
    Ping,
    Pong,
    encode,
    link_key,
    proof,
)
from proxyd.wiring.bounds import Bounds
from storage.exits import mesh as queries
from storage.exits.mesh import DoorRow

KEY = link_key(b"k" * 40)
OTHER = "~ other node"  # behind every identifier: the daemon dials it
FIRST = "! other node"  # before every identifier: it dials the daemon
GARBAGE = [
    b"\x00\x00",
    b"\xff\xff\x82",
    b"\x00\x03\x82[]]",
    encode(Accepted("node", bytes(32))),
    encode(Greeting(1, "a", "b", bytes(32))),
]


def announced(device_id: str, **changes: Any) -> AnnouncedExit:
    """Return an exit of another node."""
    known = AnnouncedExit(
        device_id=device_id,
        owner_id="owner",
        since=1,
        paused="",
        is_spent=False,
        min_price_per_gb=0,
        country="xx",
        state="",
        city="",
        asn=0,
        kind="residential",
        network=f"network of {device_id}",
        address="198.51.100.1",
        limits=ServiceLimits(0, 0, 0, ()),
        features=(),
        rtt_micros=1000,
    )
    return known._replace(**changes)


class Node:
    """Another node, as a test has it speak."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.frames: list[Frame] = []
        self.is_over = False
        self.answers = True
        self.writer = writer
        self._task = asyncio.get_running_loop().create_task(self._read(reader))

    def send(self, frame: Frame) -> None:
        self.writer.write(encode(frame))

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.writer.transport.abort()

    def has(self, kind: type) -> bool:
        return any(isinstance(each, kind) for each in self.frames)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        frames = LinkReader()
        with suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65_536):
                received = list(frames.receive_data(data))
                self.frames += received
                for each in received:
                    if self.answers and isinstance(each, Ping):
                        self.send(Pong(each.payload))
        self.is_over = True


@pytest.fixture
async def service(
    postgres_server: str, postgres_template: str, tmp_path: Path, bounds: Bounds
) -> AsyncIterator[Service]:
    """A daemon on PostgreSQL that takes exits, without others."""
    name = f"test_{uuid.uuid4().hex}"
    async with (
        postgres.database(postgres_server, name, template=postgres_template) as url,
        running(node_settings(url, tmp_path, 0), bounds) as made,
    ):
        await until(lambda: bool(mesh_of(made).peers.node_id), "it has looked at the nodes")
        yield made


@asynccontextmanager
async def dialling(service: Service, first: bytes) -> AsyncIterator[Node]:
    """Dial a daemon as a node does, and say something first."""
    port = bound_port(service.daemon.listeners.exits)
    node = Node(*await asyncio.open_connection("127.0.0.1", port, ssl=client_context()))
    try:
        node.writer.write(first)
        yield node
    finally:
        await node.close()


def greeting(service: Service, key: bytes = KEY, **changes: str) -> bytes:
    """Return the first words of a node, with some of them changed."""
    port = service.daemon.exit_port
    assert port is not None
    shown, own = port.door().certificate_sha256, mesh_of(service).peers.node_id
    proven = proof(
        key,
        DIALLER,
        changes.get("certificate", shown),
        changes.get("proven", FIRST),
        changes.get("to", own),
    )
    return encode(Greeting(1, FIRST, changes.get("to", own), proven))


async def register(
    service: Service,
    node_id: str,
    port: int = 0,
    certificate: str = "",
    host: str = "127.0.0.1",
) -> None:
    """Add another node to the database, which is dialled there."""

    async def insert(tx: Any) -> None:
        await tx.run("INSERT INTO nodes (id, started_at, seen_at) VALUES (:id, 1, 1)", id=node_id)
        row = DoorRow(node_id, host, port, certificate, host, port)
        await queries.open_door(tx, row)

    await service.daemon.store.write(insert)


async def test_a_node_with_a_proof_is_linked_and_notified_of_every_exit(service: Service) -> None:
    mesh_of(service).hub._lenders[:] = [Choosing()]
    await register(service, FIRST)
    made = await consented(service)
    device = await made.attach(service)
    async with dialling(service, greeting(service)) as node:
        await until(lambda: node.has(Exits), "it announces")
        [frame] = [each for each in node.frames if isinstance(each, Exits)]
        assert [each.device_id for each in frame.exits] == [made.device_id]
        accepted = node.frames[0]
        assert isinstance(accepted, Accepted)
        shown = service.daemon.exit_port.door().certificate_sha256
        own = mesh_of(service).peers.node_id
        assert accepted == (own, proof(KEY, DIALLED, shown, FIRST, own))

        node.send(Exits((announced("theirs"),)))
        await all_know([service], {made.device_id, "theirs"})
        assert mesh_of(service).find("theirs").has_place_for("buyer", datagrams=False)
        node.send(Exits((announced("theirs", is_spent=True),)))
        await until(
            lambda: not mesh_of(service).find("theirs").has_place_for("buyer", datagrams=False)
        )
        node.send(Gone("theirs"))
        await all_know([service], {made.device_id})
        node.send(Ping(b"12345678"))
        await until(lambda: Pong(b"12345678") in node.frames)
        await device.kill()
        await until(lambda: Gone(made.device_id) in node.frames)


async def test_other_nodes_get_the_known_features_of_an_exit(service: Service) -> None:
    await register(service, FIRST)
    made = await consented(service)
    words = ("udp", "lend", "udp", *(f"feature {number}" for number in range(200)))
    async with dialling(service, greeting(service)) as node:
        await until(lambda: node.has(Accepted))
        offering = replace(made, first=made.first._replace(features=words))
        device = await offering.attach(service)
        await until(lambda: node.has(Exits), "it is announced, in a frame that can be read")
        [frame] = [each for each in node.frames if isinstance(each, Exits)]
        assert frame.exits[0].features == ("lend", "udp")
        await device.kill()


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        (link_key(b"l" * 40), {}),
        (KEY, {"certificate": "00" * 32}),
        (KEY, {"proven": "another node"}),
        (KEY, {"to": "another node"}),
    ],
    ids=["another key", "another certificate", "another name", "another node"],
)
async def test_a_node_with_a_wrong_proof_is_refused(
    service: Service, key: bytes, changes: dict[str, str]
) -> None:
    async with dialling(service, greeting(service, key, **changes)) as node:
        await until(lambda: node.is_over, "it is cut")
        assert not node.frames
    assert not mesh_of(service).peers.links
    assert listener_of(service).counters.refused["not a node"] == 1


async def test_a_flood_of_greetings_disturbs_no_exit_and_no_link(service: Service) -> None:
    await register(service, FIRST)
    made = await consented(service)
    device = await made.attach(service)
    async with dialling(service, greeting(service)) as node:
        await until(lambda: node.has(Accepted))
        wrong = greeting(service, link_key(b"l" * 40))
        for _ in range(10):
            floods = [asyncio.create_task(flood(service, wrong)) for _ in range(20)]
            await asyncio.gather(*floods)
        await until(lambda: len(listener_of(service).arrivals) == 0, "no connection is left")
        assert not node.is_over
        assert listener_of(service).counters.refused["not a node"] == 200
        assert active(service) == {made.device_id}
    await device.kill()


async def flood(service: Service, first: bytes) -> None:
    async with dialling(service, first) as node:
        await until(lambda: node.is_over, "it is cut")


@pytest.mark.parametrize("garbage", brief(GARBAGE, 2), ids=range(len(GARBAGE)))
async def test_a_node_that_talks_garbage_loses_only_its_link(
    service: Service, garbage: bytes
) -> None:
    mesh_of(service).hub._lenders[:] = [lender := Choosing()]
    await register(service, FIRST)
    made = await consented(service)
    device = await made.attach(service)
    async with dialling(service, greeting(service)) as node:
        node.send(Exits(tuple(announced(f"theirs {number}") for number in range(150))))
        await until(lambda: len(active(service)) == 151)
        node.writer.write(garbage)
        await until(lambda: node.is_over, "it is cut")
    await all_know([service], {made.device_id})
    assert len(lender.gone_) == 150
    assert lender.lost_ == [FIRST]
    assert not mesh_of(service)._remote
    await device.kill()


@bounded(exit_bounds(mesh=MeshBounds(exits_per_node_max=5)))
async def test_a_node_announces_no_more_than_it_may(service: Service) -> None:
    await register(service, FIRST)
    async with dialling(service, greeting(service)) as node:
        node.send(Exits(tuple(announced(f"theirs {number}") for number in range(9))))
        node.send(Ping(b"12345678"))
        await until(lambda: Pong(b"12345678") in node.frames)
        assert len(active(service)) == 5


@bounded(exit_bounds(mesh=MeshBounds(shared_max=10)))
async def test_the_shared_values_of_all_exits_are_bounded(service: Service) -> None:
    await register(service, FIRST)
    async with dialling(service, greeting(service)) as node:
        for number in range(100):
            node.send(
                Exits((announced("theirs", asn=number, limits=ServiceLimits(number, 0, 0, ())),))
            )
        node.send(Ping(b"12345678"))
        await until(lambda: Pong(b"12345678") in node.frames)
        mesh = mesh_of(service)
        assert mesh.find("theirs").limits.connections == 99
        assert max(len(mesh._remote._places), len(mesh._remote._terms)) <= 10


@bounded(exit_bounds(mesh=MeshBounds(link=LinkTimes(turn_seconds=0.0))))
async def test_the_frames_of_a_node_are_taken_in_turns_and_in_order(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(service, FIRST)
    mesh, turn = mesh_of(service), 0
    heard: list[tuple[int, Frame]] = []
    announced_before = mesh.announced

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def hear(link: Any, frame: Any) -> None:
        heard.append((turn, frame))
        announced_before(link, frame)

    monkeypatch.setattr(mesh, "announced", hear)
    counting = asyncio.create_task(count())
    frames = [Exits((announced(f"theirs {number}"),)) for number in range(100)]
    async with dialling(service, greeting(service)) as node:
        await until(lambda: node.has(Accepted))
        # In one piece: so all have come before the first one is acted on.
        node.writer.write(b"".join(map(encode, [*frames, Ping(b"12345678")])))
        await until(lambda: Pong(b"12345678") in node.frames)
        assert [frame for _, frame in heard] == frames
        assert len({number for number, _ in heard}) == len(frames)
        node.send(Ping(b"87654321"))
        await until(lambda: Pong(b"87654321") in node.frames, "it is read again")
        node.writer.write(b"".join(map(encode, frames)))
    await all_know([service], set())
    counting.cancel()


async def test_a_node_that_links_again_replaces_its_link(service: Service) -> None:
    await register(service, FIRST)
    async with dialling(service, greeting(service)) as older:
        older.send(Exits((announced("old"),)))
        await all_know([service], {"old"})
        async with dialling(service, greeting(service)) as newer:
            await until(lambda: older.is_over)
            await all_know([service], set())
            newer.send(Exits((announced("new"),)))
            await all_know([service], {"new"})
    await until(lambda: not mesh_of(service).peers.links)


async def test_a_link_of_a_node_that_is_not_in_the_database_ends(service: Service) -> None:
    async with dialling(service, greeting(service)) as node:
        await until(lambda: node.has(Accepted))
        await until(lambda: node.is_over, "it is cut at the next look")


# A loaded machine stands still for less than three of them.
@bounded(exit_bounds(mesh=MeshBounds(link=LinkTimes(beat_seconds=0.2))))
async def test_a_node_that_is_silent_loses_its_link(service: Service) -> None:
    await register(service, FIRST)
    async with dialling(service, greeting(service)) as node:
        node.answers = False
        node.send(Exits((announced("theirs"),)))
        await until(lambda: node.is_over, "it is cut")
        assert node.has(Ping)
    await all_know([service], set())


@bounded(exit_bounds(mesh=MeshBounds(link=LinkTimes(beat_seconds=0.2))))
async def test_a_daemon_that_stood_still_reads_before_it_cuts_a_link(service: Service) -> None:
    await register(service, FIRST)
    async with dialling(service, greeting(service)) as node:
        await until(lambda: node.has(Ping))
        time.sleep(1.0)
        node.frames.clear()
        await until(lambda: node.is_over or node.has(Ping), "the next heartbeat")
        assert not node.is_over


async def test_an_exit_that_is_not_attached_or_not_lent_is_refused(service: Service) -> None:
    await register(service, FIRST)
    async with dialling(service, greeting(service)) as node:
        node.send(Borrow(1, "device", "127.0.0.1", 1, 1))
        await until(lambda: Borrowed(1, "gone") in node.frames)
        mesh_of(service).hub._lenders.clear()
        node.send(Borrow(3, "device", "127.0.0.1", 1, 1))
        await until(lambda: Borrowed(3, "not_lent") in node.frames)


# --- nodes that are dialled ----------------------------------------------------------------------


@asynccontextmanager
async def serving(folder: Path, *, answers: bool, key: bytes = KEY) -> AsyncIterator[Any]:
    """Serve as a node that is dialled; `told` gets its frames."""
    certificate = own_certificate(folder / "other", 1_700_000_000)
    told: list[Frame] = []
    shown = fingerprint(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = LinkReader()
        with suppress(ConnectionError, ssl.SSLError):
            while data := await reader.read(65_536):
                for frame in frames.receive_data(data):
                    told.append(frame)
                    if isinstance(frame, Greeting) and answers:
                        proven = proof(key, DIALLED, shown, frame.node_id, OTHER)
                        writer.write(encode(Accepted(OTHER, proven)))
                    elif isinstance(frame, Ping):
                        writer.write(encode(Pong(frame.payload)))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context_of(certificate))
    try:
        yield server.sockets[0].getsockname()[1], shown, told
    finally:
        server.close()


async def test_a_node_is_dialled_where_its_row_says(service: Service, tmp_path: Path) -> None:
    async with serving(tmp_path, answers=True) as (port, shown, told):
        await register(service, OTHER, port, shown)
        await until(lambda: mesh_of(service).link(OTHER) is not None, "it is linked")
        own, pin = mesh_of(service).peers.node_id, shown
        assert told[0] == Greeting(1, own, OTHER, proof(KEY, DIALLER, pin, own, OTHER))
        mesh_of(service).link(OTHER).close("the test says so")
        await until(lambda: mesh_of(service).link(OTHER) is not None, "it is linked again")
        await service.daemon.store.write(remove, OTHER)
        await until(lambda: not mesh_of(service).peers.links, "the node is gone")


async def remove(tx: Any, node_id: str) -> None:
    await tx.run("DELETE FROM nodes WHERE id = :id", id=node_id)


@pytest.mark.parametrize(
    ("host", "port"),
    brief(
        [("", 1090), ("127.0.0.1", 1 << 40), ("a..b", 1090), ("127.0.0.1", 70_000)], are_sets=True
    ),
)
async def test_a_node_whose_row_made_no_sense_is_linked_when_it_does(
    service: Service, tmp_path: Path, host: str, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(tmp_path, answers=True) as (good, shown, _):
        await register(service, OTHER, port, shown, host)
        await until(lambda: f"node {OTHER}: no link" in caplog.text, "it was tried")
        row = DoorRow(OTHER, "127.0.0.1", good, shown, "127.0.0.1", good)
        await service.daemon.store.write(queries.open_door, row)
        await until(lambda: mesh_of(service).link(OTHER) is not None, "it is linked")


async def test_a_node_with_another_certificate_gets_nothing(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(tmp_path, answers=True) as (port, _, told):
        await register(service, OTHER, port, sha256(b"another").hexdigest())
        await until(lambda: "another certificate" in caplog.text)
        assert not told
        assert not mesh_of(service).peers.links


async def test_a_node_that_does_not_prove_itself_is_no_node(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with serving(tmp_path, answers=True, key=link_key(b"l" * 40)) as (port, shown, told):
        await register(service, OTHER, port, shown)
        await until(lambda: "not proved" in caplog.text)
        assert not mesh_of(service).peers.links
        assert [type(each) for each in told] == [Greeting] * len(told)


@bounded(exit_bounds(mesh=MeshBounds(link_seconds=0.2)))
async def test_a_node_that_does_not_answer_is_dialled_again(
    service: Service, tmp_path: Path
) -> None:
    async with serving(tmp_path, answers=False) as (port, shown, told):
        await register(service, OTHER, port, shown)
        await until(lambda: len(told) >= 3, "it tries again")
        assert not mesh_of(service).peers.links
