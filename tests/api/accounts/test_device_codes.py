"""Device authorisation over HTTP, as a program with curl and a person with a browser do it."""

import asyncio
import json
from typing import Any

from support.daemons.service import Person, Service

NEW = {"client_name": "proxyd on attic", "scopes": ["sessions:read"]}


async def curl(service: Service, path: str, body: dict[str, Any], *options: str) -> Any:
    """Post with curl, and return the answer."""
    process = await asyncio.create_subprocess_exec(
        *("curl", "-sS", "--max-time", "30", "-H", "Content-Type: application/json", *options),
        *("-d", json.dumps(body), f"{service.url}{path}"),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(said)


async def ask(service: Service, me: Person, method: str, code: str, verb: str = "") -> Any:
    answer = await service.call(method, f"/auth/device/{code}{verb}", token=me.token)
    return answer.body


async def test_a_program_gets_a_key_that_a_person_approves(service: Service) -> None:
    me = await service.person()
    asked = await curl(service, "/auth/device", NEW)
    assert (asked["expires_in"], asked["interval"]) == (600, 5)
    code, redeem = asked["user_code"], {"device_code": asked["device_code"]}
    assert asked["verification_uri"].endswith("/device")
    assert asked["verification_uri_complete"] == f"{asked['verification_uri']}?user_code={code}"
    pending = await curl(service, "/auth/device/token", redeem)
    assert pending["error"]["code"] == "authorization_pending"
    too_soon = await curl(service, "/auth/device/token", redeem)
    assert too_soon["error"]["code"] == "slow_down"

    shown = await ask(service, me, "GET", code)
    assert shown.pop("created_at").endswith("Z")
    assert shown == {"ok": True, "network": "127.0.0.1", **NEW}
    assert await ask(service, me, "POST", code, "/approve") == {"ok": True}
    assert (await ask(service, me, "GET", code))["error"]["code"] == "user_code_not_found"

    issued = await curl(service, "/auth/device/token", redeem)
    assert issued["key"].startswith("pxd_")
    again = await curl(service, "/auth/device/token", redeem)
    assert again["error"]["code"] == "expired_token"
    events = await service.call("GET", "/api/events?types=key.created", token=me.token)
    (event,) = events.body["events"]
    assert event["data"]["key_id"] == issued["key_id"]
    assert (event["data"]["name"], event["data"]["scopes"]) == (NEW["client_name"], NEW["scopes"])

    used = await service.call("GET", "/api/bandwidth/sessions", token=issued["key"])
    assert used.status == 200, used.body
    other = await curl(service, "/auth/device", NEW)
    by_key = Person(me.email, me.user_id, issued["key"])
    refused = await ask(service, by_key, "POST", other["user_code"], "/approve")
    assert refused["error"]["code"] == "scope_missing"


async def test_a_person_says_no(service: Service) -> None:
    me = await service.person()
    asked = await curl(service, "/auth/device", NEW)
    assert await ask(service, me, "POST", asked["user_code"], "/deny") == {"ok": True}
    refused = await curl(service, "/auth/device/token", {"device_code": asked["device_code"]})
    assert refused["error"]["code"] == "access_denied"


async def test_a_program_with_unknown_scopes_or_a_bad_name_is_refused(service: Service) -> None:
    for body, field in (
        (NEW | {"scopes": []}, "scopes"),
        (NEW | {"scopes": ["everything"]}, "scopes"),
        (NEW | {"client_name": "a\nb"}, "client_name"),
    ):
        refused = await curl(service, "/auth/device", body)
        assert refused["error"]["code"] == "invalid_field"
        assert refused["error"]["field"].startswith(field)
