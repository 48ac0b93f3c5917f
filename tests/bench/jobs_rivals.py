"""Other queues of jobs, as their users have them: how many jobs a second their workers get.

procrastinate and pgqueuer take from the same PostgreSQL as the daemon, over one process and ten
connections, whose workers they trust. dask has no store: its figure is whole jobs that do nothing.
"""

import asyncio
import time
from datetime import timedelta
from uuid import uuid4

import asyncpg
import procrastinate
from distributed import Client, LocalCluster
from pgqueuer import AsyncpgDriver, Queries
from pgqueuer.ports.repository import EntrypointExecutionParameter
from procrastinate import App, PsycopgConnector

CONNECTIONS = 10
BATCH = 10  # pgqueuer's own default


async def procrastinate_rate(url: str, jobs: int) -> float:
    """Return the number of waiting jobs that ten workers fetch in a second."""
    app = App(connector=PsycopgConnector(conninfo=url, max_size=CONNECTIONS))

    @app.task(name="nothing")
    def nothing() -> None:
        """Do nothing."""

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await nothing.batch_defer_async(*({} for _ in range(jobs)))
        await _analyze(url)
        manager = app.job_manager

        async def fetch() -> int:
            worker, count = await manager.register_worker(), 0
            while await manager.fetch_job(None, worker) is not None:
                count += 1
            return count

        began = time.perf_counter()
        counts = await asyncio.gather(*(fetch() for _ in range(CONNECTIONS)))
    assert sum(counts) == jobs, counts
    return jobs / (time.perf_counter() - began)


async def pgqueuer_rate(url: str, jobs: int) -> float:
    """Return the number of jobs that ten workers dequeue in a second, ten by each call."""
    connections = [await asyncpg.connect(url) for _ in range(CONNECTIONS)]
    try:
        queues = [Queries(AsyncpgDriver(each)) for each in connections]
        await queues[0].install()
        await queues[0].enqueue(["nothing"] * jobs, [None] * jobs, [0] * jobs)
        await _analyze(url)

        async def dequeue(queue: Queries) -> int:
            count, worker = 0, uuid4()
            entry = {"nothing": EntrypointExecutionParameter(0)}
            while taken := await queue.dequeue(BATCH, entry, worker, None, timedelta(seconds=60)):
                count += len(taken)
            return count

        began = time.perf_counter()
        counts = await asyncio.gather(*(dequeue(each) for each in queues))
        seconds = time.perf_counter() - began
    finally:
        for each in connections:
            await each.close()
    assert sum(counts) == jobs, counts
    return jobs / seconds


def dask_rate(jobs: int) -> float:
    """Return how many empty jobs a second its scheduler has done by two workers."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.gather(client.map(_nothing, range(10), pure=False))
        began = time.perf_counter()
        client.gather(client.map(_nothing, range(jobs), pure=False))
        return jobs / (time.perf_counter() - began)


def _nothing(_: int) -> None:
    """Do nothing."""


async def _analyze(url: str) -> None:
    """Let the planner know the tables, as it does a minute later by itself."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("ANALYZE")
    finally:
        await connection.close()


__all__ = ["dask_rate", "pgqueuer_rate", "procrastinate", "procrastinate_rate"]
