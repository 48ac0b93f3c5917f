"""Benchmarks: a device proves its resources by timed tasks of this daemon.

The tasks follow each other: a chain of hashes, one chain for each reported core, memory to fill,
and a walk through that memory. The time runs from the creation of a task to the arrival of its
answer, so a device has at least the measured resources. Benchmarks find mistakes and simple lies. A
special program can show more (`docs/explanation/trust.md`), and a benchmark cannot prove that the
same machine runs the jobs.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from market.base.errors import Code, MarketError
from market.base.slots import SlotBounds, Slots
from market.base.throttle import Throttle
from market.events.context import Context
from proxyctl.protocol.benchmarks import LINKS, Chains, Walk, is_link, is_step
from storage.devices import benchmarks as queries
from storage.devices.benchmarks import BenchmarkRow

CORES_MAX: Final = 64  # chains of one answer; more cores are not shown
BLOCK_BYTES: Final = 4 * 1024 * 1024
# Most of the reported memory that is filled: 20 seconds of one core.
MEMORY_MAX_BYTES: Final = 8_000_000_000
# A device that leaves out a third of the work is found in eleven of twelve runs, and gains little.
CHECKED_PLACES: Final = 6
RUN_SECONDS: Final = 600.0  # of all tasks together
# Each costs this daemon a third of a second of a core.
RUNS_PER_HOUR: Final = 4
CHECKS_QUEUED_MAX: Final = 100
WRONG: Final = "The answer is not right, or the task is not the device's; begin again."
LATE: Final = "The walk through the memory was too slow, so the memory is smaller; offer less."

# A figure below this part of the best one is written to the log: other programs take less.
FALLEN_BELOW: Final = 0.7

Task = Chains | Walk

_logger = logging.getLogger("benchmarks")


class TaskSizes(Struct, frozen=True):
    """The size of the tasks, and their number.

    A core of today makes a block in five milliseconds or more, and a step needs three quarters of a
    block. So a walk without memory takes four seconds. A walk with memory takes an instant, beside
    the line and the other work of this daemon.

    Attributes:
        rounds: of a chain: half a second of a core of today. A shorter task would measure the line,
            not the device.
        steps: of a walk through the memory.
        walk_seconds: the limit of a walk.
        runs: the number of devices at their tasks; the oldest are forgotten.
    """

    rounds: int = 50_000
    steps: int = 1_024
    walk_seconds: float = 2.0
    runs: int = 1_000


USUAL_SIZES = TaskSizes()


class Step(Struct, frozen=True):
    """Next task of a device.

    For a `Walk` without steps the device fills its memory, and sends no values.
    """

    id: str
    task: Task


class _Run(Struct, frozen=True):
    """Progress of a device: its task, the task's start, and the results so far.

    An `is_short` run does not test memory, and the earlier memory result stays.
    """

    step: Step
    cores: int
    blocks: int
    given_at: float
    began_at: float
    core_hashes: int = 0
    hashes: int = 0
    is_short: bool = False


class Benchmarks:
    """Tasks and their checks.

    Args:
        context: the store and the time.
        monotonic: a clock that cannot be set, in seconds.
        sizes: the sizes of the tasks.
    """

    def __init__(
        self, context: Context, monotonic: Callable[[], float], sizes: TaskSizes = USUAL_SIZES
    ) -> None:
        self.sizes = sizes
        self._store = context.store
        self._now = context.now
        self._monotonic = monotonic
        self._runs: OrderedDict[str, _Run] = OrderedDict()
        self._begun = Throttle(RUNS_PER_HOUR, 3_600, context.now)
        # One thread, for a check is as dear for this daemon as anything that it does.
        self._slots = Slots(SlotBounds(total=1, queue=CHECKS_QUEUED_MAX))

    def begin(
        self, device_id: str, *, cores: int, memory_bytes: int, is_short: bool = False
    ) -> Step:
        """Return the first task for a device; an earlier task is dropped.

        Args:
            device_id: the device.
            cores: the number of cores that it reports.
            memory_bytes: the bytes that it reports to be able to fill.
            is_short: whether only its cores are tested, between jobs.

        Raises:
            MarketError: `too_many_attempts`.
        """
        self._begun.check(device_id)
        self._begun.count(device_id)
        cores = min(cores, CORES_MAX)
        blocks = 0 if is_short else min(memory_bytes, MEMORY_MAX_BYTES) // BLOCK_BYTES
        now = self._monotonic()
        step = self._step(_chains(1, self.sizes.rounds))
        self._keep(device_id, _Run(step, cores, blocks, now, now, is_short=is_short))
        return step

    async def answer(
        self, device_id: str, step_id: str, values: Sequence[bytes]
    ) -> Step | BenchmarkRow:
        """Check an answer. Return the next task, or the result of the benchmark.

        Raises:
            MarketError: `benchmark_failed`, `too_busy`.
        """
        arrived = self._monotonic()
        run = self._runs.pop(device_id, None)
        if run is None or run.step.id != step_id or arrived - run.began_at > RUN_SECONDS:
            raise MarketError(Code.BENCHMARK_FAILED, WRONG)
        seconds = max(arrived - run.given_at, 0.001)
        task = run.step.task
        if isinstance(task, Walk) and task.steps and seconds > self.sizes.walk_seconds:
            raise MarketError(Code.BENCHMARK_FAILED, LATE)
        async with self._slots.slot(device_id):
            is_right = await asyncio.to_thread(_is_right, task, values)
        if not is_right:
            raise MarketError(Code.BENCHMARK_FAILED, WRONG)
        if isinstance(task, Chains):
            speed = int(task.hashes / seconds)
            is_first = not run.core_hashes
            run = replace(run, core_hashes=speed) if is_first else replace(run, hashes=speed)
            if is_first and run.cores > 1:
                return self._go_on(device_id, run, _chains(run.cores, task.rounds))
            if is_first:
                run = replace(run, hashes=speed)
            if run.blocks:
                seed = secrets.token_bytes(32)
                return self._go_on(device_id, run, Walk(seed, run.blocks, BLOCK_BYTES, b"", 0))
        elif not task.steps:
            start = secrets.token_bytes(32)
            walk = Walk(task.seed, task.blocks, task.block_bytes, start, self.sizes.steps)
            return self._go_on(device_id, run, walk)
        return await self._shown(device_id, run)

    async def _shown(self, device_id: str, run: _Run) -> BenchmarkRow:
        memory_bytes = run.blocks * BLOCK_BYTES
        # All cores together are at least as fast as one of them, even if the line was slow
        # meanwhile.
        hashes = max(run.hashes, run.core_hashes)
        core = run.core_hashes
        row = await self._store.write(
            queries.write,
            BenchmarkRow(device_id, core, hashes, memory_bytes, self._now(), core, hashes),
            keeps_memory=run.is_short,
        )
        for what, figure, best in (
            ("one core", row.core_hashes, row.best_core_hashes),
            ("all cores", row.hashes, row.best_hashes),
        ):
            if figure < best * FALLEN_BELOW:
                words = "device %s: %s made %d hashes a second, and %d at best"
                _logger.warning(words, device_id, what, figure, best)
        return row

    def _go_on(self, device_id: str, run: _Run, task: Task) -> Step:
        step = self._step(task)
        self._keep(device_id, replace(run, step=step, given_at=self._monotonic()))
        return step

    def _step(self, task: Task) -> Step:
        return Step(secrets.token_hex(16), task)

    def _keep(self, device_id: str, run: _Run) -> None:
        self._runs.pop(device_id, None)
        self._runs[device_id] = run
        while len(self._runs) > self.sizes.runs:
            self._runs.popitem(last=False)


def _chains(count: int, rounds: int) -> Chains:
    """Return `count` chains with a new seed, so that earlier work is useless for them."""
    return Chains(secrets.token_bytes(32), count, rounds)


def _is_right(task: Task, values: Sequence[bytes]) -> bool:
    """Return whether an answer is right, by a random choice of its parts."""
    choose = secrets.SystemRandom()
    if isinstance(task, Chains):
        if len(values) != task.chains * LINKS:
            return False
        spots = choose.sample(range(len(values)), CHECKED_PLACES)
        return all(is_link(task, values, spot) for spot in spots)
    if len(values) != task.steps:
        return False
    spots = choose.sample(range(task.steps), min(CHECKED_PLACES, task.steps))
    return all(is_step(task, values, spot) for spot in spots)
