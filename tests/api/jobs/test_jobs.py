"""Routes of jobs: the marketplace, a buyer's own, a worker's (4.7 to 4.9)."""

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.base.cases import cases
from support.clients.story import credits_of, refused, worker_token
from support.daemons.service import Answer, Person, Service

from market.jobs.chances import OWNERS_MAX

MARKETPLACE = "/api/marketplace/jobs"
JOBS = "/api/jobs"
WORK = "/api/worker/jobs"
JOB_FIELDS = {
    "id": str,
    "title": str,
    "job_type": str,
    "price_credit": float,
    "duration_hrs": int,
    "status": str,
    "buyer_id": str,
    "payment_type": str,
    "cost": float,
}
OWN_ITEM_FIELDS = {
    **JOB_FIELDS,
    "attempts": int,
    "created_at": str,
}
OWN_FIELDS = {**OWN_ITEM_FIELDS, "description": str, "requirements": str}
WORK_FIELDS = {
    "id": str,
    "title": str,
    "job_type": str,
    "status": str,
    "duration_hrs": int,
    "price_credit": float,
    "description": str,
    "requirements": str,
    "attempt": int,
}
WANTED = {"title": "train", "job_type": "training", "price_credit": 10, "duration_hrs": 2}
UNKNOWN = str(uuid.UUID(int=7 << 76 | 2 << 62))
MALFORMED = ["x", "1", "0" * 32, "0" * 36, "%7B" + UNKNOWN + "%7D", "%00", "%FF", "null"]


async def create(service: Service, person: Person, **fields: Any) -> Answer:
    return await service.call("POST", JOBS, {**WANTED, **fields}, token=person.token)


async def put_up(service: Service, person: Person, **fields: Any) -> str:
    answer = await create(service, person, **fields)
    assert answer.status == 200, answer.body
    return str(answer.body["job_id"])


async def as_worker(
    service: Service,
    device: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    raw: bytes | None = None,
) -> Answer:
    return await service.call(method, path, body, raw=raw, headers={"X-Worker-Token": device})


async def accept(service: Service, device: str, job_id: str) -> Answer:
    return await as_worker(service, device, "POST", f"{JOBS}/{job_id}/accept")


async def running(service: Service, buyer: Person, owner: Person, **fields: Any) -> tuple[str, str]:
    """Put a job up and accept it on a new device; returns the job and the device's token."""
    job_id, device = await put_up(service, buyer, **fields), await worker_token(service, owner)
    assert (await accept(service, device, job_id)).status == 200
    return job_id, device


async def report(service: Service, device: str, job_id: str, what: str, body: Any = None) -> Answer:
    return await as_worker(service, device, "POST", f"{WORK}/{job_id}/{what}", body)


async def cancel(service: Service, person: Person, job_id: str) -> Answer:
    return await service.call("POST", f"{JOBS}/{job_id}/cancel", token=person.token)


async def open_jobs(service: Service, query: str = "") -> list[dict[str, Any]]:
    answer = await service.call("GET", MARKETPLACE + query)
    assert answer.status == 200, answer.body
    return list(answer.body["jobs"])


async def own(service: Service, person: Person, job_id: str) -> dict[str, Any]:
    answer = await service.call("GET", f"{JOBS}/{job_id}", token=person.token)
    assert answer.status == 200, answer.body
    return dict(answer.body["job"])


def types_of(item: dict[str, Any]) -> dict[str, type]:
    return {name: type(value) for name, value in item.items()}


def is_recent(text: str) -> bool:
    at = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    return abs(datetime.now(UTC) - at) < timedelta(minutes=10)


async def test_a_job_is_created_and_listed_with_the_fields_of_the_specification(
    service: Service,
) -> None:
    buyer = await service.person(credit="10")
    answer = await create(service, buyer, price_credit=2.5, description="d", requirements="r")
    assert (answer.status, answer.body.keys()) == (
        200,
        {"ok", "job_id", "warnings", "is_manual"},
    )
    assert answer.body["ok"] is True
    job_id = answer.body["job_id"]
    assert str(uuid.UUID(job_id)) == job_id
    assert await credits_of(service, buyer) == 7.5
    answer = await service.call("GET", MARKETPLACE)
    assert (answer.status, answer.body.keys()) == (200, {"ok", "jobs"})
    assert answer.body["ok"] is True
    [job] = answer.body["jobs"]
    assert types_of(job) == JOB_FIELDS
    assert job == {
        "id": job_id,
        "title": "train",
        "job_type": "training",
        "price_credit": 2.5,
        "duration_hrs": 2,
        "status": "waiting",
        "buyer_id": buyer.user_id,
        "payment_type": "credit",
        "cost": 2.5,
    }


async def test_accepting_answers_with_the_fields_of_the_specification(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id, device = await put_up(service, buyer), await worker_token(service, owner)
    for _ in range(2):
        answer = await accept(service, device, job_id)
        assert (answer.status, answer.body) == (
            200,
            {
                "ok": True,
                "job": {"id": job_id, "title": "train", "status": "running", "attempt": 1},
            },
        )
    answer = await accept(service, await worker_token(service, owner), job_id)
    refused(answer, "job_not_waiting", None)


async def test_an_identifier_in_capitals_is_the_same(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id, device = await put_up(service, buyer), await worker_token(service, owner)
    assert (await accept(service, device, job_id.upper())).body["job"]["id"] == job_id


async def test_of_many_concurrent_acceptances_one_wins(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id = await put_up(service, buyer)
    devices = [await worker_token(service, owner) for _ in range(30)]
    answers = await asyncio.gather(*(accept(service, device, job_id) for device in devices))
    assert sorted(answer.status for answer in answers) == [200] + [400] * 29
    assert {answer.code for answer in answers if answer.status == 400} == {"job_not_waiting"}


async def test_a_change_of_status_is_read_at_once(service: Service) -> None:
    buyer, owner, other = (
        await service.person(credit="100"),
        *[await service.person() for _ in range(2)],
    )

    async def statuses(job_id: str) -> tuple[list[str], str]:
        shown = [job["status"] for job in await open_jobs(service) if job["id"] == job_id]
        return shown, (await own(service, buyer, job_id))["status"]

    for _ in range(5):
        job_id = await put_up(service, buyer, price_credit=1)
        assert await statuses(job_id) == (["waiting"], "waiting")
        device = await worker_token(service, owner)
        await accept(service, device, job_id)
        assert await statuses(job_id) == (["running"], "running")
        assert (await report(service, device, job_id, "fail", {"reason": "x"})).status == 200
        assert await statuses(job_id) == (["waiting"], "waiting")
        device = await worker_token(service, other)
        await accept(service, device, job_id)
        assert (await report(service, device, job_id, "complete")).status == 200
        assert await statuses(job_id) == ([], "completed")
        cancelled = await put_up(service, buyer, price_credit=1)
        await cancel(service, buyer, cancelled)
        assert await statuses(cancelled) == ([], "cancelled")


async def test_a_buyer_sees_a_job_of_its_own_from_beginning_to_end(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id = await put_up(service, buyer, description="run it", requirements="a GPU")
    job = await own(service, buyer, job_id)
    assert types_of(job) == {**OWN_FIELDS, "left": float}
    assert {name: job[name] for name in WANTED} == WANTED
    assert (job["description"], job["requirements"]) == ("run it", "a GPU")
    assert (job["attempts"], job["buyer_id"]) == (0, buyer.user_id)
    device = await worker_token(service, owner)
    await accept(service, device, job_id)
    job = await own(service, buyer, job_id)
    assert types_of(job) == {**OWN_FIELDS, "accepted_at": str, "left": float}
    assert (job["status"], job["attempts"]) == ("running", 1)
    await report(service, device, job_id, "complete", {"result": "42"})
    job = await own(service, buyer, job_id)
    added = {"accepted_at": str, "finished_at": str, "result": str, "paid": float}
    assert types_of(job) == {**OWN_FIELDS, **added}
    assert (job["payment_type"], job["paid"]) == ("credit", 10.0)
    assert (job["status"], job["result"]) == ("completed", "42")
    assert all(is_recent(job[name]) for name in ("created_at", "accepted_at", "finished_at"))
    answer = await service.call("GET", JOBS, token=buyer.token)
    long = ("description", "requirements", "result")
    item = {name: value for name, value in job.items() if name not in long}
    assert (answer.status, answer.body) == (200, {"ok": True, "jobs": [item]})


async def test_no_list_shows_a_field_that_may_be_long(service: Service) -> None:
    buyer, owner = await service.person(credit="20"), await service.person()
    long = {"description": "d" * 20_000, "requirements": "r" * 20_000}
    failing, device = await running(service, buyer, owner, **long)
    await report(service, device, failing, "fail", {"reason": "f" * 2_000})
    done, device = await running(service, buyer, owner, **long)
    await report(service, device, done, "complete", {"result": "x" * 20_000})
    answer = await service.call("GET", JOBS, token=buyer.token)
    assert len(answer.body["jobs"]) == 2
    assert len(str(answer.body)) < 1_000
    assert len(str(await open_jobs(service))) < 500


async def test_an_open_job_is_shown_whole_to_its_buyer_and_to_workers(service: Service) -> None:
    buyer, owner = await service.person(credit="20"), await service.person()
    job_id = await put_up(service, buyer, description="run it", requirements="a GPU")
    path = f"{MARKETPLACE}/{job_id}"
    shown = {**WANTED, "id": job_id, "status": "waiting", "buyer_id": buyer.user_id}
    shown |= {"payment_type": "credit", "cost": 10}
    texts = {"description": "run it", "requirements": "a GPU"}
    device = await worker_token(service, owner)
    for _ in range(2):
        for answer in (
            await service.call("GET", path),
            await service.call("GET", path, token=owner.token),
        ):
            assert (answer.status, answer.body) == (200, {"ok": True, "job": shown})
        for answer in (
            await service.call("GET", path, token=buyer.token),
            await as_worker(service, device, "GET", path),
        ):
            assert (answer.status, answer.body) == (200, {"ok": True, "job": {**shown, **texts}})
        await accept(service, device, job_id)
        shown["status"] = "running"
    refused(await service.call("GET", path, token="nonsense"), "unauthorized", None, 401)
    refused(await as_worker(service, "none", "GET", path), "worker_unauthorized", None, 401)
    await report(service, device, job_id, "complete")
    for gone in (job_id, UNKNOWN, *MALFORMED):
        refused(await service.call("GET", f"{MARKETPLACE}/{gone}"), "job_not_found", None, 404)


async def test_a_worker_lists_its_running_jobs(service: Service) -> None:
    buyer, owner = await service.person(credit="20"), await service.person()
    await running(service, buyer, owner)
    job_id, device = await running(service, buyer, owner)
    answer = await as_worker(service, device, "GET", WORK)
    [job] = answer.body["jobs"]
    assert is_recent(job.pop("accepted_at"))
    assert job == {**WANTED, "id": job_id, "status": "running", "attempt": 1}
    assert answer.body == {"ok": True, "jobs": [job]}
    refused(await as_worker(service, device, "GET", f"{WORK}?limit=0"), "invalid_field", "limit")
    refused(await service.call("GET", WORK), "worker_unauthorized", None, 401)


async def test_a_report_may_name_its_attempt(service: Service) -> None:
    buyer, owner = await service.person(credit="20"), await service.person()
    job_id, device = await running(service, buyer, owner)
    for body in ({"attempt": 2}, {"attempt": 2, "result": "x"}):
        late = await report(service, device, job_id, "complete", body)
        refused(late, "attempt_not_current", None)
    late = await report(service, device, job_id, "fail", {"attempt": 2, "reason": "x"})
    refused(late, "attempt_not_current", None)
    for attempt in (0, -1, 1.0, "1", True):
        wrong = await report(service, device, job_id, "complete", {"attempt": attempt})
        refused(wrong, "invalid_field", "attempt")
    done = await report(service, device, job_id, "complete", {"attempt": 1})
    assert (done.status, done.body) == (200, {"ok": True})


async def test_the_worker_of_a_cancelled_job_is_notified(service: Service) -> None:
    buyer, owner = await service.person(credit="20"), await service.person()
    job_id, device = await running(service, buyer, owner)
    await cancel(service, buyer, job_id)
    answer = await as_worker(service, device, "GET", f"{WORK}/{job_id}")
    refused(answer, "attempt_not_current", None)
    assert "cancelled" in answer.body["error"]["message"]


async def test_a_revoked_worker_hands_its_jobs_back_at_once(service: Service) -> None:
    buyer, owner = await service.person(credit="20"), await service.person()
    path = "/api/worker/token/create"
    made = (await service.call("POST", path, {"name": "rig"}, token=owner.token)).body
    job_id = await put_up(service, buyer)
    await accept(service, made["token"], job_id)
    revoked = {"token_id": made["token_id"]}
    await service.call("POST", "/api/worker/token/revoke", revoked, token=owner.token)
    job = await own(service, buyer, job_id)
    assert (job["status"], job["attempts"], "accepted_at" in job) == ("waiting", 1, False)
    assert job["failure_reason"] == "the token of the device was revoked"


async def test_a_worker_sees_the_program_of_its_job(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id, device = await running(
        service, buyer, owner, description="run it", requirements="a GPU"
    )
    answer = await as_worker(service, device, "GET", f"{WORK}/{job_id}")
    assert (answer.status, answer.body.keys()) == (200, {"ok", "job"})
    assert types_of(answer.body["job"]) == WORK_FIELDS
    assert answer.body["job"] == {
        **WANTED,
        "id": job_id,
        "status": "running",
        "description": "run it",
        "requirements": "a GPU",
        "attempt": 1,
    }


@pytest.mark.parametrize("raw", [None, b"", b"{}", b'{"result": null}', b'{"result": "42"}'])
async def test_completing_pays_the_owner_and_shows_as_earned_today(
    service: Service, raw: bytes | None
) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id, device = await running(service, buyer, owner, price_credit=3.333333)
    for _ in range(2):
        answer = await as_worker(service, device, "POST", f"{WORK}/{job_id}/complete", raw=raw)
        assert (answer.status, answer.body) == (200, {"ok": True})
    assert await credits_of(service, owner) == 3.0
    assert await credits_of(service, buyer) == 6.666667
    answer = await service.call("GET", "/api/worker/devices", token=owner.token)
    assert [each["earn_today"] for each in answer.body["devices"]] == [3.0]
    refused(await cancel(service, buyer, job_id), "job_over", None)


async def test_a_failed_job_waits_again_and_the_report_comes_too_late_twice(
    service: Service,
) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id, device = await running(service, buyer, owner)
    answer = await report(service, device, job_id, "fail", {"reason": "no GPU"})
    assert (answer.status, answer.body) == (200, {"ok": True})
    for what, body in (("fail", {"reason": "x"}), ("complete", {"result": "x"})):
        late = await report(service, device, job_id, what, body)
        refused(late, "attempt_not_current", None)
    late = await as_worker(service, device, "GET", f"{WORK}/{job_id}")
    refused(late, "attempt_not_current", None)
    assert await credits_of(service, owner) == 0


async def test_after_failures_of_enough_owners_the_price_comes_back(service: Service) -> None:
    buyer = await service.person(credit="10")
    job_id = await put_up(service, buyer)
    for attempt in range(1, OWNERS_MAX + 1):
        assert await credits_of(service, buyer) == 0
        owner = await service.person()
        device = await worker_token(service, owner)
        assert (await accept(service, device, job_id)).body["job"]["attempt"] == attempt
        await report(service, device, job_id, "fail", {"reason": "no GPU"})
        if attempt < 3:  # each may make five tokens an hour
            for own_one in (device, await worker_token(service, owner)):
                refused(await accept(service, own_one, job_id), "job_failed_here", None)
    job = await own(service, buyer, job_id)
    assert (job["status"], job["attempts"], job["failure_reason"]) == (
        "failed",
        OWNERS_MAX,
        "no GPU",
    )
    assert "result" not in job
    assert await credits_of(service, buyer) == 10
    refused(await accept(service, device, job_id), "job_not_waiting", None)


async def test_cancelling_releases_the_price_and_may_be_repeated(service: Service) -> None:
    buyer = await service.person(credit="10")
    job_id = await put_up(service, buyer)
    for _ in range(2):
        answer = await cancel(service, buyer, job_id)
        assert (answer.status, answer.body) == (200, {"ok": True})
    assert await credits_of(service, buyer) == 10


async def test_without_the_credits_no_job_is_put_up(service: Service) -> None:
    buyer = await service.person(credit="1", usd="100")
    refused(
        await create(service, buyer, price_credit=1.000001), "insufficient_funds", "price_credit"
    )
    assert await credits_of(service, buyer) == 1
    assert await open_jobs(service) == []


@pytest.mark.parametrize("field", list(WANTED))
async def test_a_required_field_that_is_missing_or_null_is_named(
    service: Service, field: str
) -> None:
    buyer = await service.person(credit="10")
    left = {name: value for name, value in WANTED.items() if name != field}
    for body in (left, {**left, field: None}):
        answer = await service.call("POST", JOBS, body, token=buyer.token)
        refused(answer, "invalid_field", field)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("title", ['""', "1", "[]", '"%s"' % ("x" * 201)]),
        ("job_type", ['""', '"Docker"', '"gpu"', "1", "true"]),
        (
            "price_credit",
            ["-0.000001", "-1", "1000000.000001", "1e400", "1e30", '"1"', "true", "{}"],
        ),
        ("duration_hrs", ["0", "-1", "8761", "1e400", "1.5", "1.0", '"1"', "true", "9" * 30]),
        ("description", ["1", "[]", '"%s"' % ("x" * 20_001)]),
        ("requirements", ["1", "{}", '"%s"' % ("x" * 20_001)]),
    ],
)
async def test_a_field_out_of_range_is_refused_by_name(
    service: Service, field: str, values: list[str]
) -> None:
    buyer = await service.person(credit="2000000")
    others = {name: value for name, value in WANTED.items() if name != field}
    rest = "".join(
        f', "{name}": ' + (f'"{value}"' if isinstance(value, str) else str(value))
        for name, value in others.items()
    )
    for value in values:
        raw = f'{{"{field}": {value}{rest}}}'.encode()
        answer = await service.call("POST", JOBS, raw=raw, token=buyer.token)
        refused(answer, "invalid_field", field)
    assert await credits_of(service, buyer) == 2_000_000
    assert await open_jobs(service) == []


@cases(
    "body",
    [
        "",
        "not JSON",
        "[]",
        "null",
        "{",
        '{"title": "t", "job_type": "script", "price_credit": NaN, "duration_hrs": 1}',
        '{"title": "t", "job_type": "script", "price_credit": Infinity, "duration_hrs": 1}',
        '{"title": "a\\u0000b", "job_type": "script", "price_credit": 1, "duration_hrs": 1}',
    ],
)
async def test_a_body_that_is_not_json_is_refused(service: Service, body: str) -> None:
    buyer = await service.person(credit="10")
    answer = await service.call("POST", JOBS, raw=body.encode(), token=buyer.token)
    refused(answer, "invalid_field", None)
    assert await open_jobs(service) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"title": "x" * 200},
        {"title": "\N{ROCKET}" * 200},
        {"price_credit": 0},
        {"price_credit": 0.000001},
        {"price_credit": 1_000_000},
        {"duration_hrs": 1},
        {"duration_hrs": 8_760},
        {"job_type": "docker"},
        {"job_type": "inference"},
        {"job_type": "script"},
    ],
)
async def test_a_field_at_the_end_of_its_range_is_taken_and_shown(
    service: Service, fields: dict[str, Any]
) -> None:
    buyer = await service.person(credit="1000000")
    await put_up(service, buyer, **fields)
    [job] = await open_jobs(service)
    assert types_of(job) == JOB_FIELDS
    assert {name: job[name] for name in fields} == fields


async def test_optional_texts_may_be_null_or_long_and_unknown_fields_are_ignored(
    service: Service,
) -> None:
    buyer = await service.person(credit="100")
    job = await own(
        service, buyer, await put_up(service, buyer, description=None, requirements=None, more=[1])
    )
    assert (job["description"], job["requirements"]) == ("", "")
    text = "é" * 20_000
    job_id = await put_up(service, buyer, description=text, requirements=text)
    job = await own(service, buyer, job_id)
    assert (job["description"], job["requirements"]) == (text, text)


async def test_a_price_is_rounded_half_even_to_the_micro_credit(service: Service) -> None:
    buyer = await service.person(credit="10")
    for written, shown in ((0.1 + 0.2, 0.3), (0.0000025, 0.000002), (0.0000035, 0.000004)):
        job = await own(service, buyer, await put_up(service, buyer, price_credit=written))
        assert job["price_credit"] == shown


@cases(
    ("body", "field"),
    [
        (b"", None),
        (b"{}", "reason"),
        (b'{"reason": ""}', "reason"),
        (b'{"reason": null}', "reason"),
        (b'{"reason": 1}', "reason"),
        (b'{"reason": "%s"}' % (b"x" * 2_001), "reason"),
        (b"nonsense", None),
    ],
)
async def test_a_failure_without_a_reason_is_refused(
    service: Service, body: bytes, field: str | None
) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id, device = await running(service, buyer, owner)
    answer = await as_worker(service, device, "POST", f"{WORK}/{job_id}/fail", raw=body)
    refused(answer, "invalid_field", field)
    assert (await own(service, buyer, job_id))["status"] == "running"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"result": 1}', "result"),
        (b'{"result": "%s"}' % (b"x" * 20_001), "result"),
        (b"nonsense", None),
    ],
)
async def test_a_result_that_cannot_be_kept_is_refused(
    service: Service, body: bytes, field: str | None
) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id, device = await running(service, buyer, owner)
    answer = await as_worker(service, device, "POST", f"{WORK}/{job_id}/complete", raw=body)
    refused(answer, "invalid_field", field)
    assert await credits_of(service, owner) == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", JOBS),
        ("GET", JOBS),
        ("GET", f"{JOBS}/{UNKNOWN}"),
        ("POST", f"{JOBS}/{UNKNOWN}/cancel"),
        ("GET", f"{JOBS}/x"),
    ],
)
async def test_without_a_valid_session_token_a_buyer_does_nothing(
    service: Service, method: str, path: str
) -> None:
    device = await worker_token(service, await service.person())
    body = WANTED if method == "POST" else None
    for token in (None, "", "wrong", device):
        refused(await service.call(method, path, body, token=token), "unauthorized", None, 401)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{JOBS}/{UNKNOWN}/accept"),
        ("GET", f"{WORK}/{UNKNOWN}"),
        ("POST", f"{WORK}/{UNKNOWN}/complete"),
        ("POST", f"{WORK}/{UNKNOWN}/fail"),
        ("POST", f"{JOBS}/x/accept"),
    ],
)
async def test_without_a_valid_worker_token_a_device_does_nothing(
    service: Service, method: str, path: str
) -> None:
    owner = await service.person()
    made = await service.call(
        "POST", "/api/worker/token/create", {"name": "rig"}, token=owner.token
    )
    revoked = {"token_id": made.body["token_id"]}
    await service.call("POST", "/api/worker/token/revoke", revoked, token=owner.token)
    for token in ("", "wrong", owner.token, made.body["token"]):
        answer = await as_worker(service, token, method, path)
        refused(answer, "worker_unauthorized", None, 401)
    answer = await service.call(method, path, token=owner.token)
    refused(answer, "worker_unauthorized", None, 401)


@cases("job_id", [UNKNOWN, *MALFORMED])
async def test_a_job_that_does_not_exist_is_not_found(service: Service, job_id: str) -> None:
    person = await service.person(credit="10")
    device = await worker_token(service, person)
    for answer in (
        await service.call("GET", f"{JOBS}/{job_id}", token=person.token),
        await cancel(service, person, job_id),
        await accept(service, device, job_id),
        await as_worker(service, device, "GET", f"{WORK}/{job_id}"),
        await report(service, device, job_id, "complete"),
        await report(service, device, job_id, "fail", {"reason": "x"}),
    ):
        refused(answer, "job_not_found", None, 404)


async def test_a_job_of_another_user_is_not_found(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id, device = await running(service, buyer, owner)
    sibling = await worker_token(service, owner)
    for answer in (
        await service.call("GET", f"{JOBS}/{job_id}", token=owner.token),
        await cancel(service, owner, job_id),
        await as_worker(service, sibling, "GET", f"{WORK}/{job_id}"),
        await report(service, sibling, job_id, "complete"),
        await report(service, sibling, job_id, "fail", {"reason": "x"}),
    ):
        refused(answer, "job_not_found", None, 404)
    assert (await report(service, device, job_id, "complete")).status == 200
    answer = await service.call("GET", JOBS, token=owner.token)
    assert answer.body == {"ok": True, "jobs": []}


async def test_the_marketplace_filters_waiting_and_running_jobs(service: Service) -> None:
    buyer, owner = await service.person(credit="100"), await service.person()
    waiting = await put_up(service, buyer, job_type="docker")
    taken, _ = await running(service, buyer, owner, job_type="docker")
    done, device = await running(service, buyer, owner)
    await report(service, device, done, "complete")
    await cancel(service, buyer, await put_up(service, buyer))
    script = await put_up(service, buyer, job_type="script")

    async def found(query: str) -> list[str]:
        return [job["id"] for job in await open_jobs(service, query)]

    assert await found("") == [script, taken, waiting]
    assert await found("?status=waiting") == [script, waiting]
    assert await found("?status=running") == [taken]
    assert await found("?job_type=docker") == [taken, waiting]
    assert await found("?job_type=docker&status=waiting") == [waiting]
    assert await found("?job_type=inference") == []
    assert await found("?unknown=1") == [script, taken, waiting]


@pytest.mark.parametrize(("path", "mine"), [(MARKETPLACE, False), (JOBS, True)])
async def test_pages_follow_each_other_newest_first(
    service: Service, path: str, mine: bool
) -> None:
    buyer = await service.person(credit="100")
    made = [await put_up(service, buyer) for _ in range(6)]
    seen, cursor = [], ""
    for size, is_last in ((2, False), (2, False), (2, True)):
        answer = await service.call(
            "GET", f"{path}?limit=2{cursor}", token=buyer.token if mine else None
        )
        assert len(answer.body["jobs"]) == size
        assert ("next_cursor" not in answer.body) is is_last
        seen += [job["id"] for job in answer.body["jobs"]]
        cursor = f"&cursor={answer.body.get('next_cursor')}"
    assert seen == made[::-1]


async def test_a_buyer_filters_jobs_by_status(service: Service) -> None:
    buyer, owner = await service.person(credit="100"), await service.person()
    waiting = await put_up(service, buyer)
    taken, _ = await running(service, buyer, owner)
    cancelled = await put_up(service, buyer)
    await cancel(service, buyer, cancelled)
    for status, expected in (
        ("waiting", [waiting]),
        ("running", [taken]),
        ("cancelled", [cancelled]),
        ("completed", []),
        ("failed", []),
    ):
        answer = await service.call("GET", f"{JOBS}?status={status}", token=buyer.token)
        assert [job["id"] for job in answer.body["jobs"]] == expected


@cases(
    ("path", "query", "field"),
    [
        (MARKETPLACE, "status=completed", "status"),
        (MARKETPLACE, "status=Waiting", "status"),
        (MARKETPLACE, "status=", "status"),
        (MARKETPLACE, "job_type=Docker", "job_type"),
        (JOBS, "status=done", "status"),
        *(
            (path, query, query.partition("=")[0])
            for path in (MARKETPLACE, JOBS)
            for query in ("limit=0", "limit=1001", "limit=-1", "limit=x", "limit=1.5", "cursor=x")
        ),
    ],
)
async def test_a_list_that_cannot_be_is_refused_by_name(
    service: Service, path: str, query: str, field: str
) -> None:
    buyer = await service.person()
    answer = await service.call("GET", f"{path}?{query}", token=buyer.token)
    refused(answer, "invalid_field", field)


@pytest.mark.parametrize("title", ["a\x1b[31m", "\u202egnp.exe", "\u2066x", "two\nlines"])
async def test_a_title_does_nothing_to_a_terminal_or_a_page(service: Service, title: str) -> None:
    buyer = await service.person(credit="5")
    job = {"title": title, "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    answer = await service.call("POST", "/api/jobs", job, token=buyer.token)
    assert (answer.status, answer.code, answer.field) == (400, "invalid_field", "title")
