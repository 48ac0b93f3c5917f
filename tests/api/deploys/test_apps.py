"""The routes of apps, and the door that they lead to, over a whole daemon without a device."""

import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.clients.story import refused, worker_token
from support.daemons.service import Person, Service, running_in
from support.workers.apps import Job, jobs

from proxyd.exits.dialling.orders import GONE, TunnelError
from proxyd.ops.processes.listening import bound_port
from proxyd.wiring.app_port import JobStreams

NOBODYS = "01998f00-0000-7000-8000-00000000000a"
PORTS = [{"name": "web", "port": 8888}, {"name": "api", "port": 9000}]


class Local:
    """Tunnels whose jobs are this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.asked: list[tuple[str, int, int]] = []

    async def open(
        self, device_id: str, job_id: str, attempt: int, port: int, seconds: float, buyer_id: str
    ) -> socket.socket:
        self.asked.append((job_id, attempt, port))
        if not self.port:
            raise TunnelError(GONE)
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.setblocking(False)
        return sock

    def is_attached(self, device_id: str) -> bool:
        return True


@pytest.fixture
async def offering(tmp_path: Path) -> AsyncIterator[Service]:
    apps = {"host": "127.0.0.1", "port": 0, "domain": "apps.test"}
    async with running_in(tmp_path, apps=apps) as service:
        yield service


async def posted(service: Service, buyer: Person, **payload: Any) -> str:
    body = {
        "title": "a page",
        "job_type": "script",
        "price_credit": 1,
        "duration_hrs": 1,
        "payload": {"script": "serve()", "ports": PORTS, **payload},
    }
    answer = await service.call("POST", "/api/jobs", body, token=buyer.token)
    return str(answer.body["job_id"])


async def begun(service: Service, job_id: str) -> None:
    worker = {"X-Worker-Token": await worker_token(service, await service.person())}
    await service.call("POST", f"/api/jobs/{job_id}/accept", headers=worker)
    await service.call("POST", f"/api/worker/jobs/{job_id}/started", {}, headers=worker)


async def visit(service: Service, url: str, **headers: str) -> tuple[int, Any, str]:
    """Open an address of an app, wherever its name leads; return the status, headers and page."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    assert service.daemon.listeners.apps is not None
    port = bound_port(service.daemon.listeners.apps)
    async with service.http.get(
        f"{scheme}://127.0.0.1:{port}/{path}",
        headers={"Host": host, **headers},
        allow_redirects=False,
    ) as answer:
        return answer.status, answer.headers, await answer.text()


async def test_a_buyer_opens_a_job(offering: Service) -> None:
    async with jobs() as (job,):
        await opens_a_job(offering, job)


async def opens_a_job(offering: Service, job: Job) -> None:
    buyer = await offering.person(credit="5")
    job_id = await posted(offering, buyer)
    shown = await offering.call("GET", f"/api/jobs/{job_id}/app", token=buyer.token)
    app = shown.body["app"]
    assert app.keys() == {
        "id",
        "url",
        "is_ready",
        "ports",
        "streams",
        "requests",
        "received_bytes",
        "sent_bytes",
        "key",
    }
    assert (app["id"], app["is_ready"], app["requests"]) == (job_id, False, 0)
    assert [each["name"] for each in app["ports"]] == ["web", "api"]
    assert app["url"] == app["ports"][0]["url"]
    assert app["url"].startswith(f"http://{job_id}-8888.apps.test:")
    assert app["url"].endswith(f"/?key={app['key']}")
    status, headers, _ = await visit(offering, app["url"])
    assert status == 303
    cookie = headers["Set-Cookie"].partition(";")[0]
    page = app["url"].partition("?")[0]
    assert headers["Location"] == page
    status, headers, text = await visit(offering, page, Cookie=cookie)
    assert (status, headers["Retry-After"]) == (503, "5")
    assert "Not ready yet" in text
    await begun(offering, job_id)
    app = (await offering.call("GET", f"/api/jobs/{job_id}/app", token=buyer.token)).body["app"]
    assert app["is_ready"]
    port = offering.daemon.services.app_port  # type: ignore[union-attr]
    assert port is not None
    port.server.forget(job_id)
    assert (await visit(offering, page, Cookie=cookie))[0] == 502, "there is no way to any device"
    streams = port.server._reach
    assert isinstance(streams, JobStreams)
    streams._tunnels = tunnels = Local(job.port)  # type: ignore[assignment]
    status, _, text = await visit(offering, f"{page}seven/", Cookie=cookie)
    assert (status, len(text)) == (200, 7)
    assert tunnels.asked == [(job_id, 1, 8888)]
    app = (await offering.call("GET", f"/api/jobs/{job_id}/app", token=buyer.token)).body["app"]
    assert (app["requests"], app["sent_bytes"], app["streams"]) == (1, 7, 0)
    metrics = await (await offering.http.get(offering.url + "/metrics")).text()
    assert 'proxyd_app_requests_total{outcome="answered"} 1.0' in metrics
    assert 'proxyd_app_bytes_total{direction="sent"} 7.0' in metrics
    new = await offering.call("POST", f"/api/jobs/{job_id}/app/key", token=buyer.token)
    assert new.body["app"]["key"] != app["key"]
    assert (await visit(offering, page, Cookie=cookie))[0] == 401
    await offering.call("POST", f"/api/jobs/{job_id}/cancel", token=buyer.token)
    over = await offering.call("GET", f"/api/jobs/{job_id}/app", token=buyer.token)
    refused(over, "job_over", None, 400)


async def key_of(service: Service, person: Person, *scopes: str) -> str:
    body = {"name": "a dashboard", "scopes": scopes}
    answer = await service.call("POST", "/api/keys", body, token=person.token)
    assert answer.status == 200, answer.body
    return str(answer.body["key"])


async def test_an_api_key_that_only_reads_is_shown_no_key_of_an_app(offering: Service) -> None:
    buyer = await offering.person(usd="10", credit="5")
    body = {"job_name": "pages", "job_type": "Docker", "gpu_model": "A100", "image": "web:1"}
    body |= {"ports": [{"name": "web", "port": 80}]}
    deployed = await offering.call("POST", "/api/deploy/job", body, token=buyer.token)
    deploy = f"/api/deploy/job/{deployed.body['job_id']}"
    found = (await offering.call("GET", deploy, token=buyer.token)).body["deploy"]
    await begun(offering, found["job_ids"][0])
    reading = await key_of(offering, buyer, "jobs:read")
    writing = await key_of(offering, buyer, "jobs:read", "jobs:write")
    for path in (f"/api/jobs/{await posted(offering, buyer)}/app", f"{deploy}/apps"):
        for token, is_shown in ((reading, False), (writing, True), (buyer.token, True)):
            shown = (await offering.call("GET", path, token=token)).body
            for app in (shown["app"], *shown.get("replicas", ())):
                assert ("key" in app) is is_shown
                urls = [app["url"], *(port["url"] for port in app["ports"])]
                assert all(("key=" in url) is is_shown for url in urls), urls


async def test_a_buyer_opens_a_deploy(offering: Service) -> None:
    buyer = await offering.person(usd="10")
    body = {
        "job_name": "pages",
        "job_type": "Docker",
        "gpu_model": "A100",
        "image": "web:1",
        "ports": [{"name": "web", "port": 80}],
    }
    answer = await offering.call("POST", "/api/deploy/job", body, token=buyer.token)
    path = f"/api/deploy/job/{answer.body['job_id']}"
    shown = (await offering.call("GET", f"{path}/apps", token=buyer.token)).body
    assert (shown["replicas"], shown["app"]["is_ready"]) == ([], False)
    assert (await visit(offering, shown["app"]["url"]))[0] == 303
    deploy = (await offering.call("GET", path, token=buyer.token)).body["deploy"]
    (job_id,) = deploy["job_ids"]
    await begun(offering, job_id)
    shown = (await offering.call("GET", f"{path}/apps", token=buyer.token)).body
    (replica,) = shown["replicas"]
    assert (replica["id"], replica["replica"], replica["is_ready"]) == (job_id, 1, True)
    assert replica["key"] != shown["app"]["key"]
    new = (await offering.call("POST", f"{path}/app/key", token=buyer.token)).body["app"]
    assert new["key"] != shown["app"]["key"]
    assert (await visit(offering, shown["app"]["url"]))[0] == 401
    assert (await visit(offering, replica["url"]))[0] == 303


async def test_a_foreign_or_missing_app_is_not_found(offering: Service) -> None:
    buyer, other = await offering.person(credit="5"), await offering.person()
    job_id = await posted(offering, buyer)
    silent = await posted(offering, buyer, ports=[])
    for method, path in (("GET", "app"), ("POST", "app/key")):
        for token, job, status, code in (
            (other.token, job_id, 404, "job_not_found"),
            (buyer.token, NOBODYS, 404, "job_not_found"),
            (buyer.token, "x", 404, "job_not_found"),
            (buyer.token, silent, 400, "no_app"),
            (None, job_id, 401, "unauthorized"),
        ):
            answer = await offering.call(method, f"/api/jobs/{job}/{path}", token=token)
            refused(answer, code, None, status)
    for method, path in (("GET", "apps"), ("POST", "app/key")):
        answer = await offering.call(method, f"/api/deploy/job/{NOBODYS}/{path}", token=buyer.token)
        refused(answer, "deploy_not_found", None, 404)


async def test_without_a_listener_there_are_no_apps(service: Service) -> None:
    buyer = await service.person(credit="5")
    job_id = await posted(service, buyer)
    answer = await service.call("GET", f"/api/jobs/{job_id}/app", token=buyer.token)
    refused(answer, "apps_not_offered", None, 400)
    answer = await service.call("GET", f"/api/deploy/job/{NOBODYS}/apps", token=buyer.token)
    refused(answer, "apps_not_offered", None, 400)
