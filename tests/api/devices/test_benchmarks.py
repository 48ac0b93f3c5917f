"""A device shows its benchmarks over the API, by the program that it runs."""

import asyncio

import pytest
from support.clients.story import refused, worker_token
from support.daemons.service import Service

from market.devices.benchmarks import BLOCK_BYTES, TaskSizes
from proxyctl.worker.agent import benchmark
from proxyctl.worker.base.link import Link, LinkError
from proxyctl.worker.base.record import Lend


async def test_an_agent_shows_the_abilities_of_its_device(service: Service) -> None:
    sizes = TaskSizes(rounds=100, walk_seconds=30.0)  # of a machine that does other things
    service.daemon.market.benchmarks.sizes = sizes
    owner = await service.person()
    token = await worker_token(service, owner)
    link = Link(service.url, token)
    try:
        lend = Lend(cores=2.0, ram_gb=0.02)
        shown = await asyncio.to_thread(benchmark.show, link, lend)
    finally:
        link.close()
    assert shown["hashes_per_s"] >= shown["core_hashes_per_s"] > 0
    assert shown["memory_bytes"] == 4 * BLOCK_BYTES
    listed = await service.call("GET", "/api/worker/devices", token=owner.token)
    assert listed.body["devices"][0]["benchmark"] == shown
    buyer = await service.person()
    job = {"title": "count", "job_type": "script", "price_credit": 0, "duration_hrs": 1}
    made = await service.call("POST", "/api/jobs", job, token=buyer.token)
    path = f"/api/jobs/{made.body['job_id']}"
    await service.call("POST", f"{path}/accept", headers={"X-Worker-Token": token})
    attempts = await service.call("GET", f"{path}/attempts", token=buyer.token)
    assert attempts.body["attempts"][0]["benchmark"] == shown


@pytest.mark.parametrize(
    "task",
    [
        {"kind": "chains", "seed": "00", "chains": 1_000_000, "rounds": 1},
        {"kind": "chains", "seed": "00", "chains": 1, "rounds": 10**9},
        {"kind": "fill", "seed": "00", "blocks": 1_000_000, "block_bytes": 1 << 30},
    ],
)
def test_an_agent_does_no_more_than_it_has_offered(
    monkeypatch: pytest.MonkeyPatch, task: dict[str, object]
) -> None:
    asked: list[str] = []

    def post(path: str, fields: object, **_: object) -> dict[str, object]:
        asked.append(path)
        return {"task": {"id": "t", **task}}

    link = Link("http://127.0.0.1:9", "token")
    monkeypatch.setattr(link, "post", post)
    with pytest.raises(LinkError, match="more than was offered"):
        benchmark.show(link, Lend(cores=1.0, ram_gb=0.02))
    assert asked == ["/api/worker/benchmark"]


async def test_an_answer_to_nothing_is_refused(service: Service) -> None:
    token = await worker_token(service, await service.person())
    headers = {"X-Worker-Token": token}
    body = {"task_id": "none", "values": ["00"]}
    answer = await service.call("POST", "/api/worker/benchmark/answer", body, headers=headers)
    refused(answer, "benchmark_failed", None)
    wrong = {"task_id": "none", "values": ["0g"]}
    answer = await service.call("POST", "/api/worker/benchmark/answer", wrong, headers=headers)
    refused(answer, "invalid_field", "values[0]")
