"""Streams over HTTP: HEAD has no body on any route, and a stream ends with its key or login."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.base.waiting import until
from support.daemons.bounded import api_bounds, bounded
from support.daemons.service import Person, Service, running_in

from api.routing import sse
from api.routing.lasting import GoesOn
from api.routing.routes import Auth, Event
from market.accounts.scopes import Scope

ABSENT = "01900000-0000-7000-8000-000000000000"
EVENTS = "text/event-stream"
STREAM = "/api/events/stream"


async def job_of(service: Service, buyer: Person) -> str:
    job = {"title": "x", "job_type": "script", "price_credit": 1, "duration_hrs": 1}
    answer = await service.call("POST", "/api/jobs", job, token=buyer.token)
    assert answer.status == 200, answer.body
    return str(answer.body["job_id"])


async def head(service: Service, path: str, token: str, accept: str) -> tuple[int, bytes]:
    """Send HEAD, then another request on the same connection; return the status, and its body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", service.api_port)
    first = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}"
    first += f"\r\nAuthorization: Bearer {token}"
    second = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Request-Id: second-one"
    try:
        async with asyncio.timeout(20):
            writer.write(f"{first}\r\n\r\n{second}\r\n\r\n".encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            rest = await reader.read()
    finally:
        writer.close()
    body, found, _ = rest.partition(b"HTTP/1.1 200 OK\r\n")
    assert found or b"Connection: close" in answer, (path, rest)
    return int(answer.split(b" ")[1]), body


async def test_head_has_no_body_on_any_route_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with running_in(tmp_path, api={"metrics_allow": ["127.0.0.1"]}) as service:
        buyer = await service.person(usd="10", credit="10")
        names = {
            "job_id": await job_of(service, buyer),
            "session_id": (await service.buy(buyer)).id,
        }
        http = service.daemon.http
        paths = [route.path for route in http.routes if route.method == "GET"]
        assert http._fixed._console is not None
        shell = http._fixed._console.page("/console")
        assert shell is not None
        asset = next(iter(http._fixed._console._files))
        paths += [
            *http._fixed._pages,
            "/console",
            "/login",
            asset,
            "/metrics",
            "/favicon.ico",
            "/none",
        ]
        statuses: dict[tuple[str, str], int] = {}
        for template in paths:
            path = template.replace("{", "\0{").replace("}", "}\0")
            parts = path.split("\0")
            path = "".join(
                names.get(part[1:-1], ABSENT) if part.startswith("{") else part for part in parts
            )
            for accept in ("*/*", EVENTS):
                status, body = await head(service, path, buyer.token, accept)
                assert body == b"", (path, accept, body)
                statuses[template, accept] = status
        for route in http.routes:
            if route.method == "GET" and route.events:
                assert statuses[route.path, EVENTS] == 200
        assert statuses["/metrics", "*/*"] == statuses["/docs", "*/*"] == 200
        absent = f"/api/jobs/{ABSENT}/log"
        assert (await head(service, absent, buyer.token, EVENTS))[0] == 404  # as GET
        assert len(service.daemon.market.event_feed) == 0
        assert len(service.daemon.market.logs.readers) == 0


def test_every_stream_of_a_login_can_say_that_it_is_over(service: Service) -> None:
    for route in service.daemon.http.routes:
        if route.events and route.auth is not Auth.NONE:
            assert route.events[sse.BYE] is sse.ByeEvent, route.path


async def names_of(response: aiohttp.ClientResponse) -> list[str]:
    """Return the names of events until a stream ends."""
    async with asyncio.timeout(20):
        text = await response.text()
    return [line[7:] for line in text.split("\n") if line.startswith("event: ")]


async def reset(service: Service, me: Person, log: pytest.LogCaptureFixture) -> None:
    """Replace a password by e-mail."""
    await service.call("POST", "/auth/password/forgot", {"email": me.email})
    await until(lambda: "/reset?token=" in log.text)
    (secret,) = re.findall(r"/reset\?token=(\S+)", log.text)
    body = {"token": secret, "password": "longer than it"}
    assert (await service.call("POST", "/auth/password/reset", body)).status == 200


@bounded(api_bounds(login_check_seconds=0.05))
@pytest.mark.parametrize("how", ["revoked", "rolled", "reset", "reset of a login"])
async def test_a_log_and_events_are_followed_no_longer_than_the_key_lasts(
    service: Service, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    caplog.set_level(logging.INFO)
    me = await service.person(credit="10")
    job_id = await job_of(service, me)
    body = {"name": "x", "scopes": [Scope.JOBS_READ, Scope.EVENTS_READ]}
    key = (await service.call("POST", "/api/keys", body, token=me.token)).body
    token = me.token if how == "reset of a login" else key["key"]
    headers = {"Authorization": f"Bearer {token}", "Accept": EVENTS}
    path = f"/api/keys/{key['key_id']}"
    async with (
        service.http.get(f"{service.url}/api/jobs/{job_id}/log", headers=headers) as log,
        service.http.get(f"{service.url}{STREAM}?types=test.ping", headers=headers) as events,
    ):
        assert log.status == events.status == 200
        if how == "revoked":
            await service.call("POST", f"{path}/revoke", token=me.token)
        elif how == "rolled":
            await service.call("POST", f"{path}/roll", {"overlap_hours": 0}, token=me.token)
        else:
            await reset(service, me, caplog)
        assert await names_of(log) == ["bye"]
        assert await names_of(events) == ["bye"]
    await until(lambda: len(service.daemon.market.logs.readers) == 0)


@bounded(api_bounds(login_check_seconds=0.05))
async def test_a_stream_ends_when_its_key_may_not_be_used_from_there_any_more(
    service: Service,
) -> None:
    me = await service.person()
    body = {"name": "x", "scopes": [Scope.EVENTS_READ], "allow_ips": ["127.0.0.0/8"]}
    key = (await service.call("POST", "/api/keys", body, token=me.token)).body
    headers = {"Authorization": f"Bearer {key['key']}"}
    path = f"/api/keys/{key['key_id']}"
    async with service.http.get(service.url + STREAM, headers=headers) as response:
        for addresses in (["127.0.0.1"], ["192.0.2.1"]):
            answer = await service.call("PATCH", path, {"allow_ips": addresses}, token=me.token)
            assert answer.status == 200
        assert "bye" in await names_of(response)


@bounded(api_bounds(login_check_seconds=0.01))
async def test_a_stream_goes_on_while_its_login_does(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = await service.person()
    checks: list[Any] = []
    is_current = service.daemon.market.accounts.is_current

    async def counting(caller: Any) -> bool:
        checks.append(caller)
        return await is_current(caller)

    monkeypatch.setattr(service.daemon.http, "_is_current", counting)
    headers = {"Authorization": f"Bearer {me.token}"}
    async with service.http.get(service.url + STREAM, headers=headers) as response:
        await until(lambda: len(checks) > 3)
        assert service.daemon.services is not None
        service.daemon.services.drain()
        assert await names_of(response) == ["bye"]


async def test_events_that_come_without_a_pause_are_checked() -> None:
    closed = []

    async def endless() -> AsyncGenerator[Event, None]:
        try:
            while True:
                yield Event("x", None)
        finally:
            closed.append(True)

    answers = iter([True, True, False])

    async def is_current() -> bool:
        return next(answers)

    goes_on = GoesOn(is_current, check_seconds=0)
    found = [event.name async for event in sse.while_current(endless(), goes_on)]
    assert found[-1] == "bye"
    assert found.count("x") <= 2
    assert closed == [True]


async def test_a_reader_that_is_cancelled_twice_has_closed_its_events() -> None:
    """The client goes, and the daemon stops while the events are being closed."""
    asked, closing, closed = asyncio.Event(), asyncio.Event(), []

    async def slow_to_close() -> AsyncGenerator[Event, None]:
        try:
            yield Event("x", None)
            asked.set()
            await asyncio.Event().wait()
        finally:
            closing.set()
            try:
                await asyncio.sleep(10.0)
            finally:
                closed.append(True)

    async def is_current() -> bool:
        return True

    async def reader() -> None:
        events = sse.while_current(slow_to_close(), GoesOn(is_current, check_seconds=10.0))
        async with aclosing(events):
            async for event in events:
                assert event.name == "x"

    reading = asyncio.create_task(reader())
    await asked.wait()
    reading.cancel()
    await closing.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert closed == [True]


async def test_an_error_of_a_stream_is_raised_and_its_end_is_an_end() -> None:
    async def some(error: Exception | None) -> AsyncGenerator[Event, None]:
        yield Event("x", None)
        if error is not None:
            raise error

    async def is_current() -> bool:
        return True

    goes_on = GoesOn(is_current, check_seconds=10.0)
    assert [event.name async for event in sse.while_current(some(None), goes_on)] == ["x"]
    with pytest.raises(LookupError):
        async for _ in sse.while_current(some(LookupError()), goes_on):
            pass
