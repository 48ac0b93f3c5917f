"""API keys over HTTP: made by people, used by programs, within the scope of each route."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from support.daemons.service import Person, Service

from api.routing.routes import Auth

ALL = "/api/keys"


async def make(service: Service, me: Person, *scopes: str, **fields: Any) -> Any:
    body = {"name": "script", "scopes": list(scopes), **fields}
    answer = await service.call("POST", ALL, body, token=me.token)
    assert answer.status == 200, answer.body
    return answer.body


async def test_a_key_does_only_the_work_of_its_scopes(service: Service) -> None:
    me = await service.person(usd="10")
    key = (await make(service, me, "wallet:read", "sessions:write"))["key"]
    assert (await service.call("GET", "/api/wallet", token=key)).status == 200
    bought = await service.call("POST", "/api/bandwidth/create", {"gb": 1}, token=key)
    assert bought.status == 200
    refused = await service.call("GET", "/api/usage", token=key)
    assert (refused.status, refused.code) == (401, "scope_missing")
    assert "usage:read" in refused.body["error"]["message"]


async def test_no_key_touches_keys_logins_or_passwords(service: Service) -> None:
    me = await service.person()
    scopes = service.daemon.http.openapi["components"]["schemas"]["KeyRequest"]["properties"]
    key = (await make(service, me, *scopes["scopes"]["items"]["enum"]))["key"]
    without = {
        (route.method, route.path)
        for route in service.daemon.http.routes
        if route.auth in (Auth.JWT, Auth.OPTIONAL_JWT, Auth.OPTIONAL_EITHER) and route.scope is None
    }
    for method, path in without:
        answer = await service.call(method, path, {} if method != "GET" else None, token=key)
        assert answer.code == "scope_missing", path
    money = ("/api/payments", "/api/payouts", "/api/top-up")
    assert {path for _, path in without if not path.startswith(("/auth/", ALL, *money))} == {
        "/api/referral/apply"
    }


@asynccontextmanager
async def posting(
    service: Service, path: str, body: bytes, who: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Send the head of a request; within the block the service waits for the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        who,
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Expect: 100-continue",
        "Connection: close",
    )
    async with asyncio.timeout(20):
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        # The key was looked at: the service asks for the body.
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        yield reader, writer
    writer.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/webhooks", b'{"url": "https://thief.example.com/", "types": ["*"]}'),
        ("/api/worker/token/create", b'{"name": "rig"}'),
    ],
)
async def test_a_body_that_comes_after_its_key_was_revoked_makes_nothing(
    service: Service, path: str, body: bytes
) -> None:
    me = await service.person()
    made = await make(service, me, "webhooks:write", "devices:write")
    who = f"Authorization: Bearer {made['key']}"
    async with posting(service, path, body, who) as (reader, writer):
        revoked = await service.call(
            "POST", f"{ALL}/{made['key_id']}/revoke", {"with_created": True}, token=me.token
        )
        assert revoked.status == 200
        writer.write(body)
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert (await service.call("GET", "/api/webhooks", token=me.token)).body["webhooks"] == []
    assert (await service.call("GET", "/api/worker/tokens", token=me.token)).body["tokens"] == []


@pytest.mark.parametrize("how", ["login", "key"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/bandwidth/create", {"gb": 1}),
        ("/api/jobs", {"title": "x", "job_type": "script", "price_credit": 0, "duration_hrs": 1}),
    ],
)
async def test_a_body_that_comes_after_its_login_or_key_has_ended_buys_nothing(
    service: Service, path: str, body: dict[str, Any], how: str
) -> None:
    me = await service.person(usd="10", credit="10")
    login = {"email": me.email, "password": "long enough"}
    thief = str((await service.call("POST", "/auth/login", login)).body["token"])
    key = await make(service, me, "sessions:write", "jobs:write")
    sent = msgspec.json.encode(body)
    who = f"Authorization: Bearer {thief if how == 'login' else key['key']}"
    async with posting(service, path, sent, who) as (reader, writer):
        end = "/auth/logins/end-others" if how == "login" else f"{ALL}/{key['key_id']}/revoke"
        assert (await service.call("POST", end, token=me.token)).status == 200
        writer.write(sent)
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert await service.sessions(me) == []
    assert (await service.call("GET", "/api/jobs", token=me.token)).body["jobs"] == []


async def test_a_body_that_comes_after_its_worker_token_was_revoked_is_not_looked_at(
    service: Service,
) -> None:
    me = await service.person()
    made = await service.call("POST", "/api/worker/token/create", {"name": "r"}, token=me.token)
    who, body = f"X-Worker-Token: {made.body['token']}", b'{"wait_s": 0, "wrong": '
    async with posting(service, "/api/worker/next", body, who) as (reader, writer):
        revoked = {"token_id": made.body["token_id"]}
        answer = await service.call("POST", "/api/worker/token/revoke", revoked, token=me.token)
        assert answer.status == 200
        writer.write(body)
        assert (await reader.read()).startswith(b"HTTP/1.1 401 ")


async def test_a_key_is_listed_without_its_secret(service: Service) -> None:
    me = await service.person()
    made = await make(service, me, "usage:read", spend_limit_usd=2.5, allow_ips=["127.0.0.1"])
    (listed,) = (await service.call("GET", ALL, token=me.token)).body["keys"]
    assert listed["id"] == made["key_id"]
    assert made["key"].startswith(listed["prefix"])
    assert made["key"] not in str(listed)
    assert (listed["spend_limit_usd"], listed["spent_usd"]) == (2.5, 0)
    assert (listed["allow_ips"], listed["status"]) == (["127.0.0.1/32"], "active")
    changed = await service.call(
        "PATCH",
        f"{ALL}/{made['key_id']}",
        {"name": "other", "spend_limit_usd": None},
        token=me.token,
    )
    assert (changed.body["key"]["name"], changed.body["key"]["spend_limit_usd"]) == ("other", None)
    assert changed.body["key"]["allow_ips"] == ["127.0.0.1/32"]


async def test_a_rolled_and_a_revoked_key(service: Service) -> None:
    me = await service.person()
    made = await make(service, me, "account:read")
    rolled = await service.call("POST", f"{ALL}/{made['key_id']}/roll", token=me.token)
    assert (await service.call("GET", "/auth/me", token=made["key"])).status == 401
    assert (await service.call("GET", "/auth/me", token=rolled.body["key"])).status == 200
    await service.call("POST", f"{ALL}/{rolled.body['key_id']}/revoke", token=me.token)
    assert (await service.call("GET", "/auth/me", token=rolled.body["key"])).status == 401
    nobody = await service.call("POST", f"{ALL}/none/revoke", token=me.token)
    assert nobody.code == "key_not_found"


async def test_a_limit_is_refused_in_words(service: Service) -> None:
    me = await service.person(usd="10")
    key = (await make(service, me, "sessions:write", spend_limit_usd=1))["key"]
    body = {"gb": 3, "price_per_gb": 1}
    refused = await service.call("POST", "/api/bandwidth/create", body, token=key)
    assert (refused.status, refused.code) == (400, "spend_limit_reached")
    assert "1.00 USD in a calendar month" in refused.body["error"]["message"]
    assert await service.balance(me) == 10


async def test_a_wrong_address_is_refused(service: Service) -> None:
    me = await service.person()
    key = (await make(service, me, "account:read", allow_ips=["192.0.2.1"]))["key"]
    assert (await service.call("GET", "/auth/me", token=key)).code == "key_address"


async def test_the_document_names_the_credentials_of_each_operation(service: Service) -> None:
    paths = service.daemon.http.openapi["paths"]
    assert {"key": ["usage:read"]} in paths["/api/usage"]["get"]["security"]
    assert paths[ALL]["post"]["security"] == [{"session": []}]


async def test_a_key_is_revoked_with_the_objects_that_it_has_made(service: Service) -> None:
    me = await service.person()
    made = await make(service, me, "devices:write", "webhooks:write")
    hook = {"url": "https://example.com/", "types": ["*"]}
    assert (await service.call("POST", "/api/webhooks", hook, token=made["key"])).status == 200
    rig = await service.call("POST", "/api/worker/token/create", {"name": "x"}, token=made["key"])
    worker = {"X-Worker-Token": rig.body["token"]}
    revoke = f"{ALL}/{made['key_id']}/revoke"
    for body, status, count in ((None, 200, 1), ({"with_created": True}, 401, 0)):
        assert (await service.call("POST", revoke, body, token=me.token)).status == 200
        beat = await service.call("POST", "/api/worker/heartbeat", headers=worker)
        (listed,) = (await service.call("GET", ALL, token=me.token)).body["keys"]
        assert (beat.status, listed["created_webhooks"]) == (status, count)
        assert listed["created_devices"] == count
    (hook,) = (await service.call("GET", "/api/webhooks", token=me.token)).body["webhooks"]
    assert hook["disabled_reason"] == "key"
