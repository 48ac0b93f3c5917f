"""The states that operators see: alive, ready, draining."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.daemons.service import Answer, Service, running_in

from storage.engines.store import probe


def says_no(answer: Answer, code: str) -> None:
    assert answer.status == 503, answer.body
    assert answer.body.keys() == {"ok", "error"}
    assert answer.body["ok"] is False
    assert answer.body["error"].keys() == {"code", "message"}
    assert answer.code == code
    assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_a_running_daemon_is_alive_and_ready(service: Service, path: str) -> None:
    answer = await service.call("GET", path)
    assert answer.status == 200
    assert answer.body["ok"] is True
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_needs_no_login_and_minds_no_wrong_one(service: Service, path: str) -> None:
    assert (await service.call("GET", path, token="nonsense")).status == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/readyz"),
        ("POST", "/auth/register"),
        ("POST", "/auth/login"),
        ("GET", "/auth/me"),
        ("POST", "/api/bandwidth/create"),
        ("GET", "/api/bandwidth/sessions"),
        ("POST", "/api/bandwidth/end"),
    ],
)
async def test_a_draining_daemon_takes_no_request(service: Service, method: str, path: str) -> None:
    person = await service.person()
    service.daemon.http.drain()
    says_no(await service.call(method, path, token=person.token), "draining")


async def test_a_draining_daemon_is_alive(service: Service) -> None:
    service.daemon.http.drain()
    answer = await service.call("GET", "/healthz")
    assert (answer.status, answer.body["ok"]) == (200, True)


async def test_a_draining_daemon_still_knows_its_paths(service: Service) -> None:
    service.daemon.http.drain()
    assert (await service.call("GET", "/nowhere")).status == 404
    assert (await service.call("DELETE", "/auth/me")).status == 405


async def test_without_its_store_a_daemon_is_alive_but_not_ready(tmp_path: Path) -> None:
    async with running_in(tmp_path) as service:
        await service.daemon.store.close()
        says_no(await service.call("GET", "/readyz"), "not_ready")
        assert (await service.call("GET", "/healthz")).status == 200


async def test_without_its_proxy_a_daemon_is_not_ready(service: Service) -> None:
    service.daemon.gateway.stop_accepting()
    says_no(await service.call("GET", "/readyz"), "not_ready")
    assert (await service.call("GET", "/healthz")).status == 200


async def test_one_query_of_the_store_serves_all_health_checks_of_a_second(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    read = service.daemon.store.read

    async def counted(unit: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal asked
        asked += unit is probe  # others read at any time
        return await read(unit, *arguments, **named)

    monkeypatch.setattr(service.daemon.store, "read", counted)
    [health] = [
        route.handler.__self__ for route in service.daemon.http.routes if route.path == "/readyz"
    ]
    health.ready_seconds = 3_600.0
    answers = await asyncio.gather(*(service.call("GET", "/readyz") for _ in range(20)))
    assert {answer.status for answer in answers} == {200}
    assert asked == 1
