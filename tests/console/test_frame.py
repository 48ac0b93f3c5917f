"""The frame of the pages: the menu on every screen, the address, the focus."""

import pytest
from support.base.waiting import until
from support.console.browser import Tab, Visit
from support.daemons.service import Service


async def entered(service: Service, visit: Visit, path: str = "/console", **emulated: int) -> Tab:
    person = await service.person("5", "2")
    tab = await visit.open(f"{service.url}/login?next={path}", **emulated)
    await tab.fill("E-mail address", person.email)
    await tab.fill("Password", "long enough")
    await tab.click("form [type=submit]")
    await tab.until(f"location.pathname === {path!r}")
    return tab


async def test_the_menu_shows_the_place_and_the_balance(service: Service, visit: Visit) -> None:
    tab = await entered(service, visit)
    await tab.until_text("Overview", "h1")
    assert await tab.text(".menu [aria-current=page]") == "Overview"
    assert "$5.00 · 2 credits" in await tab.text(".balance")
    assert not await tab.run("document.querySelector('nav.bar').checkVisibility()")
    names = await tab.run("[...document.querySelectorAll('.menu a')].map((each) => each.pathname)")
    assert len(names) == len(set(names)) == 17
    await tab.click("proxyd")
    assert await tab.run("document.title") == "Overview – proxyd"


@pytest.mark.long
async def test_on_a_telephone_the_menu_is_under_the_thumb(service: Service, visit: Visit) -> None:
    tab = await entered(service, visit, width=360)
    await tab.until_text("Overview", "h1")
    assert not await tab.run("document.querySelector('.menu').checkVisibility()")
    bar = "[...document.querySelectorAll('nav.bar > *')].map((each) => each.innerText)"
    assert await tab.run(bar) == ["Sessions", "Usage", "Wallet", "More"]
    await tab.click("More")
    assert await tab.focused() == "Overview"
    assert await tab.run("document.querySelector('nav.bar button').ariaExpanded") == "true"
    await tab.press("Escape")
    assert await tab.focused() == "More"
    assert not await tab.run("document.querySelector('.menu').checkVisibility()")
    await tab.click("More")
    await tab.click("Log out")
    await tab.until("location.pathname === '/login'")


async def test_a_page_that_is_gone_to_has_the_focus_on_its_heading(
    service: Service, visit: Visit
) -> None:
    tab = await visit.open(f"{service.url}/login")
    await tab.click("I have forgotten my password")
    await tab.until_text("Forgotten password", "h1")
    assert await tab.run("document.activeElement === document.querySelector('h1')")
    assert await tab.run("document.title") == "Forgotten password – proxyd"
    await tab.run("history.back()")
    await tab.until_text("Log in", "h1")
    await tab.run("history.forward()")
    await tab.until_text("Forgotten password", "h1")


async def test_the_content_can_be_gone_to_at_once_and_nothing_is_lost(
    service: Service, visit: Visit
) -> None:
    tab = await visit.open(f"{service.url}/login")
    await tab.until("document.querySelector('form') !== null")
    await tab.run("document.querySelector('[name=email]').value = 'kept@example.com'")
    await tab.press("Tab")
    await tab.press("Enter")
    await tab.until("location.hash === '#main'")
    await tab.press("Tab")
    assert await tab.focused() == "E-mail address"
    assert await tab.run("document.activeElement.value") == "kept@example.com"


async def test_a_link_is_followed_without_loading_and_others_are_the_browser_s(
    service: Service, visit: Visit
) -> None:
    tab = await visit.open(f"{service.url}/login")
    origin = await tab.run("performance.timeOrigin")
    await tab.click("Open an account")
    await tab.until_text("Open an account", "h1")
    assert await tab.run("performance.timeOrigin") == origin
    await tab.click("API")
    await tab.until("location.pathname === '/docs'")
    assert await tab.run("performance.timeOrigin") != origin


@pytest.mark.long
async def test_an_address_that_is_no_page_says_so(service: Service, visit: Visit) -> None:
    for path in ("/console/nowhere", "/console/a/b/c", "/console/devices/%zz"):
        tab = await visit.open(service.url + path)
        await tab.until_text("There is no such page", "h1")


@pytest.mark.long
async def test_another_language_is_that_of_everything(service: Service, visit: Visit) -> None:
    tab = await entered(service, visit)
    await tab.until_text("Overview", "h1")
    for language, heading, wallet in (
        ("tr", "Genel bakış", "Cüzdan"),
        ("ru", "Обзор", "Кошелёк"),
        ("ko", "개요", "지갑"),
        ("en", "Overview", "Wallet"),
    ):
        await tab.fill("#language", language)
        await tab.until_text(heading, "h1")
        await tab.until_text(wallet, ".menu")
        assert await tab.run("document.documentElement.lang") == language
        await tab.until("document.activeElement.id === 'language'")


@pytest.mark.long
async def test_a_logout_in_one_tab_is_a_logout_in_all(service: Service, visit: Visit) -> None:
    tab = await entered(service, visit, "/console/wallet")
    other = await visit.open(f"{service.url}/console/account")
    await other.settled()
    before = len(tab.requests)
    await other.click("Log out")
    await other.until("location.pathname === '/login'")
    await tab.until("location.pathname + location.search === '/login?next=%2Fconsole%2Fwallet'")
    # The end of its stream leads there as well: only the stream is requested.
    await until(
        lambda: "/auth/me" in [sent.path for sent in tab.requests[before:]],
        "the other tab's word has the tab ask whether it is logged in",
    )
