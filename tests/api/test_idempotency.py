"""A request with an Idempotency-Key is done once, and answered each time as the first time."""

import asyncio
import hashlib
import logging
from typing import Any

import msgspec
import pytest
from support.daemons.service import Answer, Person, Service
from support.targets.mailbox import until_no_email_waits

from market.jobs.jobs import Jobs
from market.money.money import Currency
from proxyd.loop import clock
from storage.engines.errors import UnknownOutcomeError
from storage.engines.store import Transaction

REQUESTS: dict[str, dict[str, Any]] = {
    "/api/bandwidth/create": {"gb": 1},
    "/api/jobs": {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1},
    "/api/deploy/job": {"job_name": "x", "job_type": "Docker", "gpu_model": "A100"},
    "/api/worker/token/create": {"name": "rig"},
}


@pytest.fixture
async def buyer(service: Service) -> Person:
    person = await service.person(usd="100")
    await service.fund(person.email, "100", Currency.CREDIT)
    return person


async def ask(service: Service, person: Person, path: str, key: str, body: Any = None) -> Answer:
    sent = REQUESTS[path] if body is None else body
    headers = {"Idempotency-Key": key}
    return await service.call("POST", path, sent, token=person.token, headers=headers)


@pytest.mark.parametrize("path", REQUESTS)
async def test_the_first_answer_is_given_again_secrets_included(
    service: Service, buyer: Person, path: str
) -> None:
    first = await ask(service, buyer, path, "a")
    assert first.status == 200, first.body
    assert "Idempotency-Replayed" not in first.headers
    again = await ask(service, buyer, path, "a")
    assert (again.status, again.body) == (200, first.body)
    assert again.headers["Idempotency-Replayed"] == "true"
    other = await ask(service, buyer, path, "b")
    assert other.body != first.body


async def test_a_purchase_that_took_the_only_port_of_its_address_is_answered_again(
    service: Service, buyer: Person
) -> None:
    body = {"gb": 1, "allow_ips": ["192.0.2.1"]}
    answers = await asyncio.gather(
        *(ask(service, buyer, "/api/bandwidth/create", "a", body) for _ in range(5))
    )
    assert [answer.status for answer in answers] == [200] * 5
    assert answers[0].body["proxy"]["passwordless_port"]
    assert all(answer.body == answers[0].body for answer in answers)
    refused = await ask(service, buyer, "/api/bandwidth/create", "b", body)
    assert refused.code == "addresses_taken"


async def test_of_twenty_at_once_one_is_done(service: Service, buyer: Person) -> None:
    answers = await asyncio.gather(
        *(ask(service, buyer, "/api/bandwidth/create", "a") for _ in range(20))
    )
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body["session_id"] for answer in answers}) == 1
    assert await service.balance(buyer) == 99.0


async def test_a_key_that_was_used_for_something_else_is_refused(
    service: Service, buyer: Person
) -> None:
    await ask(service, buyer, "/api/bandwidth/create", "a")
    for path, body in (("/api/bandwidth/create", {"gb": 2}), ("/api/jobs", None)):
        answer = await ask(service, buyer, path, "a", body)
        assert (answer.status, answer.code) == (400, "idempotency_key_reused")
    assert await service.balance(buyer) == 99.0


async def test_the_same_key_and_body_elsewhere_is_something_else(
    service: Service, buyer: Person
) -> None:
    one, other = "/api/bandwidth/create", "/api/worker/token/create"
    body = {**REQUESTS[one], **REQUESTS[other]}
    assert (await ask(service, buyer, one, "a", body)).status == 200
    answer = await ask(service, buyer, other, "a", body)
    assert (answer.status, answer.code) == (400, "idempotency_key_reused")


async def test_work_of_unknown_outcome_is_asked_again_by_the_daemon(
    service: Service, buyer: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A switchover of the database loses the answer to a commit now and then."""
    create, made = Jobs.create, []

    async def unknown(jobs: Jobs, *arguments: Any, **more: Any) -> str:
        made.append(await create(jobs, *arguments, **more))
        raise UnknownOutcomeError("the answer to a commit was lost")

    monkeypatch.setattr(Jobs, "create", unknown)
    answer = await ask(service, buyer, "/api/jobs", "a")
    assert answer.status == 200
    assert [answer.body["job_id"]] == made
    assert answer.headers["Idempotency-Replayed"] == "true"
    # Without a key the daemon would make another job.
    refused = await service.call("POST", "/api/jobs", REQUESTS["/api/jobs"], token=buyer.token)
    assert refused.code == "outcome_unknown"
    assert len(made) == 2


async def test_keys_of_others_are_others(service: Service, buyer: Person) -> None:
    other = await service.person(usd="10")
    first = await ask(service, buyer, "/api/bandwidth/create", "a")
    second = await ask(service, other, "/api/bandwidth/create", "a")
    assert first.body["session_id"] != second.body["session_id"]


async def test_a_refusal_is_not_remembered(service: Service) -> None:
    poor = await service.person()
    assert (await ask(service, poor, "/api/bandwidth/create", "a")).code == "insufficient_funds"
    await service.fund(poor.email, "1")
    assert (await ask(service, poor, "/api/bandwidth/create", "a")).status == 200


async def test_an_answer_that_is_not_forgotten_yet_is_not_remembered_either(
    service: Service, buyer: Person
) -> None:
    """A request with a new key forgets answers; one with the same key finds its own."""
    first = await ask(service, buyer, "/api/bandwidth/create", "a")

    async def age(tx: Transaction) -> None:
        await tx.run(
            "UPDATE idempotency_keys SET created_at = :moment", moment=clock.seconds() - 86_401
        )

    await service.daemon.store.write(age)
    second = await ask(service, buyer, "/api/bandwidth/create", "a")
    assert second.body != first.body
    assert (await ask(service, buyer, "/api/bandwidth/create", "a")).body == second.body


async def test_an_answer_is_remembered_for_a_day(service: Service, buyer: Person) -> None:
    first = await ask(service, buyer, "/api/bandwidth/create", "a")

    async def age(tx: Transaction, seconds: int) -> None:
        await tx.run(
            "UPDATE idempotency_keys SET created_at = :moment", moment=clock.seconds() - seconds
        )

    await service.daemon.store.write(age, 86_000)
    assert (await ask(service, buyer, "/api/bandwidth/create", "a")).body == first.body
    await service.daemon.store.write(age, 86_401)
    assert (await ask(service, buyer, "/api/bandwidth/create", "a")).body != first.body


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_a_text_that_is_no_key_is_refused(service: Service, buyer: Person, key: str) -> None:
    answer = await ask(service, buyer, "/api/bandwidth/create", key)
    assert (answer.status, answer.code, answer.field) == (
        400,
        "invalid_field",
        "Idempotency-Key",
    )


async def test_the_store_keeps_no_secret_in_the_open(service: Service, buyer: Person) -> None:
    first = await ask(service, buyer, "/api/bandwidth/create", "a")

    async def kept(tx: Transaction) -> list[str]:
        return await tx.all(str, "SELECT sealed_answer FROM idempotency_keys")

    [sealed] = await service.daemon.store.read(kept)
    assert first.body["proxy"]["password"] not in sealed
    assert first.body["session_id"] not in sealed


ADA = {"username": "ada", "email": "ada@example.com", "password": "correct horse"}


async def register(service: Service, key: str, **changes: Any) -> Answer:
    headers = {"Idempotency-Key": key}
    return await service.call("POST", "/auth/register", {**ADA, **changes}, headers=headers)


async def test_registering_again_with_the_same_key_is_answered_as_the_first_time(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = await register(service, "a", ref="nobody's")
    assert first.body["referral_applied"] is False
    again = await register(service, "a", ref="nobody's")
    assert (again.status, again.body) == (200, first.body)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert (await service.call("GET", "/auth/me", token=again.body["token"])).status == 200
    await until_no_email_waits(service.daemon.store)
    assert caplog.text.count("/verify?token=") == 1


async def test_a_registration_that_failed_is_done_when_it_is_asked_again(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    async def rename(tx: Transaction, old: str, new: str) -> None:
        await tx.run(f"ALTER TABLE {old} RENAME TO {new}")

    caplog.set_level(logging.INFO)
    store = service.daemon.store
    await store.write(rename, "mail_tokens", "mail_tokens_away")
    failed = await register(service, "a")
    assert (failed.status, failed.code) == (500, "store_unavailable")
    await store.write(rename, "mail_tokens_away", "mail_tokens")
    again = await register(service, "a")
    assert again.status == 200
    assert "Idempotency-Replayed" not in again.headers
    await until_no_email_waits(store)
    assert caplog.text.count("/verify?token=") == 1


async def test_ten_concurrent_registrations_with_one_key_get_the_same_answer(
    service: Service,
) -> None:
    answers = await asyncio.gather(*(register(service, "a") for _ in range(10)))
    assert {answer.status for answer in answers} == {200}
    assert len({answer.body["token"] for answer in answers}) == 1


async def test_a_registration_with_another_key_or_body_is_another(service: Service) -> None:
    await register(service, "a")
    assert (await register(service, "b")).code == "email_taken"
    for changes in ({"password": "another one"}, {"username": "other"}):
        assert (await register(service, "a", **changes)).code == "idempotency_key_reused"
    other = await register(service, "a", username="other", email="other@example.com")
    assert other.status == 200
    assert (await register(service, "")).field == "Idempotency-Key"


async def test_nothing_that_is_stored_lets_a_password_be_tried(service: Service) -> None:
    token = (await register(service, "a")).body["token"]

    async def kept(tx: Transaction) -> list[tuple[str, str]]:
        return await tx.all(
            lambda *row: row, "SELECT request_hash, sealed_answer FROM idempotency_keys"
        )

    [(request_hash, answer)] = await service.daemon.store.read(kept)
    sent = b"\0".join((b"POST", b"/auth/register", msgspec.json.encode(ADA)))
    assert request_hash != hashlib.sha256(sent).hexdigest()
    assert token not in answer


async def test_a_referral_code_is_applied_once(service: Service, buyer: Person) -> None:
    referrer = await service.person()
    info = await service.call("GET", "/api/referral/info", token=referrer.token)
    body = {"referral_code": info.body["referral_code"]}
    path = "/api/referral/apply"
    first = await ask(service, buyer, path, "a", body)
    assert (first.status, first.body["bonus"]) == (200, 25)
    again = await ask(service, buyer, path, "a", body)
    assert (again.status, again.body) == (200, first.body)
    assert (await ask(service, buyer, path, "b", body)).code == "referral_already_applied"


async def test_an_answer_to_one_api_key_is_not_for_another_one(
    service: Service, buyer: Person
) -> None:
    keys = []
    for name in ("trusted", "weak"):
        body = {"name": name, "scopes": ["sessions:write", "devices:write"]}
        keys.append((await service.call("POST", "/api/keys", body, token=buyer.token)).body)
    path = "/api/worker/token/create"
    shown = [
        await ask(service, Person("", "", token), path, "crawl-1")
        for token in (buyer.token, keys[0]["key"], keys[1]["key"])
    ]
    assert len({answer.body["token"] for answer in shown}) == 3
    assert not any("Idempotency-Replayed" in answer.headers for answer in shown)
    rolled = await service.call("POST", f"/api/keys/{keys[0]['key_id']}/roll", token=buyer.token)
    again = await ask(service, Person("", "", rolled.body["key"]), path, "crawl-1")
    assert again.body == shown[1].body  # a key that replaces another one goes on where that was
    assert again.headers["Idempotency-Replayed"] == "true"
