"""One tour through the console, without a hand: from a friend's link to money that adds up.

With PROXYD_SCREENSHOTS it leaves pictures of its pages in that folder; `make screenshots` puts them
where docs/how-to/console.md shows them.
"""

import asyncio
import io
import math
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.base.waiting import until
from support.console.browser import Tab, Visit
from support.console.console import agent
from support.daemons import process
from support.daemons.service import Person, Service, running_in
from support.targets.mailbox import Mailbox, smtp
from support.targets.threads import web
from support.workers.process import require_sandbox

PASSWORD = "correct horse"
EMAIL = "ada@example.com"
SCREENSHOTS = os.environ.get("PROXYD_SCREENSHOTS", "")
COLOURS = 128
SIZE = 3_000_000
LINK = re.compile(r"http\S+/verify\?token=\S+")
LINES = "document.querySelectorAll('dialog .copy-text')"


@dataclass
class Tour:
    """A user on the way through the console."""

    service: Service
    tab: Tab
    mailbox: Mailbox
    folder: Path
    referrer: Person
    person: Person

    async def go(self, path: str) -> None:
        """Follow a link of the menu."""
        await self.tab.click(f'#menu a[href="{path}"]')
        await self.at(path)

    async def at(self, path: str) -> None:
        await self.tab.until(f"location.pathname === {path!r}")
        await self.tab.settled()

    async def ask(self, path: str) -> Any:
        answer = await self.service.call("GET", path, token=self.person.token)
        assert answer.status == 200, answer.body
        return answer.body

    async def shoot(self, name: str) -> None:
        """Leave a picture, in few colours, as small as they compress."""
        if not SCREENSHOTS:
            return
        await self.tab.run("scrollTo(0, 0)")
        await self.tab.settled()
        raw = self.folder / f"{name}.png"
        await self.tab.screenshot(raw)
        target = Path(SCREENSHOTS) / raw.name
        await asyncio.to_thread(_shrink, raw, target)


def _shrink(raw: Path, target: Path) -> None:
    with Image.open(io.BytesIO(raw.read_bytes())) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        small.save(target, optimize=True)


@pytest.fixture
async def mailbox() -> AsyncIterator[tuple[Mailbox, int]]:
    """A mail server."""
    made = Mailbox()
    async with smtp(made) as port:
        yield made, port


@pytest.fixture
async def service(tmp_path: Path, mailbox: tuple[Mailbox, int]) -> AsyncIterator[Service]:
    """A daemon whose letters are sent; its ledger must agree after the test."""
    mail = {"host": "127.0.0.1", "port": mailbox[1], "tls": "none"}
    async with running_in(tmp_path, mail=mail) as running:
        yield running
        await running.assert_audit()


@pytest.fixture
async def tour(
    service: Service, mailbox: tuple[Mailbox, int], visit: Visit, tmp_path: Path
) -> Tour:
    """The beginning: a friend's link is opened."""
    friend = await service.person()
    info = await service.call("GET", "/api/referral/info", token=friend.token)
    tab = await visit.open(info.body["referral_link"])
    return Tour(service, tab, mailbox[0], tmp_path, friend, Person(EMAIL, "", ""))


async def registered(tour: Tour) -> None:
    """Open the account, and confirm the address with the letter that came."""
    tab = tour.tab
    await tab.until_text("You were invited with the code")
    await tab.fill("User name", "ada")
    await tab.fill("E-mail address", EMAIL)
    await tab.fill("Password", PASSWORD)
    await tour.shoot("register")
    await tab.click("Open the account")
    await tour.at("/verify")
    await until(lambda: any(EMAIL in each for each in tour.mailbox.recipients), "a letter")
    [letter] = [each for each in tour.mailbox.emails if each["To"] == EMAIL]
    [address] = LINK.findall(letter.get_content())
    await tab.goto(address)
    await tab.click("Confirm my address")
    await tab.until_text("Your address is confirmed.")
    assert "token" not in await tab.run("location.href")
    info = await tour.service.call("GET", "/api/referral/info", token=tour.referrer.token)
    assert info.body["total_referrals"] == 1
    login = await tour.service.call("POST", "/auth/login", {"email": EMAIL, "password": PASSWORD})
    tour.person = Person(EMAIL, login.body["user"]["id"], login.body["token"])
    await tab.click("Go on to the console")
    await tour.at("/console")


async def paid(tour: Tour) -> None:
    """Have the operator pay money in by the deposit command; the page shows it."""
    store = f"sqlite:///{tour.folder}/proxyd.db"
    amounts = ("--usd", "10", "--credits", "20")
    done = await asyncio.to_thread(process.run, store, "wallet", "deposit", *amounts, EMAIL)
    assert done.returncode == 0, done.stderr
    await tour.tab.until("document.querySelector('[data-step=money]').dataset.done === 'true'")
    await tour.tab.until_text("$10.00", "#balance")
    await tour.shoot("first-steps")


async def bought(tour: Tour) -> str:
    """Buy a session at the shown price. Return its identifier."""
    tab = tour.tab
    await tab.click("Buy a session")
    await tour.at("/console/sessions/new")
    await tab.fill("main form [name=gb]", "2")
    await tab.until("document.querySelector('[data-cost]').dataset.cost === '2000000'")
    await tour.shoot("buy")
    await tab.click("main form [type=submit]")
    await tab.until_text("This is shown only once", "dialog")
    await tab.click("I have stored it")
    await tab.until("/^.console.sessions.[0-9a-f-]{36}$/.test(location.pathname)")
    await tab.settled()
    await tab.until_text("$8.00", "#balance")
    return str(await tab.run("location.pathname.split('/').at(-1)"))


async def fetched(tour: Tour, session_id: str) -> None:
    """Run the shown curl line for real; the page follows, and equals the API."""
    tab, shown = tour.tab, f"document.querySelector('[data-session=\"{session_id}\"]').dataset.used"
    with web() as target:
        await tab.fill("#target", f"http://127.0.0.1:{target.port}/bytes/{SIZE}")
        await tab.until_text(f":{target.port}/", "[data-line=curl] .copy-text")
        line = await tab.text("[data-line=curl] .copy-text")
        done = await asyncio.create_subprocess_shell(
            f"{line} --silent --show-error --output {tour.folder}/fetched"
        )
        assert await done.wait() == 0, line
        assert (tour.folder / "fetched").stat().st_size == SIZE
        moved = target.received + target.sent
        await tab.until(f"{shown} === '{moved}'")
        answer = await tour.ask(f"/api/bandwidth/sessions/{session_id}")
        assert answer["session"]["bytes_used"] == moved
        await tour.shoot("session")


def dollars(usd: float) -> str:
    """Return an amount as the page writes it: to the micro-dollar, of cents at the least."""
    whole, _, part = f"{usd:.6f}".rstrip("0").partition(".")
    return f"${whole}.{part:0<2}"


async def ended(tour: Tour, session_id: str) -> None:
    """End the session after its cost was shown; the wallet's amounts add up to the last digit."""
    tab = tour.tab
    due = (await tour.ask(f"/api/bandwidth/sessions/{session_id}"))["due_usd"]
    await tab.click("main .button.danger")
    await tab.until_text(dollars(due), "dialog")
    await tab.click("dialog button[value=yes]")
    # To the cent in the top bar, and never more than there is; exactly behind it and in the wallet.
    await tab.until(f"document.querySelector('#balance span').title === '{dollars(10 - due)}'")
    assert await tab.text("#balance span") == f"${math.floor((10 - due) * 100) / 100:.2f}"
    await tour.go("/console/wallet")
    await tab.until_text(dollars(10 - due), "main")
    await tour.shoot("wallet")
    wallet = await tour.ask("/api/wallet")
    assert (wallet["usd_balance"], wallet["usd_held"]) == (round(10 - due, 6), 0)
    moved = await tour.ask("/api/wallet/transactions")
    usd = [each["amount"] for each in moved["transactions"] if each["currency"] == "usd"]
    assert round(sum(usd), 6) == wallet["usd_balance"]


async def worked(tour: Tour) -> None:
    """Register a machine, run the shown lines on it, post a job and read its output."""
    tab = tour.tab
    await tour.go("/console/devices")
    await tab.fill("Name", "rig-1")
    await tab.click("Register device")
    await tab.until(f"{LINES}.length === 3")
    lines = str(await tab.run(f"{LINES}[1].textContent"))
    await tab.click("I have stored it")
    async with agent(tour.folder, lines):
        await tab.until_text("It asks for work and would take some")
        await tour.shoot("device")
        await tour.go("/console/jobs")
        await tab.click("Post a job")
        await tab.fill("Title", "six times seven")
        await tab.fill("textarea[name=script]", "print(6 * 7)")
        await tab.click("Post the job")
        await tab.until_text("42", ".log")
        await tab.until_text("Done", ".facts")
        await tour.shoot("job")


async def looked_around(tour: Tour) -> None:
    """See it all on the overview, and on a telephone in the dark."""
    await tour.go("/console/usage")
    await tour.shoot("usage")
    await tour.go("/console")
    await tour.tab.until_text("The job “six times seven” is done", ".overview-events")
    await tour.shoot("overview")
    await tour.tab.emulate(dark=True, width=360, height=740)
    await tour.shoot("overview-narrow")


async def paths(service: Service) -> list[re.Pattern[str]]:
    """Return the paths of the API's own document, as patterns."""
    answer = await service.call("GET", "/openapi.json")
    assert answer.status == 200
    return [
        re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))
        for path in answer.body["paths"]
    ]


async def test_from_a_friends_link_to_money_that_adds_up(tour: Tour, visit: Visit) -> None:
    require_sandbox(tour.folder)
    await registered(tour)
    await paid(tour)
    session_id = await bought(tour)
    await fetched(tour, session_id)
    await ended(tour, session_id)
    await worked(tour)
    await looked_around(tour)
    known = await paths(tour.service)
    for sent in visit.requests:
        assert sent.origin == tour.service.url, f"{sent.url} leaves the origin"
        is_page = sent.kind == "Document" or sent.path.startswith("/console/")
        assert is_page or any(each.fullmatch(sent.path) for each in known), sent.path
