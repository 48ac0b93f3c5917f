"""proxyctl.worker.network.doors: a device attaches to every daemon of a service, and to no more."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.base.cases import cases
from support.base.waiting import until

from proxyctl.attach.daemon.control import AttachError
from proxyctl.worker.base.link import LinkError
from proxyctl.worker.network import doors as module
from proxyctl.worker.network.doors import DOORS_MAX, Door, Doors, doors_of

A, B, C = (Door(name, 1090, "ab" * 32) for name in ("a", "b", "c"))


def named(door: Door) -> dict[str, Any]:
    return {"host": door.host, "port": door.port, "certificate_sha256": door.certificate}


def test_each_door_is_named_once() -> None:
    assert doors_of(named(A)) == [A]  # by a daemon that knows of no others
    assert doors_of({**named(A), "doors": [named(B), named(A), named(B)]}) == [A, B]
    many = [named(Door(f"d{number}", 1, "")) for number in range(100)]
    assert len(doors_of({**named(A), "doors": many})) == DOORS_MAX


@cases("doors", [None, 7, [7], ["a"], [{}], [{"host": 7}], {"host": "a"}])
def test_nonsense_is_no_door(doors: Any) -> None:
    with pytest.raises(LinkError):
        doors_of({**named(A), "doors": doors})


class Service:
    """A list of daemons, and the attached doors of the device."""

    def __init__(self) -> None:
        self.doors: list[Door] = [A]
        self.is_away = False
        self.asked = 0
        self.attached: dict[Door, asyncio.Future[float]] = {}
        self.attaches: Counter[Door] = Counter()
        self.broken: set[Door] = set()
        self.task = asyncio.create_task(
            Doors(self._ask, self._hold, lambda _: None, look_seconds=0.01).keep()
        )

    async def _ask(self) -> list[Door]:
        self.asked += 1
        if self.is_away:
            raise LinkError("away")
        return self.doors

    async def _hold(self, door: Door, _: Any) -> float:
        self.attaches[door] += 1
        if door in self.broken:
            raise AttachError("lost")
        self.attached[door] = asyncio.get_running_loop().create_future()
        try:
            return await self.attached[door]
        finally:
            del self.attached[door]

    async def at(self, *doors: Door) -> None:
        await until(lambda: set(self.attached) == set(doors), f"attached to {doors}")


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    monkeypatch.setattr(module.Retries, "failed", lambda *_: 0.01)
    made = Service()
    yield made
    made.task.cancel()
    await asyncio.gather(made.task, return_exceptions=True)
    assert not made.attached


async def test_a_daemon_that_comes_is_attached_to_and_one_that_goes_is_left(
    service: Service,
) -> None:
    await service.at(A)
    service.doors = [B, A]
    await service.at(A, B)
    service.doors = [B, C]
    await service.at(A, B, C)  # a daemon that is missing from the list keeps its connections
    service.attached[A].set_result(0.0)
    service.attached[B].set_result(0.0)
    await until(lambda: service.attaches[B] == 2, "it is attached to again")
    await service.at(B, C)
    assert service.attaches == {A: 1, B: 2, C: 1}


async def test_one_that_cannot_be_reached_holds_up_no_other(service: Service) -> None:
    service.broken.add(B)
    service.doors = [B, A, C]
    await service.at(A, C)
    await until(lambda: service.attaches[B] > 3, "it is tried again")
    service.broken.clear()
    await service.at(A, B, C)
    assert service.attaches[C] == 1


async def test_while_the_marketplace_is_away_attached_doors_stay(service: Service) -> None:
    await service.at(A)
    service.is_away = True
    asked = service.asked
    await until(lambda: service.asked > asked + 2, "it is asked again")
    assert set(service.attached) == {A}
    service.is_away = False
    service.doors = [A, B]
    await service.at(A, B)


async def test_the_number_of_doors_is_bounded(service: Service) -> None:
    for number in range(4):  # a service that lies, and names others each time
        service.doors = [Door(f"{number}-{each}", 1, "") for each in range(DOORS_MAX)]
        asked = service.asked
        await until(lambda asked=asked: service.asked > asked + 2)
    assert len(service.attached) == DOORS_MAX
