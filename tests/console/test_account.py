"""The assistant, referrals and the account in a browser."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.clients.staff import staffed
from support.console.axe import faults, needs_axe
from support.console.browser import Visit
from support.console.console import PASSWORD, opened
from support.daemons.service import Service, running_in
from support.market.pictures import jpeg, natural
from support.targets import upstream as stand_in
from support.targets.mailbox import Mailbox, smtp
from support.targets.upstream import Upstream

from market.staff.base.roles import Role

# A fact that is no reward: the text "10 credits" contains "0 credits".
NOTHING = "(each) => each.textContent === '0 credits'"


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with stand_in.upstream() as running:
        yield running


@pytest.fixture
async def modelled(tmp_path: Path, upstream: Upstream) -> AsyncIterator[Service]:
    """A daemon with a model behind it."""
    assistant = {
        "base_url": upstream.url,
        "api_key": "sk-very-secret",
        "model": "small",
        "vision_model": "eye",
    }
    async with running_in(tmp_path, assistant=assistant) as running:
        yield running


@pytest.mark.long
async def test_the_built_in_assistant_says_that_it_is_one(service: Service, visit: Visit) -> None:
    tab = await opened(visit, service, await service.person(), "/console/assistant")
    await tab.until_text("Ask something first")
    await tab.fill("Your message", "hello")
    await tab.click("Send")
    await tab.until_text("no language model wrote it", ".said.theirs")


@pytest.mark.long
async def test_an_answer_is_shown_with_the_model_and_the_talk_goes_on(
    modelled: Service, upstream: Upstream, visit: Visit
) -> None:
    tab = await opened(visit, modelled, await modelled.person(), "/console/assistant")
    await tab.fill("Your message", "good day")
    await tab.click("Send")
    await tab.until_text("Written by", ".said.theirs")
    await tab.until("document.querySelector('textarea').value === ''")
    await tab.fill("Your message", "and now")
    await tab.click("Send")
    await tab.until("document.querySelectorAll('.said').length === 4")
    await tab.settled()
    assert "good day" in json.dumps(upstream.asked[-1])


@pytest.mark.long
async def test_a_photo_is_looked_at_and_its_reward_listed(
    modelled: Service, upstream: Upstream, visit: Visit, tmp_path: Path
) -> None:
    upstream.will(stand_in.says(json.dumps(stand_in.VERDICT)))
    person = await modelled.person()
    tab = await opened(visit, modelled, person, "/console/assistant")
    await tab.until_text("No photo has earned anything yet")
    await tab.click("Have it looked at")
    await tab.until_text("Choose a photo first.")
    photo = tmp_path / "bread.jpg"
    photo.write_bytes(jpeg(natural(1)))
    await tab.fill("Choose a photo", photo)
    await tab.until("document.querySelector('.preview img')?.naturalWidth > 0")
    await tab.click("Have it looked at")
    await tab.until_text("Somebody hands a bag of food to a neighbour.")
    await tab.until_text("giving", "table")
    listed = await modelled.call("GET", "/api/assistant/rewards", token=person.token)
    left = f"{listed.body['left_today']:g} credits of {listed.body['daily']:g} credits"
    await tab.until_text(left)
    await tab.click("Have it looked at")
    await tab.until(f"[...document.querySelectorAll('.facts dd')].some({NOTHING})")


@pytest.mark.long
async def test_the_link_brings_a_user_and_a_reward_without_a_name(
    service: Service, visit: Visit
) -> None:
    person = await service.person()
    tab = await opened(visit, service, person, "/console/referrals")
    await tab.until_text("You have no referrals yet")
    link = await tab.text(".copy-text")
    newcomer = {"username": "newcomer", "email": "new@example.com", "password": PASSWORD}
    code = link.partition("ref=")[2]
    await service.call("POST", "/auth/register", {**newcomer, "ref": code})
    await tab.until_text("It is in your balance.")
    assert "newcomer" not in await tab.text("main")


async def test_a_code_is_applied_and_a_wrong_one_refused(service: Service, visit: Visit) -> None:
    friend, person = await service.person(), await service.person()
    info = await service.call("GET", "/api/referral/info", token=friend.token)
    visit.expect("404")
    tab = await opened(visit, service, person, "/console/referrals")
    await tab.fill("Code", "AAAAAAAA")
    await tab.click("Apply a code")
    await tab.until("document.querySelector('form .problem:not([hidden])') !== null")
    await tab.fill("Code", info.body["referral_code"])
    await tab.click("Apply a code")
    await tab.until_text("Applied:")


@pytest.mark.long
async def test_logins_are_ended_one_by_one_and_together(service: Service, visit: Visit) -> None:
    person = await service.person()
    body = {"email": person.email, "password": PASSWORD}
    tab = await opened(visit, service, person, "/console/account")
    await tab.until_text("This one", "table")
    rows = "document.querySelectorAll('tbody tr').length"
    await tab.until(f"{rows} === 2")
    await tab.click("tbody button")
    await tab.until_text("You are logged in nowhere else.")
    assert (await service.call("GET", "/auth/me", token=person.token)).status == 401
    other = (await service.call("POST", "/auth/login", body)).body["token"]
    await tab.goto(f"{service.url}/console/account")
    await tab.click("End all other logins")
    await tab.until_text("1 other login ends immediately", "dialog")
    await tab.click("dialog button[value=yes]")
    await tab.until_text("You are logged in nowhere else.")
    assert (await service.call("GET", "/auth/me", token=other)).status == 401


async def test_the_password_is_changed_and_ends_other_logins(
    service: Service, visit: Visit
) -> None:
    person = await service.person()
    visit.expect("400")
    tab = await opened(visit, service, person, "/console/account")
    await tab.fill("Present password", "not the one")
    await tab.fill("New password", "another one entirely")
    await tab.click("Change the password")
    await tab.until("document.querySelector('form .problem:not([hidden])') !== null")
    await tab.fill("Present password", PASSWORD)
    await tab.click("Change the password")
    await tab.until_text("Your password was changed.")
    assert (await service.call("GET", "/auth/me", token=person.token)).status == 401


@pytest.mark.long
async def test_language_and_colours_are_chosen(service: Service, visit: Visit) -> None:
    tab = await opened(visit, service, await service.person(), "/console/account")
    await tab.fill("main label:nth-of-type(2) select", "dark")
    await tab.until("document.documentElement.dataset.scheme === 'dark'")
    assert await tab.run("document.getElementById('scheme').value") == "dark"
    await tab.fill("main label:nth-of-type(1) select", "tr")
    await tab.until_text("Dil ve renkler")


@pytest.mark.long
async def test_the_letter_is_sent_again_and_then_waits(tmp_path: Path, visit: Visit) -> None:
    async with smtp(Mailbox()) as port:
        mail = {"host": "127.0.0.1", "port": port, "tls": "none"}
        async with running_in(tmp_path, mail=mail) as service:
            tab = await opened(visit, service, await service.person(), "/console/account")
            await tab.click("Send the letter again")
            await tab.until_text("Sent. Look into your spam folder")
            await tab.until_text("Again in")


@pytest.mark.long
async def test_no_letter_is_promised_where_none_is_sent(service: Service, visit: Visit) -> None:
    tab = await opened(visit, service, await service.person(), "/console/account")
    said = []
    pages = {
        "/console/account": "Make another link",
        "/verify": "Make another link",
        "/forgot": "Make the link",
        "/register": "Open the account",
        "/console": "To the wallet",
    }
    for path, action in pages.items():
        await tab.goto(service.url + path)
        await tab.until_text(action, "main")
        said.append(await tab.text("main"))
    assert [each for each in said if "letter" in each or "We send" in each] == []
    assert all("sends no e-mail" in each for each in said[:-1])


async def test_an_account_is_exported_and_closed(service: Service, visit: Visit) -> None:
    person = await service.person()
    visit.expect("400")
    tab = await opened(visit, service, person, "/console/account")
    await tab.click("Export my data")
    await tab.until_text("Your export is saved.")
    await tab.fill("Your password", PASSWORD)
    await tab.click("Close my account")
    await tab.until_text("After 14 days your account is erased.", "dialog")
    await tab.click("dialog button[value=yes]")
    await tab.until("location.pathname === '/login'")
    assert (await service.call("GET", "/auth/me", token=person.token)).status == 401
    await tab.fill("E-mail address", person.email)
    await tab.fill("Password", PASSWORD)
    await tab.click("Log in")
    await tab.until_text("This login has opened it again.", "#toasts")


@needs_axe
async def test_a_suspended_user_reads_the_acts_of_the_staff(tmp_path: Path, visit: Visit) -> None:
    async with staffed(tmp_path) as staff:
        person, other = await staff.service.person(usd="5"), await staff.service.person()
        tab = await opened(visit, staff.service, other, "/console/account")
        await tab.until_text("The staff has done nothing about your account.")
        token, path = await staff.token(Role.OPERATOR, "olga"), f"/users/{person.user_id}"
        await staff.call("POST", f"{path}/notes", {"text": "a rude caller"}, token=token)
        for number in range(10):
            body = {"parts": ["logins"], "shown": f"Reason {number}.", "reason": "ticket A-17"}
            done = await staff.call("POST", f"{path}/suspend", body, token=token)
            assert done.status == 200, done.body
        visit.expect("400")  # requests that a suspended login may not send
        tab = await opened(visit, staff.service, person, "/console/account")
        await tab.until_text("Your account was suspended", "main")
        await tab.until_text("Reason 9.", "main")
        await tab.until_text("logins: active → suspended", "main")
        assert "A note was written" not in await tab.text("main")
        await tab.click("Load more")
        await tab.until_text("A note was written", "main")
        text = await tab.text("main")
        assert not [each for each in ("rude", "A-17", "olga") if each in text]
        assert not await faults(tab)
