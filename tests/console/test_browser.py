"""Tools of the console's tests: a browser that is used by hand, and its complaints."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from support.console.browser import Visit, needs_chromium, visiting

pytestmark = needs_chromium

POLICY = "default-src 'none'; script-src 'self'; connect-src 'self'"
PAGE = """<!doctype html><html lang="en"><title>page</title><main><h1>Page</h1>
<form><label for="name">Your name (as others see it)</label><input id="name" value="before">
<label>Kind <select id="kind"><option value="a">First</option><option value="b">Second</option>
</select></label><label><input id="agree" type="checkbox"> Agree</label>
<label>Photo <input id="photo" type="file"></label>
<button type="button" id="send" disabled>Send</button></form>
<p id="out"></p></main><script src="/page.js"></script>"""
SCRIPT = """
const out = document.querySelector("#out"), send = document.querySelector("#send");
document.querySelector("#name").addEventListener("input", () => (send.disabled = false));
send.addEventListener("click", (event) => (out.textContent =
  `sent ${event.isTrusted} ${document.querySelector("#name").value} ` +
  `${document.querySelector("#kind").value} ${document.querySelector("#agree").checked} ` +
  `${document.querySelector("#photo").files[0]?.name}`));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") out.textContent = `escaped ${event.isTrusted}`;
});
"""


@pytest.fixture
async def site() -> AsyncIterator[str]:
    """A page with a strict policy."""

    async def page(request: web.Request) -> web.Response:
        headers = {"Content-Security-Policy": POLICY}
        return web.Response(text=PAGE, content_type="text/html", headers=headers)

    async def script(request: web.Request) -> web.Response:
        return web.Response(text=SCRIPT, content_type="text/javascript")

    async def refusal(request: web.Request) -> web.Response:
        return web.json_response({}, status=401)

    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_get("/page.js", script)
    app.router.add_get("/api/refusal", refusal)
    runner = web.AppRunner(app)
    await runner.setup()
    served = web.TCPSite(runner, "127.0.0.1", 0)
    await served.start()
    yield served.name.rstrip("/") + "/"
    await runner.cleanup()


async def test_a_page_is_used_by_hand(visit: Visit, site: str, tmp_path: Path) -> None:
    tab = await visit.open(site)
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(b"photo")
    await tab.fill("Kind", "Second")
    await tab.fill("Agree", True)
    await tab.fill("Photo", photo)
    pressing = asyncio.create_task(tab.click("Send"))  # waits until it is enabled
    await tab.fill("Your name", "Ada")
    await pressing
    await tab.until_text("sent true Ada b true photo.jpg", "#out")
    await tab.press("Escape")
    assert await tab.text("#out") == "escaped true"
    await tab.fill("#name", "")
    await tab.type("Bob")
    assert await tab.run("document.querySelector('#name').value") == "Bob"
    await tab.press("Tab")
    assert await tab.focused() == "Kind"
    await tab.press("Shift+Tab")
    assert await tab.focused() == "Your name (as others see it)"


async def test_a_click_reaches_a_button_that_has_moved_and_nothing_else(
    visit: Visit, site: str
) -> None:
    tab = await visit.open(site)
    await tab.fill("Your name", "Ada")
    await tab.run(
        "addEventListener('mousemove', () =>"
        " { document.querySelector('h1').style.height = '300px' }, { once: true });"
        "window.pressed = 0;"
        "document.addEventListener('mousedown', () => { window.pressed += 1 }) && 0"
    )
    await tab.click("Send")
    await tab.until_text("sent true Ada", "#out")
    assert await tab.run("[pressed, document.querySelector('h1').style.height]") == [1, "300px"]


async def test_a_page_that_replaces_a_button_while_it_is_pressed_fails_the_test(
    visit: Visit, site: str
) -> None:
    tab = await visit.open(site)
    await tab.fill("Your name", "Ada")
    await tab.run(
        "document.querySelector('#send').addEventListener('mousedown',"
        " ({ target }) => target.replaceWith(target.cloneNode(true)))"
    )
    with pytest.raises(AssertionError, match="has replaced"):
        await tab.click("Send")


async def test_a_page_is_seen_from_another_machine(visit: Visit, site: str, tmp_path: Path) -> None:
    tab = await visit.open(site, dark=True, width=360, language="ko")
    assert await tab.run("innerWidth") == 360
    assert await tab.run("matchMedia('(prefers-color-scheme: dark)').matches")
    assert await tab.run("navigator.language") == "ko"
    await tab.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    assert [(sent.path, sent.kind) for sent in visit.requests][:2] == [
        ("/", "Document"),
        ("/page.js", "Script"),
    ]
    await tab.emulate(offline=True)
    assert await tab.run("fetch('/').then(() => 'came', () => 'away')") == "away"


async def test_a_refusal_of_the_api_is_no_complaint(visit: Visit, site: str) -> None:
    tab = await visit.open(site)
    assert await tab.run("fetch('/api/refusal').then((answer) => answer.status)") == 401


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("setTimeout(() => { throw new Error('lost') }) && 0", "exception: Error: lost"),
        ("Promise.reject(new Error('missed')) && 0", "exception: Error: missed"),
        ("console.error('wrong', 3)", "console.error: wrong 3"),
        ("document.body.setAttribute('style', 'color: red')", "style-src"),
        ("fetch('https://elsewhere.example/').catch(() => 0)", "connect-src|Fetch API"),
        ("fetch('/console/missing.js').then(() => 0)", "404"),
    ],
)
async def test_a_complaint_fails_the_test_unless_it_was_expected(
    devtools: str, site: str, script: str, told: str
) -> None:
    async def told_of(expected: Sequence[str]) -> None:
        async with aiohttp.ClientSession() as http, visiting(devtools, http, expected) as visit:
            tab = await visit.open(site)
            await tab.run(script)
            await tab.until("new Promise((done) => setTimeout(() => done(true)))")

    with pytest.raises(AssertionError, match=told):
        await told_of([])
    await told_of([told])
