"""A browser loads pages through a bought session: plain ones, and encrypted ones by CONNECT.

It is asked for credentials, as browsers are, and gives those of the session.
"""

import asyncio
from hashlib import sha256
from pathlib import Path

import pytest
from support.clients.buyer import Buyer
from support.clients.proxied_browser import Browser, browsing
from support.targets.targets import pattern
from support.targets.threads import WebTarget

DATA_BYTES = 300_000
DATA = f"/bytes/{DATA_BYTES}"
DIGEST = f"""
fetch("{DATA}").then((answer) => answer.arrayBuffer())
  .then((data) => crypto.subtle.digest("SHA-256", data))
  .then((digest) => Array.from(new Uint8Array(digest)).map((byte) =>
    byte.toString(16).padStart(2, "0")).join(""))
"""
PAGE = b"""<!DOCTYPE html><html><head><title>Reached</title><link rel="icon" href="data:,"></head>
<body><p id="said">nothing</p>
<script>document.getElementById("said").textContent = "by a script";</script></body></html>"""


async def load(browser: Browser, scheme: str, target: WebTarget) -> None:
    """Load a page that a script changes, and what it fetches, and see that all of it came whole."""
    target.pages["/page.html"] = PAGE
    page = await browser.open(f"{scheme}://localhost:{target.port}/page.html")
    assert (page.error, page.title, page.text) == ("", "Reached", "by a script")
    assert await browser.evaluate(DIGEST) == sha256(pattern(DATA_BYTES)).hexdigest()
    assert target.asked == ["/page.html", DATA]
    assert browser.challenges["Proxy"] >= 1, "it was not asked for credentials by a proxy"


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_browser_loads_a_page(
    buyer: Buyer,
    target: WebTarget,
    secure_target: WebTarget,
    tmp_path: Path,
    scheme: str,
) -> None:
    reached = secure_target if scheme == "https" else target
    shown = buyer.username, buyer.password
    async with browsing(tmp_path, buyer.address, shown) as browser:
        await load(browser, scheme, reached)
        await asyncio.to_thread(buyer.assert_counted, reached)
    assert buyer.used > len(PAGE) + DATA_BYTES


async def test_a_browser_with_a_wrong_password_shows_the_error(
    buyer: Buyer, target: WebTarget, tmp_path: Path
) -> None:
    async with browsing(tmp_path, buyer.address, (buyer.username, "wrong")) as browser:
        page = await browser.open(f"http://localhost:{target.port}/page.html")
    assert page.text.strip() == "The user name or the password of the session is wrong."
    assert_asked_in_vain(browser, buyer, target)


async def test_a_browser_with_a_wrong_password_gets_no_tunnel(
    buyer: Buyer, secure_target: WebTarget, tmp_path: Path
) -> None:
    async with browsing(tmp_path, buyer.address, (buyer.username, "wrong")) as browser:
        page = await browser.open(f"https://localhost:{secure_target.port}/page.html")
    assert page.error.startswith("net::ERR_")  # its page about this is the browser's own
    assert_asked_in_vain(browser, buyer, secure_target)


def assert_asked_in_vain(browser: Browser, buyer: Buyer, target: WebTarget) -> None:
    """Check that credentials were asked for again, and that nothing was reached or billed."""
    assert browser.challenges["Proxy"] == 2
    assert target.received == 0
    assert buyer.used == 0
