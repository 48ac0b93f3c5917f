"""The pages of the staff in a browser: log in, search, view a user, write a note, suspend."""

from pathlib import Path

from support.clients.staff import staffed
from support.console.axe import faults
from support.console.browser import Visit, needs_chromium
from support.market.staff import PASSWORD, code_at

from market.staff.base.roles import Role
from proxyd.loop import clock


@needs_chromium
async def test_a_member_finds_a_user_writes_a_note_and_suspends(
    tmp_path: Path, visit: Visit
) -> None:
    visit.expect("401")  # before the login, and with a wrong code
    async with staffed(tmp_path) as staff:
        person = await staff.service.person(usd="5")
        ada = await staff.hire(Role.SUPPORT, "ada")
        tab = await visit.open(f"{staff.url}/staff")
        await tab.until_text("Staff login", "h1")
        await tab.fill("E-mail address", ada.email)
        await tab.fill("Password", PASSWORD)
        await tab.fill("Code", "wrong")
        await tab.click("Log in")
        await tab.until_text("the code is wrong")
        assert not await faults(tab)
        await tab.fill("Code", code_at(ada, clock.seconds()))
        await tab.click("Log in")
        await tab.until_text("Queue", "h1")
        assert await tab.run("document.cookie") == ""
        assert "Staff" not in await tab.text("nav")  # the role has no list of members
        await tab.fill("Search for", person.email)
        await tab.press("Enter")
        await tab.click("person1")
        await tab.until_text("person1", "h1")
        await tab.until_text("5 usd + 0 held")
        await tab.until_text("p…@e…")
        await tab.click("Show e-mail address and networks")
        await tab.fill("Reason to show e-mail address and networks", "the user telephones")
        await tab.click("Show e-mail address and networks")
        await tab.until_text(person.email)
        await tab.fill("New note", "<b>asked</b> by telephone")
        await tab.click("Write note")
        await tab.until_text("<b>asked</b> by telephone", "table")
        assert not await faults(tab)
        await tab.click("Suspend this user")
        await tab.fill("Reason for the user", "Mail to strangers.")
        await tab.fill("Reason for the staff", "ticket A-17")
        await tab.click("Suspend")
        await tab.until_text("1 of 1 nodes answered")
        await tab.until_text("Mail to strangers.")
        refused = await staff.service.call("GET", "/api/bandwidth/sessions", token=person.token)
        assert refused.code == "account_suspended"
        assert not await faults(tab)
        await tab.fill("Reason to resume", "resolved")
        await tab.click("Resume all")
        await tab.until('!document.body.innerText.includes("Mail to strangers.")')
        answer = await staff.service.call("GET", "/api/bandwidth/sessions", token=person.token)
        assert answer.status == 200
        await tab.click("Log out")
        await tab.until_text("Staff login", "h1")


async def test_the_pages_have_a_strict_policy_and_no_secret(tmp_path: Path) -> None:
    async with staffed(tmp_path) as staff:
        for path in ("/staff", "/staff/", "/staff/assets/staff.js", "/staff/assets/dom.js"):
            async with staff.service.http.get(staff.url + path) as response:
                assert response.status == 200
                policy = response.headers["Content-Security-Policy"]
                assert "default-src 'none'; script-src 'self';" in policy
                assert "unsafe" not in policy
                assert response.headers["Cache-Control"] == "no-cache"
            async with staff.service.http.get(staff.service.url + path) as response:
                assert response.status == 404
