"""Jobs and deploys that no device runs: their warnings wherever they are shown."""

from typing import Any

from support.service import Service
from support.story import worker_token


async def test_a_job_that_no_device_can_run_is_warned_of_wherever_it_is_shown(
    service: Service,
) -> None:
    """The reply, the job and the list name the need; a busy device still lends all that it has."""
    buyer, owner = await service.person(credit="100", usd="100"), await service.person()
    worker = {"X-Worker-Token": await worker_token(service, owner)}
    lent = {"slots": 1, "cores": 4, "ram_gb": 8, "disk_gb": 50}
    can = {"executors": ["bwrap"], "job_types": ["script"], "arch": "x86_64"}

    async def asks(**changes: Any) -> dict[str, Any]:
        body = {"capacity": {**lent, **changes}, "capabilities": can, "min_price_usd": 0.001}
        answer = await service.call("POST", "/api/worker/next", body, headers=worker)
        assert answer.status == 200, answer.body
        return dict(answer.body)

    async def posted(price: float = 1, **resources: Any) -> dict[str, Any]:
        body = {
            "title": "t",
            "job_type": "script",
            "price_credit": price,
            "duration_hrs": 1,
            "payload": {"script": "print()"},
            "resources": resources,
        }
        answer = await service.call("POST", "/api/jobs", body, token=buyer.token)
        assert answer.status == 200, answer.body
        return dict(answer.body)

    assert (await asks())["jobs"] == []
    for resources, words in (
        ({"cores": 64}, "1 lend fewer than 64 cores"),
        ({"ram_gb": 500}, "1 lend less than 500 GB of memory"),
        ({"gpus": 1, "gpu_model": "H100"}, "1 lack the GPUs (GPU: 1 x H100)"),
        ({"arch": "aarch64"}, "1 are no aarch64"),
    ):
        [warning] = (await posted(**resources))["warnings"]
        assert words in warning
        assert "comes back when you cancel, or after 30 days" in warning
    made = await posted(0.01, cores=4)
    [warning] = made["warnings"]
    assert "1 ask for more, at least 0.001 USD an hour" in warning
    shown = await service.call("GET", f"/api/jobs/{made['job_id']}", token=buyer.token)
    assert shown.body["job"]["warnings"] == [warning]
    listed = await service.call("GET", "/api/jobs", token=buyer.token)
    assert [len(job["warnings"]) for job in listed.body["jobs"]] == [1] * 5
    assert listed.body["jobs"][0]["warnings"] == [warning]

    # All of the device is taken: what is free now is no lack.
    good = await posted(cores=4)
    assert good["warnings"] == []
    [job] = (await asks())["jobs"]
    assert job["job_id"] == good["job_id"]
    await asks(slots=0, cores=0, ram_gb=0, disk_gb=0)
    assert (await posted(cores=4))["warnings"] == []


async def test_a_deploy_that_no_device_can_run_is_warned_of_wherever_it_is_shown(
    service: Service,
) -> None:
    buyer, owner = await service.person(usd="100"), await service.person()
    worker = {"X-Worker-Token": await worker_token(service, owner)}
    body = {
        "capacity": {"slots": 1, "cores": 4, "ram_gb": 8, "disk_gb": 50},
        "capabilities": {"executors": ["bwrap"], "job_types": ["script"]},
    }
    await service.call("POST", "/api/worker/next", body, headers=worker)
    for wanted, words in (
        ({"job_type": "Jupyter", "gpu_model": "none"}, "1 take no jobs of this type"),
        ({"job_type": "Script", "gpu_model": "RTX 4090", "script": "1"}, "1 lack the GPUs"),
    ):
        new = {"job_name": "nb", **wanted}
        answer = await service.call("POST", "/api/deploy/job", new, token=buyer.token)
        assert answer.status == 200, answer.body
        [warning] = answer.body["warnings"]
        assert words in warning
        deploy_id = answer.body["job_id"]
        one = await service.call("GET", f"/api/deploy/job/{deploy_id}", token=buyer.token)
        assert one.body["deploy"]["warnings"] == [warning]
        listed = await service.call("GET", "/api/deploy/jobs", token=buyer.token)
        assert listed.body["deploys"][0]["warnings"] == [warning]
        await service.call("POST", f"/api/deploy/job/{deploy_id}/cancel", token=buyer.token)
        over = await service.call("GET", f"/api/deploy/job/{deploy_id}", token=buyer.token)
        assert "warnings" not in over.body["deploy"]
