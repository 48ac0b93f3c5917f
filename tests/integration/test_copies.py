"""The same work on devices of several owners, all the way: agents agree, and a liar is found."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.base.waiting import until
from support.clients.story import credits_of, worker_token
from support.daemons.service import Service
from support.workers.market import WorkerMarket
from support.workers.process import WorkerAgent, require_sandbox

from proxyctl.worker.base.record import Lend

SCRIPT = """
import pathlib
pathlib.Path("roots.txt").write_text("".join(f"{n ** 0.5}\\n" for n in range(1000)))
print(sum(n ** 0.5 for n in range(1000)))
"""


@pytest.fixture
async def agents(service: Service, tmp_path: Path) -> AsyncIterator[list[WorkerAgent]]:
    """The agents of two owners, which are not started."""
    require_sandbox(tmp_path)
    made = []
    for number in range(2):
        folder = tmp_path / f"agent-{number}"
        folder.mkdir(mode=0o700)
        agent = WorkerAgent(folder, cast(WorkerMarket, SimpleNamespace(url=service.url, jobs={})))
        # Room for every copy: that it gets one is not for want of it.
        lend = Lend(cores=2, ram_gb=1, disk_gb=2, max_jobs=2)
        agent.agree(service.url, lend, await worker_token(service, await service.person()))
        made.append(agent)
    yield made
    for agent in made:
        await asyncio.to_thread(agent.close)


async def test_agents_of_two_owners_agree_and_a_liar_is_not_paid(
    service: Service, agents: list[WorkerAgent]
) -> None:
    buyer, liar = await service.person(credit="30"), await service.person()
    answer = await service.call(
        "POST",
        "/api/jobs",
        {
            "title": "roots",
            "job_type": "script",
            "price_credit": 10,
            "duration_hrs": 1,
            "payload": {"script": SCRIPT, "outputs": [{"name": "roots", "path": "roots.txt"}]},
            "resources": {"cores": 1, "ram_gb": 0.5, "disk_gb": 1},
            "trust": {"copies": 3, "compare": "numbers:1e-9", "review_hours": 0},
        },
        token=buyer.token,
    )
    jobs = answer.body["copies"]
    headers = {"X-Worker-Token": await worker_token(service, liar)}
    said = {
        "capacity": {"slots": 0, "cores": 1, "ram_gb": 1, "disk_gb": 1},
        "capabilities": {"executors": ["bwrap"], "job_types": ["script"]},
    }
    await service.call("POST", "/api/worker/next", said, headers=headers)
    for path in (f"/api/jobs/{jobs[0]}/accept", f"/api/worker/jobs/{jobs[0]}/complete"):
        # The right text without the file: a device that copies the printed text of others is also
        # found.
        body = {"result": "21065.833110879048\n"} if path.endswith("complete") else None
        done = await service.call("POST", path, body, headers=headers)
        assert done.status == 200, done.body
    for agent in agents:
        agent.start()
    shown: dict[str, Any] = {}

    async def is_compared() -> bool:
        path = f"/api/jobs/{jobs[0]}"
        shown.update((await service.call("GET", path, token=buyer.token)).body["job"])
        return shown["copies"]["state"] != "open"

    said = f"results are compared: {[agent.log for agent in agents]}"
    await until(is_compared, said, seconds=60)
    assert [each.get("agrees") for each in shown["copies"]["jobs"]] == [False, True, True], shown
    assert shown["copies"]["canonical"] in jobs[1:]
    assert shown["paid"] == 0
    assert shown["review"]["state"] == "reversed"
    assert await credits_of(service, buyer) == 10
    assert await credits_of(service, liar) == 0
