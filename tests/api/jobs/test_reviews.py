"""Promises of the routes of reviews: a buyer confirms or disputes, and the operator decides."""

from typing import Any

from support.clients.story import refused, worker_token
from support.daemons.service import Answer, Person, Service

JOBS, WORK = "/api/jobs", "/api/worker/jobs"


async def done(
    service: Service, buyer: Person, owner: Person, *, device: str = "", **fields: Any
) -> str:
    """Have a job with a payload done for 10 credits, and return its identifier.

    The device of the owner shows this token; "" makes a device.
    """
    wanted = {
        "title": "train",
        "job_type": "script",
        "price_credit": 10,
        "duration_hrs": 2,
        "payload": {"script": "print(1)"},
        **fields,
    }
    made = await service.call("POST", JOBS, wanted, token=buyer.token)
    assert made.status == 200, made.body
    job_id = str(made.body["job_id"])
    headers = {"X-Worker-Token": device or await worker_token(service, owner)}
    for path in (f"{JOBS}/{job_id}/accept", f"{WORK}/{job_id}/complete"):
        answer = await service.call("POST", path, headers=headers)
        assert answer.status == 200, answer.body
    return job_id


async def say(service: Service, user: Person, job_id: str, what: str, body: Any = None) -> Answer:
    return await service.call("POST", f"{JOBS}/{job_id}/{what}", body, token=user.token)


async def job_of(service: Service, buyer: Person, job_id: str) -> Any:
    return (await service.call("GET", f"{JOBS}/{job_id}", token=buyer.token)).body["job"]


async def wallet(service: Service, user: Person) -> tuple[float, float, float]:
    body = (await service.call("GET", "/api/wallet", token=user.token)).body
    return body["credit_balance"], body["credit_held"], body["credit_in_review"]


async def test_a_buyer_confirms_and_the_worker_is_paid(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id = await done(service, buyer, owner)
    job = await job_of(service, buyer, job_id)
    assert (job["status"], job["review"]["state"], job["paid"]) == ("completed", "held", 10)
    assert job["review"]["until"] > job["finished_at"]
    assert await wallet(service, owner) == (0, 9, 9)
    for _ in range(2):
        assert (await say(service, buyer, job_id, "confirm")).body == {"ok": True}
    assert (await job_of(service, buyer, job_id))["review"]["state"] == "confirmed"
    assert await wallet(service, owner) == (9, 0, 0)
    refused(
        await say(service, buyer, job_id, "dispute", {"reason": "late"}), "not_reviewable", None
    )


async def test_a_buyer_disputes_and_no_worker_is_paid(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id = await done(service, buyer, owner)
    refused(await say(service, buyer, job_id, "dispute", {}), "invalid_field", "reason")
    refused(
        await say(service, owner, job_id, "dispute", {"reason": "x"}), "job_not_found", None, 404
    )
    refused(await say(service, owner, job_id, "confirm"), "job_not_found", None, 404)
    body = {"reason": "an empty file"}
    for _ in range(2):
        assert (await say(service, buyer, job_id, "dispute", body)).body == {"ok": True}
    other = await say(service, buyer, job_id, "dispute", {"reason": "the wrong file"})
    refused(other, "already_disputed", None)
    review = (await job_of(service, buyer, job_id))["review"]
    assert (review["state"], review["reason"]) == ("disputed", "an empty file")
    assert await wallet(service, owner) == (0, 9, 9)


async def test_a_plain_job_has_no_review(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    job_id = await done(service, buyer, owner, payload=None)
    assert "review" not in await job_of(service, buyer, job_id)
    assert await wallet(service, owner) == (9, 0, 0)
    for what, body in (("confirm", None), ("dispute", {"reason": "x"})):
        refused(await say(service, buyer, job_id, what, body), "not_reviewable", None)


async def test_a_buyer_says_how_long_the_review_takes(service: Service) -> None:
    buyer, owner = await service.person(credit="20"), await service.person()
    at_once = await done(service, buyer, owner, trust={"review_hours": 0})
    assert "review" not in await job_of(service, buyer, at_once)
    assert await wallet(service, owner) == (9, 0, 0)
