"""Routes of attempts: started, ready, sync, and the buyer's view of them."""

import uuid
from typing import Any

import pytest
from support.clients.story import refused, worker_token
from support.daemons.service import Answer, Person, Service

from market.base.bus import ATTEMPTS
from storage.engines.store import Transaction

JOBS, WORK = "/api/jobs", "/api/worker/jobs"
WANTED = {
    "title": "train",
    "job_type": "script",
    "price_credit": 10,
    "duration_hrs": 2,
    "payload": {"script": "print(1)", "restart": "on_failure"},
}
UNKNOWN = str(uuid.UUID(int=7 << 76 | 2 << 62))
DIGEST = "sha256:" + "0a" * 32


async def as_worker(service: Service, device: str, path: str, body: Any = None) -> Answer:
    return await service.call("POST", path, body, headers={"X-Worker-Token": device})


async def report(service: Service, device: str, job_id: str, what: str, body: Any = None) -> Answer:
    return await as_worker(service, device, f"{WORK}/{job_id}/{what}", body)


async def accepted(service: Service, buyer: Person, **fields: Any) -> tuple[str, str]:
    """Put a job up and accept it on a new device; returns the job and the device's token."""
    made = await service.call("POST", JOBS, {**WANTED, **fields}, token=buyer.token)
    assert made.status == 200, made.body
    job_id = str(made.body["job_id"])
    device = await worker_token(service, await service.person())
    answer = await as_worker(service, device, f"{JOBS}/{job_id}/accept")
    assert answer.status == 200, answer.body
    return job_id, device


async def sync(service: Service, device: str, *attempts: dict[str, Any], **fields: Any) -> Any:
    answer = await as_worker(
        service, device, "/api/worker/sync", {"attempts": list(attempts), **fields}
    )
    assert answer.status == 200, answer.body
    return answer.body


async def attempts_of(service: Service, buyer: Person, job_id: str) -> list[dict[str, Any]]:
    answer = await service.call("GET", f"{JOBS}/{job_id}/attempts", token=buyer.token)
    assert answer.status == 200, answer.body
    return list(answer.body["attempts"])


async def test_a_buyer_sees_how_an_attempt_goes(service: Service) -> None:
    buyer = await service.person(credit="10")
    job_id, device = await accepted(service, buyer)
    [attempt] = await attempts_of(service, buyer, job_id)
    assert set(attempt) == {"attempt", "accepted_at", "reputation"}
    for _ in range(2):
        answer = await report(
            service, device, job_id, "started", {"attempt": 1, "image_digest": DIGEST}
        )
        assert answer.body == {"ok": True}
    assert (await report(service, device, job_id, "ready")).body == {"ok": True}
    body = await sync(
        service,
        device,
        {
            "job_id": job_id,
            "attempt": 1,
            "state": "running",
            "progress": 0.5,
            "log_bytes": 123,
            "usage": {"cpu_seconds": 1.5},
        },
        cpu_pct=97.5,
    )
    assert body == {"ok": True, "lease_s": 600, "actions": []}
    await service.daemon.market.renewals.flush()
    [attempt] = await attempts_of(service, buyer, job_id)
    assert (attempt["state"], attempt["progress"]) == ("running", 0.5)
    assert attempt["image_digest"] == DIGEST
    assert attempt["accepted_at"] <= attempt["started_at"] <= attempt["ready_at"]
    ending = {
        "attempt": 1,
        "result": "done",
        "exit_code": 0,
        "usage": {"cpu_seconds": 3.5, "max_memory_bytes": 1_000},
        "log_bytes": {"out": 0, "err": 0},
        "outputs_left_out": {"files": 3, "bytes": 70, "reasons": ["a: it is a link"]},
    }
    for _ in range(2):
        assert (await report(service, device, job_id, "complete", ending)).body == {"ok": True}
    [attempt] = await attempts_of(service, buyer, job_id)
    assert (attempt["outcome"], attempt["exit_code"]) == ("completed", 0)
    assert "state" not in attempt  # it does not run any more
    assert (attempt["cpu_seconds"], attempt["max_memory_bytes"]) == (3.5, 1_000)
    assert attempt["outputs_left_out"] == ending["outputs_left_out"]


async def test_an_attempt_of_any_number_is_named_beside_the_others(service: Service) -> None:
    """A service that was started a thousand times costs its device no other work."""
    buyer = await service.person(credit="20")
    made = await service.call("POST", JOBS, WANTED, token=buyer.token)
    job_id = str(made.body["job_id"])

    async def change(tx: Transaction) -> None:
        await tx.run("UPDATE jobs SET attempts = 52559 WHERE id = :id", id=job_id)

    await service.daemon.store.write(change)
    device = await worker_token(service, await service.person())
    assert (await as_worker(service, device, f"{JOBS}/{job_id}/accept")).status == 200
    name = {"attempt": 52_560}
    assert (await report(service, device, job_id, "started", name)).body == {"ok": True}
    body = await sync(service, device, {"job_id": job_id, **name, "state": "running"})
    assert body["actions"] == []
    path = f"{WORK}/{job_id}/log?attempt=52560&stream=out&offset=0"
    headers = {"X-Worker-Token": device}
    sent = await service.call("POST", path, raw=b"begun\n", headers=headers)
    assert sent.status == 200, sent.body
    ending = {**name, "result": "done", "exit_code": 0, "log_bytes": {"out": 6, "err": 0}}
    assert (await report(service, device, job_id, "complete", ending)).body == {"ok": True}


async def test_a_device_gets_the_list_of_attempts_that_it_should_not_hold(service: Service) -> None:
    buyer = await service.person(credit="20")
    job_id, device = await accepted(service, buyer)
    other, stranger = await accepted(service, buyer)
    await report(service, device, job_id, "started")
    assert (await service.call("POST", f"{JOBS}/{job_id}/cancel", token=buyer.token)).status == 200
    held = [
        {"job_id": job_id, "attempt": 1},
        {"job_id": other, "attempt": 1},
        {"job_id": UNKNOWN, "attempt": 1},
    ]
    actions = (await sync(service, device, *held))["actions"]
    assert [(each["job_id"], each["attempt"], each["action"]) for each in actions] == [
        (job_id, 1, "stop"),
        (other, 1, "stop"),
        (UNKNOWN, 1, "stop"),
    ]
    assert "cancelled" in actions[0]["reason"]
    assert (await sync(service, stranger, {"job_id": other, "attempt": 1}))["actions"] == []
    [again] = (await sync(service, stranger, {"job_id": other, "attempt": 2}))["actions"]
    assert again["attempt"] == 2


async def test_an_attempt_that_a_device_has_forgotten_waits_again(service: Service) -> None:
    buyer = await service.person(credit="10")
    job_id, device = await accepted(service, buyer)
    await sync(service, device, {"job_id": job_id, "attempt": 1, "state": "taken"})
    assert (await as_worker(service, device, "/api/worker/sync")).body["actions"] == []
    [attempt] = await attempts_of(service, buyer, job_id)
    assert "outcome" not in attempt
    await sync(service, device)
    [attempt] = await attempts_of(service, buyer, job_id)
    assert attempt["outcome"] == "lost"
    refused(await report(service, device, job_id, "started"), "attempt_not_current", None)


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [
        ("job", "failed"),
        ("image", "failed"),
        ("input", "failed"),
        ("timeout", "failed"),
        ("oom", "failed"),
        ("host", "lost"),
        ("refused", "lost"),
        (None, "failed"),
    ],
)
async def test_whose_fault_a_failure_is_decides_on_the_owners_chances(
    service: Service, kind: str | None, outcome: str
) -> None:
    buyer = await service.person(credit="10")
    job_id, device = await accepted(service, buyer)
    body = {"reason": "it did not work", "kind": kind, "exit_code": 3, "attempt": 1}
    assert (await report(service, device, job_id, "fail", body)).body == {"ok": True}
    [attempt] = await attempts_of(service, buyer, job_id)
    assert (attempt["outcome"], attempt.get("kind"), attempt["reason"]) == (
        outcome,
        kind,
        "it did not work",
    )
    assert attempt["exit_code"] == 3
    again = await as_worker(service, device, f"{JOBS}/{job_id}/accept")
    if outcome == "lost":
        assert again.body["job"]["attempt"] == 2
    else:
        refused(again, "job_failed_here", None)


@pytest.mark.parametrize(("kind", "is_over"), [("job", True), ("image", False), ("host", False)])
async def test_a_job_that_runs_once_has_failed_when_its_work_has(
    service: Service, kind: str, is_over: bool
) -> None:
    buyer = await service.person(credit="10")
    job_id, device = await accepted(service, buyer, payload={"script": "exit(1)"})
    await report(service, device, job_id, "fail", {"reason": "it said 1", "kind": kind})
    job = await service.call("GET", f"{JOBS}/{job_id}", token=buyer.token)
    assert job.body["job"]["status"] == ("failed" if is_over else "waiting")
    wallet = await service.call("GET", "/api/wallet", token=buyer.token)
    assert wallet.body["credit_balance"] == (10 if is_over else 0)


async def test_a_job_whose_process_failed_is_not_completed(service: Service) -> None:
    buyer = await service.person(credit="20")
    job_id, device = await accepted(service, buyer)
    answer = await report(service, device, job_id, "complete", {"exit_code": 1})
    refused(answer, "invalid_field", "exit_code")
    plain, other = await accepted(service, buyer, payload=None)
    answer = await report(service, other, plain, "complete", {"exit_code": 1})
    assert answer.body == {"ok": True}


async def test_a_report_waits_for_its_log(service: Service) -> None:
    buyer = await service.person(credit="10")
    job_id, device = await accepted(service, buyer)

    class Sizes:
        out = 4

        async def stored(self, job_id: str, attempt: int) -> dict[str, int]:
            return {"out": self.out}

    service.daemon.market.jobs._logs = sizes = Sizes()
    changed: list[str] = []
    service.daemon.market.context.bus.subscribe(ATTEMPTS, changed.extend)
    body: dict[str, Any] = {"attempt": 1, "log_bytes": {"out": 5}}
    refused(await report(service, device, job_id, "complete", body), "log_incomplete", "log_bytes")
    answer = await report(service, device, job_id, "complete", {"log_bytes": {"out": 5}})
    refused(answer, "invalid_field", "attempt")
    assert changed == []
    sizes.out = 5
    assert (await report(service, device, job_id, "complete", body)).body == {"ok": True}
    assert changed == [job_id]
    sizes.out = 0  # it is not asked for twice: the log may be gone by then
    assert (await report(service, device, job_id, "complete", body)).body == {"ok": True}


async def test_only_an_authorized_caller_reads_or_writes(service: Service) -> None:
    buyer, other = await service.person(credit="10"), await service.person()
    job_id, device = await accepted(service, buyer)
    answer = await service.call("GET", f"{JOBS}/{job_id}/attempts", token=other.token)
    refused(answer, "job_not_found", None, 404)
    stranger = await worker_token(service, other)
    for what in ("started", "ready"):
        refused(await report(service, stranger, job_id, what), "job_not_found", None, 404)
        refused(await report(service, device, UNKNOWN, what), "job_not_found", None, 404)
        body = {"attempt": 2}
        refused(await report(service, device, job_id, what, body), "attempt_not_current", None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"attempts": [{"job_id": "x", "attempt": 1}]}, "attempts"),
        ({"attempts": [{"job_id": UNKNOWN, "attempt": 0}]}, "attempts[0].attempt"),
        ({"attempts": [{"job_id": UNKNOWN, "attempt": 1, "state": "Not This"}]}, None),
        ({"attempts": [{"job_id": UNKNOWN, "attempt": 1, "progress": 2}]}, None),
        ({"attempts": [{"job_id": UNKNOWN, "attempt": 1}] * 257}, "attempts"),
    ],
)
async def test_a_sync_that_is_wrong_names_the_field(
    service: Service, body: dict[str, Any], field: str | None
) -> None:
    device = await worker_token(service, await service.person())
    answer = await as_worker(service, device, "/api/worker/sync", body)
    assert (answer.status, answer.code) == (400, "invalid_field")
    if field is not None:
        assert answer.field == field
