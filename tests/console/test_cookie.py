"""A login that a browser keeps: the attributes of the cookie, and that no other page can use it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.base.cases import cases
from support.console.browser import Visit
from support.daemons.service import Person, Service, running_in

from api.routing.cookies import Cookies

OURS = {"X-Requested-By": "console"}
PASSWORD = "long enough"


def credentials(person: Person) -> dict[str, Any]:
    return {"email": person.email, "password": PASSWORD, "keep": "cookie"}


async def cookie_of(service: Service, person: Person) -> str:
    """Log a user in as the console does, and return the cookie that a browser then sends."""
    answer = await service.call("POST", "/auth/login", credentials(person), headers=OURS)
    assert answer.status == 200, answer.body
    service.http.cookie_jar.clear()
    return str(answer.headers["Set-Cookie"].partition(";")[0])


async def me(service: Service, **headers: str) -> int:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return (await service.call("GET", "/auth/me", headers=sent)).status


async def test_with_a_cookie_the_token_is_in_no_reply(service: Service) -> None:
    person = await service.person()
    answer = await service.call("POST", "/auth/login", credentials(person), headers=OURS)
    assert "token" not in answer.body
    assert answer.headers["Cache-Control"] == "no-store"
    newcomer = {"username": "ada", "email": "ada@example.com", "password": PASSWORD}
    answer = await service.call(
        "POST", "/auth/register", {**newcomer, "keep": "cookie"}, headers=OURS
    )
    assert "token" not in answer.body
    assert "proxyd=" in answer.headers["Set-Cookie"]
    answer = await service.call(
        "POST", "/auth/login", {"email": person.email, "password": PASSWORD}
    )
    assert answer.body["token"]
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize(
    ("api", "name", "is_secure"),
    [
        ({}, "proxyd", False),
        ({"base_url": "http://proxy.example"}, "proxyd", False),
        ({"base_url": "https://proxy.example"}, "__Host-proxyd", True),
    ],
)
async def test_the_cookie_is_as_strict_as_its_address_allows(
    tmp_path: Path, api: dict[str, Any], name: str, is_secure: bool
) -> None:
    async with running_in(tmp_path, api=api, auth={"token_hours": 3}) as service:
        person = await service.person()
        answer = await service.call("POST", "/auth/login", credentials(person), headers=OURS)
    made = SimpleCookie(answer.headers["Set-Cookie"])[name]
    assert (made["path"], made["samesite"], made["max-age"]) == ("/", "Strict", "10800")
    assert made["httponly"] is True
    assert bool(made["secure"]) == is_secure
    assert not made["domain"]


async def test_it_counts_only_beside_the_console_s_header(service: Service) -> None:
    cookie = await cookie_of(service, await service.person())
    assert await me(service, Cookie=cookie, **OURS) == 200
    assert await me(service, Cookie=cookie, **OURS, Sec_Fetch_Site="same-origin") == 200
    assert await me(service, Cookie=cookie) == 401
    assert await me(service, Cookie=cookie, X_Requested_By="XMLHttpRequest") == 401
    for site in ("same-site", "cross-site", "none"):
        assert await me(service, Cookie=cookie, **OURS, Sec_Fetch_Site=site) == 401
    assert await me(service, **OURS) == 401


async def test_a_header_goes_before_it(service: Service) -> None:
    cookie = await cookie_of(service, await service.person())
    assert await me(service, Cookie=cookie, **OURS, Authorization="Bearer made-up") == 401


async def test_where_a_login_is_optional_it_counts(service: Service) -> None:
    cookie = await cookie_of(service, await service.person())
    headers = {**OURS, "Cookie": f"{cookie}x"}
    answer = await service.call("POST", "/api/assistant/chat", {"message": "hi"}, headers=headers)
    assert (answer.status, answer.code) == (401, "unauthorized")


async def test_a_request_of_no_page_of_ours_gets_no_cookie(service: Service) -> None:
    person = await service.person()
    for headers in ({}, {**OURS, "Sec-Fetch-Site": "same-site"}):
        answer = await service.call("POST", "/auth/login", credentials(person), headers=headers)
        assert (answer.status, answer.code, answer.field) == (400, "invalid_field", "keep")
        assert "Set-Cookie" not in answer.headers


async def test_logging_out_ends_it_here_and_there(service: Service) -> None:
    cookie = await cookie_of(service, await service.person())
    answer = await service.call("POST", "/auth/logout", headers={**OURS, "Cookie": cookie})
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert await me(service, Cookie=cookie, **OURS) == 401


async def test_it_is_renewed_where_it_is_kept(service: Service) -> None:
    cookie = await cookie_of(service, await service.person())
    answer = await service.call("POST", "/auth/refresh", headers={**OURS, "Cookie": cookie})
    assert answer.body == {"ok": True}
    renewed = answer.headers["Set-Cookie"].partition(";")[0]
    assert renewed != cookie
    service.http.cookie_jar.clear()
    assert await me(service, Cookie=renewed, **OURS) == 200


@cases(
    ("sent", "token"),
    [
        ("proxyd=a.b-c_d", "a.b-c_d"),
        ('theirs[1]={"x": 1}; proxyd=a; other', "a"),
        ("other=1;proxyd=a", "a"),
        ("proxyd=a; proxyd=b", "a"),
        ("proxyd=", ""),
        ("", None),
        ("proxyd", None),
        ("=;;=", None),
        ("xproxyd=a; proxydx=b", None),
    ],
)
def test_cookies_of_others_spoil_nothing(sent: str, token: str | None) -> None:
    cookies = Cookies(is_secure=False, lifetime_seconds=1)
    assert cookies.token({"Cookie": sent, **OURS}) == token
    assert cookies.token({"Cookie": sent}) is None


@asynccontextmanager
async def foreign(script: str) -> AsyncIterator[str]:
    """Serve a page of another origin on the same host: a browser sends its cookies there."""
    html = f"<!doctype html><title>x</title><script>{script}</script>"

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(text=html, content_type="text/html")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


ATTACKS = """
const target = "URL/auth/logout";
const trial = (options) => fetch(target, {method: "POST", credentials: "include", ...options})
  .then((answer) => answer.type + answer.status, (error) => "refused");
window.attack = () => Promise.all([
  trial({mode: "no-cors"}),
  trial({mode: "no-cors", headers: {"X-Requested-By": "console"}}),
  trial({mode: "cors", headers: {"X-Requested-By": "console"}}),
]);
"""


async def test_a_page_of_another_origin_can_do_nothing_with_it(
    service: Service, visit: Visit
) -> None:
    visit.expect("CORS policy|ERR_FAILED|401")
    person = await service.person()
    tab = await visit.open(f"{service.url}/login")
    await tab.fill("E-mail address", person.email)
    await tab.fill("Password", PASSWORD)
    await tab.click("form [type=submit]")
    await tab.until("location.pathname === '/console'")
    kept = (await tab.ask("Network.getCookies", urls=[service.url]))["cookies"]
    assert [(each["name"], each["httpOnly"], each["sameSite"]) for each in kept] == [
        ("proxyd", True, "Strict")
    ]
    async with foreign(ATTACKS.replace("URL", service.url)) as url:
        other = await visit.open(url)
        assert await other.run("attack()") == ["opaque0", "opaque0", "refused"]
    cookie = f"proxyd={kept[0]['value']}"
    assert await me(service, Cookie=cookie, **OURS) == 200  # the login was not ended


async def test_a_page_of_another_origin_logs_no_user_in(service: Service, visit: Visit) -> None:
    visit.expect("CORS policy|ERR_FAILED|400")
    attacker = await service.person()
    body = f'{{"email": "{attacker.email}", "password": "{PASSWORD}", "keep": "cookie"}}'
    script = (
        f"window.attack = () => fetch('{service.url}/auth/login', {{method: 'POST', "
        f"mode: 'no-cors', credentials: 'include', body: new Blob(['{body}'])}})"
        ".then((answer) => answer.type)"
    )
    async with foreign(script) as url:
        tab = await visit.open(url)
        assert await tab.run("attack()") == "opaque"
    assert (await tab.ask("Network.getCookies", urls=[service.url]))["cookies"] == []
