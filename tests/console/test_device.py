"""The page where a program on another machine is let in, against answers as the API gives them."""

import json
from typing import Any

from support.console.browser import Tab, Visit
from support.daemons.service import Service

ASKS = {
    "ok": True,
    "client_name": "proxyctl on rig",
    "network": "192.0.2.0/24",
    "created_at": "2026-11-23T02:00:00Z",
    "scopes": ["sessions:read", "made:up"],
}
NOT_THERE = {"ok": False, "error": {"code": "user_code_not_found", "message": "No such code."}}
STALE = {"ok": False, "error": {"code": "fresh_login_needed", "message": "Log in again."}}


async def opened(service: Service, visit: Visit, path: str) -> Tab:
    """Log in, and then open the page; what it asks about devices is noted, and answered here."""
    person = await service.person()
    tab = await visit.open(f"{service.url}/login?next=/forgot")
    await tab.fill("E-mail address", person.email)
    await tab.fill("Password", "long enough")
    await tab.click("form [type=submit]")
    await tab.until("location.pathname === '/forgot'")
    await tab.run(
        "window.asked = []; window.answers = {}; window.real = window.fetch;"
        "window.fetch = async (path, options = {}) => {"
        " if (!String(path).startsWith('/auth/device')) return real(path, options);"
        " asked.push(`${options.method} ${path}`);"
        " const [status, body] = answers[path] ?? [404, NOT_THERE];"
        " return Response.json(body, {status}); }; 0".replace("NOT_THERE", json.dumps(NOT_THERE))
    )
    await tab.run(
        f"const to = document.createElement('a'); to.href = {path!r}; document.body.append(to);"
        "to.click(); to.remove()"
    )
    await tab.until_text("Let a device in", "h1")
    return tab


async def answer(tab: Tab, path: str, status: int, body: Any) -> None:
    await tab.run(f"answers[{path!r}] = [{status}, {json.dumps(body)}]; 0")


async def test_a_code_is_typed_looked_at_and_allowed(service: Service, visit: Visit) -> None:
    tab = await opened(service, visit, "/device")
    await tab.fill("Code", "zzzz-zzzz")
    await tab.click("Look who asks")
    await tab.until_text("No such code.")
    await answer(tab, "/auth/device/BCDF-GHJK", 200, ASKS)
    await answer(tab, "/auth/device/BCDF-GHJK/approve", 200, {"ok": True})
    await tab.fill("Code", " bcdf-ghjk")
    await tab.click("Look who asks")
    for text in ("proxyctl on rig", "192.0.2.0/24", "see your proxy sessions", "made:up"):
        await tab.until_text(text, "main")
    await tab.click("Allow")
    await tab.until_text("Go back to the program")
    assert await tab.run("asked") == [
        "GET /auth/device/ZZZZ-ZZZZ",
        "GET /auth/device/BCDF-GHJK",
        "POST /auth/device/BCDF-GHJK/approve",
    ]


async def test_no_device_is_let_in_by_opening_a_link(service: Service, visit: Visit) -> None:
    tab = await opened(service, visit, "/device?user_code=BCDF-GHJK")
    await tab.until_text("No such code.")
    await answer(tab, "/auth/device/BCDF-GHJK", 200, ASKS)
    await answer(tab, "/auth/device/BCDF-GHJK/deny", 200, {"ok": True})
    await tab.fill("Code", "BCDF-GHJK")
    await tab.press("Enter")
    await tab.until_text("only if you have just started this program yourself")
    await tab.click("Refuse")
    await tab.until_text("The program gets nothing.")
    assert all("approve" not in each for each in await tab.run("asked"))


async def test_a_user_with_an_old_login_is_asked_to_renew_it(
    service: Service, visit: Visit
) -> None:
    tab = await opened(service, visit, "/device")
    await answer(tab, "/auth/device/BCDF-GHJK", 200, ASKS)
    await answer(tab, "/auth/device/BCDF-GHJK/approve", 400, STALE)
    await tab.fill("Code", "BCDF-GHJK")
    await tab.click("Look who asks")
    await tab.click("Allow")
    await tab.until_text("Log in again.", ".notice")
    href = await tab.run("document.querySelector('main a.primary').getAttribute('href')")
    assert href == "/login?next=%2Fdevice%3Fuser_code%3DBCDF-GHJK"


async def test_a_program_gets_its_key_by_the_page(service: Service, visit: Visit) -> None:
    asking = {"client_name": "proxyctl on rig", "scopes": ["sessions:read"]}
    begun = (await service.call("POST", "/auth/device", asking)).body
    person = await service.person()
    tab = await visit.open(begun["verification_uri_complete"])
    await tab.fill("E-mail address", person.email)
    await tab.fill("Password", "long enough")
    await tab.click("form [type=submit]")
    await tab.until_text("proxyctl on rig", "main")
    await tab.until_text("see your proxy sessions", "main")
    await tab.click("Allow")
    await tab.until_text("Go back to the program")
    wanted = {"device_code": begun["device_code"]}
    given = (await service.call("POST", "/auth/device/token", wanted)).body
    answer = await service.call("GET", "/api/bandwidth/sessions", token=given["key"])
    assert answer.status == 200, answer.body
