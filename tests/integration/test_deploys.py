"""A deploy, all the way: replicas in sandboxes on a device, replaced while they serve, and paid."""

import asyncio
import time
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.base.waiting import until
from support.clients.story import worker_token
from support.daemons.service import Person, Service
from support.workers.market import WorkerMarket
from support.workers.process import WorkerAgent, require_sandbox

from proxyctl.worker.base.record import Lend

DEPLOYS = "/api/deploy/job"
PORT = 8080
SCRIPT = f"""
import http.server, os, time
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["WORD"].encode())
print(os.environ["WORD"], os.environ["TOKEN"], flush=True)
http.server.HTTPServer(("127.0.0.1", {PORT}), Page).serve_forever()
"""
DEPLOY = {
    "job_name": "pages",
    "job_type": "Script",
    "gpu_model": "none",
    "replicas": 2,
    "script": SCRIPT,
    "env": {"WORD": "one"},
    "secrets": {"TOKEN": "hunter2"},
    "ports": [{"name": "web", "port": PORT}],
    "ready": {"port": PORT, "http": "/", "every_s": 1},
}


class Deployed:
    """A deploy, as its buyer sees it."""

    def __init__(self, service: Service, buyer: Person, agent: WorkerAgent) -> None:
        self.service = service
        self.buyer = buyer
        self.agent = agent
        self.path = ""
        self.least_ready = 2

    async def call(self, method: str, path: str = "", body: Any = None) -> dict[str, Any]:
        answer = await self.service.call(method, self.path + path, body, token=self.buyer.token)
        assert answer.status == 200, answer.body
        return dict(answer.body)

    async def until_available(self, revision: int, ready: int) -> list[str]:
        """Wait until `ready` replicas of a revision are ready. Return their jobs."""
        shown: dict[str, Any] = {}

        async def is_available() -> bool:
            shown.update((await self.call("GET"))["deploy"])
            self.least_ready = min(self.least_ready, shown["ready_replicas"])
            is_settled = shown["state"] == "available" and shown["revision"] == revision
            return is_settled and shown["ready_replicas"] == ready

        await until(
            is_available, f"{ready} replicas of {revision}: {shown} {self.agent.log}", seconds=90
        )
        return list(shown["job_ids"])


@pytest.fixture
async def deployed(service: Service, tmp_path: Path) -> AsyncIterator[Deployed]:
    require_sandbox(tmp_path)
    folder = tmp_path / "agent"
    folder.mkdir(mode=0o700)
    nobody = cast(WorkerMarket, SimpleNamespace(url=service.url, jobs={}))
    agent = WorkerAgent(folder, nobody)
    lend = Lend(cores=1, ram_gb=0.5, disk_gb=1, max_jobs=2)
    agent.agree(service.url, lend, await worker_token(service, await service.person()))
    agent.start()
    yield Deployed(service, await service.person(usd="2"), agent)
    await asyncio.to_thread(agent.close)


async def test_replicas_serve_are_replaced_and_paid_by_the_second(deployed: Deployed) -> None:
    created = await deployed.call("POST", DEPLOYS, DEPLOY)
    deployed.path = f"{DEPLOYS}/{created['job_id']}"
    first = await deployed.until_available(1, 2)

    deployed.least_ready = 2
    await deployed.call("POST", "/revision", {"env": {"WORD": "two"}})
    second = await deployed.until_available(2, 2)
    assert not {*first} & {*second}
    assert deployed.least_ready == 1  # one after the other
    await deployed.call("POST", "/rollback")
    third = await deployed.until_available(3, 2)
    ready_at = time.time()
    await until(lambda: time.time() > ready_at + 1, "a whole second of these is paid")

    await deployed.call("POST", "/scale", {"replicas": 0})
    await deployed.until_available(3, 0)
    balance = await usd(deployed)
    await deployed.call("POST", "/scale", {"replicas": 1})
    assert balance - await usd(deployed) < 1  # the hours that this replica has left
    fourth = await deployed.until_available(3, 1)
    await deployed.call("POST", "/cancel")
    shown = (await deployed.call("GET"))["deploy"]
    assert (shown["status"], shown["state"]) == ("cancelled", "over")

    paid = Decimal(2) - await usd(deployed)
    assert paid == Decimal(str(shown["paid"]))
    assert 0 < paid < 1
    await deployed.service.assert_audit()
    deployed.path = ""
    jobs = [
        (await deployed.call("GET", f"/api/jobs/{each}"))["job"]
        for each in (*first, *second, *third, *fourth)
    ]
    assert {job["status"] for job in jobs} == {"cancelled"}
    assert sum(Decimal(str(job["paid"])) for job in jobs) == paid
    assert {job["review"]["state"] for job in jobs if "review" in job} == {"held"}


async def usd(deployed: Deployed) -> Decimal:
    me = await deployed.service.call("GET", "/auth/me", token=deployed.buyer.token)
    return Decimal(str(me.body["usd_balance"]))
