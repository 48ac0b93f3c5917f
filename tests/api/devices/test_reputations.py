"""Reputation as owners and buyers see it, and a buyer's request for a minimum."""

from typing import Any

import pytest
from support.clients.story import refused, worker_token
from support.daemons.service import Answer, Person, Service

WANTED = {
    "title": "count",
    "job_type": "script",
    "price_credit": 1,
    "duration_hrs": 1,
    "payload": {"script": "print(1)"},
}
NEW = {"score": 0.5, "reliability": 0.5, "correctness": 1.0, "attempts": 0, "checks": 0}


async def create(service: Service, buyer: Person, **trust: Any) -> Answer:
    return await service.call("POST", "/api/jobs", {**WANTED, "trust": trust}, token=buyer.token)


async def as_device(service: Service, device: str, method: str, path: str, body: Any = None) -> Any:
    return await service.call(method, path, body, headers={"X-Worker-Token": device})


async def test_a_buyer_that_asks_for_reputation_gets_a_device_that_has_it(service: Service) -> None:
    buyer, owner = await service.person(credit="10"), await service.person()
    device = await worker_token(service, owner)
    made = await create(service, buyer, min_reputation=0.51)
    assert made.status == 200, made.body
    job_id = made.body["job_id"]
    own = await service.call("GET", f"/api/jobs/{job_id}", token=buyer.token)
    assert own.body["job"]["min_reputation"] == 0.51
    shown = await as_device(service, device, "GET", f"/api/marketplace/jobs/{job_id}")
    assert shown.body["job"]["min_reputation"] == 0.51
    answer = await as_device(service, device, "POST", f"/api/jobs/{job_id}/accept")
    refused(answer, "reputation_too_low", None)
    # An easier job raises it, and owner and buyer see that.
    easy = (await create(service, buyer, min_reputation=0.5)).body["job_id"]
    assert (await as_device(service, device, "POST", f"/api/jobs/{easy}/accept")).status == 200
    body = {"result": "1", "attempt": 1}
    await as_device(service, device, "POST", f"/api/worker/jobs/{easy}/complete", body)
    better = {**NEW, "score": 0.53125, "reliability": 0.53125, "attempts": 1}
    attempts = await service.call("GET", f"/api/jobs/{easy}/attempts", token=buyer.token)
    assert attempts.body["attempts"][0]["reputation"] == better
    devices = await service.call("GET", "/api/worker/devices", token=owner.token)
    assert devices.body["devices"][0]["reputation"] == better
    offers = await as_device(service, device, "GET", "/api/worker/offers")
    assert offers.body["reputation"] == better
    assert (await as_device(service, device, "POST", f"/api/jobs/{job_id}/accept")).status == 200


@pytest.mark.parametrize("least", [-0.1, 1.1, "much", float("1e9")])
async def test_a_reputation_is_a_share(service: Service, least: object) -> None:
    buyer = await service.person(credit="10")
    answer = await create(service, buyer, min_reputation=least)
    refused(answer, "invalid_field", "trust.min_reputation")


async def test_new_devices_show_that_nothing_is_known(service: Service) -> None:
    owner = await service.person()
    await worker_token(service, owner)
    devices = await service.call("GET", "/api/worker/devices", token=owner.token)
    assert devices.body["devices"][0]["reputation"] == NEW
