"""Proofs of devices, against this daemon's clock: right, wrong, late, from another device."""

import pytest
from msgspec.structs import replace
from support.market.jobs import device_of
from support.market.market import Market

from market.base.errors import Code, MarketError
from market.devices.benchmarks import (
    BLOCK_BYTES,
    RUN_SECONDS,
    RUNS_PER_HOUR,
    Benchmarks,
    Step,
    TaskSizes,
)
from proxyctl.protocol.benchmarks import LINKS, Chains, Walk, block, chain, walk
from storage.devices.benchmarks import BenchmarkRow


class Steady:
    """A clock in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


SMALL = TaskSizes(rounds=5, steps=24)


@pytest.fixture
def steady() -> Steady:
    return Steady()


@pytest.fixture
def tried(market: Market, steady: Steady) -> Benchmarks:
    return Benchmarks(market.context, steady, SMALL)


def done(step: Step) -> list[bytes]:
    """Results of an honest device."""
    task = step.task
    if isinstance(task, Chains):
        return [link for number in range(task.chains) for link in chain(task, number)]
    blocks = [block(task.seed, number, task.block_bytes) for number in range(task.blocks)]
    return walk(task, lambda number, at, size: blocks[number][at : at + size])


async def refused(tried: Benchmarks, device_id: str, step: Step, values: list[bytes]) -> bool:
    with pytest.raises(MarketError) as caught:
        await tried.answer(device_id, step.id, values)
    assert caught.value.code is Code.BENCHMARK_FAILED
    return True


@pytest.mark.both_engines
async def test_a_device_shows_its_cores_and_its_memory(
    market: Market, tried: Benchmarks, steady: Steady
) -> None:
    device = await device_of(market, await market.person())
    step: Step | BenchmarkRow = tried.begin(device.id, cores=3, memory_bytes=2 * BLOCK_BYTES + 1)
    kinds = []
    while isinstance(step, Step):
        task = step.task
        kinds.append((type(task).__name__, task.chains if isinstance(task, Chains) else task.steps))
        steady.seconds += 0.5
        step = await tried.answer(device.id, step.id, done(step))
    assert kinds == [("Chains", 1), ("Chains", 3), ("Walk", 0), ("Walk", 24)]
    assert (step.core_hashes, step.hashes) == (LINKS * 5 * 2, 3 * LINKS * 5 * 2)
    assert (step.memory_bytes, step.measured_at) == (2 * BLOCK_BYTES, market.clock.now)
    assert await market.devices.benchmarks([device.id]) == {device.id: step}
    # Again, with less: the last values count.
    market.clock.jump(60)
    step = tried.begin(device.id, cores=1, memory_bytes=0)
    steady.seconds += 1.0
    again = await tried.answer(device.id, step.id, done(step))
    assert await market.devices.benchmarks([device.id]) == {device.id: again}


@pytest.mark.both_engines
async def test_a_figure_that_falls_is_written_down(
    market: Market, tried: Benchmarks, steady: Steady, caplog: pytest.LogCaptureFixture
) -> None:
    device = await device_of(market, await market.person())

    async def shown(seconds: float, **how: bool) -> BenchmarkRow:
        step: Step | BenchmarkRow = tried.begin(device.id, cores=2, memory_bytes=BLOCK_BYTES, **how)
        while isinstance(step, Step):
            steady.seconds += seconds
            step = await tried.answer(device.id, step.id, done(step))
        return step

    first = await shown(0.5)
    assert (first.best_core_hashes, first.best_hashes) == (first.core_hashes, first.hashes)
    slower = await shown(0.6, is_short=True)  # other programs take the same time
    assert slower.core_hashes < first.core_hashes
    assert slower.memory_bytes == first.memory_bytes  # it was not tried, and stands
    assert caplog.messages == []
    slow = await shown(1.0, is_short=True)
    assert (slow.best_core_hashes, slow.best_hashes) == (first.core_hashes, first.hashes)
    assert [device.id in each and "at best" in each for each in caplog.messages] == [True, True]
    fast = await shown(0.25)
    assert fast.best_core_hashes == fast.core_hashes > first.core_hashes
    assert await market.devices.benchmarks([device.id]) == {device.id: fast}


async def test_wrong_answers_show_nothing(market: Market, tried: Benchmarks) -> None:
    device = await device_of(market, await market.person())
    step = tried.begin(device.id, cores=1, memory_bytes=0)
    assert await refused(tried, device.id, step, [bytes(32)] * LINKS)
    assert await refused(tried, device.id, step, done(step))  # it is over
    step = tried.begin(device.id, cores=1, memory_bytes=0)
    assert await refused(tried, device.id, step, done(step)[1:])
    step = tried.begin(device.id, cores=1, memory_bytes=0)
    other = await device_of(market, await market.person())
    assert await refused(tried, other.id, step, done(step))
    assert await market.devices.benchmarks([device.id, other.id]) == {}


async def test_a_device_that_walks_slowly_does_not_have_the_memory(
    market: Market, tried: Benchmarks, steady: Steady
) -> None:
    device = await device_of(market, await market.person())
    step: Step | BenchmarkRow = tried.begin(device.id, cores=1, memory_bytes=BLOCK_BYTES)
    for _ in range(2):
        assert isinstance(step, Step)
        step = await tried.answer(device.id, step.id, done(step))
    assert isinstance(step, Step)
    assert isinstance(step.task, Walk)
    steady.seconds += SMALL.walk_seconds + 0.1
    assert await refused(tried, device.id, step, done(step))
    assert await market.devices.benchmarks([device.id]) == {}


async def test_a_run_has_an_end_and_there_are_few_an_hour(
    market: Market, tried: Benchmarks, steady: Steady
) -> None:
    device = await device_of(market, await market.person())
    step = tried.begin(device.id, cores=1, memory_bytes=0)
    steady.seconds += RUN_SECONDS + 1
    assert await refused(tried, device.id, step, done(step))
    for _ in range(RUNS_PER_HOUR - 1):
        tried.begin(device.id, cores=1, memory_bytes=0)
    with pytest.raises(MarketError) as caught:
        tried.begin(device.id, cores=1, memory_bytes=0)
    assert caught.value.code is Code.TOO_MANY_ATTEMPTS
    # The oldest runs are forgotten.
    tried.sizes = replace(SMALL, runs=1)
    devices = [await device_of(market, await market.person()) for _ in range(2)]
    first, second = (tried.begin(each.id, cores=1, memory_bytes=0) for each in devices)
    assert await refused(tried, devices[0].id, first, done(first))
    assert isinstance(await tried.answer(devices[1].id, second.id, done(second)), BenchmarkRow)
