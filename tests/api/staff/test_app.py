"""The server of the staff: the matrix, its document, its clients, and repeated requests."""

import asyncio
import re
from typing import Any

import jsonschema
import msgspec
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from support.clients.staff import PREFIX, StaffApi, staffed

from api.routing.routes import Auth, Reply, StaffRoute
from market.base.ids import Identifiers
from market.staff.base.callers import SCOPES, StaffScope
from market.staff.base.roles import MATRIX, Action, Role


@pytest.fixture
async def document(staff: StaffApi) -> dict[str, Any]:
    async with staff.service.http.get(staff.url + "/staff/openapi.json") as response:
        assert response.status == 200
        return dict(msgspec.json.decode(await response.read()))


def asked(route: StaffRoute) -> tuple[str, Any]:
    """Return the path and the body of a request for a route; its subject does not exist."""
    path = route.path.removeprefix(PREFIX)
    path = re.sub(r"\{(?:user|member)\}", "nobody@example.com", path)
    path = re.sub(r"\{\w+\}", Identifiers(lambda: 0).new(), path)
    return path, route.example


async def test_every_route_is_tried_by_every_caller(
    much_time_for_rates: None, staff: StaffApi
) -> None:
    customer = (await staff.service.person()).token
    locked = await staff.hire(Role.OPERATOR, "locked")
    of_locked, operator = await staff.login(locked), await staff.token(Role.OPERATOR)
    path, why = f"/staff/{locked.id}/lock", {"reason": "left"}
    assert (await staff.call("POST", path, why, token=operator)).status == 200
    tokens = {role: await staff.token(role, f"try-{role}") for role in Role}
    keys = {scope: await staff.key(scope) for scope in StaffScope}
    routes = [each for each in staff.http.routes if isinstance(each, StaffRoute)]
    assert len(routes) == len(staff.http.routes)
    for route in routes:
        if route.action in (Action.STAFF_LOGIN, Action.STAFF_LOGOUT):
            continue
        path, body = asked(route)
        for token in (None, customer, of_locked):
            answer = await staff.call(route.method, path, body, token=token)
            assert (answer.status, answer.code) == (401, "unauthorized"), route.path
        for role, token in tokens.items():
            answer = await staff.call(route.method, path, body, token=token)
            if role in MATRIX[route.action]:
                refusal = "" if answer.status == 200 else answer.code
                assert refusal not in ("not_permitted", "unauthorized"), (route.path, role)
            else:
                assert (answer.status, answer.code) == (401, "not_permitted"), (route.path, role)
        for scope, key in keys.items():
            answer = await staff.call(route.method, path, body, token=key)
            is_missing = answer.status == 401 and answer.code == "scope_missing"
            assert is_missing is (SCOPES.get(route.action) is not scope), (route.path, scope)


async def test_every_writing_route_takes_an_idempotency_key(staff: StaffApi) -> None:
    """But those whose answer is what the nodes did, and those about the caller's own login.

    A list of outcomes changes nothing when it is sent again.
    """
    without = {
        each.path.removeprefix(PREFIX)
        for each in staff.http.routes
        if each.method == "POST" and not each.idempotent
    }
    assert without == {
        "/login",
        "/logout",
        "/factor",
        "/password",
        "/search",
        "/exit-use",
        "/jobs/{job}/log",
        "/jobs/{job}/cancel",
        "/payout_outcomes",
        "/devices/{device}/bar",
        "/devices/{device}/pardon",
        "/devices/{device}/claw-back",
        "/users/{user}/suspend",
        "/users/{user}/resume",
        "/sessions/{session}/halt",
        "/sessions/{session}/go",
        "/sessions/{session}/end",
        "/users/keys/{key}/revoke",
    }


async def test_no_route_switches_the_log_off_or_changes_it(staff: StaffApi) -> None:
    """The log has one path, which reads; each writing path leaves a row."""
    of_log = [each for each in staff.http.routes if each.path.endswith("/log")]
    assert [(each.method, each.path) for each in of_log if "{job}" not in each.path] == [
        ("GET", f"{PREFIX}/log")
    ]
    token = await staff.token(Role.OPERATOR)
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = await staff.call(method, "/log", {"enabled": False}, token=token)
        assert answer.status == 405, method


async def handler(_: Any) -> Reply:
    return Reply()


def test_a_route_without_an_operation_does_not_start() -> None:
    with pytest.raises(TypeError, match="action"):
        StaffRoute("GET", f"{PREFIX}/x", "X", handler, Reply)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="no row in the matrix"):
        StaffRoute("GET", f"{PREFIX}/x", "X", handler, Reply, action="x")  # type: ignore[arg-type]
    every = StaffRoute("GET", f"{PREFIX}/x", "X", handler, Reply, action=Action.STAFF_SELF)
    assert every.auth is Auth.STAFF


async def test_the_document_is_openapi_of_the_staff_alone(
    staff: StaffApi, document: dict[str, Any]
) -> None:
    OpenAPIV31SpecValidator(document).validate()
    assert all(path.startswith(PREFIX) for path in document["paths"])
    operations = [each for path in document["paths"].values() for each in path.values()]
    names = [each["operationId"] for each in operations]
    assert len(names) == len(set(names)) == len(staff.http.routes)
    assert {each["security"] == [{"staff": []}] for each in operations} == {True, False}
    assert document["webhooks"] == {}
    async with staff.service.http.get(staff.service.url + "/openapi.json") as response:
        public = msgspec.json.decode(await response.read())
    assert not any("staff" in path for path in public["paths"])
    for route in staff.http.routes:
        if route.example is not None:
            operation = document["paths"][route.path][route.method.lower()]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            jsonschema.validate(route.example, {**schema, "components": document["components"]})


async def test_the_public_api_has_no_path_of_the_staff(staff: StaffApi) -> None:
    token = await staff.token(Role.OPERATOR)
    answer = await staff.service.call("GET", f"{PREFIX}/me", token=token)
    assert (answer.status, answer.code) == (404, "no_such_path")
    assert "; /docs lists the paths" in answer.body["error"]["message"]
    answer = await staff.call("GET", "/nothing", token=token)
    assert (answer.status, answer.code) == (404, "no_such_path")
    assert "; /staff/openapi.json lists the paths" in answer.body["error"]["message"]


async def raw(port: int, *headers: str) -> bytes:
    """Send a request for the document with headers, and return the answer."""
    lines = "".join(f"{each}\r\n" for each in headers)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionResetError:
        return b""
    writer.write(
        f"GET /staff/openapi.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{lines}\r\n".encode()
    )
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


FORWARDED = [
    ["X-Forwarded-For: 203.0.113.9"],
    ["X-Forwarded-For: 127.0.0.1"],
    ["X-Real-IP: 127.0.0.1"],
    ["Forwarded: for=127.0.0.1"],
]


@pytest.mark.parametrize("headers", FORWARDED)
async def test_a_header_of_a_stranger_makes_no_client(staff: StaffApi, headers: list[str]) -> None:
    """Without a trusted proxy, a request that names another client gets no answer."""
    assert await raw(staff.port, *headers) == b""
    assert (await raw(staff.port)).startswith(b"HTTP/1.1 200 ")


async def test_the_client_behind_a_trusted_proxy_counts(tmp_path: Any) -> None:
    async with staffed(tmp_path, api={"trusted_proxies": ["127.0.0.1/32"]}) as staff:
        for headers, is_answered in (
            ([], True),
            (["X-Forwarded-For: 192.168.0.7"], True),
            (["X-Forwarded-For: 203.0.113.9"], False),
            (["X-Forwarded-For: 127.0.0.1, 203.0.113.9"], False),
            (["X-Forwarded-For: 127.0.0.1", "X-Forwarded-For: 203.0.113.9"], False),
            (["X-Forwarded-For: unknown"], True),
        ):
            answer = await raw(staff.port, *headers)
            assert answer.startswith(b"HTTP/1.1 200 ") is is_answered, headers
            assert bool(answer) is is_answered, headers


async def test_an_address_outside_gets_no_answer(tmp_path: Any) -> None:
    async with staffed(tmp_path, staff={"allow": ["127.0.0.2/32"]}) as staff:
        assert await raw(staff.port) == b""


async def test_without_a_host_nothing_listens(service: Any) -> None:
    assert service.daemon.listeners.staff is None
    assert service.daemon.services.staff_port is None


async def test_an_oversized_body_is_refused_before_it_is_read(staff: StaffApi) -> None:
    token = await staff.token(Role.OPERATOR)
    for caller in (token, None):
        path = "/search" if caller else "/login"
        answer = await staff.call("POST", path, {"text": "x" * 300_000}, token=caller)
        assert (answer.status, answer.code) == (413, "body_too_large")


async def test_a_caller_above_sixty_requests_a_second_is_refused(
    no_time_for_rates: None, staff: StaffApi
) -> None:
    token = await staff.token(Role.OPERATOR)
    statuses = [(await staff.call("GET", "/me", token=token)).status for _ in range(130)]
    assert statuses == [200] * 120 + [429] * 10  # twice the rate in a burst


async def test_a_repeated_request_acts_once(staff: StaffApi) -> None:
    token, other = await staff.token(Role.OPERATOR), await staff.token(Role.OPERATOR, "other")
    key = {"Idempotency-Key": "one"}
    body = {
        "email": "new@example.com",
        "password": "correct horse",
        "role": "support",
        "reason": "hired",
    }
    answers = await asyncio.gather(
        *(staff.call("POST", "/staff", body, token=token, headers=key) for _ in range(5))
    )
    assert [each.status for each in answers] == [200] * 5
    assert len({msgspec.json.encode(each.body) for each in answers}) == 1
    assert sum("Idempotency-Replayed" in each.headers for each in answers) == 4
    changed = {**body, "reason": "moved"}
    reused = await staff.call("POST", "/staff", changed, token=token, headers=key)
    assert reused.code == "idempotency_key_reused"
    of_other = await staff.call("POST", "/staff", body, token=other, headers=key)
    assert of_other.code == "email_taken"  # each member has keys of their own
