"""A daemon with apps, a device that runs jobs for it, and buyers whose jobs listen."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from proxyctl.worker.base.record import Lend
from support.clients.story import worker_token
from support.daemons.service import Person, Service, running_in
from support.workers.market import WorkerMarket
from support.workers.process import WorkerAgent, require_sandbox


@asynccontextmanager
async def offering(folder: Path) -> AsyncIterator[Service]:
    """Run a daemon with apps below `localhost`; its ledger must agree after the test."""
    exits = {"host": "127.0.0.1", "port": 0}
    apps = {"host": "127.0.0.1", "port": 0, "domain": "localhost"}
    async with running_in(folder, exits=exits, apps=apps) as running:
        yield running
        await running.assert_audit()


@asynccontextmanager
async def devices_of(
    service: Service, folder: Path, *, ram_gb: float = 0.5
) -> AsyncIterator[WorkerAgent]:
    """Run an agent of a new owner's device until the end of the block."""
    require_sandbox(folder)
    place = folder / "agent"
    place.mkdir(mode=0o700)
    nobody = cast(WorkerMarket, SimpleNamespace(url=service.url, jobs={}))
    made = WorkerAgent(place, nobody)
    lend = Lend(cores=1, ram_gb=ram_gb, disk_gb=1, max_jobs=1)
    made.agree(service.url, lend, await worker_token(service, await service.person()))
    made.start()
    try:
        yield made
    finally:
        await asyncio.to_thread(made.close)


async def put_up(service: Service, buyer: Person, **payload: Any) -> str:
    """Put a job up; return its identifier."""
    body = {
        "title": "a page",
        "job_type": "script",
        "price_credit": 1,
        "duration_hrs": 1,
        "payload": payload,
    }
    answer = await service.call("POST", "/api/jobs", body, token=buyer.token)
    assert answer.status == 200, answer.body
    return str(answer.body["job_id"])


async def app_of(service: Service, buyer: Person, job_id: str) -> Any:
    """Return a job as an app, as its buyer is shown it."""
    return (await service.call("GET", f"/api/jobs/{job_id}/app", token=buyer.token)).body["app"]
