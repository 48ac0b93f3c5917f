"""Logging out, refreshing, confirming and replacing passwords, over HTTP."""

import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from multidict import CIMultiDict
from support.base.waiting import until
from support.daemons.service import Answer, Service, running_in

EMAIL = "person1@example.com"
PASSWORD = "long enough"


async def secret(log: pytest.LogCaptureFixture, kind: str, but: str = "") -> str:
    """Return the secret of the last e-mail of a kind, as a person without mail reads it.

    It comes a moment after the answer; `but` is one that came before.
    """

    def last() -> str:
        found = re.findall(rf"/{kind}\?token=(\S+)", log.text)
        return str(found[-1]) if found else ""

    await until(lambda: last() not in ("", but), f"an e-mail to {kind}")
    return last()


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


async def log_in(service: Service, password: str = PASSWORD) -> Answer:
    return await service.call("POST", "/auth/login", {"email": EMAIL, "password": password})


async def me(service: Service, token: str) -> Answer:
    return await service.call("GET", "/auth/me", token=token)


async def test_registering_sends_an_email_that_confirms_the_address(
    service: Service, log: pytest.LogCaptureFixture
) -> None:
    person = await service.person()
    assert (await me(service, person.token)).body["email_verified"] is False
    body = {"token": await secret(log, "verify")}
    assert (await service.call("POST", "/auth/verify", body)).body == {"ok": True}
    assert (await me(service, person.token)).body["email_verified"] is True
    again = await service.call("POST", "/auth/verify", body)
    assert (again.status, again.code, again.field) == (400, "invalid_mail_token", "token")


async def test_the_email_is_sent_again_on_request(
    service: Service, log: pytest.LogCaptureFixture
) -> None:
    person = await service.person()
    first = await secret(log, "verify")
    answer = await service.call("POST", "/auth/verify/resend", token=person.token)
    assert answer.body == {"ok": True}
    assert await secret(log, "verify", but=first) != first
    for _ in range(3):
        await service.call("POST", "/auth/verify/resend", token=person.token)
    answer = await service.call("POST", "/auth/verify/resend", token=person.token)
    assert (answer.status, answer.code) == (429, "too_many_attempts")
    assert int(answer.headers["Retry-After"]) > 1


async def test_a_logout_ends_only_this_login(service: Service) -> None:
    person = await service.person()
    other = (await log_in(service)).body["token"]
    answer = await service.call("POST", "/auth/logout", token=person.token)
    assert (answer.status, answer.body) == (200, {"ok": True})
    assert (await me(service, person.token)).status == 401
    assert (await service.call("POST", "/auth/logout", token=person.token)).status == 401
    assert (await me(service, other)).status == 200


async def test_a_refresh_returns_a_new_token_of_the_same_login(service: Service) -> None:
    person = await service.person()
    answer = await service.call("POST", "/auth/refresh", token=person.token)
    assert set(answer.body) == {"ok", "token"}
    fresh = answer.body["token"]
    assert fresh != person.token
    assert (await me(service, person.token)).status == 200
    await service.call("POST", "/auth/logout", token=fresh)
    assert (await me(service, person.token)).status == 401


async def test_a_forgotten_password_is_replaced(
    service: Service, log: pytest.LogCaptureFixture
) -> None:
    person = await service.person()
    answers = [
        await service.call("POST", "/auth/password/forgot", {"email": email})
        for email in (EMAIL.upper(), "nobody@example.com")
    ]
    assert [(answer.status, answer.body) for answer in answers] == [(200, {"ok": True})] * 2
    body = {"token": await secret(log, "reset"), "password": "another password"}
    short = await service.call("POST", "/auth/password/reset", {**body, "password": "short"})
    assert (short.status, short.code, short.field) == (400, "invalid_field", "password")
    assert (await service.call("POST", "/auth/password/reset", body)).body == {"ok": True}
    assert (await me(service, person.token)).status == 401
    assert (await log_in(service)).status == 401
    assert (await log_in(service, "another password")).status == 200
    again = await service.call("POST", "/auth/password/reset", body)
    assert (again.status, again.code) == (400, "invalid_mail_token")


async def test_a_changed_password_ends_the_other_logins(service: Service) -> None:
    person = await service.person()
    other = (await log_in(service)).body["token"]
    path = "/auth/password/change"
    wrong = await service.call(
        "POST", path, {"old_password": "wrong", "new_password": "x" * 8}, token=person.token
    )
    assert (wrong.status, wrong.code, wrong.field) == (400, "wrong_password", "old_password")
    body = {"old_password": PASSWORD, "new_password": "another password"}
    assert (await service.call("POST", path, body)).status == 401
    assert (await service.call("POST", path, body, token=person.token)).body == {"ok": True}
    assert (await me(service, person.token)).status == 200
    assert (await me(service, other)).status == 401


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/auth/verify", {}, "token"),
        ("/auth/verify", {"token": 1}, "token"),
        ("/auth/password/forgot", {"email": ""}, "email"),
        ("/auth/password/reset", {"token": "x"}, "password"),
        ("/auth/password/reset", {"password": "long enough"}, "token"),
    ],
)
async def test_a_missing_field_is_named(
    service: Service, path: str, body: dict[str, object], field: str
) -> None:
    answer = await service.call("POST", path, body)
    assert (answer.status, answer.code, answer.field) == (400, "invalid_field", field)


async def test_failed_logins_are_throttled_in_the_end(service: Service) -> None:
    await service.person()
    answers = [await log_in(service, "wrong") for _ in range(10)]
    assert {answer.status for answer in answers} == {401}
    answer = await log_in(service)
    assert (answer.status, answer.code) == (429, "too_many_attempts")
    assert 800 < int(answer.headers["Retry-After"]) <= 900


@pytest.fixture
async def behind(tmp_path: Path) -> AsyncIterator[Service]:
    """A service behind a proxy on this machine, where a client may register twice an hour."""
    limits = {"registrations_per_hour": 2}
    async with running_in(tmp_path, api={"trusted_proxies": ["127.0.0.1"]}, limits=limits) as made:
        yield made


async def register(service: Service, number: int, forwarded: str) -> int:
    body = {"username": f"u{number}", "email": f"u{number}@example.com", "password": PASSWORD}
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    return (await service.call("POST", "/auth/register", body, headers=headers)).status


async def test_a_client_has_the_address_that_the_trusted_proxy_names(behind: Service) -> None:
    assert [await register(behind, number, "192.0.2.1") for number in range(3)] == [200, 200, 429]
    assert await register(behind, 3, "192.0.2.2") == 200
    assert await register(behind, 4, "192.0.2.9, 192.0.2.1") == 429
    assert await register(behind, 5, "192.0.2.1, 192.0.2.3") == 200
    assert await register(behind, 6, "192.0.2.1, 127.0.0.1") == 429
    assert await register(behind, 7, "") == 200


async def test_every_line_of_the_header_is_read(behind: Service) -> None:
    assert [await register(behind, number, "192.0.2.1") for number in range(2)] == [200, 200]
    body = {"username": "x", "email": "x@example.com", "password": PASSWORD}
    lines = [("X-Forwarded-For", "198.51.100.9"), ("X-Forwarded-For", "192.0.2.1:4711")]
    headers = CIMultiDict([("Content-Type", "application/json"), *lines])
    url = f"{behind.url}/auth/register"
    async with behind.http.post(url, json=body, headers=headers) as answer:
        assert answer.status == 429


async def test_an_untrusted_proxy_is_not_believed(tmp_path: Path) -> None:
    async with running_in(tmp_path, limits={"registrations_per_hour": 2}) as service:
        statuses = [await register(service, number, f"192.0.2.{number}") for number in range(3)]
    assert statuses == [200, 200, 429]
