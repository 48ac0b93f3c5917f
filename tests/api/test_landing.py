"""Links in e-mails lead to pages that work, in a real browser too, and looking uses nothing up."""

import logging
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.browser import browsing, needs_chromium
from support.service import Service, running_in
from support.waiting import until

PATHS = ["/verify", "/reset", "/register"]


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


async def link(log: pytest.LogCaptureFixture, kind: str) -> str:
    """Return the last link of a kind that an e-mail held."""
    await until(lambda: f"/{kind}?token=" in log.text)
    return str(re.findall(rf"http\S+/{kind}\?token=\S+", log.text)[-1])


async def look(service: Service, url: str) -> str:
    async with service.http.get(url) as answer:
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        return await answer.text()


class Addresses(HTMLParser):
    """Notes what a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [str(value) for name, value in attrs if name in ("src", "href", "action")]


@pytest.mark.parametrize("path", PATHS)
async def test_a_page_stands_alone_and_repeats_nothing_of_its_address(
    service: Service, path: str
) -> None:
    plain = await look(service, service.url + path)
    assert await look(service, f"{service.url}{path}?token=%3Cscript%3E&ref=abc") == plain
    addresses = Addresses()
    addresses.feed(plain)
    assert addresses.found == []
    assert "://" not in plain


@pytest.mark.parametrize("path", PATHS)
async def test_a_page_may_run_its_own_script_and_nothing_else(service: Service, path: str) -> None:
    async with service.http.get(service.url + path) as answer:
        policy = answer.headers["Content-Security-Policy"]
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    answer = await service.call("POST", path, {})
    assert (answer.status, answer.code, answer.headers["Allow"]) == (
        405,
        "method_not_allowed",
        "GET, HEAD",
    )


async def test_looking_at_a_link_does_not_use_it_up(
    service: Service, log: pytest.LogCaptureFixture
) -> None:
    await service.person()
    url = await link(log, "verify")
    for _ in range(3):
        await look(service, url)
    body = {"token": url.partition("token=")[2]}
    assert (await service.call("POST", "/auth/verify", body)).status == 200


async def test_a_web_application_has_pages_of_its_own(tmp_path: Path) -> None:
    async with running_in(tmp_path, api={"app_url": "https://app.example.com"}) as service:
        for path in PATHS:
            assert (await service.call("GET", path)).code == "no_such_path"


@needs_chromium
async def test_a_person_confirms_and_replaces_in_a_browser(
    service: Service, log: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    person = await service.person()
    async with browsing(await link(log, "verify"), service.http, tmp_path) as tab:
        assert await tab.run("document.querySelector('output').textContent") == ""
        me = await service.call("GET", "/auth/me", token=person.token)
        assert me.body["email_verified"] is False
        await tab.run("document.querySelector('button').click()")
        await tab.until("document.querySelector('output').textContent.includes('confirmed')")
        me = await service.call("GET", "/auth/me", token=person.token)
        assert me.body["email_verified"] is True

        await service.call("POST", "/auth/password/forgot", {"email": person.email})
        await tab.run(f"location.href = {await link(log, 'reset')!r}")
        await tab.until("document.querySelector('input')?.name === 'password'")
        await tab.run("document.querySelector('input').value = 'another password'")
        await tab.run("document.querySelector('button').click()")
        await tab.until("document.querySelector('output').textContent.includes('has been changed')")
    login = {"email": person.email, "password": "another password"}
    assert (await service.call("POST", "/auth/login", login)).status == 200


@needs_chromium
async def test_a_person_comes_by_a_referral_in_a_browser(service: Service, tmp_path: Path) -> None:
    referrer = await service.person()
    info = await service.call("GET", "/api/referral/info", token=referrer.token)
    async with browsing(info.body["referral_link"], service.http, tmp_path) as tab:
        await tab.run("document.forms[0].elements.username.value = 'person1'")
        await tab.run("document.forms[0].elements.email.value = 'ada@example.com'")
        await tab.run("document.forms[0].elements.password.value = 'correct horse'")
        await tab.run("document.querySelector('button').click()")
        await tab.until("document.querySelector('output').textContent.includes('user name')")
        await tab.run("document.forms[0].elements.username.value = 'ada'")
        await tab.run("document.querySelector('button').click()")
        await tab.until("document.querySelector('output').textContent.includes('is open')")
        assert "not valid" not in await tab.run("document.querySelector('output').textContent")
    info = await service.call("GET", "/api/referral/info", token=referrer.token)
    assert info.body["total_referrals"] == 1
