"""Webhooks over HTTP: set up by the API, and told by the daemon that serves it."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook
from support.base.waiting import until
from support.daemons.service import Answer, Person, Service
from support.targets.receiver import Receiver, receiving

from market.events.catalogue import CATALOGUE

ALL = "/api/webhooks"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


async def create(service: Service, me: Person, url: str, *types: str) -> Any:
    body = {"url": url, "types": list(types or ("*",)), "description": "mine"}
    answer = await service.call("POST", ALL, body, token=me.token)
    assert answer.status == 200, answer.body
    return answer.body


async def ask(service: Service, me: Person, method: str, path: str, body: Any = None) -> Answer:
    return await service.call(method, path, body, token=me.token)


async def test_a_sale_is_sent_to_its_buyer_signed(service: Service, receiver: Receiver) -> None:
    me = await service.person(usd="10")
    made = await create(service, me, receiver.url, "session.created")
    assert made["webhook"]["status"] == "enabled"
    bought = await ask(service, me, "POST", "/api/bandwidth/create", {"gb": 1})
    assert bought.status == 200, bought.body
    await until(lambda: bool(receiver.got), "the receiver is told")
    [(headers, body)] = receiver.got
    said = Webhook(made["secret"]).verify(body, headers)
    assert said["type"] == "session.created"
    assert said["data"]["session_id"] == bought.body["session_id"]
    events = await ask(service, me, "GET", "/api/events?types=session.created")
    [event] = events.body["events"]
    assert (headers["webhook-id"], said["data"]) == (event["id"], event["data"])


async def test_endpoints_are_made_listed_changed_and_deleted(service: Service) -> None:
    me, other = await service.person(), await service.person()
    made = await create(service, me, "https://example.com/hooks", "job.completed")
    assert made["secret"].startswith("whsec_")
    webhook = made["webhook"]
    listed = await ask(service, me, "GET", ALL)
    assert listed.body == {"ok": True, "webhooks": [webhook]}
    assert (await ask(service, other, "GET", ALL)).body["webhooks"] == []
    one = f"{ALL}/{webhook['id']}"
    change = {"types": ["*"], "status": "disabled"}
    changed = await ask(service, me, "PATCH", one, change)
    assert changed.body["webhook"] == webhook | {
        "types": ["*"],
        "status": "disabled",
        "disabled_reason": "user",
    }
    assert (await ask(service, me, "POST", f"{one}/test")).code == "webhook_disabled"
    enabled = await ask(service, me, "PATCH", one, {"status": "enabled"})
    assert enabled.body["webhook"] == webhook | {"types": ["*"]}
    rolled = await ask(service, me, "POST", f"{one}/roll")
    assert rolled.body["secret"] not in (made["secret"], "")
    for method, path, body in (
        ("PATCH", one, {"types": ["*"]}),
        ("POST", f"{one}/roll", None),
        ("POST", f"{one}/test", None),
        ("POST", f"{one}/recover", {"since": "2026-01-01T00:00:00Z"}),
        ("GET", f"{one}/deliveries", None),
        ("DELETE", one, None),
        ("DELETE", f"{ALL}/nothing", None),
    ):
        refused = await ask(service, other, method, path, body)
        assert (refused.status, refused.code) == (404, "webhook_not_found"), (method, path)
    assert (await ask(service, me, "DELETE", one)).body == {"ok": True}
    assert (await ask(service, me, "GET", ALL)).body["webhooks"] == []


async def test_deliveries_are_shown_with_their_attempts_and_sent_again(
    service: Service, receiver: Receiver
) -> None:
    me, other = await service.person(), await service.person()
    receiver.status = 500
    made = await create(service, me, receiver.url)
    one = f"{ALL}/{made['webhook']['id']}"
    delivery_id = (await ask(service, me, "POST", f"{one}/test")).body["delivery_id"]
    path = f"{ALL}/deliveries/{delivery_id}"
    failed = await attempted(service, me, path, 1)
    assert (failed["status"], failed["last_status"]) == ("pending", 500)
    assert (failed["last_error"], failed["type"]) == ("status 500", "test.ping")
    [attempt] = failed["tries"]
    assert (attempt["number"], attempt["error"], attempt["answer"]) == (1, "status 500", "taken")
    assert failed["body"].encode() == receiver.got[0][1]
    assert (await ask(service, me, "GET", ALL)).body["webhooks"][0]["failing_since"] is not None
    receiver.status = 202
    again = await ask(service, me, "POST", f"{path}/retry")
    assert again.body["delivery"]["status"] == "pending"
    done = await attempted(service, me, path, 2)
    assert (done["status"], done["last_error"], done["next_at"]) == ("delivered", None, None)
    assert (await ask(service, me, "GET", ALL)).body["webhooks"][0]["failing_since"] is None
    page = await ask(service, me, "GET", f"{one}/deliveries?status=delivered&limit=1")
    assert [each["id"] for each in page.body["deliveries"]] == [delivery_id]
    assert "next" not in page.body
    empty = await ask(service, me, "GET", f"{one}/deliveries?status=failed")
    assert empty.body["deliveries"] == []
    for method, where in (("GET", path), ("POST", f"{path}/retry")):
        refused = await ask(service, other, method, where)
        assert (refused.status, refused.code) == (404, "delivery_not_found")


async def attempted(service: Service, me: Person, path: str, times: int) -> Any:
    """Return a delivery once it has had a number of attempts."""
    async with asyncio.timeout(20):
        while True:
            answer = await ask(service, me, "GET", path)
            assert answer.status == 200, answer.body
            if answer.body["delivery"]["attempts"] >= times:
                return answer.body["delivery"]
            await asyncio.sleep(0.05)


async def test_deliveries_come_in_parts(service: Service, receiver: Receiver) -> None:
    me = await service.person()
    made = await create(service, me, receiver.url)
    one = f"{ALL}/{made['webhook']['id']}"
    ids = [(await ask(service, me, "POST", f"{one}/test")).body["delivery_id"] for _ in range(3)]
    first = (await ask(service, me, "GET", f"{one}/deliveries?limit=2")).body
    rest = (await ask(service, me, "GET", f"{one}/deliveries?limit=2&after={first['next']}")).body
    found = [each["id"] for each in first["deliveries"] + rest["deliveries"]]
    assert found == ids[::-1]
    assert "next" not in rest


async def test_missed_deliveries_are_recovered(service: Service, receiver: Receiver) -> None:
    me = await service.person()
    receiver.status = 410
    made = await create(service, me, receiver.url)
    one = f"{ALL}/{made['webhook']['id']}"
    delivery_id = (await ask(service, me, "POST", f"{one}/test")).body["delivery_id"]
    gone = await attempted(service, me, f"{ALL}/deliveries/{delivery_id}", 1)
    assert gone["status"] == "failed"
    webhook = (await ask(service, me, "GET", ALL)).body["webhooks"][0]
    assert (webhook["status"], webhook["disabled_reason"]) == ("disabled", "gone")
    receiver.status = 200
    await ask(service, me, "PATCH", one, {"status": "enabled"})
    body = {"since": gone["created_at"]}
    recovered = await ask(service, me, "POST", f"{one}/recover", body)
    assert recovered.body["deliveries"] == 1
    done = await attempted(service, me, f"{ALL}/deliveries/{delivery_id}", 2)
    assert done["status"] == "delivered"
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"url": "http://example.com/", "types": ["*"]}, "url"),
        ({"url": "https://user@example.com/", "types": ["*"]}, "url"),
        ({"url": "https://example.com/", "types": ["nothing"]}, "types"),
        ({"url": "https://example.com/", "types": []}, "types"),
        ({"url": "https://example.com/", "types": ["*"], "description": "x" * 201}, "description"),
    ],
)
async def test_a_mistake_is_reported_with_its_field(
    service: Service, body: Any, field: str
) -> None:
    answer = await ask(service, await service.person(), "POST", ALL, body)
    assert (answer.status, answer.body["error"]["field"]) == (400, field)


async def test_a_text_that_is_no_time_is_refused(service: Service) -> None:
    me = await service.person()
    made = await create(service, me, "https://example.com/")
    path = f"{ALL}/{made['webhook']['id']}/recover"
    for since in ("yesterday", "", "2026-13-01T00:00:00Z"):
        answer = await ask(service, me, "POST", path, {"since": since})
        assert (answer.code, answer.body["error"]["field"]) == ("invalid_field", "since")


async def test_every_type_may_be_wanted(service: Service) -> None:
    me = await service.person()
    types = sorted(set(CATALOGUE) - {"test.ping"})
    made = await create(service, me, "https://example.com/", *types)
    assert made["webhook"]["types"] == types


async def test_a_key_needs_the_scope(service: Service) -> None:
    me = await service.person()
    statuses = []
    for scope in ("webhooks:write", "events:read"):
        body = {"name": scope, "scopes": [scope]}
        key = (await ask(service, me, "POST", "/api/keys", body)).body["key"]
        statuses.append((await service.call("GET", ALL, token=key)).status)
    assert statuses == [200, 401]
