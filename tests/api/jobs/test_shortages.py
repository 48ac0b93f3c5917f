"""Jobs and deploys that no device runs: their warnings wherever they are shown."""

import asyncio
from typing import Any

from support.base.waiting import until
from support.clients.story import worker_token
from support.daemons.service import Service

from market.dispatch.asks import DispatchPace


async def test_a_job_that_no_device_can_run_is_warned_of_wherever_it_is_shown(
    service: Service,
) -> None:
    """The reply, the job and the list name the need; a busy device still lends all that it has."""
    buyer, owner = await service.person(credit="100", usd="100"), await service.person()
    worker = {"X-Worker-Token": await worker_token(service, owner)}
    lent = {"slots": 1, "cores": 4, "ram_gb": 8, "disk_gb": 50}
    can = {"executors": ["bwrap"], "job_types": ["script"], "arch": "x86_64"}

    async def asks(wait_s: int = 0, **changes: Any) -> dict[str, Any]:
        body = {"capacity": {**lent, **changes}, "capabilities": can, "min_price_usd": 0.001}
        body["wait_s"] = wait_s
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
        ({"cores": 64}, "it lends fewer than 64 cores (at most 4)"),
        ({"ram_gb": 500}, "it lends less than 500 GB of memory (at most 8)"),
        ({"gpus": 1, "gpu_model": "H100"}, "it lacks the GPUs (GPU: 1 x H100)"),
        ({"arch": "aarch64"}, "it is not aarch64"),
    ):
        [warning] = (await posted(**resources))["warnings"]
        assert words in warning
        assert "comes back when you cancel, or after 30 days" in warning
    made = await posted(0.01, cores=4)
    [warning] = made["warnings"]
    assert "it asks for more, at least 0.001 USD an hour" in warning
    shown = await service.call("GET", f"/api/jobs/{made['job_id']}", token=buyer.token)
    assert shown.body["job"]["warnings"] == [warning]
    listed = await service.call("GET", "/api/jobs", token=buyer.token)
    assert [len(job["warnings"]) for job in listed.body["jobs"]] == [1] * 5
    assert listed.body["jobs"][0]["warnings"] == [warning]

    # All of the device is taken: a part that is in use now does not count as missing.
    good = await posted(cores=4)
    assert good["warnings"] == []
    [job] = (await asks(wait_s=30))["jobs"]
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
        ({"job_type": "Jupyter", "gpu_model": "none"}, "it takes no jobs of this type"),
        ({"job_type": "Script", "gpu_model": "RTX 4090", "script": "1"}, "it lacks the GPUs"),
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


JOB = {
    "title": "t",
    "job_type": "script",
    "price_credit": 1,
    "duration_hrs": 1,
    "payload": {"script": "print()"},
}
DEPLOY = {"job_name": "d", "job_type": "Script", "gpu_model": "none"}
ASK = {
    "capacity": {"slots": 1, "cores": 4, "ram_gb": 8, "disk_gb": 50},
    "capabilities": {"executors": ["bwrap"], "job_types": ["script"]},
}


async def test_without_any_device_each_job_and_deploy_is_warned_of(service: Service) -> None:
    buyer = await service.person(credit="100", usd="100")
    for body in (JOB, {**JOB, "resources": {"gpus": 1, "gpu_model": "RTX 4090"}}):
        answer = await service.call("POST", "/api/jobs", body, token=buyer.token)
        [warning] = answer.body["warnings"]
        assert warning.startswith("No device has asked for work in the last two minutes.")
        assert "comes back when you cancel, or after 30 days" in warning
        listed = await service.call("GET", "/api/jobs", token=buyer.token)
        assert listed.body["jobs"][0]["warnings"] == [warning]
    deploy = {**DEPLOY, "script": "1"}
    once = {"Idempotency-Key": "one"}
    for headers in (None, once, once):
        answer = await service.call(
            "POST", "/api/deploy/job", deploy, token=buyer.token, headers=headers
        )
        assert answer.body["warnings"] == [warning]


async def test_a_device_that_has_left_counts_no_more(service: Service) -> None:
    """Its agent breaks its request off and does not come back: warnings and the supply agree."""
    buyer, owner = await service.person(credit="100"), await service.person()
    worker = {"X-Worker-Token": await worker_token(service, owner)}
    asking = service.daemon.market.dispatch
    asking.pace = DispatchPace(broken_off_seconds=0.0)

    async def warnings() -> list[str]:
        body = {**JOB, "resources": {"cores": 2}, "job_type": "script"}
        answer = await service.call("POST", "/api/jobs", body, token=buyer.token)
        await service.call("POST", f"/api/jobs/{answer.body['job_id']}/cancel", token=buyer.token)
        return list(answer.body["warnings"])

    busy = {**ASK, "capacity": {**ASK["capacity"], "slots": 0}}
    answer = await service.call("POST", "/api/worker/next", ASK, headers=worker)
    assert answer.status == 200
    held = asyncio.create_task(
        service.call("POST", "/api/worker/next", {**busy, "wait_s": 60}, headers=worker)
    )
    await until(lambda: asking.held == 1, "the request is held")
    assert await warnings() == []
    assert len(list(asking.devices.asking())) == 1
    held.cancel()
    await until(lambda: asking.held == 0, "the request is broken off")
    assert list(asking.devices.asking()) == []
    [warning] = await warnings()
    assert warning.startswith("No device has asked for work")


async def test_a_job_or_a_deploy_that_names_nothing_to_run_is_warned_of(service: Service) -> None:
    buyer = await service.person(credit="100", usd="100")
    for changes in ({}, {"requirements": "8 cores"}, {"resources": {"cores": 2}}):
        body = {key: value for key, value in JOB.items() if key != "payload"} | changes
        answer = await service.call("POST", "/api/jobs", body, token=buyer.token)
        [warning] = answer.body["warnings"]
        assert warning.startswith("It names nothing that a device could run by itself")
        assert answer.body["is_manual"] is True
    misplaced = {**DEPLOY, "payload": {"script": "1"}}
    answer = await service.call("POST", "/api/deploy/job", misplaced, token=buyer.token)
    [warning] = answer.body["warnings"]
    assert warning.startswith("It names nothing that a device could run by itself")


async def test_the_list_of_jobs_has_the_warnings_of_the_requirements(service: Service) -> None:
    buyer = await service.person(credit="100")
    body = {**JOB, "requirements": "exactly 7 cores"}
    made = await service.call("POST", "/api/jobs", body, token=buyer.token)
    [warning] = made.body["warnings"]
    assert "cancel it and post it again in other words" in warning
    listed = await service.call("GET", "/api/jobs", token=buyer.token)
    assert listed.body["jobs"][0]["warnings"] == [warning]


async def test_a_device_whose_owner_has_failed_at_a_job_does_not_count_for_it(
    service: Service,
) -> None:
    buyer, owner = await service.person(credit="100"), await service.person()
    worker = {"X-Worker-Token": await worker_token(service, owner)}
    made = await service.call("POST", "/api/jobs", JOB, token=buyer.token)
    asked = await service.call("POST", "/api/worker/next", {**ASK, "wait_s": 30}, headers=worker)
    assert [job["job_id"] for job in asked.body["jobs"]] == [made.body["job_id"]]
    path = f"/api/jobs/{made.body['job_id']}"
    failed = await service.call(
        "POST", f"/api/worker/jobs/{made.body['job_id']}/fail", {"reason": "no"}, headers=worker
    )
    assert failed.status == 200, failed.body
    await service.call("POST", "/api/worker/next", ASK, headers=worker)
    [warning] = (await service.call("GET", path, token=buyer.token)).body["job"]["warnings"]
    assert "it belongs to an owner who has failed at it" in warning
    listed = await service.call("GET", "/api/jobs", token=buyer.token)
    assert listed.body["jobs"][0]["warnings"] == [warning]
