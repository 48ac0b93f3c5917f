"""Routes for the benchmark of a device, and the format of the results."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from api.routing.listing import Timestamp, timestamp
from api.routing.routes import Auth, Call, Reply, Route
from market.base.errors import Code
from market.devices.benchmarks import CORES_MAX, USUAL_SIZES, Benchmarks, Step
from proxyctl.protocol.benchmarks import LINKS, Chains
from storage.devices.benchmarks import BenchmarkRow

VALUES_MAX = max(CORES_MAX * LINKS, USUAL_SIZES.steps)
Hex = Annotated[str, Meta(pattern="^(?:[0-9a-f]{2}){0,32}$")]


class Benchmark(Struct):
    """Resources that a device has proved: the least, and not a promise for jobs.

    `hashes_per_s` are rounds of PBKDF2 with SHA-256 a second, of all its cores together, and
    `core_hashes_per_s` of one; `memory_bytes` is the memory that it has filled. The best are the
    highest values of each that it has ever proved.
    """

    core_hashes_per_s: int
    hashes_per_s: int
    memory_bytes: int
    measured_at: Timestamp
    best_core_hashes_per_s: int
    best_hashes_per_s: int


class BeginRequest(Struct):
    """Resources that the device will prove: beyond the bounds of a benchmark, a part is tried.

    With `is_short` memory is not tried: a device uses that when the service requests a benchmark
    between jobs.
    """

    cores: Annotated[int, Meta(ge=1, le=4_096)]
    memory_bytes: Annotated[int, Meta(ge=0, le=2**50)] = 0
    is_short: bool = False


class AnswerRequest(Struct):
    """Result of a task, in hexadecimal: the links of its chains, or the steps of the walk."""

    task_id: Annotated[str, Meta(min_length=1, max_length=64)]
    values: Annotated[list[Hex], Meta(max_length=VALUES_MAX)]


class TaskItem(Struct):
    """A task. `chains`: that many at once; `fill`: memory, with blocks; `walk`: through these."""

    id: str
    kind: Literal["chains", "fill", "walk"]
    seed: str
    chains: int | UnsetType = UNSET
    rounds: int | UnsetType = UNSET
    blocks: int | UnsetType = UNSET
    block_bytes: int | UnsetType = UNSET
    start: str | UnsetType = UNSET
    steps: int | UnsetType = UNSET


class TaskReply(Reply, kw_only=True):
    """The next task, or the benchmark of the device."""

    task: TaskItem | UnsetType = UNSET
    benchmark: Benchmark | UnsetType = UNSET


class BenchmarkRoutes:
    """The routes of benchmarks."""

    def __init__(self, benchmarks: Benchmarks) -> None:
        self._benchmarks = benchmarks

    def table(self) -> list[Route]:
        """Return the declarations."""
        return [
            Route(
                "POST",
                "/api/worker/benchmark",
                "Begin to show what this device has",
                self.begin,
                TaskReply,
                auth=Auth.WORKER,
                body=BeginRequest,
                example={"cores": 4, "memory_bytes": 4_000_000_000},
                errors=(Code.TOO_MANY_ATTEMPTS,),
            ),
            Route(
                "POST",
                "/api/worker/benchmark/answer",
                "Hand in what came of a task, and get the next",
                self.answer,
                TaskReply,
                auth=Auth.WORKER,
                body=AnswerRequest,
                example={"task_id": "0a", "values": ["00ff"]},
                errors=(Code.BENCHMARK_FAILED, Code.TOO_BUSY),
            ),
        ]

    async def begin(self, call: Call[BeginRequest, Any]) -> TaskReply:
        """Set the first task."""
        body = call.body
        step = self._benchmarks.begin(
            call.device.id,
            cores=body.cores,
            memory_bytes=body.memory_bytes,
            is_short=body.is_short,
        )
        return TaskReply(task=_item(step))

    async def answer(self, call: Call[AnswerRequest, Any]) -> TaskReply:
        """Take an answer."""
        values = [bytes.fromhex(value) for value in call.body.values]
        after = await self._benchmarks.answer(call.device.id, call.body.task_id, values)
        if isinstance(after, Step):
            return TaskReply(task=_item(after))
        return TaskReply(benchmark=benchmark_item(after))


def benchmark_item(row: BenchmarkRow) -> Benchmark:
    """Return the benchmark of a device as the API shows it."""
    return Benchmark(
        core_hashes_per_s=row.core_hashes,
        hashes_per_s=row.hashes,
        memory_bytes=row.memory_bytes,
        measured_at=timestamp(row.measured_at),
        best_core_hashes_per_s=row.best_core_hashes,
        best_hashes_per_s=row.best_hashes,
    )


def _item(step: Step) -> TaskItem:
    task = step.task
    if isinstance(task, Chains):
        seed = task.seed.hex()
        return TaskItem(step.id, "chains", seed, chains=task.chains, rounds=task.rounds)
    item = TaskItem(
        step.id,
        "walk" if task.steps else "fill",
        task.seed.hex(),
        blocks=task.blocks,
        block_bytes=task.block_bytes,
    )
    if task.steps:
        item.start, item.steps = task.start.hex(), task.steps
    return item
