"""A job whose answer is known, all the way: the agent that does it is believed, and is paid."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from support.service import running_in
from support.story import worker_token
from support.waiting import until
from support.worker_market import WorkerMarket
from support.worker_process import WorkerAgent, require_sandbox

from market import sample_tasks
from proxyctl.worker.record import Lend


async def test_an_agent_does_a_sample_and_its_result_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_sandbox(tmp_path)
    for name in ("HASHES", "STEPS", "NUMBERS", "SHELL_STEPS"):
        monkeypatch.setattr(sample_tasks, name, (1_000, 2_000))
    samples = {"sample_account": "person1@example.com", "sample_credits_per_day": 100}
    async with running_in(tmp_path, jobs=samples) as service:
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

            async def is_checked() -> bool:
                answer = await service.call("GET", "/api/worker/devices", token=owner.token)
                [device] = answer.body["devices"]
                return bool(device["reputation"]["checks"])

            await until(is_checked, "its result is compared", seconds=60)
            wallet = (await service.call("GET", "/api/wallet", token=owner.token)).body
            # In review, as what other jobs have earned.
            assert 0 < wallet["credit_in_review"] < 0.1
            path = "/api/jobs?status=completed"
            [job] = (await service.call("GET", path, token=payer.token)).body["jobs"]
            assert wallet["credit_in_review"] == pytest.approx(job["price_credit"] * 0.9, abs=1e-6)
            await service.assert_audit()
        finally:
            await asyncio.to_thread(agent.close)
