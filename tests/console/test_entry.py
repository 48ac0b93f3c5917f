"""The pages before the console: register, confirm, log in, replace a password, in a browser."""

import logging
import re

import pytest
from support.base.waiting import until
from support.console.browser import Tab, Visit
from support.daemons.service import Service

PASSWORD = "long enough"


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO)
    return caplog


async def link(log: pytest.LogCaptureFixture, kind: str) -> str:
    """Return the last link of a kind that an e-mail held."""
    await until(lambda: f"/{kind}?token=" in log.text)
    return str(re.findall(rf"http\S+/{kind}\?token=\S+", log.text)[-1])


async def letters(log: pytest.LogCaptureFixture, email: str, count: int) -> None:
    """Wait until an address was sent a number of e-mails."""
    await until(lambda: log.text.count(f"e-mail to {email} ") == count)


async def log_in(tab: Tab, email: str, password: str = PASSWORD) -> None:
    await tab.fill("E-mail address", email)
    await tab.fill("Password", password)
    await tab.click("form [type=submit]")


async def at(tab: Tab, path: str) -> None:
    await tab.until(f"location.pathname + location.search === {path!r}")


async def test_a_visitor_without_a_login_comes_back_to_the_wanted_page(
    service: Service, visit: Visit
) -> None:
    person = await service.person("5")
    tab = await visit.open(f"{service.url}/device?x=1")
    await at(tab, "/login?next=%2Fdevice%3Fx%3D1")
    await log_in(tab, person.email)
    await at(tab, "/device?x=1")
    await tab.until_text("Let a device in", "h1")
    await tab.click("proxyd")
    await tab.until_text("$5.00", ".balance")
    await tab.click("Log out")
    await at(tab, "/login")
    await tab.goto(f"{service.url}/console")
    await at(tab, "/login?next=%2Fconsole")
    await tab.goto(f"{service.url}/console/nowhere")
    await tab.until_text("There is no such page", "h1")


ELSEWHERE = (
    "https://example.com/",
    "//example.com/console",
    "/\\example.com",
    "javascript:alert(1)",
    "/docs",
)


async def test_after_logging_in_no_user_is_led_elsewhere(service: Service, visit: Visit) -> None:
    person = await service.person()
    tab = await visit.open(f"{service.url}/login")
    for wanted in ELSEWHERE:
        await tab.run(f"location.href = '/login?next=' + encodeURIComponent({wanted!r})")
        await tab.until("location.search !== '' && document.querySelector('form') !== null")
        await log_in(tab, person.email)
        await at(tab, "/console")
        await tab.ask("Network.clearBrowserCookies")
        await tab.goto(f"{service.url}/login")


async def test_no_script_can_read_the_login(service: Service, visit: Visit) -> None:
    person = await service.person()
    tab = await visit.open(f"{service.url}/login")
    await log_in(tab, person.email)
    await at(tab, "/console")
    seen = (
        "document.cookie + JSON.stringify({...localStorage}) + JSON.stringify({...sessionStorage})"
    )
    assert "ey" not in await tab.run(seen)
    assert await tab.run("fetch('/auth/me').then((answer) => answer.status)") == 401
    asked = "fetch('/auth/me', {headers: {'X-Requested-By': 'console'}})"
    assert await tab.run(f"{asked}.then((answer) => answer.status)") == 200


@pytest.mark.long
async def test_a_wrong_password_is_reported_and_then_the_time_to_try_again(
    service: Service, visit: Visit
) -> None:
    person = await service.person()
    tab = await visit.open(f"{service.url}/login")
    for _ in range(10):
        await service.call("POST", "/auth/login", {"email": person.email, "password": "wrong"})
    await log_in(tab, person.email, "wrong too")
    await tab.until_text("Next try at", "[role=alert]")
    assert re.search(r"Next try at \d{1,2}:\d\d", await tab.text("[role=alert]"))
    await log_in(tab, "nobody@example.com", "wrong")
    await tab.until_text("The e-mail address or the password is wrong", "[role=alert]")


async def test_a_person_comes_by_a_referral_and_confirms(
    service: Service, visit: Visit, log: pytest.LogCaptureFixture
) -> None:
    referrer = await service.person()
    info = await service.call("GET", "/api/referral/info", token=referrer.token)
    tab = await visit.open(info.body["referral_link"])
    await tab.until_text("You were invited with the code")
    await tab.click("form [type=submit]")
    await tab.until_text("Please fill this in.")
    assert await tab.focused() == "User name"
    await tab.fill("User name", "person1")
    await tab.fill("E-mail address", "ada@example.com")
    await tab.fill("Password", "short")
    await tab.click("Open the account")
    await tab.until_text("At least 8 characters.")
    await tab.fill("Password", "correct horse")
    await tab.click("Open the account")
    await tab.until_text("An account with this user name exists.", ".field")
    assert await tab.focused() == "User name"
    await tab.fill("User name", "ada")
    await tab.click("Open the account")
    await at(tab, "/verify")
    await letters(log, "ada@example.com", 1)  # a second one would replace it while it waits
    await tab.click("Make another link")
    await tab.until_text("Again in")
    info = await service.call("GET", "/api/referral/info", token=referrer.token)
    assert info.body["total_referrals"] == 1

    await letters(log, "ada@example.com", 2)  # the link of the first one is void
    await tab.goto(await link(log, "verify"))
    await at(tab, "/verify")
    await tab.until_text("Press the button")
    await tab.fill("Language", "Türkçe")
    await tab.until_text("Adresimi onayla")  # the secret is still there, though not in the address
    assert "token=" not in await tab.run("location.href")
    asked = "fetch('/auth/me', {headers: {'X-Requested-By': 'console'}})"
    assert await tab.run(f"{asked}.then((a) => a.json()).then((a) => a.email_verified)") is False
    await tab.click("Adresimi onayla")
    await tab.until_text("Adresiniz onaylandı.", ".notice")
    assert await tab.run(f"{asked}.then((a) => a.json()).then((a) => a.email_verified)") is True


@pytest.mark.long
async def test_an_unknown_code_is_reported(service: Service, visit: Visit) -> None:
    tab = await visit.open(f"{service.url}/register?ref=NOBODYS1")
    await tab.fill("User name", "ada")
    await tab.fill("E-mail address", "ada@example.com")
    await tab.fill("Password", "correct horse")
    await tab.click("Open the account")
    await at(tab, "/verify")
    await tab.until_text("no user has the code NOBODYS1")


@pytest.mark.long
async def test_a_used_link_names_the_remedy(service: Service, visit: Visit) -> None:
    tab = await visit.open(f"{service.url}/verify?token=made-up")
    await tab.click("Confirm my address")
    await tab.until_text("The link is not valid, was used before, or is too old.")
    await tab.click("Make another link")
    await tab.until_text("log in first")


@pytest.mark.long
async def test_a_forgotten_password_is_replaced(
    service: Service, visit: Visit, log: pytest.LogCaptureFixture
) -> None:
    person = await service.person()
    tab = await visit.open(f"{service.url}/login")
    said = []
    for email in ("nobody@example.com", person.email):
        await tab.goto(f"{service.url}/forgot")
        await tab.fill("E-mail address", email)
        await tab.click("Make the link")
        await tab.until_text("the link is in the log", ".notice")
        said.append(await tab.text("main"))
    assert said[0] == said[1]
    await tab.goto(await link(log, "reset"))
    await at(tab, "/reset")
    await tab.fill("New password", "another password")
    await tab.click("Change the password")
    await tab.until_text("has been changed")
    await tab.click("Log in")
    await log_in(tab, person.email, "another password")
    await at(tab, "/console")
    await tab.goto(f"{service.url}/reset")
    await tab.until_text("needs the link from our letter")


@pytest.mark.long
async def test_the_pages_do_without_a_mouse(service: Service, visit: Visit) -> None:
    person = await service.person()
    tab = await visit.open(f"{service.url}/login")
    await tab.until("document.querySelector('form') !== null")
    said = []
    for _ in range(3):
        await tab.press("Tab")
        said.append(await tab.focused())
    assert said == ["Skip to the content", "proxyd", "E-mail address"]
    await tab.type(person.email)
    await tab.press("Tab")
    await tab.type(PASSWORD)
    await tab.press("Enter")
    await at(tab, "/console")


@pytest.mark.long
async def test_language_and_colours_are_remembered(service: Service, visit: Visit) -> None:
    tab = await visit.open(f"{service.url}/login", language="ko-KR,ko", dark=False)
    await tab.until_text("로그인", "h1")
    assert await tab.run("document.documentElement.lang") == "ko"
    await tab.fill("언어", "Русский")
    await tab.until_text("Вход", "h1")
    await tab.fill("Цвета", "dark")
    await tab.goto(f"{service.url}/forgot")
    await tab.until_text("Восстановление пароля", "h1")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert await tab.run(ground) == "rgb(20, 23, 27)"
    await tab.fill("Цвета", "auto")
    assert await tab.run(ground) == "rgb(246, 247, 249)"


async def test_a_letter_s_secret_is_in_no_history_and_in_no_referrer(
    service: Service, visit: Visit
) -> None:
    tab = await visit.open(f"{service.url}/reset?token=a-secret")
    await tab.until_text("Choose a new password", "h1")
    history = await tab.ask("Page.getNavigationHistory")
    assert all("a-secret" not in entry["url"] for entry in history["entries"])
    stored = await tab.run(
        "JSON.stringify({...localStorage}) + JSON.stringify({...sessionStorage})"
    )
    assert "a-secret" not in stored
