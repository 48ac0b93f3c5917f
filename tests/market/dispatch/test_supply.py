"""The supply counts the devices by their resources, and shows no single owner."""

import asyncio
from collections import deque

from market.dispatch.supply import KEPT_SECONDS, OTHER, Device, Given, Row, Snapshot, Supply
from market.jobs.matching import MILLION, Offer
from proxyctl.protocol.jobspec import Capacity

BWRAP = frozenset(("bwrap",))
SCRIPT = frozenset(("script",))


def device(
    owner: str,
    *,
    slots: int = 1,
    price: int = 100_000,
    gpu: str = "",
    network: str = "",
    is_proven: bool = True,
    **lent: int,
) -> Device:
    """Return a device that lends this, with one GPU or none; its price in micro-USD an hour."""
    names = (gpu,) if gpu else ()
    whole = Capacity(slots=1, gpus=len(names), gpu_names=names, **lent)
    free = whole if slots else Capacity(gpu_names=names)
    offer = Offer(free, BWRAP, SCRIPT, least_price=price * MILLION)
    return Device(offer, whole, owner, network, 523_456, is_proven)


class Clock:
    """Seconds that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def counted(*devices: Device, prices: tuple[Given, ...] = ()) -> Snapshot:
    def country(address: str) -> str:
        return {"8.8.8.0": "us", "9.9.9.0": "de"}.get(address, "")

    return await Supply(lambda: devices, deque(prices), country, Clock()).find()


def by_name(rows: "list[Row] | tuple[Row, ...]") -> dict[str, tuple[int, int]]:
    return {row.name: (row.devices, row.free) for row in rows}


async def test_devices_are_counted_by_gpu_cores_memory_and_sandbox_busy_or_free() -> None:
    found = await counted(
        device("a", cores=8, ram_gb=32, gpu="NVIDIA GeForce RTX 4090"),
        device("b", cores=12, ram_gb=64, gpu="rtx4090", slots=0),
        device("c", cores=64, ram_gb=64),
        device("d", cores=0, gpu="<b>buy here</b>"),
    )
    assert (found.total.devices, found.total.free) == (4, 3)
    assert by_name(list(found.gpus)) == {
        "NVIDIA GeForce RTX 4090": (2, 1),
        "": (1, 1),
        OTHER: (1, 1),
    }
    assert [(row.gpus, row.free_gpus) for row in found.gpus if row.devices == 2] == [(2, 1)]
    assert by_name(list(found.cores)) == {"0": (1, 1), "8": (2, 1), "64": (1, 1)}
    assert by_name(list(found.memory)) == {"0": (1, 1), "32": (1, 1), "64": (2, 1)}
    assert by_name(list(found.sandboxes)) == {"bwrap": (4, 3)}
    assert found.with_network.devices == 0
    assert found.paid is None


async def test_figures_of_fewer_than_five_proven_owners_are_not_shown() -> None:
    few = [device(owner, network="8.8.8.0/24", price=7) for owner in "aaabcd"]
    new = [device(f"new {n}", network="8.8.8.0/24", is_proven=False) for n in range(9)]
    found = await counted(*few, *new)
    assert (found.total.least_price, found.total.reputation) == (None, None)
    assert by_name(list(found.countries)) == {OTHER: (15, 15)}
    more = [*few, device("e", network="8.8.8.0/24", price=9), device("f", network="9.9.9.0/24")]
    found = await counted(*more, *new)
    assert (found.total.least_price, found.total.reputation) == (7 * MILLION, 500_000)
    assert by_name(list(found.countries)) == {"us": (16, 16), OTHER: (1, 1)}


async def test_each_proven_owner_counts_once_and_figures_are_rounded() -> None:
    """New accounts, and many devices of one owner, move no median."""
    mine = [device("mine", price=1) for _ in range(50)]
    new = [device(f"new {n}", price=1, is_proven=False) for n in range(50)]
    others = [device(owner, price=123_456) for owner in "abcd"]
    found = await counted(*mine, *new, *others)
    assert found.total.least_price == 100_000 * MILLION


async def test_recent_prices_of_several_buyers_are_shown_in_quartiles_and_by_gpu() -> None:
    old = Given(-8 * 86_400.0, 1_000, "", "x")
    recent = [
        Given(0.0, price, gpu, f"buyer {price % 3}")
        for gpu, prices in (("rtx4090", range(10, 15)), ("", range(1, 6)))
        for price in prices
    ]
    rigs = device("a", gpu="RTX 4090"), device("b")
    found = await counted(*rigs, prices=(old, *recent))
    assert found.paid is not None
    assert (found.paid.jobs, found.paid.low, found.paid.median, found.paid.high) == (10, 3, 5, 10)
    assert {row.name: row.paid for row in found.gpus} == {"RTX 4090": 10, "": 3}
    for few in (recent[:4], [each._replace(buyer="one") for each in recent]):
        found = await counted(*rigs, prices=tuple(few))
        assert found.paid is None
        assert {row.paid for row in found.gpus} == {None}


async def test_ten_thousand_devices_are_counted_once_for_all_callers_and_the_loop_goes_on() -> None:
    counts = 0
    devices = [device(f"owner {number % 500}", cores=number % 90) for number in range(10_000)]

    def every() -> list[Device]:
        nonlocal counts
        counts += 1
        return devices

    clock = Clock()
    supply = Supply(every, deque(), lambda _: "", clock)
    asking = [asyncio.get_running_loop().create_task(supply.find()) for _ in range(12)]
    turns = 0
    while not all(each.done() for each in asking):
        await asyncio.sleep(0)
        turns += 1
    assert turns > 10
    assert {each.result().total.devices for each in asking} == {10_000}
    clock.now = KEPT_SECONDS - 1
    await supply.find()
    assert counts == 1
    clock.now = KEPT_SECONDS + 1
    devices = devices[:5]
    assert (await supply.find()).total.devices == 5
