"""A server that goes away and comes back, perhaps as another version, under an open page."""

from pathlib import Path

import pytest
from support.base.ports import free_port
from support.console.browser import Tab, Visit
from support.daemons.service import Service, running, running_in, settings_for
from support.database import sqlite

import api.console


async def logged_in(service: Service, visit: Visit, path: str) -> Tab:
    person = await service.person()
    tab = await visit.open(f"{service.url}/login?next={path}")
    await tab.fill("E-mail address", person.email)
    await tab.fill("Password", "long enough")
    await tab.click("form [type=submit]")
    await tab.until(f"location.pathname === {path!r}")
    return tab


@pytest.mark.long
async def test_a_server_that_is_draining_says_so_and_the_page_goes_on(
    tmp_path: Path, visit: Visit
) -> None:
    async with running_in(tmp_path) as service:
        tab = await logged_in(service, visit, "/device")
        await tab.until_text("Let a device in", "h1")
        service.daemon.http.drain()
        await tab.click("proxyd")
        await tab.until_text("The server is about to restart.", "#state")
        await tab.until_text("try again in a moment", ".failed")
        service.daemon.http._draining = False  # as after the restart
        await tab.until("document.querySelector('#state')?.innerText === ''")
        await tab.until_text("Overview", "h1")
        await tab.settled()


async def test_a_page_that_is_open_survives_a_restart(tmp_path: Path, visit: Visit) -> None:
    visit.expect("ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE")
    settings = settings_for(sqlite.database(tmp_path), api={"port": free_port()})
    async with running(settings) as service:
        tab = await logged_in(service, visit, "/device")
        await tab.fill("Code", "BCDF")
    await tab.click("proxyd")
    await tab.until_text("The server does not answer.", "#state")
    await tab.until_text("Sessions", ".menu")  # the menu and the balance stay
    assert "$0.00" in await tab.text("#balance")
    async with running(settings):
        await tab.until_text("Overview", "h1")
        await tab.until("document.querySelector('#state')?.innerText === ''")
        await tab.settled()


@pytest.mark.long
async def test_after_an_upgrade_a_page_loads_itself_again(
    tmp_path: Path, visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    visit.expect("Not Found|ERR_CONNECTION_REFUSED")
    settings = settings_for(sqlite.database(tmp_path), api={"port": free_port()})
    loaded = "performance.timeOrigin"
    async with running(settings) as service:
        tab = await visit.open(f"{service.url}/login")
        await tab.until_text("Log in", "h1")
        before = await tab.run(loaded)
        old = await tab.run("document.querySelector('script').src")
    upgraded = tmp_path / "upgraded"
    copied(api.console.FOLDER, upgraded)
    (upgraded / "app.css").write_text("/* another version */")
    monkeypatch.setattr(api.console, "packaged", lambda _look: api.console.Console(upgraded))
    async with running(settings):
        await tab.click("I have forgotten my password")
        await tab.until_text("Forgotten password", "h1")
        assert await tab.run(loaded) != before
        assert await tab.run("document.querySelector('script').src") != old
        assert await tab.run("location.pathname") == "/forgot"


def copied(folder: Path, target: Path) -> None:
    for path in folder.rglob("*.*"):
        place = target / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
