"""One tour through the console, without a hand: from a friend's link to money that adds up.

With PROXYD_SCREENSHOTS it leaves pictures of what it sees in that folder; `make screenshots` puts
them where docs/console.md shows them.
"""

import asyncio
import io
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support import process
from support.browser import Tab, Visit
from support.console import agent
from support.mailbox import Mailbox, smtp
from support.service import Person, Service, running_in
from support.waiting import until
from support.worker_process import require_sandbox

PASSWORD = "correct horse"
EMAIL = "ada@example.com"
SCREENSHOTS = os.environ.get("PROXYD_SCREENSHOTS", "")
COLOURS = 128
LINK = re.compile(r"http\S+/verify\?token=\S+")
LINES = "document.querySelectorAll('dialog .copy-text')"


@dataclass
class Tour:
    """Somebody on their way through the console."""

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
    """A daemon whose letters are sent; its ledger must agree in the end."""
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
    """Have the operator pay money in, by the command that there is for it; the page hears of it."""
    store = f"sqlite:///{tour.folder}/proxyd.db"
    amounts = ("--usd", "10", "--credits", "20")
    done = await asyncio.to_thread(process.run, store, "wallet", "deposit", *amounts, EMAIL)
    assert done.returncode == 0, done.stderr
    await tour.tab.until("document.querySelector('[data-step=money]').dataset.done === 'true'")
    await tour.shoot("first-steps")


async def worked(tour: Tour) -> None:
    """Register a machine, run the shown lines on it, post a job and see what it prints."""
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


async def test_from_a_friends_link_to_money_that_adds_up(tour: Tour, visit: Visit) -> None:
    require_sandbox(tour.folder)
    await registered(tour)
    await paid(tour)
    await worked(tour)
