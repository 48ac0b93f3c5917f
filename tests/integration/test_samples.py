"""Sample of a device, from the gift to the pay: a job whose answer is known."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.base.waiting import until
from support.clients.story import worker_token
from support.daemons.service import running_in
from support.workers.market import WorkerMarket
from support.workers.process import WorkerAgent, require_sandbox

from proxyctl.worker.base.record import Lend


async def test_an_agent_does_a_sample(tmp_path: Path) -> None:
    require_sandbox(tmp_path)
    jobs = {"sample_account": "person1@example.com", "sample_credits_per_day": 100}
    async with running_in(tmp_path, jobs=jobs) as service:
        payer, owner = await service.person(credit="10"), await service.person()
        made = service.daemon.market.samples
        assert made is not None
        await until(lambda: made.ready > 0)
        folder = tmp_path / "agent"
        folder.mkdir(mode=0o700)
        agent = WorkerAgent(folder, cast(WorkerMarket, SimpleNamespace(url=service.url, jobs={})))
        lend = Lend(cores=1, ram_gb=0.5, disk_gb=1, max_jobs=1)
        agent.agree(service.url, lend, await worker_token(service, owner))
        agent.start()
        try:
            device: dict[str, Any] = {}

            async def is_checked() -> bool:
                answer = await service.call("GET", "/api/worker/devices", token=owner.token)
                device.update(answer.body["devices"][0])
                return bool(device["reputation"]["checks"])

            await until(is_checked, "the sample is checked", seconds=60)
            assert device["reputation"]["correctness"] == 1
            wallet = (await service.call("GET", "/api/wallet", token=owner.token)).body
            # In review, like the earnings of other jobs.
            assert 0 < wallet["credit_in_review"] < 0.1
            path = "/api/jobs?status=completed"
            [job] = (await service.call("GET", path, token=payer.token)).body["jobs"]
            assert wallet["credit_in_review"] == pytest.approx(job["price_credit"] * 0.9, abs=1e-6)
            await service.assert_audit()
        finally:
            await asyncio.to_thread(agent.close)
