"""Routes of deploys: queue one, look at one, list them, cancel one."""

import json
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.clients.story import refused, worker_token
from support.daemons.service import Answer, Person, Service, running_in

from proxyd.loop import clock

CREATE = "/api/deploy/job"
LIST = "/api/deploy/jobs"
LEAST = {"job_name": "a model", "job_type": "Training", "gpu_model": "T4"}
NOWHERE = "0190a4c1-0000-7000-8000-000000000000"
FIELD_TYPES = {
    "id": str,
    "job_name": str,
    "job_type": str,
    "gpu_model": str,
    "gpu_count": int,
    "duration_hrs": int,
    "replicas": int,
    "ready_replicas": int,
    "status": str,
    "payment_type": str,
    "cost": float,
    "created_at": str,
}
ROLLOUT_TYPES = {"updated_replicas": int, "available_replicas": int, "revision": int, "state": str}


async def create(service: Service, person: Person, **changes: Any) -> Answer:
    return await service.call("POST", CREATE, {**LEAST, **changes}, token=person.token)


async def created(service: Service, person: Person, **changes: Any) -> str:
    answer = await create(service, person, **changes)
    assert answer.status == 200, answer.body
    return str(answer.body["job_id"])


async def one(service: Service, person: Person, deploy_id: str) -> dict[str, Any]:
    answer = await service.call("GET", f"{CREATE}/{deploy_id}", token=person.token)
    assert answer.status == 200, answer.body
    return dict(answer.body["deploy"])


async def cancel(service: Service, person: Person, deploy_id: str) -> Answer:
    return await service.call("POST", f"{CREATE}/{deploy_id}/cancel", token=person.token)


async def listing(service: Service, person: Person, query: str = "") -> Answer:
    return await service.call("GET", LIST + query, token=person.token)


async def open_jobs(service: Service) -> list[dict[str, Any]]:
    answer = await service.call("GET", "/api/marketplace/jobs")
    return list(answer.body["jobs"])


async def balances(service: Service, person: Person) -> tuple[float, float]:
    body = (await service.call("GET", "/auth/me", token=person.token)).body
    return body["usd_balance"], body["credit_balance"]


async def worker_of(service: Service, person: Person) -> dict[str, str]:
    """Return the header of a new device."""
    return {"X-Worker-Token": await worker_token(service, person)}


async def nothing_was_bought(service: Service, person: Person, usd: float) -> None:
    assert await balances(service, person) == (usd, 0)
    assert (await listing(service, person)).body == {"ok": True, "deploys": []}
    assert await open_jobs(service) == []


@pytest.mark.parametrize("job_type", ["Training", "Jupyter"])
async def test_a_deploy_has_the_fields_of_the_specification(
    service: Service, job_type: str
) -> None:
    buyer = await service.person(usd="10")
    answer = await create(service, buyer, job_type=job_type)
    assert answer.status == 200
    assert answer.body.keys() == {"ok", "job_id", "message", "cost", "payment_type", "warnings"}
    assert (answer.body["cost"], answer.body["payment_type"]) == (1.0, "usd")
    assert answer.body["ok"] is True
    assert str(uuid.UUID(answer.body["job_id"])) == answer.body["job_id"]
    assert type(answer.body["message"]) is str
    assert "queued" in answer.body["message"]
    assert await balances(service, buyer) == (9, 0)


async def test_a_deploy_shows_its_order_and_its_state(service: Service) -> None:
    buyer = await service.person(credit="10000")
    asked = {
        "job_name": "Ein Modell",
        "job_type": "Jupyter",
        "gpu_model": "RTX 4090",
        "gpu_count": 2,
        "duration_hrs": 3,
        "replicas": 4,
        "payment_type": "credit",
        "image": "jupyter/scipy-notebook",
        "command": "start-notebook.sh",
    }
    before = clock.seconds()
    deploy_id = await created(service, buyer, **asked)
    answer = await service.call("GET", f"{CREATE}/{deploy_id}", token=buyer.token)
    assert answer.body.keys() == {"ok", "deploy"}
    assert answer.body["ok"] is True
    deploy = answer.body["deploy"]
    told = {"job_ids": list, "image": str, "command": str, "warnings": list}
    types = {name: type(value) for name, value in deploy.items()}
    assert types == {**FIELD_TYPES, **told, **ROLLOUT_TYPES}
    assert {name: deploy[name] for name in asked} == asked
    assert (deploy["id"], deploy["ready_replicas"], deploy["status"]) == (deploy_id, 0, "queued")
    assert deploy["cost"] == 2_400
    created_at = datetime.fromisoformat(deploy["created_at"]).replace(tzinfo=UTC)
    assert before <= created_at.timestamp() <= clock.seconds()
    assert await balances(service, buyer) == (0, 7_600)
    jobs = await open_jobs(service)
    assert len(jobs) == 4
    assert {(job["job_type"], job["status"], job["price_credit"]) for job in jobs} == {
        ("docker", "waiting", 600.0)
    }
    assert {(job["buyer_id"], job["duration_hrs"]) for job in jobs} == {(buyer.user_id, 3)}
    assert deploy["job_ids"] == [job["id"] for job in jobs[::-1]]
    mine = (await service.call("GET", "/api/jobs", token=buyer.token)).body["jobs"]
    assert {(job["deploy_id"], job["payment_type"]) for job in mine} == {(deploy_id, "credit")}
    assert {job["cost"] for job in mine} == {job["price_credit"] for job in mine}
    worker = await worker_of(service, await service.person())
    job_id = deploy["job_ids"][0]
    await service.call("POST", f"/api/jobs/{job_id}/accept", headers=worker)
    work = await service.call("GET", f"/api/worker/jobs/{job_id}", headers=worker)
    assert {name: work.body["job"][name] for name in ("image", "command")} == {
        "image": asked["image"],
        "command": asked["command"],
    }
    assert work.body["job"]["description"].endswith("Type: Jupyter")


async def test_only_the_running_device_gets_the_program_of_a_deploy(
    service: Service,
) -> None:
    buyer = await service.person(usd="100")
    secret = "run --api-key SECRET123"
    deploy_id = await created(service, buyer, image="example/secret:1", command=secret)
    deploy = (await service.call("GET", f"{CREATE}/{deploy_id}", token=buyer.token)).body["deploy"]
    (job_id,) = deploy["job_ids"]
    worker, idle = [await worker_of(service, await service.person()) for _ in range(2)]

    async def seen(path: str, **shown: Any) -> str:
        return msgspec.json.encode((await service.call("GET", path, **shown)).body).decode()

    open_job, work = f"/api/marketplace/jobs/{job_id}", f"/api/worker/jobs/{job_id}"
    await service.call("POST", f"/api/jobs/{job_id}/accept", headers=worker)
    for path, shown in (
        ("/api/marketplace/jobs", {}),
        (open_job, {}),
        (open_job, {"headers": idle}),
        (open_job, {"token": (await service.person()).token}),
        (work, {"headers": idle}),
    ):
        text = await seen(path, **shown)
        assert "SECRET123" not in text
        assert "example/secret" not in text
    assert "SECRET123" in await seen(work, headers=worker)


async def test_the_cost_of_a_deploy_is_shown_once_it_is_over(service: Service) -> None:
    buyer = await service.person(usd="10")
    deploy_id = await created(service, buyer)
    assert "paid" not in await one(service, buyer, deploy_id)
    await cancel(service, buyer, deploy_id)
    assert (await one(service, buyer, deploy_id))["paid"] == 0.0
    assert (await listing(service, buyer)).body["deploys"][0]["paid"] == 0.0


async def test_every_caller_may_ask_for_the_prices_of_gpus(tmp_path: Path) -> None:
    market = {
        "gpu_rates_usd": {"RTX 4090": Decimal("0.5"), "A100": Decimal("2.5")},
        "gpu_rate_default_usd": Decimal("0.75"),
        "credit_usd": Decimal("0.02"),
    }
    async with running_in(tmp_path, market=market) as service:
        assert (await service.call("GET", "/api/deploy/rates")).body == {
            "ok": True,
            "rates": [
                {"gpu_model": "a100", "usd_per_hour": 2.5},
                {"gpu_model": "rtx 4090", "usd_per_hour": 0.5},
            ],
            "default_usd_per_hour": 0.75,
            "credit_usd": 0.02,
        }


@pytest.mark.parametrize(
    "changes",
    [{}, dict.fromkeys(("gpu_count", "duration_hrs", "replicas", "payment_type")), {"more": 1}],
)
async def test_a_missing_or_null_field_means_one_and_dollars(
    service: Service, changes: dict[str, Any]
) -> None:
    buyer = await service.person(usd="10", credit="1000")
    deploy = await one(service, buyer, await created(service, buyer, **changes))
    assert (deploy["gpu_count"], deploy["duration_hrs"], deploy["replicas"]) == (1, 1, 1)
    assert (deploy["payment_type"], deploy["cost"]) == ("usd", 1)
    assert await balances(service, buyer) == (9, 1_000)


@pytest.mark.parametrize("job_type", ["Docker", "Jupyter", "Inference", "Training", "Script"])
async def test_every_type_of_the_specification_is_taken(service: Service, job_type: str) -> None:
    buyer = await service.person(usd="10")
    deploy = await one(service, buyer, await created(service, buyer, job_type=job_type))
    assert deploy["job_type"] == job_type


async def test_the_operator_sets_the_prices_of_gpus_and_credits(tmp_path: Path) -> None:
    market = {
        "gpu_rates_usd": {" A100 ": Decimal("2.5")},
        "gpu_rate_default_usd": Decimal("0.5"),
        "credit_usd": Decimal("0.1"),
    }
    async with running_in(tmp_path, market=market) as service:
        buyer = await service.person(usd="10", credit="100")
        for model, payment_type, cost in (
            ("a100", "usd", 2.5),
            ("T4", "usd", 0.5),
            ("A100", "credit", 25),
            ("T4", "credit", 5),
        ):
            deploy_id = await created(service, buyer, gpu_model=model, payment_type=payment_type)
            assert (await one(service, buyer, deploy_id))["cost"] == cost
        assert await balances(service, buyer) == (7, 70)
        await service.assert_audit()


async def test_without_the_money_nothing_is_queued(service: Service) -> None:
    buyer = await service.person(usd="3.99")
    for asked, cost in (
        ({"replicas": 4}, "4.00 USD"),
        ({"payment_type": "credit"}, "100.00 credits"),
    ):
        answer = await create(service, buyer, **asked)
        refused(answer, "insufficient_funds", None)
        assert answer.body["error"]["message"].startswith(f"This costs {cost}, ")
    await nothing_was_bought(service, buyer, 3.99)


async def test_a_field_that_is_missing_mistyped_or_out_of_range_is_named(service: Service) -> None:
    buyer = await service.person(usd="100")
    for field in LEAST:
        body = {name: value for name, value in LEAST.items() if name != field}
        answer = await service.call("POST", CREATE, body, token=buyer.token)
        refused(answer, "invalid_field", field)
    wrong: dict[str, list[Any]] = {
        "job_name": [None, 1, [], "", "  ", "x" * 181, "x" * 2000],
        "job_type": [None, 1, "", "docker", "DOCKER", "Kubernetes"],
        "gpu_model": [None, 1, {}, "", "  ", "x" * 101],
        "gpu_count": [0, -1, 65, 2**70, "1", 1.0, 1.5, True, []],
        "duration_hrs": [0, -1, 8_761, 2**70, "1", 1.0, 1.5, True, {}],
        "replicas": [0, -1, 101, 2**70, "1", 1.0, 1.5, False],
        "payment_type": ["USD", "credits", "eur", "", 1, True],
    }
    for field, values in wrong.items():
        for value in values:
            raw = json.dumps({**LEAST, field: value}).encode()
            answer = await service.call("POST", CREATE, raw=raw, token=buyer.token)
            assert answer.status == 400, (field, value)
            refused(answer, "invalid_field", field)
    await nothing_was_bought(service, buyer, 100)


async def test_a_body_that_is_no_object_is_refused(service: Service) -> None:
    buyer = await service.person(usd="100")
    for raw in (b"", b"[]", b'"Docker"', b"{", b'{"gpu_count": NaN}'):
        answer = await service.call("POST", CREATE, raw=raw, token=buyer.token)
        refused(answer, "invalid_field", None)
    await nothing_was_bought(service, buyer, 100)


async def test_a_replica_dearer_than_any_job_is_refused(service: Service) -> None:
    buyer = await service.person(usd="20000")
    answer = await create(service, buyer, gpu_count=64, duration_hrs=8_760)
    refused(answer, "invalid_field", "duration_hrs")
    await nothing_was_bought(service, buyer, 20_000)


async def test_without_a_valid_token_there_is_no_deploy(service: Service) -> None:
    buyer = await service.person(usd="10")
    path = f"{CREATE}/{await created(service, buyer)}"
    worker = await worker_token(service, buyer)
    for token in (None, "", "nonsense", worker):
        for method, asked, body in (
            ("POST", CREATE, LEAST),
            ("GET", LIST, None),
            ("GET", path, None),
            ("POST", f"{path}/cancel", None),
        ):
            answer = await service.call(method, asked, body, token=token)
            refused(answer, "unauthorized", None, 401)
    assert len(await open_jobs(service)) == 1


async def test_an_id_that_is_malformed_unknown_or_foreign_is_not_found(service: Service) -> None:
    buyer, other = await service.person(usd="10"), await service.person()
    deploy_id = await created(service, buyer)
    replica_id = (await open_jobs(service))[0]["id"]
    for caller, asked in (
        (other, deploy_id),
        (buyer, replica_id),
        (buyer, NOWHERE),
        (buyer, "nonsense"),
        (buyer, "1"),
        (buyer, deploy_id.replace("-", "")),
        (buyer, f"%7B{deploy_id}%7D"),
        (buyer, "%00"),
        (buyer, "%F0%9F%92%A9"),
    ):
        path = f"{CREATE}/{asked}"
        answer = await service.call("GET", path, token=caller.token)
        refused(answer, "deploy_not_found", None, 404)
        answer = await service.call("POST", f"{path}/cancel", token=caller.token)
        refused(answer, "deploy_not_found", None, 404)
    assert (await one(service, buyer, deploy_id.upper()))["status"] == "queued"
    assert await balances(service, buyer) == (9, 0)


async def test_a_cancelled_deploy_is_given_back(service: Service) -> None:
    buyer = await service.person(usd="10")
    deploy_id = await created(service, buyer, replicas=3)
    for _ in range(2):
        answer = await cancel(service, buyer, deploy_id)
        assert (answer.status, answer.body) == (200, {"ok": True})
        assert await balances(service, buyer) == (10, 0)
    deploy = await one(service, buyer, deploy_id)
    assert (deploy["status"], deploy["ready_replicas"], deploy["replicas"]) == ("cancelled", 0, 3)
    assert await open_jobs(service) == []


async def test_replicas_are_run_paid_and_shown_as_they_are(service: Service) -> None:
    buyer, owner = await service.person(usd="10"), await service.person()
    worker = await worker_of(service, owner)
    deploy_id = await created(service, buyer, replicas=3)

    async def shape() -> tuple[str, int]:
        deploy = await one(service, buyer, deploy_id)
        return deploy["status"], deploy["ready_replicas"]

    first, second, _ = await open_jobs(service)
    for number, job in enumerate((first, second), start=1):
        answer = await service.call("POST", f"/api/jobs/{job['id']}/accept", headers=worker)
        assert answer.status == 200, answer.body
        assert await shape() == ("running", number)
    done = f"/api/worker/jobs/{first['id']}/complete"
    answer = await service.call("POST", done, {"result": "done"}, headers=worker)
    assert answer.status == 200, answer.body
    assert await shape() == ("running", 1)
    assert await balances(service, owner) == (0, 90)
    failed = f"/api/worker/jobs/{second['id']}/fail"
    answer = await service.call("POST", failed, {"reason": "no memory"}, headers=worker)
    assert answer.status == 200, answer.body
    assert await shape() == ("queued", 0)
    assert (await cancel(service, buyer, deploy_id)).status == 200
    assert await shape() == ("cancelled", 0)
    assert await balances(service, buyer) == (9, 0)
    assert await balances(service, owner) == (0, 90)


async def test_the_list_is_ones_own_newest_first_in_parts(service: Service) -> None:
    buyer, other = await service.person(usd="10"), await service.person(usd="10")
    made = [await created(service, buyer, job_name=f"number {number}") for number in range(5)]
    await created(service, other)
    whole = await listing(service, buyer)
    assert whole.status == 200
    assert whole.body.keys() == {"ok", "deploys"}
    assert [deploy["id"] for deploy in whole.body["deploys"]] == made[::-1]
    for deploy in whole.body["deploys"]:
        assert {name: type(value) for name, value in deploy.items()} == FIELD_TYPES
        whole_one = await one(service, buyer, deploy["id"])
        assert len(whole_one.pop("job_ids")) == 1
        assert whole_one == deploy
    exact = await listing(service, buyer, "?limit=5")
    assert exact.body == whole.body
    seen, query = [], "?limit=2"
    for more in (True, True, False):
        part = (await listing(service, buyer, query)).body
        assert ("next_cursor" in part) is more
        seen.append([deploy["id"] for deploy in part["deploys"]])
        query = f"?limit=2&cursor={part.get('next_cursor')}"
    assert seen == [made[:2:-1], made[2:0:-1], made[:1]]


async def test_a_part_that_can_not_be_is_refused(service: Service) -> None:
    buyer = await service.person()
    for query, field in (
        ("?limit=0", "limit"),
        ("?limit=1001", "limit"),
        ("?limit=-1", "limit"),
        ("?limit=many", "limit"),
        ("?cursor=nonsense", "cursor"),
    ):
        refused(await listing(service, buyer, query), "invalid_field", field)
    assert (await listing(service, buyer, "?limit=1000")).body == {"ok": True, "deploys": []}


async def change(
    service: Service, person: Person, deploy_id: str, how: str, **body: Any
) -> dict[str, Any]:
    path = f"{CREATE}/{deploy_id}/{how}"
    answer = await service.call("POST", path, body or None, token=person.token)
    assert answer.status == 200, answer.body
    return dict(answer.body)


async def test_a_deploy_is_changed_scaled_rolled_back_and_paused(service: Service) -> None:
    buyer = await service.person(usd="10")
    ports = [{"name": "web", "port": 8080, "protocol": "tcp"}]
    deploy_id = await created(
        service,
        buyer,
        replicas=2,
        job_type="Docker",
        image="web:1",
        env={"MODE": "fast"},
        ports=ports,
        ready={"port": 8080},
        resources={"ram_gb": 4},
        strategy={"min_ready_s": 5},
    )
    shown = await one(service, buyer, deploy_id)
    assert {name: shown[name] for name in ROLLOUT_TYPES} == {
        "updated_replicas": 2,
        "available_replicas": 0,
        "revision": 1,
        "state": "progressing",
    }
    assert await change(service, buyer, deploy_id, "revision", image="web:2", replicas=3) == {
        "ok": True,
        "revision": 2,
    }
    assert (await one(service, buyer, deploy_id))["image"] == "web:2"
    assert await balances(service, buyer) == (7, 0)
    await change(service, buyer, deploy_id, "scale", replicas=1)
    assert await balances(service, buyer) == (9, 0)
    assert (await change(service, buyer, deploy_id, "rollback"))["revision"] == 3
    assert (await change(service, buyer, deploy_id, "restart"))["revision"] == 4
    await change(service, buyer, deploy_id, "pause")
    assert (await one(service, buyer, deploy_id))["state"] == "paused"
    await change(service, buyer, deploy_id, "resume")
    answer = await service.call("GET", f"{CREATE}/{deploy_id}/revisions", token=buyer.token)
    rows = answer.body["revisions"]
    assert [(row["revision"], row["cause"], row["image"]) for row in rows] == [
        (4, "restart", "web:1"),
        (3, "rollback to 1", "web:1"),
        (2, "revision", "web:2"),
        (1, "created", "web:1"),
    ]
    assert rows[0]["env"] == {"MODE": "fast"}
    assert rows[0]["ports"] == ports
    assert rows[0]["ready"]["port"] == 8080
    assert (rows[0]["resources"]["ram_gb"], rows[0]["resources"]["gpu_model"]) == (4.0, "T4")
    shown = await one(service, buyer, deploy_id)
    assert (shown["replicas"], len(shown["job_ids"])) == (1, 1)
    await cancel(service, buyer, deploy_id)
    assert await balances(service, buyer) == (10, 0)
    refused(
        await service.call("POST", f"{CREATE}/{deploy_id}/restart", token=buyer.token),
        "deploy_over",
        None,
    )


async def test_a_misplaced_field_of_the_strategy_names_its_place(service: Service) -> None:
    buyer = await service.person(usd="10")
    body = {**RUNS, "auto_revert": True}
    strict = {"Prefer": "handling=strict"}
    answer = await service.call("POST", CREATE, body, token=buyer.token, headers=strict)
    refused(answer, "unknown_field", "auto_revert")
    assert "did you mean strategy.auto_revert?" in answer.body["error"]["message"]


async def test_a_notebook_has_an_image_by_default(service: Service) -> None:
    buyer = await service.person(usd="10")
    deploy_id = await created(service, buyer, job_type="Jupyter", env={"MODE": "fast"})
    shown = await one(service, buyer, deploy_id)
    assert (shown["image"], shown["revision"]) == ("jupyter/minimal-notebook:latest", 1)
    empty = await one(service, buyer, await created(service, buyer, job_type="Jupyter", env={}))
    assert empty["image"] == "jupyter/minimal-notebook:latest"
    # Also with the fields alone that the specification has: a notebook needs nothing else.
    least = {"job_type": "Jupyter", "env": None, "ready": None}
    plain = await one(service, buyer, await created(service, buyer, **least))
    assert (plain["revision"], plain["image"]) == (1, "jupyter/minimal-notebook:latest")
    # Only the buyer knows the model to serve: the deploy waits for the buyer.
    least = {"job_type": "Inference", "env": None, "ready": None}
    plain = await one(service, buyer, await created(service, buyer, **least))
    assert not plain.keys() & {*ROLLOUT_TYPES, "image"}
    path = f"{CREATE}/{plain['id']}/scale"
    answer = await service.call("POST", path, {"replicas": 2}, token=buyer.token)
    refused(answer, "deploy_has_no_revisions", None)


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ({"image": "Not An Image"}, "payload_invalid", "image"),
        ({"image": "web:1", "strategy": {"max_unavailable": 0}}, "invalid_field", "strategy"),
        ({"image": "web:1", "resources": {"arch": "vax"}}, "payload_invalid", "resources.arch"),
        (
            {"image": "web:1", "ports": [{"name": "web", "port": 0}]},
            "payload_invalid",
            "ports[0].port",
        ),
    ],
)
async def test_a_deploy_that_cannot_be_run_is_refused(
    service: Service, body: dict[str, Any], code: str, field: str
) -> None:
    buyer = await service.person(usd="10")
    refused(await create(service, buyer, **body), code, field)
    await nothing_was_bought(service, buyer, 10)


RUNS = {**LEAST, "gpu_model": "none", "job_type": "Script", "script": "print(1)"}


async def test_a_deploys_secrets_are_never_shown(service: Service) -> None:
    buyer = await service.person(usd="10")
    deploy_id = await created(service, buyer, **{**RUNS, "secrets": {"TOKEN": "hunter2"}})
    [job_id] = (await one(service, buyer, deploy_id))["job_ids"]
    job = await service.call("GET", f"/api/jobs/{job_id}", token=buyer.token)
    assert job.body["job"]["requirements"] == "no GPU"
    answers = [
        await service.call("GET", path, token=buyer.token)
        for path in (
            f"{CREATE}/{deploy_id}",
            f"{CREATE}/{deploy_id}/revisions",
            LIST,
            f"/api/jobs/{job_id}",
        )
    ]
    assert all(answer.status == 200 for answer in answers)
    assert "hunter2" not in json.dumps([answer.body for answer in answers])
    [revision] = answers[1].body["revisions"]
    assert (revision["secrets"], revision["script"], revision["env"]) == (["TOKEN"], "print(1)", {})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({}, None),
        ({"command": "ls"}, "command"),
        ({"resources": {"gpus": 1}}, "resources.gpus"),
        ({"resources": {"gpu_model": "T4"}}, "resources.gpu_model"),
    ],
)
async def test_a_revision_that_cannot_be_is_refused_in_words_of_deploys(
    service: Service, change: dict[str, Any], field: str | None
) -> None:
    buyer = await service.person(usd="10")
    deploy_id = await created(service, buyer, **RUNS)
    path = f"{CREATE}/{deploy_id}/revision"
    refused(await service.call("POST", path, change, token=buyer.token), "payload_invalid", field)
    fits = {"command": "ls", "script": "", "resources": {"gpus": 0, "ram_gb": 1}}
    answer = await service.call("POST", path, fits, token=buyer.token)
    assert answer.body == {"ok": True, "revision": 2}


async def test_a_revision_without_a_changeable_field_is_refused_with_the_reason(
    service: Service,
) -> None:
    buyer = await service.person(usd="10")
    deploy_id = await created(service, buyer, **RUNS)
    path = f"{CREATE}/{deploy_id}/revision"
    strict = {"Prefer": "handling=strict"}
    strategy = {"strategy": {"auto_revert": True}}
    for body, headers in (
        (strategy, {}),
        (strategy, strict),
        ({"gpu_model": "H100"}, {}),
        ({"env": {"A": "1"}, "gpu_model": "H100"}, strict),
    ):
        answer = await service.call("POST", path, body, token=buyer.token, headers=headers)
        name = "strategy" if "strategy" in body else "gpu_model"
        refused(answer, "payload_invalid", name)
        assert (
            answer.body["error"]["message"]
            == f"{name} is chosen when a deploy is created, and cannot be changed."
        )
    answer = await service.call("POST", path, {"imag": "web:2"}, token=buyer.token)
    refused(answer, "unknown_field", "imag")
    assert answer.body["error"]["message"].endswith("did you mean image?")
    for nothing in ({}, {"image": None}):
        answer = await service.call("POST", path, nothing, token=buyer.token)
        assert (
            answer.body["error"]["message"]
            == "This revision changes nothing: name what is to change, or restart the deploy."
        )
    both = {"env": {"A": "1"}, "gpu_model": "H100"}  # a field without a meaning here is ignored
    assert (await service.call("POST", path, both, token=buyer.token)).body["revision"] == 2


async def test_the_first_revision_is_the_earliest_to_go_back_to(service: Service) -> None:
    buyer = await service.person(usd="10")
    deploy_id = await created(service, buyer, **RUNS)
    path = f"{CREATE}/{deploy_id}/rollback"
    answer = await service.call("POST", path, {"revision": 0}, token=buyer.token)
    refused(answer, "invalid_field", "revision")
    message = answer.body["error"]["message"]
    assert message == "revision must be a whole number of at least 1."


async def test_a_notebook_needs_an_image_with_any_script(service: Service) -> None:
    buyer = await service.person(usd="10")
    answer = await create(service, buyer, **{**RUNS, "job_type": "Jupyter"})
    refused(answer, "payload_invalid", "image")
    assert (
        answer.body["error"]["message"]
        == "image: A deploy of the type Jupyter needs one; a Script does not."
    )


async def test_a_buyer_of_a_deploy_without_a_fitting_device_is_warned(service: Service) -> None:
    buyer = await service.person(usd="10")
    [warning] = (await create(service, buyer, image="web:1")).body["warnings"]
    assert warning.startswith("No device has asked for work")
    worker = await worker_of(service, await service.person())
    asked = await service.call(
        "POST",
        "/api/worker/next",
        {
            "capacity": {"slots": 1},
            "capabilities": {"executors": ["bwrap"], "job_types": ["script"], "arch": "x86_64"},
            "wait_s": 0,
        },
        headers=worker,
    )
    assert asked.status == 200, asked.body
    answer = await create(service, buyer, image="web:1")
    assert [each.startswith("The only device") for each in answer.body["warnings"]] == [True]
    [warning] = (await create(service, buyer)).body["warnings"]
    assert warning.startswith("It names nothing")


async def test_the_required_proofs_of_devices_are_set_changed_and_shown(service: Service) -> None:
    buyer = await service.person(usd="10")
    worker = await worker_of(service, await service.person())
    deploy_id = await created(service, buyer, image="web:1", trust={"min_reputation": 0.9})
    [job_id] = (await one(service, buyer, deploy_id))["job_ids"]
    seen = await service.call("GET", f"/api/marketplace/jobs/{job_id}", headers=worker)
    assert seen.body["job"]["min_reputation"] == 0.9
    answer = await service.call("POST", f"/api/jobs/{job_id}/accept", headers=worker)
    refused(answer, "reputation_too_low", None)
    # A revision without the field keeps the last value.
    await change(service, buyer, deploy_id, "revision", image="web:2")
    await change(service, buyer, deploy_id, "revision", trust={"min_reputation": 0})
    path = f"{CREATE}/{deploy_id}/revisions"
    shown = (await service.call("GET", path, token=buyer.token)).body["revisions"]
    assert [each.get("trust") for each in shown] == [
        None,
        {"min_reputation": 0.9},
        {"min_reputation": 0.9},
    ]
    await service.daemon.market.rollouts.look(deploy_id)
    [job_id] = (await one(service, buyer, deploy_id))["job_ids"]
    answer = await service.call("POST", f"/api/jobs/{job_id}/accept", headers=worker)
    assert answer.status == 200, answer.body
    answer = await create(service, buyer, image="web:1", trust={"min_reputation": 1.5})
    refused(answer, "invalid_field", "trust.min_reputation")


async def test_a_change_with_a_key_is_made_once(service: Service) -> None:
    buyer = await service.person(usd="10")
    deploy_id = await created(service, buyer, **RUNS)
    path = f"{CREATE}/{deploy_id}"
    for act, body in (
        ("revision", {"env": {"A": "1"}}),
        ("restart", None),
        ("rollback", {"revision": 1}),
    ):
        replies = [
            await service.call(
                "POST",
                f"{path}/{act}",
                body,
                token=buyer.token,
                headers={"Idempotency-Key": act},
            )
            for _ in range(3)
        ]
        assert [reply.status for reply in replies] == [200] * 3
        assert len({reply.body["revision"] for reply in replies}) == 1
    assert (await one(service, buyer, deploy_id))["revision"] == 4


async def test_a_readiness_check_can_be_removed(service: Service) -> None:
    buyer = await service.person(usd="10")
    port, ready = {"name": "web", "port": 8080, "protocol": "http"}, {"port": 8080}
    deploy_id = await created(service, buyer, image="web:1", ports=[port], ready=ready)
    path = f"{CREATE}/{deploy_id}"
    for change in ({"ports": [], "ready": None}, {"command": "serve"}):
        answer = await service.call("POST", f"{path}/revision", change, token=buyer.token)
        assert answer.status == 200, answer.body
    answer = await service.call("GET", f"{path}/revisions", token=buyer.token)
    asked = [(bool(each["ports"]), "ready" in each) for each in answer.body["revisions"]]
    assert asked == [(False, False), (False, False), (True, True)]


async def test_an_impossible_requirement_is_refused_before_devices_are_compared_with_it(
    service: Service,
) -> None:
    buyer = await service.person()
    worker = await worker_of(service, await service.person())
    asked = {
        "capacity": {"slots": 1, "gpus": 1, "vram_gb": 24},
        "capabilities": {
            "executors": ["bwrap"],
            "job_types": ["script"],
            "gpus": [{"name": "NVIDIA A100"}],
            "cuda": "12.4",
        },
    }
    assert (await service.call("POST", "/api/worker/next", asked, headers=worker)).status == 200
    for field, value in (("cuda", "9" * 5_000), ("arch", "x" * 500_000)):
        body = {**RUNS, "gpu_model": "A100", "resources": {field: value}}
        refused(await create(service, buyer, **body), "payload_invalid", f"resources.{field}")
