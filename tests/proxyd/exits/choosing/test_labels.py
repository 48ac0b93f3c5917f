"""Labels over several daemons: every node leaves through the same exit while exits come and go.

`PROXYD_LABELS` and `PROXYD_LABEL_ROUNDS` are how many labels there are, and how often each is used
on each node.
"""

import asyncio
import os
import random
import socket
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from support.base.waiting import until
from support.daemons.bounded import bounded, exit_bounds
from support.daemons.mesh import all_know, linked, mesh_of, nodes
from support.daemons.service import Service
from support.database import postgres
from support.exits.device import Device, consented
from support.targets import targets

from market.exits.wants import parse
from proxyd.exits.choosing.labels import LabelBounds, Labels, hash_of
from proxyd.exits.dialling.dial import Via
from proxyd.loop import clock
from proxyd.wire.events import Failure
from proxyd.wiring.bounds import USUAL, Bounds
from storage.engines.errors import UnavailableError
from storage.engines.store import Transaction
from storage.exits import mesh as queries
from storage.exits.mesh import BindingRow

LABELS = int(os.environ.get("PROXYD_LABELS", "25"))
ROUNDS = int(os.environ.get("PROXYD_LABEL_ROUNDS", "3"))
AT_ONCE = 8  # more keep this one event loop so busy that exits seem silent, and labels move
DEVICES = 9
LIMIT_SECONDS = max(120, LABELS * ROUNDS // 10)


@dataclass(frozen=True)
class Session:
    """A session that was bought."""

    id: str
    user_id: str
    price_per_gb: int = 1_000_000


@dataclass
class Cluster:
    """Three daemons, a session, and devices by their identifiers.

    `headers` are the headers about the exit in the last answer.
    """

    services: list[Service]
    session: Session
    port: int
    devices: dict[str, Device]
    headers: tuple[str, ...] = ()

    async def attach(self, number: int) -> str:
        """Attach one more device, to a daemon by its number."""
        made = await consented(self.services[0])
        service = self.services[number % len(self.services)]
        self.devices[made.device_id] = await made.attach(
            service, f"127.9.{number // 200}.{number % 200 + 1}"
        )
        return made.device_id

    async def all_know(self) -> None:
        await all_know(self.services, set(self.devices))

    async def dial(self, service: Service, label: str) -> str | Failure:
        """Connect by a label, and return through which device."""
        exits = service.daemon.gateway._for_connections.exits
        loop = asyncio.get_running_loop()
        over: asyncio.Future[str | Failure] = loop.create_future()

        def done(outcome: socket.SocketType | Failure, _: bool, via: Via | None) -> None:
            if via is None:
                over.set_result(outcome)
                return
            exits.reactor.poller.forget(outcome.fileno())
            outcome.close()
            via.attached.places.give(via.place)
            self.headers = via.headers
            over.set_result(via.attached.device_id)

        wants = parse(f"country-xx-session-{label}")
        exits.dial(wants, self.session, ip_address("127.0.0.1"), self.port, done)
        async with asyncio.timeout(30):
            return await over

    async def use(self, rounds: int = ROUNDS, labels: int = LABELS) -> dict[str, set[Any]]:
        """Connect by every label on every node, in any order. Return the exits of each label."""
        dials = [
            (service, f"label{number}")
            for service in self.services
            for number in range(labels)
            for _ in range(rounds)
        ]
        random.Random(1).shuffle(dials)
        seen: dict[str, set[Any]] = defaultdict(set)
        free = asyncio.Semaphore(AT_ONCE)

        async def one(service: Service, label: str) -> None:
            async with free:
                seen[label].add(await self.dial(service, label))

        await asyncio.gather(*(one(*each) for each in dials))
        return seen


@asynccontextmanager
async def cluster(url: str, folder: Path, bounds: Bounds = USUAL) -> AsyncIterator[Cluster]:
    async with (
        targets.echo() as target,
        nodes(
            url, folder, bounds=bounds, exits={"ports": [target.port], "bytes_per_day": 0}
        ) as services,
    ):
        buyer = await services[0].person(usd="10")
        bought = await services[0].buy(buyer)
        made = Cluster(services, Session(bought.id, buyer.user_id), target.port, {})
        for number in range(DEVICES):
            await made.attach(number)
        await made.all_know()
        try:
            yield made
        finally:
            for device in made.devices.values():
                await device.kill()


@pytest.fixture
async def three(
    postgres_server: str, postgres_template: str, tmp_path: Path, bounds: Bounds
) -> AsyncIterator[Cluster]:
    """Three daemons with exits."""
    name = f"test_{uuid.uuid4().hex}"
    async with (
        postgres.database(postgres_server, name, template=postgres_template) as url,
        cluster(url, tmp_path, bounds=bounds) as made,
    ):
        yield made


def labels_of(service: Service) -> Labels:
    labels = service.daemon.exit_port.labels
    assert labels is not None
    return labels


@pytest.mark.timeout(LIMIT_SECONDS)
async def test_a_label_has_the_same_exit_on_every_node(three: Cluster) -> None:
    before = await three.use()
    assert {len(each) for each in before.values()} == {1}
    assert len(set.union(*before.values())) > DEVICES // 2

    late = await three.attach(DEVICES)  # more exits are no reason to move
    await three.all_know()
    after = await three.use(1)
    assert after == before
    assert late not in set.union(*after.values())

    victims = sorted(three.devices)[:2]
    for each in victims:
        await three.devices.pop(each).kill()
    await three.all_know()
    moved = await three.use()
    assert {len(each) for each in moved.values()} == {1}
    stayed = {label for label, exits in before.items() if not exits & set(victims)}
    assert {label: moved[label] for label in stayed} == {label: before[label] for label in stayed}


@pytest.mark.long
async def test_a_label_that_one_node_has_moved_is_moved_on_all_although_its_exit_is_back(
    three: Cluster,
) -> None:
    first, others = three.services[0], three.services[1:]
    before = (await three.use(1, 1))["label0"].pop()
    entry = mesh_of(first)._directory.get(before)
    exits = first.daemon.gateway._for_connections.exits
    for each in "abc":  # it rests here, and nowhere else
        now = exits.reactor.loop.time()
        exits.directory.note(entry, None, now, began=now, buyer=each, target=f"{each}.com")
    moved = await three.dial(first, "label0")
    assert moved != before

    async def is_known() -> bool:
        return {await three.dial(each, "label0") for each in others} == {moved}

    await until(is_known, "the others have heard of it")


async def test_a_strict_label_whose_exit_is_away_is_lost_on_every_node(three: Cluster) -> None:
    """Also where the label was never used, or is not known any more."""
    first, second, _ = three.services
    assert await three.dial(first, "label0-strict") in three.devices
    for each in [*three.devices]:
        await three.devices.pop(each).kill()
    await three.all_know()
    for each in three.services:
        assert await three.dial(each, "label0-strict") is Failure.EXIT_LOST
        assert await three.dial(each, "label1-strict") is Failure.NO_EXIT  # it never had one
        assert await three.dial(each, "label0") is Failure.NO_EXIT
    await second.daemon.store.write(end_one)
    second.daemon.gateway._for_connections.exits.directory.forget(three.session.id)
    assert await three.dial(second, "label0-strict") is Failure.NO_EXIT  # its lifetime is over


async def test_moves_that_were_missed_are_noticed_with_the_next_link(three: Cluster) -> None:
    before = (await three.use(1, 1))["label0"].pop()
    other = next(each for each in three.devices if each != before)
    moved = BindingRow(other, "xx", clock.seconds() + 600)
    label = hash_of(parse("country-xx-session-label0"))
    await three.services[0].daemon.store.write(
        queries.bind, three.session.id, label, moved, replaced=before, now=clock.seconds()
    )
    assert await three.dial(three.services[1], "label0") == before  # it asks no other node
    for link in [*mesh_of(three.services[1]).peers.links.values()]:
        link.close("the test says so")
    await linked(three.services)
    await three.all_know()
    assert (await three.use(1, 1))["label0"] == {other}


async def test_a_known_label_causes_no_question(three: Cluster) -> None:
    await three.use(1, 3)
    for each in three.services:

        def refuse(*_: object) -> None:
            raise AssertionError

        labels_of(each)._agree = refuse  # type: ignore[assignment,method-assign]
    await three.use(2, 3)


async def test_a_store_that_is_away_refuses_no_buyer(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise UnavailableError("the test says so")

    for each in three.services:
        monkeypatch.setattr(labels_of(each)._store, "write", away)
    seen = await three.use(1, 5)
    assert not any(isinstance(exit_, Failure) for exits in seen.values() for exit_ in exits)
    assert {len(each) for each in seen.values()} == {1}  # all look for it in the same way


async def test_a_buyer_hears_that_an_exit_of_one_node_alone_gives_way_to_the_agreed_one(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = three.services

    async def away(*_: object, **__: object) -> None:
        raise UnavailableError("the test says so")

    with monkeypatch.context() as patch:
        patch.setattr(labels_of(first)._store, "write", away)
        patch.setattr(labels_of(first)._store, "read", away)
        alone = await three.dial(first, "label0-strict")
    agreed = next(each for each in three.devices if each != alone)
    row = BindingRow(agreed, "xx", clock.seconds() + 600)
    label = hash_of(parse("country-xx-session-label0-strict"))
    now = clock.seconds()
    await second.daemon.store.write(
        queries.bind, three.session.id, label, row, replaced="", now=now
    )
    labels_of(first)._away_until = 0.0
    assert await three.dial(first, "label0-strict") == agreed
    assert three.headers[1:] == ("X-Exit-Changed: 1",)
    assert await three.dial(second, "label0-strict") == agreed
    assert await three.dial(first, "label0-strict") == agreed
    assert three.headers[1:] == ()


@bounded(exit_bounds(labels=LabelBounds(answer_seconds=0.05)))
async def test_a_store_that_hangs_is_waited_for_once(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def hang(unit: object, *_: object, **__: object) -> None:
        if unit is queries.bind:  # the node also makes other writes
            asked.append(1)
        await asyncio.Event().wait()

    service = three.services[0]
    monkeypatch.setattr(labels_of(service)._store, "write", hang)
    for number in range(5):
        assert isinstance(await three.dial(service, f"label{number}"), str)
    assert len(asked) == 1


@pytest.mark.long
async def test_a_dial_that_is_given_up_while_it_waits_is_not_gone_on_with(three: Cluster) -> None:
    service = three.services[0]
    exits = service.daemon.gateway._for_connections.exits
    wants = parse("country-xx-session-label")
    called: list[object] = []
    dial = exits.dial(
        wants,
        three.session,
        ip_address("127.0.0.1"),
        three.port,
        lambda *outcome: called.append(outcome),
    )
    assert labels_of(service)._waiting
    dial.cancel()
    await until(lambda: not labels_of(service)._waiting)
    assert not called


async def test_the_lifetime_of_a_label_ends_at_one_time_on_all_nodes(three: Cluster) -> None:
    service = three.services[0]
    [exit_] = (await three.use(1, 1))["label0"]
    await service.daemon.store.write(end_in, clock.seconds() + 30)  # as another node has bound it
    labels_of(service).doubt()
    assert await three.dial(service, "label0") == exit_
    [binding] = labels_of(service)._bindings.bindings(three.session.id)
    assert binding.until - asyncio.get_running_loop().time() <= 31


async def test_ended_labels_are_swept(three: Cluster) -> None:
    await three.use(1, 4)
    service = three.services[0]
    assert await count(service) == 4
    assert await labels_of(service).sweep() == 0
    await service.daemon.store.write(end_one)
    assert await labels_of(service).sweep() == 1
    await service.daemon.store.write(end_session, three.session.id)
    assert await labels_of(service).sweep() == 3


@pytest.mark.long
@bounded(exit_bounds(labels=LabelBounds(per_session=5)))
async def test_a_session_keeps_no_more_labels_than_a_node_remembers(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "SWEPT_MAX_BINDINGS", 3)
    store, session, now = three.services[0].daemon.store, three.session.id, clock.seconds()
    for number in range(30):
        row = BindingRow("a", "xx", now + 60 + number)
        await store.write(queries.bind, session, f"{number}", row, replaced="", now=now)
    assert await labels_of(three.services[0]).sweep() == 25
    assert await store.read(labels_in) == ["25", "26", "27", "28", "29"]


async def labels_in(tx: Transaction) -> list[str]:
    return await tx.all(str, "SELECT label FROM exit_bindings ORDER BY label")


async def count(service: Service) -> int:
    async def ask(tx: Transaction) -> int:
        return await tx.one(int, "SELECT COUNT(*) FROM exit_bindings") or 0

    return await service.daemon.store.read(ask)


async def end_one(tx: Transaction) -> None:
    await tx.run(
        "UPDATE exit_bindings SET until = 1 WHERE label IN "
        "(SELECT label FROM exit_bindings ORDER BY label LIMIT 1)"
    )


async def end_in(tx: Transaction, until: int) -> None:
    await tx.run("UPDATE exit_bindings SET until = :until", until=until)


async def end_session(tx: Transaction, session_id: str) -> None:
    await tx.run("UPDATE bandwidth_sessions SET status = 'expired' WHERE id = :id", id=session_id)


@pytest.mark.long
async def test_a_label_begins_anew_when_its_lifetime_is_over(three: Cluster) -> None:
    store, session = three.services[0].daemon.store, three.session.id
    now = clock.seconds()
    first = BindingRow("a", "xx", now + 60)
    assert await store.write(queries.bind, session, "x", first, replaced="", now=now) == first
    late = BindingRow("b", "de", now + 90)
    assert await store.write(queries.bind, session, "x", late, replaced="", now=now) == first
    assert await store.write(queries.bind, session, "x", late, replaced="c", now=now) == first
    moved = BindingRow("b", "xx", now + 60)  # the lifetime and the first country stay
    assert await store.write(queries.bind, session, "x", late, replaced="a", now=now) == moved
    assert await store.write(queries.bind, session, "x", first, replaced="", now=now) == moved
    new = BindingRow("d", "fr", now + 200)
    assert await store.write(queries.bind, session, "x", new, replaced="", now=now + 60) == new
